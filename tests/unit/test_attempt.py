"""One attempt on one node, from the log's word to the exit: what the agent decides on its way."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest
from agent_world import JOB, AgentWorld
from checkpoint_world import write
from noticing_machine import Here
from plain_store import wait_for

from stoker.agent import supervise
from stoker.agent.attempt import run_attempt
from stoker.agent.checkpoints.blobs import BlobSender, OutgoingFile
from stoker.agent.checkpoints.folder_snapshot import scan
from stoker.agent.phases import permission
from stoker.agent.phases.context import AttemptContext
from stoker.agent.setup import Setup
from stoker.model import keys
from stoker.model.errors import SetupFailed
from stoker.model.job_state import Claim
from stoker.model.log_entries import Closed, Draining, StopAsked
from stoker.model.node_facts import Exit, Manifest, NoticeFact
from stoker.model.spec import Checkpoints, Limits, Retry
from stoker.store.checkpoint_manifests import encode
from stoker.store.checkpoints import list_checkpoints
from stoker.testing.memory_store import Fault

pytestmark = pytest.mark.slow

# Goes on until it is told to leave, then saves.
SAVES_WHEN_ASKED = """
import pathlib, signal, sys, time
def save(*_):
    pathlib.Path("checkpoints/a.json").write_text("{}")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("began", flush=True)
time.sleep(1000)
"""
WAITS = "echo began; exec sleep 1000"


@pytest.fixture(autouse=True)
def _own_handler() -> Iterator[None]:
    """An agent takes SIGTERM for itself, and here it lives in the process of the tests."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def world(tmp_path: Path) -> AgentWorld:
    return AgentWorld(tmp_path)


def reclaimed(world: AgentWorld, claim: Claim, trained_s: float = 0.0) -> None:
    closed = Closed(claim=claim.number, outcome="reclaimed", rule="reclaimed", restart=True, trained_s=trained_s)
    world.append(closed)


def commit(world: AgentWorld, claim: Claim, ordinal: int, text: str, step: int | None = None) -> str:
    """A checkpoint of an attempt before."""
    folder = world.root / f"saved-{ordinal}"
    write(folder / "a.pt", text)
    sender = BlobSender(world.store, JOB, 0, scratch=world.root, workers=1)
    blobs = sender.send([OutgoingFile(file, folder / file.path) for file in scan(folder).values()])
    now = datetime.now(timezone.utc)
    name = f"ckpt-{ordinal}"
    manifest = Manifest(name, JOB, claim.number, 0, ordinal, now, tuple(blobs.values()), step=step)
    key = keys.checkpoint_key(claim.number, ordinal, name)
    assert world.store.create(keys.manifest(JOB, key), encode(manifest))
    return key


def heard_by(life: AttemptContext) -> list[str]:
    """The phases that an agent tells of, as it goes through them."""
    phases: list[str] = []
    change = life.heartbeat.change

    def recording(**changes: object) -> None:
        if "phase" in changes:
            phases.append(str(changes["phase"]))
        change(**changes)

    life.heartbeat.change = recording  # type: ignore[method-assign]
    return phases


def said(life: AttemptContext) -> str:
    return life.paths.train_log.read_text() if life.paths.train_log.exists() else ""


# ── A training that ends by itself ────────────────────────────────────────────────────────────────────────────────────


def test_a_training_that_finishes_leaves_its_log_its_checkpoint_and_its_exit(world: AgentWorld) -> None:
    world.submit(
        "sh", "-c", "echo weights > checkpoints/a.pt; echo step 7 loss 0.5; sleep 0.3", metrics={"loss": r"loss (\S+)"}
    )
    claim = world.claim()
    life = world.life(claim)
    phases = heard_by(life)
    left = world.run(life)
    assert (left.outcome, left.why, left.code, left.signal, left.started) == ("succeeded", "finished", 0, None, True)
    assert left.reason == "the command finished" and left.trained_s >= 0.3 and left.started_at is not None
    assert phases == ["setup", "waiting", "restoring", "training", "flushing"]
    assert "step 7 loss 0.5" in world.log_of(life) and "[stoker] attempt 1\n" in said(life)
    assert "step 7 loss 0.5" in left.tail and left.metrics == {"loss": 0.5}
    assert left.checkpoint is not None and left.commits == 1 and left.save is None
    assert [one.key for one in list_checkpoints(world.store, JOB)] == [left.checkpoint.key]
    assert left.waste is not None and left.waste.lost_s == 0.0 and left.waste.waited_s < 30.0
    assert "ended with" not in said(life)
    beat = world.beat(life)
    assert beat is not None and beat.address == "127.0.0.1"
    assert not life.runtime.group.members()


def test_nothing_of_an_agent_goes_on_behind_its_exit(world: AgentWorld) -> None:
    others = set(threading.enumerate())
    world.submit("true")
    life = world.life(world.claim())
    world.run(life)
    mine = ("log-watch", "peers", "heartbeat", "log", "metrics", "usage", "checkpoints", "outputs", "preparing")
    wait_for(lambda: not [one for one in {*threading.enumerate()} - others if one.name.startswith(mine)])


@pytest.mark.parametrize("end", ["by itself", "stopped"])
def test_there_is_no_exit_while_a_process_of_the_training_lives(
    world: AgentWorld, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr(supervise, "_GIVE_UP_S", 0.2)
    save = "echo {} > checkpoints/a.json; echo results > outputs/a.txt; echo began"
    world.submit("sh", "-c", f"{save}; {'sleep 3' if end == 'by itself' else 'exec sleep 1000'}")
    life = world.life(world.claim())
    kill = life.runtime.group.kill
    if end == "stopped":
        world.meanwhile(began(life), lambda: time.sleep(3), lambda: world.append(StopAsked("me")))
    monkeypatch.setattr(life.runtime.group, "kill", lambda timeout_s=10.0: kill(timeout_s) and False)
    run_attempt(life)
    world.join()
    assert not world.has_exit(life) and not life.paths.left.exists()
    # All that can be saved is saved.
    assert len(list_checkpoints(world.store, JOB)) == 1
    assert "the machine is given back, and the next attempt begins when it is off" in world.log_of(life)
    beat = world.beat(life)
    assert beat is not None and beat.phase == "flushing"
    assert any("/outputs/" in meta.key for meta in world.store.list(""))


def test_a_training_that_fails_says_how(world: AgentWorld) -> None:
    world.submit("sh", "-c", "echo oh; exit 3")
    life = world.life(world.claim())
    left = world.run(life)
    assert (left.outcome, left.why, left.code, left.signal) == ("failed", "finished", 3, None)
    assert (
        left.reason == "the command ended with exit code 3"
        and "[stoker] the command ended with exit code 3" in said(life)
    )
    # A script that failed by itself and saved nowhere is not told about checkpoints.
    assert "nothing was saved" not in said(life) and left.saves_elsewhere == ()


def test_a_training_that_was_killed_says_the_signal(world: AgentWorld) -> None:
    world.submit("sh", "-c", "kill -9 $$")
    life = world.life(world.claim())
    left = world.run(life)
    assert (left.outcome, left.code, left.signal) == ("failed", None, 9)
    assert left.reason == "the command ended with signal 9"
    assert "nothing was saved: no file was written to checkpoints/" in said(life)


def test_a_program_that_is_not_there_is_the_users_to_name(world: AgentWorld) -> None:
    world.submit("no-such-program", "x")
    life = world.life(world.claim())
    left = world.run(life)
    assert (left.outcome, left.why, left.code, left.started) == ("failed", "setup", 127, False)
    assert left.reason == "run: there is no program 'no-such-program' on this machine"
    assert "[stoker] run: there is no program" in said(life)


def test_a_program_that_may_not_be_run_is_told_with_its_error(world: AgentWorld, tmp_path: Path) -> None:
    write(tmp_path / "plain", "text")
    world.submit(str(tmp_path / "plain"))
    left = world.run(world.life(world.claim()))
    assert (left.outcome, left.why, left.code) == ("failed", "setup", 127)
    assert "[Errno " in left.reason and "there is no program" not in left.reason


@pytest.mark.parametrize("user", [True, False])
def test_a_set_up_that_fails_is_the_users_or_the_machines(
    world: AgentWorld, monkeypatch: pytest.MonkeyPatch, user: bool
) -> None:
    def fail(*_: object) -> None:
        raise SetupFailed("it is not there", user=user, code=9)

    monkeypatch.setattr(Setup, "run", fail)
    world.submit("true")
    left = world.run(world.life(world.claim()))
    assert (left.outcome, left.why, left.reason, left.code) == (
        "failed" if user else "infrastructure",
        "setup",
        "it is not there",
        9,
    )


def test_a_mistake_of_the_agent_before_the_training_is_told(
    world: AgentWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("oh")

    monkeypatch.setattr(Setup, "run", fail)
    world.submit("true")
    left = world.run(world.life(world.claim()))
    assert (left.outcome, left.why, left.reason) == ("infrastructure", "agent", "the agent failed: ValueError('oh')")
    assert "Traceback" in caplog.text, "where it failed is in the agent's own log"


def test_a_mistake_of_the_agent_during_the_training_leaves_the_saving_to_the_next_one(world: AgentWorld) -> None:
    world.submit("sh", "-c", WAITS)
    life = world.life(world.claim())

    def fail(*_: object) -> None:
        raise ValueError("oh")

    life.training.wait = fail  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="oh"):
        run_attempt(life)
    assert not world.has_exit(life) and not life.runtime.group.members(), "nothing trains without its agent"
    life.heartbeat.stop()
    life.log_watch.stop()


# ── A training that is asked to go ────────────────────────────────────────────────────────────────────────────────────


def given(machine: Here, grace_s: float) -> Callable[[], None]:
    return lambda: machine.give(grace_s)


def began(life: AttemptContext) -> Callable[[], None]:
    return lambda: wait_for(lambda: "began" in said(life))


def test_a_notice_has_the_training_save_and_the_save_made_durable(world: AgentWorld) -> None:
    world.submit(sys.executable, "-S", "-c", SAVES_WHEN_ASKED)
    machine = Here()
    life = world.life(world.claim(), machine=machine)
    phases = heard_by(life)
    world.meanwhile(began(life), given(machine, 60.0))
    left = world.run(life)
    assert (left.outcome, left.why, left.reason) == ("interrupted", "notice", "notice from test")
    assert phases[-3:] == ["training", "saving", "flushing"]
    assert left.checkpoint is not None and left.commits == 1
    save = left.save
    assert save is not None and save.commits == 1 and save.saved_s is not None and save.durable_s is not None
    assert save.grace_s is not None and 50.0 < save.grace_s <= 60.0
    assert 0.0 < save.saved_s <= save.durable_s <= (save.ended_s or 0.0) < 60.0
    assert "[stoker] notice from test: " in said(life) and "s to save" in said(life)
    assert said(life).count("notice from test") == 1, "the reason is not said again"
    told = json.loads(life.paths.notice.read_text())
    assert told["reason"] == "notice from test" and 50.0 < told["grace_s"] <= 60.0
    assert world.store.holds(keys.notice(life.node.key)), "the governors hear of it"


def test_a_training_that_saves_elsewhere_is_told_where(world: AgentWorld) -> None:
    world.submit("sh", "-c", f"echo weights > model.pt; {WAITS}", checkpoints=Checkpoints(grace_s=0.5))
    claim = world.claim()
    life = world.life(claim)
    world.meanwhile(began(life), lambda: world.append(Draining(claim.number, "lost", "test"), "moving on"))
    left = world.run(life)
    assert (left.outcome, left.why, left.reason) == ("interrupted", "drain", "moving on")
    assert left.checkpoint is None and left.saves_elsewhere == ("model.pt",)
    assert "[stoker] nothing was saved: no file was written to checkpoints/" in said(life) and "model.pt" in said(life)
    assert "moving on: 0.5 s to save" in said(life)
    assert left.save is not None and left.save.commits == 0 and not left.save.torn
    assert "[stoker] the command ended with " in said(life) or "[stoker] the command did not end in time" in said(life)
    assert left.waste is not None and left.waste.lost_s == pytest.approx(left.trained_s, abs=0.01)


def test_a_stop_ends_the_training_with_the_grace_of_the_job(world: AgentWorld) -> None:
    world.submit(sys.executable, "-S", "-c", SAVES_WHEN_ASKED, checkpoints=Checkpoints(grace_s=40.0))
    life = world.life(world.claim())
    world.meanwhile(began(life), lambda: world.append(StopAsked("me")))
    left = world.run(life)
    assert (left.outcome, left.why, left.reason) == ("interrupted", "stop", "stop asked by me")
    assert left.save is not None and left.save.grace_s == pytest.approx(40.0)
    assert left.checkpoint is not None


def test_a_claim_that_is_closed_trains_no_more(world: AgentWorld) -> None:
    world.submit("sh", "-c", WAITS, checkpoints=Checkpoints(grace_s=0.3))
    claim = world.claim()
    life = world.life(claim)
    world.meanwhile(began(life), lambda: reclaimed(world, claim))
    left = world.run(life)
    assert (left.outcome, left.why) == ("interrupted", "closed")


def test_the_training_time_of_all_attempts_is_bounded(world: AgentWorld) -> None:
    world.submit("sh", "-c", WAITS, limits=Limits(max_runtime_s=100.0), checkpoints=Checkpoints(grace_s=0.3))
    reclaimed(world, world.claim(), trained_s=60.0)
    reclaimed(world, world.claim(), trained_s=39.0)
    left = world.run(world.life(world.claim()))
    assert (left.outcome, left.why, left.reason) == ("interrupted", "limit", "limits.max_runtime is reached")
    assert 1.0 <= left.trained_s < 30.0


def test_a_job_within_its_bound_on_time_goes_on(world: AgentWorld) -> None:
    world.submit("sh", "-c", "sleep 0.5", limits=Limits(max_runtime_s=100.0))
    reclaimed(world, world.claim(), trained_s=10.0)
    assert world.run(world.life(world.claim())).outcome == "succeeded"


def test_a_signal_to_the_agent_is_a_notice(world: AgentWorld) -> None:
    world.submit(sys.executable, "-S", "-c", SAVES_WHEN_ASKED)
    life = world.life(world.claim())
    world.meanwhile(began(life), lambda: os.kill(os.getpid(), signal.SIGTERM))
    left = world.run(life)
    assert (left.outcome, left.why, left.reason) == ("interrupted", "notice", "notice from shutdown")
    assert left.checkpoint is not None


def test_a_hint_asks_for_a_save_and_the_training_goes_on(world: AgentWorld) -> None:
    world.submit(
        "sh", "-c", "echo began; until [ -e ../channel/save ]; do sleep 0.05; done; cat ../channel/save; sleep 1"
    )
    machine = Here()
    life = world.life(world.claim(), machine=machine)

    def hint() -> None:
        machine.now = NoticeFact(hard=False, source="rebalance", at=datetime.now(timezone.utc), grace_s=0.0)

    world.meanwhile(began(life), hint)
    left = world.run(life)
    assert (left.outcome, left.why) == ("succeeded", "finished")
    assert life.paths.save.read_text() == "1"
    assert said(life).count("[stoker] notice from rebalance: asked to save, going on") == 1
    assert "nothing has been saved" in said(life), "it has nothing to lose yet, and is told so at once"


def test_a_notice_before_the_training_lets_it_not_start(world: AgentWorld) -> None:
    world.submit("sh", "-c", "echo began")
    machine = Here()
    machine.give(30.0)
    life = world.life(world.claim(), machine=machine)
    left = world.run(life)
    assert (left.outcome, left.why, left.started) == ("interrupted", "notice", False)
    assert left.reason == "given notice before the training started"
    assert "began" not in said(life) and "[stoker] given notice before the training started" in said(life)


# ── Waiting ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_nothing_runs_until_the_log_names_the_machine(world: AgentWorld) -> None:
    world.submit("sh", "-c", "echo began")
    claim = world.claim(launched=False)
    life = world.life(claim)
    asked: list[bool] = []
    poll = life.log_watch.poll

    def polling() -> object:
        asked.append("setup" in str(life.heartbeat.now.phase))
        return poll()

    life.log_watch.poll = polling  # type: ignore[method-assign, assignment]
    world.meanwhile(lambda: wait_for(lambda: len(asked) > 3), lambda: world.launch(claim.number))
    left = world.run(life)
    assert left.outcome == "succeeded" and asked[:4] == [False] * 4


def test_a_machine_that_the_log_never_names_gives_itself_back(
    world: AgentWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(permission, "SETTINGS", replace(permission.SETTINGS, wait_limit_s=0.5))
    world.submit("sh", "-c", "echo began")
    life = world.life(world.claim(launched=False))
    began_s = time.monotonic()
    left = world.run(life)
    assert (left.outcome, left.why, left.reason) == ("interrupted", "waited", "the log never named this machine")
    assert time.monotonic() - began_s >= 0.5


def interrupted_exit(world: AgentWorld, life: AttemptContext) -> None:
    left = Exit("interrupted", "notice", datetime.now(timezone.utc))
    life.node.write_exit(left, time.monotonic() + 5.0)


def test_an_attempt_waits_until_the_one_before_has_left(world: AgentWorld, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    world.submit("sh", "-c", "echo began")
    older = world.life(world.claim())
    older.heartbeat.write()
    life = world.life(world.claim())
    waited = "waiting: attempt 1 has not left yet"
    world.meanwhile(
        world.until_phase(life, "waiting"),
        lambda: wait_for(lambda: waited in caplog.text),
        lambda: interrupted_exit(world, older),
    )
    left = world.run(life)
    assert left.outcome == "succeeded" and left.waste is not None and 1.0 < left.waste.waited_s < 40.0
    assert caplog.text.count(waited) == 1, "said once"
    assert "attempt 2, starting from the beginning: there is no checkpoint" in said(life)


@pytest.mark.parametrize("word", ["notice", "stop", "closed", "late"])
def test_an_attempt_that_waits_hears_that_it_must_go(
    world: AgentWorld, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    world.submit("sh", "-c", "echo began")
    world.claim()
    claim = world.claim()
    machine = Here()
    life = world.life(claim, machine=machine)
    if word == "late":
        monkeypatch.setattr(permission, "SETTINGS", replace(permission.SETTINGS, wait_limit_s=1.0))
    act = {
        "notice": lambda: machine.give(30.0),
        "stop": lambda: world.append(StopAsked("me")),
        "closed": lambda: reclaimed(world, claim),
        "late": lambda: None,
    }[word]
    world.meanwhile(world.until_phase(life, "waiting"), act)
    left = world.run(life)
    why, reason = {
        "notice": ("notice", "given notice before the training started"),
        "stop": ("stop", "stop asked by me"),
        "closed": ("closed", "is closed: for the test"),
        "late": ("waited", "waited 1 s to be allowed to train"),
    }[word]
    assert (left.outcome, left.why, left.started) == ("interrupted", why, False) and left.reason.endswith(reason)
    assert "began" not in said(life)


def test_a_store_that_is_away_is_asked_again(world: AgentWorld) -> None:
    world.submit("sh", "-c", "echo began")
    failed: list[str] = []

    def faults(_method: str, key: str) -> Fault | None:
        if key == keys.spec(JOB) and len(failed) < 3:
            failed.append(key)
            return Fault()
        return None

    left = world.run(world.life(world.claim(), faults=faults))
    assert left.outcome == "succeeded" and len(failed) == 3


# ── Resuming ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_newest_checkpoint_is_resumed_from(world: AgentWorld) -> None:
    world.submit("sh", "-c", "cat checkpoints/a.pt; sleep 0.3")
    first = world.claim()
    commit(world, first, 1, "old\n", step=10)
    commit(world, first, 2, "older\n", step=20)
    newest = commit(world, first, 3, "newest\n", step=30)
    reclaimed(world, first)
    life = world.life(world.claim())
    left = world.run(life)
    assert left.outcome == "succeeded" and "newest" in said(life)
    assert (left.restored_from, left.restored_step, left.older_checkpoints) == (newest, 30, 2)
    assert "[stoker] attempt 2, resuming from ckpt-3 (1.3), step 30\n" in said(life)
    beat = world.beat(life)
    assert beat is not None and (beat.restored_from, beat.restored_step) == (newest, 30)


def test_a_checkpoint_that_cannot_be_restored_gives_way_to_the_one_before(world: AgentWorld) -> None:
    world.submit("sh", "-c", "cat checkpoints/a.pt")
    first = world.claim()
    whole = commit(world, first, 1, "whole\n")
    torn = commit(world, first, 2, "torn\n")
    manifest = next(one for one in list_checkpoints(world.store, JOB) if one.key == torn)
    assert manifest.complete
    lost = [meta.key for meta in world.store.list(keys.blobs(JOB)) if meta.size == len("torn\n")]
    world.store.delete(lost)
    reclaimed(world, first)
    life = world.life(world.claim())
    left = world.run(life)
    assert left.outcome == "succeeded" and "whole" in said(life)
    assert (left.restored_from, left.older_checkpoints) == (whole, 0)
    assert f"checkpoint {torn} cannot be restored: " in said(life)


def test_a_job_whose_checkpoints_are_all_broken_does_not_begin_anew(world: AgentWorld) -> None:
    world.submit("sh", "-c", "echo began")
    first = world.claim()
    commit(world, first, 1, "torn\n")
    world.store.delete([meta.key for meta in world.store.list(keys.blobs(JOB))])
    reclaimed(world, first)
    life = world.life(world.claim())
    left = world.run(life)
    assert (left.outcome, left.why, left.started) == ("failed", "restore", False)
    assert left.reason.startswith("no checkpoint could be restored: rank 0: ") and "began" not in said(life)


def test_what_a_person_resumes_from_is_imported_first(world: AgentWorld, tmp_path: Path) -> None:
    write(tmp_path / "before" / "a.pt", "imported\n")
    world.submit("sh", "-c", "cat checkpoints/a.pt", resume_from=str(tmp_path / "before"))
    life = world.life(world.claim())
    left = world.run(life)
    assert left.outcome == "succeeded" and "imported" in said(life)
    assert left.restored_from is not None and left.restored_from.endswith("-before")
    assert "attempt 1, resuming from before (0." in said(life)


def test_what_cannot_be_imported_is_told_by_its_field(world: AgentWorld, tmp_path: Path) -> None:
    world.submit("true", resume_from=str(tmp_path / "nowhere"))
    left = world.run(world.life(world.claim()))
    assert (left.outcome, left.why) == ("failed", "setup") and left.reason.startswith("resume_from: ")


# ── A machine that is held ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_failed_machine_is_held_until_a_person_gives_it_back(world: AgentWorld) -> None:
    world.submit("sh", "-c", "exit 3", retry=Retry(hold_on_failure_s=500.0))
    life = world.life(world.claim())
    phases = heard_by(life)
    world.meanwhile(
        lambda: wait_for(lambda: world.has_exit(life)),
        world.until_phase(life, "held"),
        lambda: world.append(StopAsked("me")),
    )
    began_s = time.monotonic()
    left = world.run(life)
    assert left.outcome == "failed" and phases[-1] == "held" and time.monotonic() - began_s < 100.0
    assert "if this ends the job, the machine is held for 8 min 20 s at most" in said(life)
    assert not life.heartbeat._thread.is_alive()


def test_a_hold_ends_when_the_machine_is_shut_down(world: AgentWorld, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    world.submit("sh", "-c", "exit 3", retry=Retry(hold_on_failure_s=500.0))
    life = world.life(world.claim())
    world.meanwhile(world.until_phase(life, "held"), lambda: os.kill(os.getpid(), signal.SIGTERM))
    began_s = time.monotonic()
    assert world.run(life).outcome == "failed" and time.monotonic() - began_s < 100.0
    assert "the machine is being shut down" in caplog.text


def test_a_job_that_succeeded_is_not_held(world: AgentWorld) -> None:
    world.submit("true", retry=Retry(hold_on_failure_s=500.0))
    life = world.life(world.claim())
    phases = heard_by(life)
    world.run(life)
    assert "held" not in phases and "held" not in said(life)
