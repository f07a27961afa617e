"""Inputs of a node, from a bucket in memory: what is said, what is asked again, and how each way to fail is told."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from plain_bucket import URL, PlainBucket
from plain_store import PlainStore

from stoker.agent.inputs import cache, service
from stoker.agent.inputs.cache import CacheEntry
from stoker.agent.inputs.mount import NotMountable
from stoker.agent.inputs.service import Inputs
from stoker.agent.inputs.source import InputListing
from stoker.model.errors import NoCredentials, SetupFailed, StoreDenied, StoreUnavailable
from stoker.model.node_config import NodeConfig, NodePaths
from stoker.model.spec import Input
from stoker.store.base import Meta

# As they are outside of these tests.
PAUSES = {name: getattr(service, name) for name in ("_FIRST_PAUSE_S", "_MAX_PAUSE_S")}
FILES = {"a": b"aaa", "b": b"bb", "c": b"c"}


class Left(Exception):
    pass


class World:
    """One machine and one bucket. `answers` are raised, one by one, before the bucket is listed."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.bucket = PlainBucket(FILES)
        self.answers: list[Exception] = []
        self.said: list[str] = []
        self.store = PlainStore()
        self.listed = 0
        self.found: tuple[str, str | None] = (URL, None)
        monkeypatch.setattr(service, "_FIRST_PAUSE_S", 0.001)
        monkeypatch.setattr(service, "_MAX_PAUSE_S", 0.01)
        monkeypatch.setattr(service, "InputSource", self._source)

    def _source(self, url: str, _say: Callable[[str], None]) -> Any:
        def ask() -> None:
            self.listed += 1
            if self.answers:
                raise self.answers.pop(0)

        def listing() -> InputListing:
            ask()
            return self.bucket.listing()

        def those(files: tuple[Meta, ...]) -> InputListing:
            return InputListing(url, self.bucket, files, total_files=len(files))  # type: ignore[arg-type]

        def find() -> tuple[str, str | None]:
            ask()
            return self.found

        return SimpleNamespace(url=url, list=listing, with_files=those, find=find, region="eu-north-1")

    def inputs(
        self,
        check: Callable[[], None] = lambda: None,
        *,
        name: str = "node",
        rank: int = 0,
        nodes: int = 1,
        **more: Any,
    ) -> Inputs:
        paths = NodePaths(self.root / name)
        paths.root.mkdir(parents=True, exist_ok=True)
        node: Any = SimpleNamespace(
            machine=None,
            paths=paths,
            config=NodeConfig("", "local", "job", 1, rank, nodes, name),
            inputs=self.root / "kept",
            say=self.said.append,
            store=self.store,
        )
        return Inputs(node, check, **more)

    def bring(self, wanted: Input | str = URL, **more: Any) -> Path:
        wanted = Input(wanted) if isinstance(wanted, str) else wanted
        return Path(self.inputs(**more).provide({"data": wanted})["data"])


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def told(world: World, wanted: Input | str = URL, **more: Any) -> str:
    """How it is told that this input cannot be had: a person has to put it right."""
    with pytest.raises(SetupFailed) as failed:
        world.bring(wanted, **more)
    assert failed.value.user
    return str(failed.value)


# ── A copy ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_copy_is_told_from_beginning_to_end_and_the_second_time_it_is_there(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([100.0, 102.0])
    monkeypatch.setattr(service, "time", SimpleNamespace(monotonic=lambda: next(clock), sleep=time.sleep))
    monkeypatch.setattr(Inputs, "_ask", lambda _self, question, _say: question())
    inputs = world.inputs()
    where = inputs.provide({"data": Input(URL)})["data"]
    assert tree(Path(where)) == FILES and inputs.paths == [Path(where)]
    assert world.bring() == Path(where)
    assert world.said == [
        f"inputs.data: fetching 3 files, 6 B from {URL}",
        "inputs.data: fetched 6 B in 2 s, 3 B/s",
        "inputs.data: 3 files, 6 B, already on this machine",
    ]


def test_what_is_there_of_a_copy_is_told(world: World) -> None:
    world.bring()
    world.bucket.objects["b"] = b"BB"
    world.bring(name="other")
    assert f"inputs.data: fetching 3 files, 6 B from {URL}; 4 B are on this machine" in world.said


def test_a_copy_for_another_place_is_kept_there(world: World, tmp_path: Path) -> None:
    assert world.bring(cache_root=tmp_path / "elsewhere").is_relative_to(tmp_path / "elsewhere")
    assert world.bring().is_relative_to(tmp_path / "kept")


def test_a_disk_with_just_enough_room_is_used(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service.shutil, "disk_usage", lambda _: SimpleNamespace(free=5))
    assert "6 B are missing, and 5 B are free" in told(world)
    monkeypatch.setattr(service.shutil, "disk_usage", lambda _: SimpleNamespace(free=6))
    assert tree(world.bring()) == FILES


def test_a_fetch_that_fails_is_left_to_the_next_node(world: World) -> None:
    def deny(_key: str, _begin: int) -> None:
        raise StoreDenied("not allowed")

    world.bucket.trouble = deny
    assert told(world) == "inputs.data: not allowed"
    world.bucket.trouble = lambda _key, _begin: None
    assert tree(world.bring(name="other")) == FILES


def test_a_node_says_that_it_waits_for_another_one_and_is_checked(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_POLL_S", 0.0)
    busy = CacheEntry(world.root / "kept", world.bucket.listing())
    busy.acquire(lambda: None, lambda: None)
    waits, checks = [], []

    def check() -> None:
        # Not while the store is asked.
        if waits:
            checks.append(1)
        if len(checks) == 3:
            raise Left

    with pytest.raises(Left):
        world.bring(check=check, on_wait=lambda: waits.append(1))
    assert world.said == ["inputs.data: another node of this machine is fetching it; waiting"]
    assert len(waits) == 3


def test_what_another_training_changed_is_fetched_for_this_node_alone(world: World) -> None:
    theirs = world.bring()
    (theirs / "a").unlink()
    own = world.bring(name="other")
    assert tree(own) == FILES and own.is_relative_to(world.root / "other" / "inputs" / "data")
    assert not (theirs / "a").exists()


def test_a_source_that_changes_is_looked_at_again_a_few_times(world: World) -> None:
    def change(key: str, _begin: int) -> None:
        world.bucket.objects[key] += b"x"

    world.bucket.trouble = change
    assert told(world) == f"inputs.data: {URL} keeps changing while it is fetched"
    assert world.listed == 5
    assert sum("listing the files again" in line for line in world.said) == 5


# ── Shards ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_each_node_of_several_gets_its_shard_and_a_lone_one_everything(world: World) -> None:
    wanted = Input(URL, shard=True)
    assert set(tree(world.bring(wanted, name="n0", rank=0, nodes=2))) == {"a", "c"}
    assert set(tree(world.bring(wanted, name="n1", rank=1, nodes=2))) == {"b"}
    assert world.said[0] == f"inputs.data: fetching 2 files of 3, 4 B from {URL}"
    assert world.said[2] == f"inputs.data: fetching 1 file of 3, 2 B from {URL}"
    assert tree(world.bring(wanted)) == FILES
    assert tree(world.bring(Input(URL), name="n2", rank=1, nodes=2)) == FILES, "without `shard` it is not shared out"


def test_fewer_files_than_nodes_are_told(world: World) -> None:
    world.bucket.objects = {"a": b"a"}
    assert told(world, Input(URL, shard=True), nodes=2) == ("inputs.data: 1 file cannot be divided among 2 nodes")


def test_a_folder_of_this_machine_is_used_in_place_and_its_shard_is_links(world: World) -> None:
    folder = world.root / "own"
    for name, data in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    assert world.bring(str(folder)) == folder
    assert world.bring(Input(str(folder / "a"), shard=True), nodes=2) == folder / "a", "one file is no folder to share"
    inputs = world.inputs(rank=1, nodes=2)
    view = Path(inputs.provide({"data": Input(folder.as_uri(), shard=True)})["data"])
    assert [(path.name, path.readlink()) for path in view.iterdir()] == [("b", folder / "b")]
    assert inputs.paths == [folder, view]
    (view / "left").symlink_to(folder / "a")
    inputs.provide({"data": Input(folder.as_uri(), shard=True)})
    assert [path.name for path in view.iterdir()] == ["b"], "what an earlier attempt had there is gone"
    (folder / "b").unlink()
    assert told(world, Input(folder.as_uri(), shard=True), rank=1, nodes=2) == (
        f"inputs.data: {folder / 'b'} no longer exists; the nodes divide the files that the first node found: "
        "leave them unchanged, and submit again"
    )


def test_a_folder_that_is_not_there_is_named(world: World) -> None:
    assert told(world, "/not/there") == "inputs.data: /not/there: does not exist on this machine"


# ── A mount, and a stream ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_mount_is_a_folder_or_one_file_in_it_and_is_cut_with_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, Path, Path, str | None]] = []
    cuts: list[int] = []

    def mount(url: str, target: Path, log: Path, _check: object, *, region: str | None) -> Any:
        calls.append((url, target, log, region))
        assert target.parent.is_dir()
        return SimpleNamespace(tool="s3fs", abort=lambda: cuts.append(1))

    monkeypatch.setattr(service, "mount", mount)
    inputs = world.inputs()
    mounts = NodePaths(world.root / "node").mounts
    assert inputs.provide({"data": Input(URL, mode="mount")}) == {"data": str(mounts / "data")}
    world.found = ("s3://bucket", "data")
    assert inputs.provide({"one": Input(URL, mode="mount")}) == {"one": str(mounts / "one" / "data")}
    assert calls == [
        (URL, mounts / "data", mounts / "data.log", "eu-north-1"),
        ("s3://bucket", mounts / "one", mounts / "one.log", "eu-north-1"),
    ]
    assert world.said[0] == f"inputs.data: {URL} is mounted read-only with s3fs"
    assert inputs.paths == [mounts / "data", mounts / "one" / "data"]
    inputs.abort()
    assert cuts == [1, 1]


def test_what_cannot_be_mounted_names_the_input(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def mount(*_: object, **__: object) -> None:
        raise NotMountable("no program for it")

    monkeypatch.setattr(service, "mount", mount)
    assert told(world, Input(URL, mode="mount")) == "inputs.data: no program for it"


def test_a_stream_is_its_url_and_no_path_of_this_machine(world: World) -> None:
    inputs = world.inputs()
    assert inputs.provide({"data": Input("https://example.com/x", mode="stream")}) == {"data": "https://example.com/x"}
    assert inputs.paths == [] and world.listed == 0


# ── A store that does not answer ──────────────────────────────────────────────────────────────────────────────────────


def test_a_store_is_asked_until_it_answers_and_that_is_told_once(world: World) -> None:
    world.answers = [StoreUnavailable(f"away {number}") for number in range(5)]
    assert tree(world.bring()) == FILES
    assert world.said[0] == "inputs.data: away 0; trying again"
    assert sum("trying again" in line for line in world.said) == 1


def test_pauses_grow_up_to_the_longest_and_are_checked(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    slept: list[float] = []
    checks: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(round(seconds, 6))
        clock[0] += seconds

    monkeypatch.setattr(service, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep))
    monkeypatch.setattr(service, "run_watched", lambda question, _check: question())
    for name, own in PAUSES.items():
        monkeypatch.setattr(service, name, own)
    asked: list[float] = []
    inputs = world.inputs(lambda: checks.append(clock[0]))

    def ask() -> None:
        asked.append(clock[0])
        if len(asked) < 9:
            raise StoreUnavailable("away")

    inputs._ask(ask, world.said.append)
    pauses = [round(later - earlier, 3) for earlier, later in pairwise(asked)]
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert max(slept) <= 0.1 and len(checks) == len(slept)


def test_credentials_that_do_not_come_within_a_minute_are_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(service, "run_watched", lambda question, _check: question())

    def sleep(_seconds: float) -> None:
        clock[0] += 30.0

    monkeypatch.setattr(service, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep))
    world.answers = [NoCredentials("no credentials")] * 3
    world.inputs()._ask(world._source(URL, lambda _: None).list, world.said.append)
    world.answers = [NoCredentials("no credentials")] * 4
    assert told(world) == "inputs.data: no credentials"
    world.answers = [StoreUnavailable("away")] * 50
    world.inputs()._ask(world._source(URL, lambda _: None).list, world.said.append)


# ── This machine's disk ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "this machine's disk is full; make room, or ask for a"),
        (OSError(errno.EDQUOT, "Disk quota exceeded", "/x"), "this machine's disk is full; make room, or ask for a"),
        (OSError(errno.ENOSPC, "5 are to come"), "this machine's disk is full: 5 are to come; make room, or ask for"),
        (OSError(errno.EACCES, "Permission denied", "/x"), "/x: Permission denied"),
        (OSError(errno.EIO, "Input/output error"), "Input/output error"),
        (OSError("odd"), "odd"),
    ],
)
def test_what_the_disk_said_is_told(world: World, monkeypatch: pytest.MonkeyPatch, error: OSError, text: str) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(Inputs, "_copy", fail)
    assert told(world).startswith(f"inputs.data: {text}")


def test_what_is_not_used_for_long_is_forgotten_when_all_inputs_are_there(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    pruned: list[Path] = []
    monkeypatch.setattr(service, "prune", pruned.append)
    world.bring()
    assert pruned == [world.root / "kept"]
