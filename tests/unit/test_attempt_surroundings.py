"""One attempt on one node: what its agent does beside the training, and before and after it."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from agent_world import JOB, AgentWorld
from checkpoint_world import write
from noticing_machine import Here
from plain_store import wait_for

from stoker.agent import attempt
from stoker.agent.attempt import run_attempt
from stoker.agent.checkpoints.folder_record import OWN, FolderRecord
from stoker.agent.checkpoints.sync import SyncStatus
from stoker.agent.exit_report import TrainingRecord, complete_exit, make_exit, make_training_exit
from stoker.agent.heartbeat import HeartbeatThread
from stoker.agent.metric_progress import Progress
from stoker.agent.node import AgentNode, utcnow
from stoker.agent.phases import context, finish, permission
from stoker.agent.phases.context import AttemptContext
from stoker.agent.phases.leaving import LeaveEarly
from stoker.agent.shutdown_budget import ShutdownBudget
from stoker.agent.supervise import EndRequest, TrainingOutcome
from stoker.core.gate import Leave
from stoker.model import codec, keys
from stoker.model.log_entries import Closed, StopAsked, Submitted, Waste
from stoker.model.node_facts import CheckpointRef, Exit, ExitOutcome, SavedOutputs
from stoker.model.spec import Checkpoints, Retry, Spec
from stoker.model.submission import Code, Submission
from stoker.submit.pack_code import pack

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _own_handler() -> Iterator[None]:
    """An agent takes SIGTERM for itself, and here it lives in the process of the tests."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def world(tmp_path: Path) -> AgentWorld:
    return AgentWorld(tmp_path)


def a_life(world: AgentWorld) -> AttemptContext:
    world.submit("true")
    life = world.life(world.claim())
    life.log_watch.poll()
    return life


def said(life: AttemptContext) -> str:
    return life.paths.train_log.read_text() if life.paths.train_log.exists() else ""


# ── Before the training ───────────────────────────────────────────────────────────────────────────────────────────────


def test_the_code_is_there_before_the_set_up_and_the_set_up_before_the_training(world: AgentWorld) -> None:
    write(world.root / "source" / "hello.txt", "packed\n")
    packed = pack(world.root / "source", into=world.root)
    world.store.put(keys.code(keys.shared_name(packed.digest, 1)), packed.path.read_bytes())
    spec = Spec(name="job", run=("sh", "-c", "cat made.txt"), setup="cp hello.txt made.txt")
    submission = Submission(JOB, spec, "test", code=Code(packed.digest, 1, 1, generation=1))
    data = codec.dumps(submission)
    world.store.put(keys.spec(JOB), data)
    world.append(Submitted(spec_digest=codec.digest(data), submitter="test", code_digest=packed.digest))
    life = world.life(world.claim())
    assert world.run(life).outcome == "succeeded" and "packed\n" in said(life)


def test_a_set_up_that_fails_is_told_by_its_name_and_nothing_trains(world: AgentWorld) -> None:
    world.submit("sh", "-c", "echo began", setup="echo oh; exit 4")
    life = world.life(world.claim())
    left = world.run(life)
    assert (left.outcome, left.why, left.code, left.started) == ("failed", "setup", 4, False)
    assert "setup" in left.reason and "began" not in said(life)


def test_files_of_the_checkpoint_folder_that_no_checkpoint_has_are_moved_aside_and_told(world: AgentWorld) -> None:
    folder = world.root / "shared"
    folder.mkdir()
    FolderRecord.open(folder / f"{OWN}{JOB}.json", folder)
    write(folder / "stray.pt", "of an attempt before that the store never got")
    world.submit("sh", "-c", f"ls {folder}", checkpoints=Checkpoints(dir=str(folder)))
    life = world.life(world.claim())
    assert world.run(life).outcome == "succeeded"
    told = f"[stoker] stray.pt: in no checkpoint, moved from {folder} to {folder.with_name('.shared.replaced')}"
    assert f"{told}; nothing of it is deleted\n" in said(life)


def test_where_nothing_is_moved_aside_nothing_is_told_of_it(world: AgentWorld) -> None:
    world.submit("true")
    life = world.life(world.claim())
    world.run(life)
    assert "nothing of it is deleted" not in said(life)


def test_a_node_that_waits_for_other_ranks_says_so_and_hears_that_it_must_go(world: AgentWorld) -> None:
    life = a_life(world)
    life.monitors.setup.begin(sample=False)
    life.wait_for_others(0.0)
    fact = life.monitors.setup.report()
    assert fact is not None and fact.waits
    world.append(StopAsked("me"))
    life.log_watch.poll()
    with pytest.raises(LeaveEarly) as leaving:
        life.wait_for_others(1000.0)
    assert (leaving.value.why, leaving.value.reason) == ("stop", "stop asked by me")


@pytest.mark.parametrize("why", ["notice", "stop"])
def test_a_machine_that_the_log_does_not_name_yet_hears_that_it_must_go(
    world: AgentWorld, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    # Were it not to hear, it would leave because it waited.
    monkeypatch.setattr(permission, "SETTINGS", replace(permission.SETTINGS, wait_limit_s=3.0))
    machine = Here()
    world.submit("true")
    life = world.life(world.claim(launched=False), machine=machine)
    if why == "notice":
        machine.give(30.0)
    else:
        world.append(StopAsked("me"))
    assert world.run(life).why == why


def test_a_rank_that_leaves_before_the_training_is_not_waited_for(
    world: AgentWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.agent.peers.LOCAL_POLL_S", 0.01)
    world.submit("sh", "-c", "echo began")
    claim = world.claim(nodes=2)
    life, other = world.life(claim), world.node(claim, 1)

    def leave() -> None:
        world.until_phase(life, "restoring")()
        HeartbeatThread(world.store, other.key, lambda beat: beat).write()
        other.write_exit(Exit("infrastructure", "setup", utcnow(), "the disk is broken"), time.monotonic() + 60.0)

    world.meanwhile(leave)
    left = world.run(life)
    assert (left.outcome, left.why, left.started) == ("interrupted", "peer", False)
    assert left.reason == "rank 1 left: the disk is broken" and "began" not in said(life)


def test_a_question_to_the_store_ends_when_the_claim_is_closed(world: AgentWorld) -> None:
    life = a_life(world)
    world.append(Closed(claim=life.config.claim, outcome="lost", rule="lost", restart=True), "gone")
    life.log_watch.poll()
    asked = threading.Event()
    with pytest.raises(LeaveEarly) as leaving:
        life.leaving.ask_store(lambda: asked.wait(60.0))
    asked.set()
    assert leaving.value.why == "closed"


def test_an_image_that_is_pulled_and_a_save_that_is_sent_are_seen_at_work(world: AgentWorld) -> None:
    life = a_life(world)
    assert life.monitors.setup._pulling() is False
    life.setup = SimpleNamespace(pulling=True)  # type: ignore[assignment]
    assert life.monitors.setup._pulling() is True
    life.setup = SimpleNamespace(pulling=False)  # type: ignore[assignment]
    assert life.monitors.setup._pulling() is False
    see = life.monitors.training._probe
    assert see().sending is False
    life.syncs.checkpoints = SimpleNamespace(is_sending=True)  # type: ignore[assignment]
    assert see().sending is True
    life.syncs.checkpoints = SimpleNamespace(is_sending=False)  # type: ignore[assignment]
    assert see().sending is False


# ── Beside the training ───────────────────────────────────────────────────────────────────────────────────────────────


def test_outputs_are_in_the_store_while_the_training_goes_on(world: AgentWorld) -> None:
    world.submit("sh", "-c", "echo result > outputs/r.txt; until [ -e ../go ]; do sleep 0.05; done")
    life = world.life(world.claim())
    running: list[str] = []

    def stored() -> None:
        wait_for(lambda: any("outputs/" in meta.key for meta in world.store.list(f"{keys.WORK}{JOB}/")))
        running.append(life.heartbeat.now.phase)
        (life.paths.root / "go").touch()

    world.meanwhile(stored)
    left = world.run(life)
    assert running == ["training"] and left.outputs is not None and left.outputs.files == 1


def test_one_look_at_a_time_is_taken_from_the_start_of_the_training_on(world: AgentWorld) -> None:
    before = {thread for thread in threading.enumerate() if thread.name == "activity"}
    world.submit("sh", "-c", "until [ -e ../go ]; do sleep 0.05; done")
    life = world.life(world.claim())

    def looking() -> int:
        return len({thread for thread in threading.enumerate() if thread.name == "activity"} - before)

    def step() -> None:
        world.until_phase(life, "training")()
        wait_for(lambda: looking() == 1)
        (life.paths.root / "go").touch()

    world.meanwhile(step)
    assert world.run(life).outcome == "succeeded"
    wait_for(lambda: looking() == 0)


def test_a_heartbeat_tells_what_the_training_reports(world: AgentWorld) -> None:
    world.submit("sh", "-c", "echo step 3 loss 0.5; until [ -e ../go ]; do sleep 0.05; done", metrics=METRICS)
    life = world.life(world.claim())

    def told() -> bool:
        beat = world.beat(life)
        return beat is not None and (beat.step, beat.first_step, beat.metrics) == (3, 3, {"loss": 0.5})

    def step() -> None:
        wait_for(told)
        beat = world.beat(life)
        assert beat is not None and beat.trends["loss"].low == 0.5 and beat.training_since is not None
        assert beat.activity is not None and beat.activity.stepped_s is not None and beat.waste is not None
        assert beat.trained_s > 0.0
        wait_for(lambda: (world.beat(life) or beat).usage is not None)
        (life.paths.root / "go").touch()

    world.meanwhile(step)
    left = world.run(life)
    assert (left.step, left.first_step, left.metrics) == (3, 3, {"loss": 0.5})


def test_what_the_training_reports_to_its_file_is_in_the_store(world: AgentWorld) -> None:
    world.submit("sh", "-c", """echo '{"step": 4, "loss": 0.25}' >> "$STOKER_CHANNEL/metrics.jsonl" """)
    life = world.life(world.claim())
    left = world.run(life)
    assert (left.step, left.metrics) == (4, {"loss": 0.25})
    assert list(world.store.list(f"{life.node.key}/metrics/"))


def test_programs_are_fetched_as_the_submission_names_them(world: AgentWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    submission = Submission(JOB, Spec(name="job", run=("true",)), "test", tools={"py-spy": "a digest"})
    data = codec.dumps(submission)
    world.store.put(keys.spec(JOB), data)
    world.append(Submitted(spec_digest=codec.digest(data), submitter="test"))
    life = world.life(world.claim())
    world.run(life)
    monkeypatch.setattr(context, "find_py_spy", lambda: None)
    monkeypatch.setattr(context, "fetch_program", lambda _store, tools, name, _folder: tools[name])
    assert life.find_py_spy() == "a digest"  # type: ignore[comparison-overlap]


METRICS = {"step": r"step (\d+)", "loss": r"loss (\S+)"}


# ── The end ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class Saved:
    """A sync with files that no commit has."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def status(self) -> SyncStatus:
        return SyncStatus()

    def uncommitted(self) -> dict[str, Any]:
        return dict.fromkeys(self.names)

    def torn(self) -> frozenset[str]:
        return frozenset()

    def loose(self) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize(
    ("outcome", "why", "kept"),
    [
        ("succeeded", "finished", True),
        ("failed", "finished", True),
        ("interrupted", "stop", True),
        ("interrupted", "limit", True),
        ("interrupted", "notice", False),
        ("infrastructure", "finished", False),
    ],
)
def test_a_last_save_that_no_commit_has_is_kept_as_outputs_where_the_job_may_be_over(
    world: AgentWorld, outcome: Any, why: Any, kept: bool
) -> None:
    life = a_life(world)
    life.submission = Submission(JOB, Spec(name="job", run="true"), "test")
    keeps: list[tuple[Path, list[str]]] = []
    stored: list[str] = []
    finish.keep_uncommitted_saves(life, make_exit(outcome, why, "oh", TrainingRecord()))
    life.syncs.checkpoints = Saved("d.pt", "b.pt", "a.pt", "c.pt", "e.pt")  # type: ignore[assignment]
    life.syncs.outputs = SimpleNamespace(  # type: ignore[assignment]
        keep_saves=lambda folder, files, torn, loose: keeps.append((folder, sorted(files))),
        stored_saves=lambda: stored,
        stored_loose=list,
    )
    finish.keep_uncommitted_saves(life, make_exit(outcome, why, "oh", TrainingRecord()))
    told = "kept as outputs, perhaps unfinished, since no checkpoint has them: "
    finish.say_kept_saves(life)
    assert told not in said(life), "nothing of them is in the store yet"
    if kept:
        assert keeps == [(life.paths.code / "checkpoints", ["a.pt", "b.pt", "c.pt", "d.pt", "e.pt"])]
        stored += ["c/a.pt", "c/b.pt", "c/c.pt"]
        finish.say_kept_saves(life)
        assert f"{told}c/a.pt, c/b.pt, c/c.pt\n" in said(life)
        stored += ["c/d.pt", "c/e.pt"]
        finish.say_kept_saves(life)
        assert f"{told}c/a.pt, c/b.pt, c/c.pt and 2 more\n" in said(life)
    else:
        assert keeps == []
    life.syncs.checkpoints = Saved()  # type: ignore[assignment]
    count = len(keeps)
    finish.keep_uncommitted_saves(life, make_exit(outcome, why, "oh", TrainingRecord()))
    assert len(keeps) == count


@pytest.mark.parametrize(("outcome", "why"), [("succeeded", "finished"), ("interrupted", "notice")])
def test_files_outside_of_saves_are_kept_as_outputs_however_the_attempt_ended(
    world: AgentWorld, outcome: Any, why: Any
) -> None:
    life = a_life(world)
    life.submission = Submission(JOB, Spec(name="job", run="true"), "test")
    keeps: list[tuple[Any, ...]] = []
    life.syncs.checkpoints = SimpleNamespace(  # type: ignore[assignment]
        uncommitted=lambda: {"last.pt": None},
        loose=lambda: {"best.pt": None, "eval.csv": None},
        torn=lambda: {"eval.csv"},
    )
    life.syncs.outputs = SimpleNamespace(  # type: ignore[assignment]
        keep_saves=lambda *parts: keeps.append(parts),
        stored_saves=lambda: [f"perhaps-unfinished/{path}" for path in keeps[0][1] if path not in keeps[0][3]],
        stored_loose=lambda: [f"checkpoints/{path}" for path in keeps[0][3]],
    )
    finish.keep_uncommitted_saves(life, make_exit(outcome, why, "oh", TrainingRecord()))
    finish.say_kept_saves(life)
    assert "kept as outputs, since no checkpoint has them: checkpoints/best.pt, checkpoints/eval.csv\n" in said(life)
    unfinished = "kept as outputs, perhaps unfinished, since no checkpoint has them: perhaps-unfinished/last.pt\n"
    assert (unfinished in said(life)) is (outcome == "succeeded")
    folder, files, torn, loose = keeps[0]
    assert (folder, torn, set(loose)) == (life.paths.code / "checkpoints", {"eval.csv"}, {"best.pt", "eval.csv"})
    assert len(files) == 2 + (outcome == "succeeded")


def test_a_machine_whose_exit_could_not_be_written_is_not_held(
    world: AgentWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AgentNode, "write_exit", lambda *_: False)
    world.submit("sh", "-c", "exit 3", retry=Retry(hold_on_failure_s=500.0))
    life = world.life(world.claim())
    held: list[bool] = []
    monkeypatch.setattr(finish, "hold_machine", lambda _context: held.append(True))
    run_attempt(life)
    assert held == [] and not world.has_exit(life) and not life.heartbeat._thread.is_alive()


class Place:
    """What an enclosure is asked to do at the end, in order."""

    def __init__(self, life: AttemptContext, world: AgentWorld) -> None:
        self.did: list[tuple[str, bool]] = []
        leave, close = life.runtime.begin_close, life.runtime.close

        def leaving() -> None:
            self.did.append(("leave", world.has_exit(life)))
            leave()

        def closing() -> None:
            self.did.append(("close", world.has_exit(life)))
            close()

        life.runtime.begin_close, life.runtime.close = leaving, closing  # type: ignore[method-assign]


def test_an_enclosure_begins_to_go_before_the_exit_and_is_gone_after_it(world: AgentWorld) -> None:
    world.submit("true")
    life = world.life(world.claim())
    place = Place(life, world)
    world.run(life)
    assert place.did == [("leave", False), ("close", True)]


def test_an_enclosure_stays_for_as_long_as_its_machine_is_held(world: AgentWorld) -> None:
    world.submit("sh", "-c", "exit 3", retry=Retry(hold_on_failure_s=500.0))
    life = world.life(world.claim())
    place = Place(life, world)
    before: list[list[tuple[str, bool]]] = []

    def give_back() -> None:
        world.until_phase(life, "held")()
        wait_for(lambda: world.has_exit(life))
        before.append(list(place.did))
        world.append(StopAsked("me"))

    world.meanwhile(give_back)
    world.run(life)
    assert before == [[]] and place.did == [("close", True)]


def test_a_machine_that_is_taken_away_is_not_held(world: AgentWorld) -> None:
    machine = Here()
    world.submit("true", retry=Retry(hold_on_failure_s=500.0))
    life = world.life(world.claim(), machine=machine)
    life.submission = Submission(JOB, Spec(name="job", run="true", retry=Retry(hold_on_failure_s=500.0)), "test")
    life.pumps.logs.start()
    life.heartbeat.start()
    machine.give(30.0)
    finish.finish(life, make_exit("failed", "finished", "oh", TrainingRecord()))
    assert world.has_exit(life) and "held" not in said(life) and life.heartbeat.now.phase == "flushing"


def test_what_is_left_of_a_grace_bounds_what_comes_after_the_training(
    world: AgentWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = a_life(world)
    ending = EndRequest("stop", "stop asked by me", 20.0)
    life.record.outcome = TrainingOutcome(0, None, 1.0, ending, deadline_s=time.monotonic() + 20.0)
    given: list[tuple[float, bool]] = []

    def flush_rest(_context: AttemptContext, left: Exit, closing: ShutdownBudget) -> Exit:
        given.append((closing.share_s(), closing.has_deadline))
        return left

    monkeypatch.setattr(finish, "flush", flush_rest)
    life.heartbeat.start()
    finish.finish(life, make_exit("interrupted", "stop", "stop asked by me", life.record))
    [(share_s, pressing)] = given
    assert pressing and share_s <= 18.0 and world.has_exit(life)
    assert "stop asked by me" not in said(life), "it was said when it was asked to go"


class Copy:
    """The cloud's copy of the log."""

    warning: str | None = None

    def __init__(self) -> None:
        self.fed = b""
        self.did: list[str] = []

    def feed(self, data: bytes, at: float) -> None:
        self.fed += data

    def drain(self, seconds: float) -> bool:
        self.did.append(f"drain {round(seconds)}")
        return True

    def stop(self) -> None:
        self.did.append("stop")


def test_the_clouds_copy_gets_what_the_training_prints_and_is_stopped_last(
    world: AgentWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Copy()
    monkeypatch.setattr(attempt, "open_log_copy", lambda *_: copy)
    world.submit("sh", "-c", "echo a line of the training")
    assert world.run(world.life(world.claim())).outcome == "succeeded"
    assert b"a line of the training\n" in copy.fed and copy.did == ["drain 2", "drain 10", "stop"]


def test_the_image_of_its_container_is_told(world: AgentWorld) -> None:
    world.submit("true")
    life = world.life(world.claim())
    life.runtime.image = "repository@sha256:1"  # type: ignore[misc]
    world.run(life)
    beat = world.beat(life)
    assert beat is not None and beat.image == "repository@sha256:1"


def test_what_is_mounted_for_the_training_is_unmounted_after_the_exit(
    world: AgentWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.submit("true")
    life = world.life(world.claim())
    asked: list[tuple[Path, bool]] = []
    monkeypatch.setattr(finish, "unmount_below", lambda folder: asked.append((folder, world.has_exit(life))))
    world.run(life)
    assert asked == [(life.paths.mounts, True)]


def test_a_training_whose_enclosure_was_taken_away_did_not_fail_by_itself(tmp_path: Path) -> None:
    trained = TrainingRecord(outcome=TrainingOutcome(137, None, 5.0))
    left = make_training_exit(trained, tmp_path, None, "its own word", "the container engine was stopped")
    assert (left.outcome, left.why, left.reason) == ("infrastructure", "finished", "the container engine was stopped")
    assert (left.older_checkpoints, left.restored_from, left.restored_step, left.save) == (0, None, None, None)
    said_by_itself = make_training_exit(trained, tmp_path, None, "its own word")
    assert (said_by_itself.outcome, said_by_itself.why) == ("failed", "finished")
    assert said_by_itself.reason == "the command ended with exit code 137: its own word"


@pytest.mark.parametrize("outcome", ["failed", "interrupted"])
def test_the_last_lines_of_a_training_that_failed_tell_its_cause(outcome: ExitOutcome) -> None:
    lines = (*(f"line {n}" for n in range(30)), "Traceback (most recent call last):", "ValueError: too wide")
    left = complete_exit(make_exit(outcome, "finished", "oh", TrainingRecord()), None, None, lines, Waste(waited_s=4.0))
    assert (left.cause is not None) is (outcome == "failed")
    assert left.tail == lines[-20:] and left.waste == Waste(waited_s=4.0)
    assert (left.checkpoint, left.commits, left.step, left.metrics) == (None, 0, None, {})


def test_an_attempt_that_never_started_has_trained_for_no_time() -> None:
    left = make_exit("failed", "setup", "no such package", TrainingRecord(), code=3)
    assert (left.started, left.trained_s, left.started_at, left.save, left.code) == (False, 0.0, None, None, 3)


def test_an_exit_tells_what_was_saved_and_reported() -> None:
    ref, kept = CheckpointRef("key", "name"), SavedOutputs()
    status, progress = SyncStatus(last=ref, commits=3), Progress(1, 9, {"loss": 0.5})
    left = complete_exit(
        make_exit("succeeded", "finished", "done", TrainingRecord()), status, progress, (), Waste(), kept
    )
    assert (left.checkpoint, left.commits, left.first_step, left.step) == (ref, 3, 1, 9)
    assert left.metrics == {"loss": 0.5} and left.outputs is kept and left.tail == ()


def test_a_request_to_leave_bounds_what_comes_after_the_training(
    world: AgentWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a job that reached `limits.max_cost` while its results were sent, the governors end the machine soon."""
    life = a_life(world)
    life.submission = Submission(JOB, Spec(name="job", run="true", checkpoints=Checkpoints(grace_s=20.0)), "test")
    assert life.deadline_s() is None
    monkeypatch.setattr(life.log_watch, "leave", lambda: Leave("limits.max_cost is reached", "limit"))
    first = life.deadline_s()
    assert first is not None and 15.0 < first - time.monotonic() <= 20.0
    assert life.deadline_s() == first, "counted from when the request was seen"
    life.record.outcome = TrainingOutcome(0, None, 1.0, deadline_s=first - 5.0)
    assert life.deadline_s() == first - 5.0
