"""Submitting, steering and removing jobs, against a folder store; nothing is launched here."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest

from stoker import client
from stoker.core.snapshot import Append
from stoker.governor.observe import active_jobs
from stoker.jobfile import Job
from stoker.maintenance.delete import collect_shared, remove_job
from stoker.model import codec, keys
from stoker.model.errors import SpecError, StokerError, StoreDenied, StoreError, StoreUnavailable, UserError
from stoker.model.log_entries import Claimed, Closed, Ended, Event, Launched, NodeRef, Record, StopAsked, Submitted
from stoker.model.observed import Unknown
from stoker.model.offerings import Offering
from stoker.model.spec import Spec
from stoker.model.submission import Submission
from stoker.policy import versions
from stoker.read import job_status
from stoker.store import job_index, job_log
from stoker.store.base import Store, open_store
from stoker.store.find_job import all_jobs
from stoker.submit import send
from tests.support.sim_data import at, make_beat, make_facts

OFFER = Offering(provider="local", machine="m", zone="z", spot=True, price=1.0)


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("STOKER_STORE", raising=False)
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("print('hello')\n")
    monkeypatch.chdir(code)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"))


def key_list(store: Store) -> list[str]:
    return [meta.key for meta in store.list("")]


def append(store: Store, job: str, event: Event) -> None:
    state = job_log.read(store, job)
    assert state is not None
    record = Record(token=job_log.new_token(), by="test", reason="for the test", event=event)
    assert job_log.append(store, job, state.seq + 1, record)


def submit(store: Store, **fields: object) -> str:
    return client.submit(Job(run="python train.py", **fields), store=store)  # type: ignore[arg-type]


def end(store: Store, job: str, outcome: str = "failed") -> None:
    """End a job that had no machines, and retire it."""
    append(store, job, Ended(outcome=outcome, rule="test"))  # type: ignore[arg-type]
    store.delete([keys.active(job, marker) for marker in active_jobs(store)[job]])


class Failing:
    """A store whose calls can be made to fail."""

    def __init__(self, inner: Store, fails: Callable[[str, str], Exception | None]) -> None:
        self._inner = inner
        self._fails = fails

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def _check(self, verb: str, key: str) -> None:
        error = self._fails(verb, key)
        if error is not None:
            raise error

    def put(self, key: str, data: bytes) -> None:
        self._check("put", key)
        self._inner.put(key, data)

    def create(self, key: str, data: bytes) -> bool:
        self._check("create", key)
        return self._inner.create(key, data)

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._check("delete", key)
            self._inner.delete([key])


# ── submit ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_submit_writes_code_spec_marker_and_the_first_entry(store: Store) -> None:
    job = submit(store, params={"lr": 3e-4})
    state = job_log.read(store, job)
    assert state is not None
    spec = store.get(keys.spec(job))
    assert spec is not None
    submission = codec.loads(Submission, spec.data)
    assert submission.job == job and submission.code is not None
    assert key_list(store) == sorted(
        [keys.active(job, 1), keys.code(submission.code.digest), keys.log_entry(job, 1), keys.spec(job)]
    )
    assert state.spec_digest == codec.digest(spec.data)
    assert state.code_digest == submission.code.digest
    assert submission.environ["PATH"] == os.environ["PATH"]
    assert submission.spec.params == {"lr": 3e-4}


def test_the_id_is_the_name_and_four_characters(store: Store) -> None:
    name, _, suffix = submit(store, name="gpt-small").rpartition("-")
    assert name == "gpt-small"
    assert len(suffix) == 4 and not set(suffix) & set("aeiou01l")


def test_the_python_is_the_submitters_active_one(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = tmp_path / "env" / "bin"
    programs.mkdir(parents=True)
    (programs / "python").write_text("#!/bin/sh\n")
    (programs / "python").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    job = submit(store)
    assert submission_of(store, job).spec.environment.python == str(programs / "python")


def submission_of(store: Store, job: str) -> Submission:
    found = store.get(keys.spec(job))
    assert found is not None
    return codec.loads(Submission, found.data)


def test_an_id_that_is_taken_is_not_taken_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter("bbbb" + "bbbb" + "cccc")
    monkeypatch.setattr(send.secrets, "choice", lambda _letters: next(drawn))
    assert submit(store) == "train-bbbb"
    assert submit(store) == "train-cccc"


def test_a_job_file_and_a_spec_can_be_submitted(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "code" / "job.yaml"
    file.write_text("name: from-file\nrun: python train.py\n")
    first = client.submit(file, store=store, sets=["nodes=2"])
    spec = submission_of(store, first).spec
    assert spec.nodes == 2
    second = client.submit(replace(spec, name="from-spec"), store=store)
    assert submission_of(store, second).spec == replace(spec, name="from-spec")


def test_relative_paths_are_relative_to_the_job_file(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "code" / "data").mkdir()
    (tmp_path / "code" / "data" / "a").touch()
    file = tmp_path / "code" / "job.yaml"
    file.write_text("run: python train.py\ninputs: {data: ./data}\n")
    monkeypatch.chdir("/")
    job = client.submit(file, store=store)
    assert submission_of(store, job).spec.inputs["data"].source == str(tmp_path / "code" / "data")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"run": "python gone.py"}, "run: there is no gone.py in"),
        ({"run": ["python", "-u", "gone.py", "--x", "1"]}, "run: there is no gone.py in"),
        ({"run": "torchrun --nproc-per-node 2 gone.py"}, "run: there is no gone.py in"),
        ({"run": "./gone.sh"}, "run: there is no ./gone.sh in"),
        ({"code": "nowhere"}, "code: "),
        ({"inputs": {"data": "./nowhere"}}, "inputs.data: "),
        ({"resume_from": "nobody"}, "resume_from: there is no job 'nobody'"),
        ({"resume_from": "./nowhere"}, "resume_from: there is no folder"),
        ({"secrets": {"UNSET_HERE": "env"}}, "secrets.UNSET_HERE: UNSET_HERE is not set"),
        ({"resources": {"cpus": 100000}}, "resources.cpus: "),
        ({"resources": {"machine": "p4d.24xlarge"}}, "resources.machine: "),
        ({"resources": {"provider": "nobody"}}, "resources.provider: "),
        ({"resources": {"region": "us-east-1"}}, "resources.region"),
        ({"environment": {"python": "/nowhere/python"}}, "environment.python: "),
        ({"environment": {"python": "2.0"}}, "environment.python: "),
    ],
)
def test_what_is_wrong_is_found_before_anything_is_written(
    store: Store, tmp_path: Path, fields: dict[str, object], words: str
) -> None:
    with pytest.raises(UserError) as caught:
        client.submit(Job(**{"run": "python train.py", **fields}), store=store)  # type: ignore[arg-type]
    assert words in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    "run",
    [
        "python -m package.train",
        "python -c 'print(1)'",
        "make && python gone.py",
        "python prepare.py > out\npython gone.py",
        "bash -eo pipefail train.py",
        ("env", "python", "gone.py"),
        "FOO=1 python train.py gone.py",
        "python {script}",
    ],
)
def test_commands_that_cannot_be_told_apart_are_not_refused(store: Store, run: str | tuple[str, ...]) -> None:
    assert client.submit(Spec(name="x", run=run), store=store)


def test_code_is_uploaded_once_however_old_it_is(store: Store, tmp_path: Path) -> None:
    digest = log_state(store, submit(store)).code_digest
    assert digest is not None
    file = tmp_path / "store" / keys.code(digest)
    then = time.time() - 30 * 3600
    os.utime(file, (then, then))
    assert log_state(store, submit(store)).code_digest == digest
    assert file.stat().st_mtime == pytest.approx(then)
    assert len(list(store.list(keys.CODE))) == 1


def log_state(store: Store, job: str) -> job_log.JobState:
    state = job_log.read(store, job)
    assert state is not None
    return state


@pytest.mark.parametrize(
    ("part", "error"),
    [
        *((part, StoreUnavailable) for part in ("code/", "spec.json", "active/")),
        *((part, StoreDenied) for part in ("code/", "spec.json", "active/", "log/")),
    ],
)
def test_a_submission_that_fails_leaves_no_job(store: Store, part: str, error: type[Exception]) -> None:
    def fails(verb: str, key: str) -> Exception | None:
        return error("no") if verb != "delete" and part in key else None

    expected = UserError if error is StoreDenied else StoreUnavailable
    with pytest.raises(expected):
        submit(Failing(store, fails))  # type: ignore[arg-type]
    # Code may be another submission's by now, and is collected when it is old. The id is never used again.
    assert [key for key in key_list(store) if not key.startswith((keys.CODE, keys.REMOVED))] == []
    assert all_jobs(store) == []


def test_an_entry_whose_reply_was_lost_is_not_taken_back(store: Store) -> None:
    """The store may hold the entry: what it relies on must stay."""

    class Losing(Failing):
        def create(self, key: str, data: bytes) -> bool:
            done = self._inner.create(key, data)
            if "/log/" in key:
                raise StoreUnavailable("the reply was lost")
            return done

        def get(self, key: str, *, limit: int | None = None) -> object:
            if "/log/" in key:
                raise StoreUnavailable("nobody answers")
            return self._inner.get(key, limit=limit)

    with pytest.raises(StoreError, match="may have been submitted"):
        submit(Losing(store, lambda _verb, _key: None))  # type: ignore[arg-type]
    (job,) = active_jobs(store)
    assert log_state(store, job).job == job
    assert store.head(keys.spec(job)) is not None


def test_a_job_that_is_submitted_is_never_taken_back(store: Store) -> None:
    """What fails after the entry is told with the id: a governor may have launched the job by now."""
    for verb, part in (("put", "active/"), ("delete", "active/")):

        def fails(asked: str, key: str, verb: str = verb, part: str = part) -> Exception | None:
            written = any(meta.key.endswith(".json") and "/log/" in meta.key for meta in store.list(keys.JOBS))
            return StoreUnavailable("away") if written and asked == verb and part in key else None

        with pytest.raises(StoreError, match=r"away; (\S+) was submitted: look with `stoker show \1`"):
            submit(Failing(store, fails))  # type: ignore[arg-type]
        (job,) = all_jobs(store)
        assert store.head(keys.spec(job)) is not None and job in active_jobs(store)
        store.delete(key_list(store))


def test_ids_of_jobs_that_are_or_were_there_are_passed_over(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter("bbbb" + "cccc" + "dddd" + "ffff")
    monkeypatch.setattr(send.secrets, "choice", lambda _letters: next(drawn))
    store.put(keys.removed("train-bbbb"), b"")
    store.put(keys.log_entry("train-cccc", 1), b"{}")
    store.put(keys.spec("train-dddd"), b"{}")
    assert submit(store) == "train-ffff"
    monkeypatch.setattr(send.secrets, "choice", lambda _letters: "b")
    with pytest.raises(StokerError, match="no free id for a job called train; give it another name"):
        submit(store)


def test_an_entry_of_another_under_that_id_is_told(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_log, "append", lambda *_: False)
    with pytest.raises(StokerError, match="another job was submitted under this id at the same moment; submit it"):
        submit(store)
    assert [key for key in key_list(store) if not key.startswith((keys.CODE, keys.REMOVED))] == []


def test_a_clone_of_a_job_whose_code_is_gone_is_refused(store: Store) -> None:
    job = submit(store)
    store.delete([meta.key for meta in store.list(keys.CODE)])
    with pytest.raises(UserError, match="its code is not in the store any more; submit it again from the folder"):
        client.clone(job, store=store)
    assert all_jobs(store) == [job]


def test_what_a_submission_records(store: Store) -> None:
    job = submit(store)
    (entry,) = job_log.entries(store, job)
    me = submission_of(store, job).submitter
    assert "@" in me and (entry.by, entry.reason) == (me, f"submitted by {me}")
    assert isinstance(entry.event, Submitted) and entry.event.submitter == me
    assert submission_of(store, job).origin is None
    assert submission_of(store, client.clone(job, store=store)).origin == job


def test_a_store_that_may_not_be_written_is_named_before_the_plan(store: Store) -> None:
    send.check_writable(store)
    assert key_list(store) == []
    denied = Failing(store, lambda verb, _key: StoreDenied("not yours") if verb == "put" else None)
    with pytest.raises(UserError, match=r"^the store cannot be written: not yours; choose another with --store"):
        send.check_writable(denied)  # type: ignore[arg-type]


def test_a_marker_that_vanished_meanwhile_is_put_back(store: Store) -> None:
    class Sweeping(Failing):
        def create(self, key: str, data: bytes) -> bool:
            if "/log/" in key:
                self._inner.delete([meta.key for meta in self._inner.list(keys.ACTIVE)])
            return self._inner.create(key, data)

    job = submit(Sweeping(store, lambda _verb, _key: None))  # type: ignore[arg-type]
    assert active_jobs(store) == {job: (1,)}


# ── stop, resume, clone ───────────────────────────────────────────────────────────────────────────────────────────────


def test_stop_asks_once(store: Store) -> None:
    job = submit(store)
    assert client.stop(job, store) is True
    assert client.stop(job, store) is True
    assert [type(entry.event) for entry in job_log.entries(store, job)] == [Submitted, StopAsked]
    append(store, job, Ended(outcome="stopped", rule="stop"))
    assert client.stop(job, store) is False


def test_resume_opens_an_ended_job_again_and_marks_it_first(store: Store) -> None:
    job = submit(store)
    with pytest.raises(UserError, match="has not ended"):
        client.resume(job, store)
    end(store, job)
    marked: list[bool] = []

    class Watching(Failing):
        def create(self, key: str, data: bytes) -> bool:
            marked.append(active_jobs(store) == {job: (3,)})
            return self._inner.create(key, data)

    assert client.resume(job, Watching(store, lambda _verb, _key: None)) == job  # type: ignore[arg-type]
    assert marked == [True]
    assert log_state(store, job).ended is None


def test_a_job_that_succeeded_is_not_resumed(store: Store) -> None:
    job = submit(store)
    end(store, job, "succeeded")
    with pytest.raises(UserError, match="stoker clone"):
        client.resume(job, store)
    assert active_jobs(store) == {}


def test_a_clone_has_the_same_code_and_says_where_it_comes_from(store: Store, tmp_path: Path) -> None:
    job = submit(store, params={"lr": 3e-4, "layers": 2})
    (tmp_path / "code" / "train.py").write_text("print('changed since')\n")
    copy = client.clone(job, store=store, sets=["params.lr=1e-3"])
    ours, theirs = submission_of(store, copy), submission_of(store, job)
    assert ours.origin == job and ours.code == theirs.code
    assert ours.spec == replace(theirs.spec, params={"lr": 1e-3, "layers": 2}, params_written=ours.spec.params_written)
    with pytest.raises(SpecError, match="unknown field"):
        client.clone(job, store=store, sets=["parms.lr=1"])


def test_a_clone_runs_in_the_surroundings_of_the_other(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    job = submit(store)
    first = os.environ["PATH"]
    monkeypatch.setenv("PATH", f"/of/the/clone:{first}")
    assert submission_of(store, client.clone(job, store=store)).environ["PATH"] == first


def test_interrupt_needs_a_machine(store: Store) -> None:
    with pytest.raises(UserError, match="has no machine now"):
        client.interrupt(submit(store), store)


@pytest.mark.parametrize("write", ["check", "send"])
def test_a_store_in_the_home_does_not_open_the_home_to_others(tmp_path: Path, write: str) -> None:
    inside = open_store(str(tmp_path / "home" / "store"))
    if write == "check":
        send.check_writable(inside)
    else:
        submit(inside)
    assert stat.S_IMODE((tmp_path / "home").stat().st_mode) == 0o700


# ── remove ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def fill(store: Store, job: str) -> None:
    """What a job leaves behind."""
    for key in (f"work/{job}/00000002/0/i.0/exit", f"work/{job}/blobs/0/abc", f"work/{job}/outputs/00000002/a/b"):
        store.put(key, b"x")
    store.put(keys.index(job, 1), b"{}")


def test_an_active_job_is_not_removed(store: Store) -> None:
    job = submit(store)
    before = key_list(store)
    with pytest.raises(UserError, match="stoker stop"):
        client.remove(job, store)
    assert key_list(store) == before


def test_everything_of_an_ended_job_goes_and_nothing_else(store: Store) -> None:
    other = submit(store, name="other")
    rest = set(key_list(store))
    job = submit(store)
    fill(store, job)
    end(store, job)
    client.remove(job, store)
    assert set(key_list(store)) == rest | {keys.removed(job)}
    assert log_state(store, other)


def test_a_removal_that_was_cut_short_is_finished_by_the_next(store: Store) -> None:
    reference = submit(store)
    fill(store, reference)
    end(store, reference)
    steps = sum(reference in key for key in key_list(store))
    client.remove(reference, store)
    for after in range(steps):
        job = submit(store)
        fill(store, job)
        end(store, job)
        done = 0

        def fails(_verb: str, _key: str, after: int = after) -> Exception | None:
            nonlocal done
            done += 1
            return StoreUnavailable("cut short") if done > after else None

        with pytest.raises(StoreUnavailable):
            remove_job(Failing(store, fails), job)  # type: ignore[arg-type]
        # It can still be named, and either is whole and ended or is no job at all.
        state = job_log.read(store, job)
        assert state is None or state.ended is not None
        assert client.remove(job, store) == job
        assert [key for key in key_list(store) if job in key] == [keys.removed(job)]


def test_only_old_code_that_no_job_uses_is_collected(store: Store, tmp_path: Path) -> None:
    used = log_state(store, submit(store)).code_digest
    assert used is not None
    for name in ("old", "young"):
        store.put(keys.code(name * 16), b"x")
    day = time.time() - 25 * 3600
    for digest in (used, "old" * 16):
        os.utime(tmp_path / "store" / keys.code(digest), (day, day))
    assert collect_shared(store, keys.CODE) == 1
    assert {meta.key for meta in store.list(keys.CODE)} == {keys.code(used), keys.code("young" * 16)}


def test_only_old_agents_that_no_job_installs_are_collected(store: Store, tmp_path: Path) -> None:
    kept = codec.dumps(Submission("j", Spec(name="j", run="true"), "me", bundles={"cp311-x86_64": "used" * 16}))
    store.put(keys.spec("j"), kept)
    names = ("used", "left", "new!")
    for name in names:
        store.put(keys.bundle(name * 16), b"x")
    day = time.time() - 25 * 3600
    for name in names[:2]:
        os.utime(tmp_path / "store" / keys.bundle(name * 16), (day, day))
    assert collect_shared(store, keys.BUNDLES) == 1
    assert {meta.key for meta in store.list(keys.BUNDLES)} == {keys.bundle("used" * 16), keys.bundle("new!" * 16)}
    store.put(keys.spec("j"), b"torn")
    os.utime(tmp_path / "store" / keys.bundle("used" * 16), (day, day))
    with pytest.raises(StoreError, match="nothing is collected"):
        collect_shared(store, keys.BUNDLES)


# ── watching ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_wait_answers_for_a_job_that_has_ended(store: Store) -> None:
    job = submit(store)
    append(store, job, Ended(outcome="failed", rule="test"))
    summary = client.wait("train", store)
    assert (summary.id, summary.phase, summary.rule) == (job, "failed", "test")
    assert active_jobs(store) == {}, "it was governed: an ended job without machines is retired"


def test_a_summary_has_every_attempt(store: Store) -> None:
    job = submit(store)
    for claim, instance in ((2, "i-2"), (5, "i-5")):
        append(store, job, Claimed(OFFER, nodes=1))
        append(store, job, Launched(claim=claim, nodes=(NodeRef(0, instance),)))
        append(store, job, Closed(claim=claim, outcome="reclaimed", rule="notice"))
    assert [attempt.nodes[0].instance for attempt in client.summary(job, store).attempts] == ["i-2", "i-5"]


def test_the_time_is_never_before_the_newest_word_of_a_node() -> None:
    """A computer whose clock is late would tell of spans that have not begun."""
    far_s = 1e9
    beats = (make_facts(2, beat=make_beat(far_s)), make_facts(2, 1, beat=make_beat(far_s + 5)), make_facts(2, 2))
    assert job_status._now({2: beats, 5: ()}) == at(far_s + 5)
    before = datetime.now(timezone.utc)
    old = replace(make_facts(2), heartbeat=Unknown("nobody answered"))
    assert before <= job_status._now({2: (old, make_facts(2, beat=make_beat(0.0)))}) <= datetime.now(timezone.utc)


def test_what_a_job_waits_for_is_told_until_it_has_ended(store: Store) -> None:
    job = submit(store)
    record = client.read_record(job, store)
    job_index.write_index(store, replace(record, summary=replace(record.summary, reason="no machine is free")))
    assert client.read_record(job, store).summary.reason == "no machine is free"
    append(store, job, Ended(outcome="failed", rule="test"))
    assert client.read_record(job, store).summary.reason == "for the test"


def test_what_a_governor_would_do_is_told_without_doing_it(store: Store) -> None:
    job = submit(store)
    before = key_list(store)
    actions, waiting = client.planned_actions(job, store)
    assert [type(action).__name__ for action in actions] == ["Append", "Launch"] and waiting == ""
    assert key_list(store) == before


def test_what_would_be_done_goes_by_the_budgets(store: Store) -> None:
    versions.write(store, "rules: [{budget: {dollars: 10, period: day}}]", "jane")
    job = submit(store)
    actions, waiting = client.planned_actions(job, store)
    assert waiting == "" and any(isinstance(a, Append) and isinstance(a.event, Claimed) for a in actions)
