"""Failures of the output sync: of the store, of a round, and of the last look."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from checkpoint_world import JOB, memory_store, write
from output_world import LIMIT_S, World, plain, world
from plain_store import wait_for

from stoker.agent import output_sync
from stoker.agent.output_files import OutputFiles, OutputSource
from stoker.agent.output_sync import OutputSync

__all__ = ["world"]


def test_after_failures_it_waits_ever_longer_up_to_a_bound_and_begins_anew(world: World) -> None:
    world.write("a", "1")
    world.tick(rounds=2)
    world.client.outage(True)
    pauses = []
    for _ in range(14):
        world.clock.s = max(world.clock.s + 1.0, world.sync._backoff.retry_at)
        world.sync.tick()
        pauses.append(world.sync._backoff.retry_at - world.clock.s)
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, *[30.0] * 8]
    assert (world.sync.status().error or "").startswith("StoreUnavailable: ")
    tries = len(world.written)
    world.tick(every_s=29.0)
    assert len(world.written) == tries, "not yet"
    world.client.outage(False)
    world.tick()
    world.tick()
    assert world.plain() == {"a": b"1"} and world.sync.status().error is None
    world.client.outage(True)
    world.write("a", "2")
    while world.sync.status().error is None:
        world.tick()
    assert world.sync._backoff.retry_at - world.clock.s == 0.5


def test_the_first_round_of_all_may_fail_and_is_logged_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    before = world.sync.status()
    assert (before.files, before.unsynced_bytes, before.bytes_moved, before.error) == (0, 0, 0, None)
    world.write("a", "1")
    world.sync._tracker.settle_s = 0.0
    world.client.outage(True)
    world.tick()
    assert world.sync._backoff.retry_at - world.clock.s == 0.5
    world.tick(rounds=3)
    assert [one.getMessage().partition(":")[0] for one in caplog.records] == [
        "outputs cannot be brought to the store now"
    ]
    assert world.sync.status().unsynced_bytes == 1


@pytest.mark.parametrize("started", [True, False])
def test_an_end_whose_first_look_hangs_is_no_success_and_keeps_no_process_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: bool
) -> None:
    files = OutputFiles([OutputSource(tmp_path / "out", takes_all=True)])
    release, looking = threading.Event(), threading.Event()
    own = files.declared

    def declared() -> object:
        looking.set()
        release.wait(LIMIT_S)
        return own()

    monkeypatch.setattr(files, "declared", declared)
    sync = OutputSync(memory_store(), JOB, 1, 0, files)
    if started:
        sync.start()
        assert looking.wait(LIMIT_S)
    try:
        assert not sync.final(None, until_s=lambda: 0.0 if looking.is_set() else float("inf"))
        assert sync._thread is not None and sync._thread.is_alive() and sync._thread.daemon
    finally:
        release.set()
    sync._thread.join(LIMIT_S)
    assert not sync._thread.is_alive()


@pytest.mark.parametrize("started", [True, False])
def test_an_end_that_comes_too_late_to_look_is_no_success(tmp_path: Path, started: bool) -> None:
    write(tmp_path / "out" / "a", "1")
    sync = OutputSync(memory_store(), JOB, 1, 0, tmp_path / "out", settle_s=LIMIT_S)
    if started:
        sync.start()
    assert not sync.final(0.0)
    assert sync._thread is not None
    sync._thread.join(LIMIT_S)
    assert not sync.final(0.0), "also once its thread has ended"


def test_at_the_end_an_outage_of_before_is_not_waited_out(world: World) -> None:
    world.write("a", "1")
    world.client.outage(True)
    for _ in range(10):
        world.clock.s = max(world.clock.s + 1.0, world.sync._backoff.retry_at)
        world.sync.tick()
    world.client.outage(False)
    assert world.sync.final(LIMIT_S)
    assert world.plain() == {"a": b"1"}


def test_one_bad_round_does_not_end_the_syncing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(output_sync, "_POLL_S", 0.001)
    monkeypatch.setattr(output_sync, "_BACKOFF_S", 0.001)
    write(tmp_path / "out/a", "1")
    memory = memory_store()
    files = OutputFiles([OutputSource(tmp_path / "out", takes_all=True)])
    own, bad = files.declared, [RuntimeError("odd")]
    noted: list[str | None] = []

    def declared() -> object:
        if bad:
            raise bad.pop()
        noted.append(sync._backoff.error)
        return own()

    monkeypatch.setattr(files, "declared", declared)
    sync = OutputSync(memory, JOB, 1, 0, files, settle_s=0.001)
    sync.start()
    wait_for(lambda: plain(memory) == {"a": b"1"})
    sync.close()
    assert sync._thread is not None
    sync._thread.join(LIMIT_S)
    assert not sync._thread.is_alive()
    assert noted[0] == "RuntimeError: odd"
    assert [one.getMessage() for one in caplog.records if one.exc_info] == ["output sync"]


def test_a_fault_that_does_not_pass_ends_the_last_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(output_sync, "_POLL_S", 0.001)
    files = OutputFiles([OutputSource(tmp_path / "out", takes_all=True)])
    tries = []

    def declared() -> object:
        tries.append(1)
        raise RuntimeError("odd")

    monkeypatch.setattr(files, "declared", declared)
    sync = OutputSync(memory_store(), JOB, 1, 0, files)
    sync.final(10_000.0)
    assert len(tries) == 5
    assert [one.getMessage() for one in caplog.records if one.exc_info] == ["last output sync"] * 5
    assert [(one.path, one.size, one.why) for one in sync.report().named] == [
        (".", 0, "the rest cannot be kept: RuntimeError: odd")
    ]


def test_a_fault_that_passes_leaves_nothing_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_sync, "_POLL_S", 0.001)
    monkeypatch.setattr(output_sync, "_BACKOFF_S", 0.001)
    write(tmp_path / "out/a", "1")
    files = OutputFiles([OutputSource(tmp_path / "out", takes_all=True)])
    own, bad = files.declared, [RuntimeError("odd")] * 4
    monkeypatch.setattr(files, "declared", lambda: own() if not bad else (_ for _ in ()).throw(bad.pop()))
    memory = memory_store()
    sync = OutputSync(memory, JOB, 1, 0, files)
    assert sync.final(LIMIT_S)
    assert plain(memory) == {"a": b"1"} and sync.report().left_out == 0
