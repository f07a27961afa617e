"""What is deleted with jobs, and after them: not a day too early, and nothing that a job still names."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from stoker.core.summary import summarize
from stoker.maintenance import delete
from stoker.model import codec, keys
from stoker.model.errors import StoreDenied, StoreError, StoreUnavailable, UserError
from stoker.model.log_entries import Ended, Event, Record, ResumeAsked, Submitted
from stoker.model.spec import Input, Spec
from stoker.model.submission import Code, Submission, Wheel
from stoker.store import job_index, job_log, removed_jobs
from stoker.submit import shared_objects
from stoker.submit.shared_objects import SharedObject, references
from stoker.submit.uploads import collect_uploads as collect_uploads
from stoker.testing.memory_store import Fault, MemoryStore

NOW = datetime(2026, 6, 1, tzinfo=timezone.utc)
DAY = timedelta(days=1)
MOMENT = timedelta(seconds=1)


class World:
    def __init__(self) -> None:
        self.now = NOW
        self.store = MemoryStore(lambda: self.now)
        self.calls: list[tuple[str, str]] = []
        self.meanwhile: dict[tuple[str, str], Callable[[], object]] = {}
        self.store.faults = self._called

    def _called(self, operation: str, key: str) -> Fault | None:
        self.calls.append((operation, key))
        self.meanwhile.pop((operation, key), lambda: None)()
        return None

    def put(self, key: str, age: timedelta, data: bytes = b"x") -> str:
        self.now = NOW - age
        self.store.put(key, data)
        self.now = NOW
        return key

    def keys(self, prefix: str = "") -> set[str]:
        return {meta.key for meta in self.store.list(prefix)}

    def submit(self, job: str, *events: Event, age: timedelta = timedelta(0), **named: Any) -> None:
        spec = Spec(name=job[:-5], run="true", inputs=named.pop("inputs", {}))
        data = codec.dumps(Submission(job, spec, "jane", **named))
        self.put(keys.spec(job), age, data)
        for seq, event in enumerate((Submitted(codec.digest(data), "jane"), *events), 1):
            self.now = NOW - age
            assert job_log.append(self.store, job, seq, Record(job_log.new_token(), "t", "t", event))
        self.now = NOW

    def indexed(self, job: str, *events: Event, age: timedelta) -> None:
        self.submit(job, *events, age=age)
        state = job_log.read(self.store, job)
        assert state is not None
        short = summarize(state, job_index.read_submission(self.store, state), {}, NOW)
        job_index.write_index(self.store, job_index.IndexRecord(state, short))


@pytest.fixture
def world() -> World:
    """A store whose time stands still, months from the time of this computer."""
    return World()


# ── What jobs share ───────────────────────────────────────────────────────────────────────────────────────────────────

USED, OLD, YOUNG, EDGE = "1" * 64, "2" * 64, "3" * 64, "4" * 64


def input_key(name: str) -> str:
    return f"{keys.input_files(name)}file"


KINDS = {
    "code": (keys.CODE, keys.code, {"code": Code(USED, 1, 1, None, None)}),
    "bundles": (keys.BUNDLES, keys.bundle, {"bundles": {"tag": USED}}),
    "tools": (keys.TOOLS, keys.tool, {"tools": {"uv": USED}}),
    "wheels": (keys.WHEELS, keys.wheel, {"wheels": {"t": (Wheel("n.whl", USED, 1),)}}),
    "inputs": (keys.INPUTS, input_key, {}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_no_job_names_goes_after_a_day(world: World, kind: str) -> None:
    folder, key, named = KINDS[kind]
    if kind == "inputs":
        named = {"inputs": {"data": Input(f"{world.store.url}/{keys.input_files(USED)}")}}
    world.submit("job-bbbb", age=9 * DAY, **named)
    for name, age in ((USED, 9 * DAY), (OLD, DAY + MOMENT), (EDGE, DAY), (YOUNG, MOMENT)):
        world.put(key(name), age)
    world.calls.clear()
    assert (collect_uploads(world.store) if kind == "inputs" else delete.collect_shared(world.store, folder)) == 1
    assert world.keys(folder) == {key(USED), key(EDGE), key(YOUNG)}
    mark = keys.collected(folder, OLD)
    assert world.keys("collected/") == {mark}
    assert world.calls.index(("create", mark)) < world.calls.index(("delete", key(OLD))), "given up before it goes"


def test_a_name_that_is_given_up_goes_however_young_it_is(world: World) -> None:
    world.put(keys.code(YOUNG), MOMENT)
    assert delete.collect_shared(world.store, keys.CODE) == 0
    world.store.create(keys.collected(keys.CODE, YOUNG), b"")
    assert delete.collect_shared(world.store, keys.CODE) == 1 and world.keys(keys.CODE) == set()
    assert delete.collect_shared(world.store, keys.CODE) == 0


def test_a_job_that_names_it_meanwhile_keeps_it(world: World) -> None:
    """Between the first look at the jobs and the second: it is given up all the same, and not deleted."""
    world.put(keys.code(OLD), 2 * DAY)
    mark = keys.collected(keys.CODE, OLD)
    named = Code(OLD, 1, 1, None, None)
    world.meanwhile["create", mark] = lambda: world.submit("new-bbbb", code=named)
    assert delete.collect_shared(world.store, keys.CODE) == 0
    assert world.keys(keys.CODE) == {keys.code(OLD)} and world.store.holds(mark)


def test_a_job_whose_spec_cannot_be_read_keeps_everything(world: World) -> None:
    world.put(keys.code(OLD), 2 * DAY)
    world.submit("bad-bbbb")
    world.put(keys.spec("bad-bbbb"), DAY, b"{")
    with pytest.raises(StoreError, match=r"bad-bbbb/spec\.json: cannot be read .*; nothing is collected"):
        delete.collect_shared(world.store, keys.CODE)
    assert world.store.holds(keys.code(OLD))
    world.store.delete([keys.spec("bad-bbbb")])
    assert delete.collect_shared(world.store, keys.CODE) == 1, "a job without a spec names nothing"


def test_what_a_spec_names() -> None:
    url = "s3://bucket/p"
    submission = Submission(
        "j-bbbb",
        Spec(
            name="j",
            run="true",
            inputs={
                "own": Input(f"{url}/{keys.input_files('up-3')}data.csv"),
                "other": Input("s3://other/inputs/x/"),
            },
        ),
        "jane",
        code=Code("c", 1, 1, None, None, generation=2),
        bundles={"a": "b1", "b": "b2"},
        tools={"uv": "t1"},
        wheels={"x": (Wheel("n.whl", "w1", 1), Wheel("m.whl", "w2", 1, generation=4))},
    )
    found = references(codec.dumps(submission), url, "here")
    assert found == {
        *(SharedObject(keys.CODE, "c-2"), SharedObject(keys.TOOLS, "t1"), SharedObject(keys.INPUTS, "up-3")),
        *(SharedObject(keys.BUNDLES, name) for name in ("b1", "b2")),
        *(SharedObject(keys.WHEELS, name) for name in ("w1", "w2-4")),
    }
    assert references(b'{"spec": {}}', url, "here") == set()


@pytest.mark.parametrize(
    "tree",
    [
        *({}, [], {"spec": {"inputs": {"a": {}}}}, {"spec": {}, "bundles": [1]}, {"spec": {}, "code": {}}),
        {"spec": {}, "code": {"digest": "c", "generation": "2"}},
    ],
)
def test_a_spec_that_makes_no_sense_may_name_anything(tree: object) -> None:
    with pytest.raises(StoreError, match=r"^here: cannot be read"):
        references(json.dumps(tree).encode(), "s3://b", "here")


def test_the_next_generation_is_used_where_earlier_ones_were_given_up(world: World) -> None:
    store = world.store
    sent: list[bytes] = []

    def read() -> bytes:
        sent.append(b"data")
        return b"data"

    def keep() -> str:
        return shared_objects.store_once(store, keys.CODE, USED, keys.code, read)

    assert (keep(), keep(), len(sent)) == (USED, USED, 1), "what is there is not sent again"
    for name in (USED, f"{USED}-2"):
        store.create(keys.collected(keys.CODE, name), b"")
        assert shared_objects.any_retired(store, [SharedObject(keys.CODE, f"{USED}-3"), SharedObject(keys.CODE, name)])
    assert not shared_objects.any_retired(store, [SharedObject(keys.CODE, f"{USED}-3")])
    assert keep() == f"{USED}-3" and len(sent) == 2
    assert world.keys(keys.CODE) == {keys.code(USED), keys.code(f"{USED}-3")}


# ── Environments ──────────────────────────────────────────────────────────────────────────────────────────────────────


def environment(world: World, key: str, age: timedelta, parts: str = "ab", **more: timedelta) -> None:
    tree = {"listing": {"digest": "l"}, "parts": [{"digest": part} for part in parts]}
    place = keys.ENVIRONMENTS
    world.put(keys.environment_manifest(place, key), age, json.dumps(tree).encode())
    world.put(keys.environment_used(place, key), age)
    for part in ("l", *parts):
        world.put(keys.environment_part(place, key, part), age)
    for part, older in more.items():
        world.put(keys.environment_part(place, key, part), older)


def names(world: World, key: str) -> set[str]:
    return {name.rpartition("/")[2] for name in world.keys(f"{keys.ENVIRONMENTS}{key}/")}


def test_an_environment_goes_a_month_after_its_last_use(world: World) -> None:
    for key, age in (("old", 30 * DAY + MOMENT), ("edge", 30 * DAY), ("new", DAY)):
        environment(world, key, age)
    environment(world, "used", 90 * DAY)
    world.put(keys.environment_used(keys.ENVIRONMENTS, "used"), 2 * DAY)
    world.calls.clear()
    assert delete.collect_environments(world.store) == 1
    assert [names(world, key) for key in ("old", "edge", "new", "used")] == [set()] + [
        {"manifest.json", "used", "a", "b", "l"}
    ] * 3
    deleted = [key for operation, key in world.calls if operation == "delete" and not key.startswith(keys.PROBES)]
    assert deleted[0] == keys.environment_manifest(keys.ENVIRONMENTS, "old"), "without it the rest is nothing"


def test_parts_that_no_manifest_names_go_after_a_day(world: World) -> None:
    environment(world, "e", 9 * DAY, stray=DAY + MOMENT, edge=DAY, young=MOMENT)
    assert delete.collect_environments(world.store) == 0
    assert names(world, "e") == {"manifest.json", "used", "a", "b", "l", "edge", "young"}


@pytest.mark.parametrize("manifest", [b"{", b"{}", b"[]", b'{"listing": 1, "parts": []}'])
def test_a_manifest_that_cannot_be_read_keeps_its_parts(world: World, manifest: bytes) -> None:
    environment(world, "e", 9 * DAY, stray=9 * DAY)
    world.put(keys.environment_manifest(keys.ENVIRONMENTS, "e"), 9 * DAY, manifest)
    before = names(world, "e")
    assert delete.collect_environments(world.store) == 0 and names(world, "e") == before


# ── Jobs ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

ENDED = Ended("failed", "test", None)


def test_jobs_that_ended_long_ago_are_told_oldest_first(world: World) -> None:
    for job, days in (("new-bbbb", 1), ("old-bbbb", 9), ("edge-bbbb", 2), ("older-bbbb", 20)):
        world.indexed(job, ENDED, age=days * DAY)
    world.indexed("active-bbbb", age=99 * DAY)
    assert delete.ended_before(world.store, 2 * DAY) == ["older-bbbb", "old-bbbb"]
    assert delete.ended_before(world.store, 2 * DAY - MOMENT) == ["older-bbbb", "old-bbbb", "edge-bbbb"]
    # The record says that it has ended, and the log that it goes on.
    resumed = Record(job_log.new_token(), "t", "t", ResumeAsked("jane"))
    assert job_log.append(world.store, "old-bbbb", 3, resumed)
    assert delete.ended_before(world.store, 2 * DAY) == ["older-bbbb"]


def test_a_job_goes_with_all_that_was_its_own(world: World) -> None:
    world.indexed("job-bbbb", ENDED, age=DAY)
    world.put(keys.active("job-bbbb", 1), DAY)
    world.put("work/job-bbbb/00000002/0/i.0/exit", DAY)
    world.put("work/job-cccc/00000002/0/i.0/exit", DAY)
    world.calls.clear()
    delete.remove_job(world.store, "job-bbbb", "jane")
    assert world.keys() == {keys.removed("job-bbbb"), "work/job-cccc/00000002/0/i.0/exit"}
    order = [key for operation, key in world.calls if operation in ("create", "delete")]
    assert order[:2] == [keys.log_entry("job-bbbb", 3), keys.removed("job-bbbb")], "said before anything goes"
    assert order[-1] == keys.spec("job-bbbb")


def test_a_job_that_was_opened_again_is_not_removed(world: World) -> None:
    world.submit("job-bbbb", ENDED, ResumeAsked("jane"))
    before = world.keys()
    with pytest.raises(UserError, match=r"^job-bbbb is active: it was resumed meanwhile; `stoker stop job"):
        delete.remove_job(world.store, "job-bbbb")
    assert world.keys() == before


def test_a_job_whose_log_makes_no_sense_can_be_removed_and_one_that_is_not_told_cannot(world: World) -> None:
    world.submit("job-bbbb", ENDED)
    for error in (StoreUnavailable("away"), StoreDenied("no")):
        world.store.faults = lambda operation, _key, error=error: Fault(error=error) if operation == "get" else None
        with pytest.raises(type(error)):
            delete.remove_job(world.store, "job-bbbb")
        assert not world.store.holds(keys.removed("job-bbbb"))
    world.store.faults = None
    world.put(keys.log_entry("job-bbbb", 2), DAY, b"junk")
    delete.remove_job(world.store, "job-bbbb")
    assert world.keys() == {keys.removed("job-bbbb")}


@pytest.mark.parametrize(
    "left",
    [
        keys.log_entry("job-bbbb", 9),
        "work/job-bbbb/00000002/0/i.0/exit",
        keys.active("job-bbbb", 1),
        keys.index("job-bbbb", 1),
    ],
)
def test_what_lands_after_a_removal_is_found_wherever_it_is(world: World, left: str) -> None:
    world.submit("other-bbbb")
    assert delete.finish_removals(world.store) == []
    world.put(keys.removed("job-bbbb"), DAY)
    world.put(left, DAY)
    assert delete.finish_removals(world.store) == ["job-bbbb"]
    assert not world.store.holds(left) and world.store.holds(keys.spec("other-bbbb"))
    assert delete.finish_removals(world.store) == []


def test_markers_of_removed_jobs_are_cleared_and_those_of_submissions_are_not(world: World) -> None:
    for job in ("gone-bbbb", "coming-bbbb", "hidden-bbbb"):
        world.put(keys.active(job, 1), DAY)
    world.put(keys.removed("gone-bbbb"), DAY)
    away = keys.removed("hidden-bbbb")
    world.store.faults = lambda _operation, key: Fault() if key == away else None
    problems = removed_jobs.clear_markers(world.store, ["gone-bbbb", "hidden-bbbb", "coming-bbbb"])
    assert problems.keys() == {"hidden-bbbb"} and "injected fault" in problems["hidden-bbbb"]
    assert world.keys(keys.ACTIVE) == {keys.active("coming-bbbb", 1), keys.active("hidden-bbbb", 1)}
