"""A governor's work goes on after a process ended: who takes it over, when nothing is left, and what its log says."""

from __future__ import annotations

import fcntl
import os
from datetime import datetime, timezone
from pathlib import Path

import pytest
from test_background import Governed, held_lock, open_job

from stoker.core.place_capacity import UNDECIDED
from stoker.core.snapshot import Unmark
from stoker.governor import background
from stoker.governor.background import GovernorChoice as Result
from stoker.governor.background_report import OK, read_report
from stoker.governor.loop import Pass
from stoker.model import keys
from stoker.model.errors import SpecError, StokerError, StoreDenied, StoreError, StoreUnavailable
from stoker.model.log_entries import Record, Submitted
from stoker.processes import detached
from stoker.store import job_log
from stoker.store.base import Store, open_store


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    return open_store((tmp_path / "store").as_uri())


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stores for which a governor in the background was asked for."""
    found: list[str] = []

    def ensure(url: str) -> None:
        found.append(url)

    monkeypatch.setattr(background, "ensure_governor", ensure)
    return found


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []
    monkeypatch.setattr(background.time, "sleep", found.append)
    return found


# ── Taking over ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_jobs_left_behind_are_handed_to_the_governor_that_can_go_on(
    store: Store, started: list[str], slept: list[float], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    asked: list[tuple[str, list[str], bool]] = []

    def carry_on(of: Store, jobs: list[str], *, at_once: bool) -> Result:
        asked.append((of.url, list(jobs), at_once))
        return Result(by="lambda in us-east-1", warning="its role may not be passed")

    monkeypatch.setattr(background, "ensure_governed", carry_on)
    open_job(store, "a-aaaa")
    background.take_over(store.url, ["a-aaaa", "b-bbbb"])
    assert asked == [(store.url, ["a-aaaa", "b-bbbb"], False)]
    assert started == [] and slept == []
    said = capsys.readouterr().out
    assert "takes over a-aaaa, b-bbbb" in said and "handed over to lambda in us-east-1" in said
    assert "its role may not be passed" in said


def test_where_nothing_is_active_named_jobs_need_nobody(
    store: Store, started: list[str], slept: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "ensure_governed", lambda *_, **__: pytest.fail("nothing is left to govern"))
    background.take_over(store.url, ["a-aaaa"])
    assert started == [] and slept == []


def test_a_submission_that_was_still_on_its_way_is_seen_a_moment_later(
    store: Store, started: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    slept: list[float] = []

    def arrive(seconds: float) -> None:
        slept.append(seconds)
        open_job(store, "a-aaaa")

    monkeypatch.setattr(background.time, "sleep", arrive)
    background.take_over(store.url, [])
    assert started == [store.url] and len(slept) == 1 and slept[0] > 0
    said = capsys.readouterr().out
    assert "takes over a submission" in said and "handed over to the governor in the background" in said
    assert len(said.splitlines()) == 2


def test_a_submission_that_never_arrived_needs_nobody(store: Store, started: list[str], slept: list[float]) -> None:
    background.take_over(store.url, [])
    assert started == [] and len(slept) == 1


def test_a_submission_that_is_there_is_not_waited_for(store: Store, started: list[str], slept: list[float]) -> None:
    open_job(store, "a-aaaa")
    background.take_over(store.url, [])
    assert started == [store.url] and slept == []


def test_why_it_could_not_be_handed_over_is_in_the_log(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def fail(_: str) -> bool:
        raise StokerError("no governor can be started")

    monkeypatch.setattr(background, "ensure_governor", fail)
    open_job(store, "a-aaaa")
    background.take_over(store.url, [])
    assert "could not hand over: no governor can be started" in capsys.readouterr().out


def test_messages_that_wait_are_work_and_so_is_a_store_that_does_not_tell(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert background._has_work(store) is False
    monkeypatch.setattr(background, "has_unsent_events", lambda _: True)
    assert background._has_work(store) is True

    def away(_: Store) -> bool:
        raise StoreUnavailable("did not answer")

    monkeypatch.setattr(background, "has_unsent_events", away)
    assert background._has_work(store) is True
    monkeypatch.setattr(background, "is_idle", away)
    assert background._idle(store) is False


def test_only_what_can_be_read_tells_where_a_job_runs(store: Store) -> None:
    assert background._spec(store, "never-aaaa") is None
    store.put(keys.log_entry("odd-aaaa", 1), b"{}")
    assert background._spec(store, "odd-aaaa") is None
    opened = Submitted("0" * 64, "jane")
    assert job_log.append(store, "lost-aaaa", 1, Record(job_log.new_token(), "jane", "asked for", opened))
    assert background._spec(store, "lost-aaaa") is None, "its spec is not in the store"
    assert background._needs_local_governor(None)


def test_a_provider_that_is_not_installed_may_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.support.sim_data import make_spec

    def unknown(_: str) -> None:
        raise SpecError("there is no provider called sim")

    monkeypatch.setattr(background.registry, "capabilities", unknown)
    assert background._needs_local_governor(make_spec())


@pytest.mark.parametrize(
    ("waits", "how", "passes"),
    [(UNDECIDED, {}, [{"a-aaaa"}, None]), ("no capacity", {}, [{"a-aaaa"}]), (UNDECIDED, {"at_once": False}, [])],
)
def test_a_command_is_acted_on_at_once_and_with_all_jobs_in_view_where_their_order_matters(
    store: Store,
    started: list[str],
    monkeypatch: pytest.MonkeyPatch,
    waits: str,
    how: dict[str, bool],
    passes: list[set[str] | None],
) -> None:
    made: list[set[str] | None] = []

    def run_pass(_: object, only: set[str] | None = None) -> Pass:
        made.append(only)
        return done(1, waiting={"a-aaaa": waits})

    monkeypatch.setattr(background.Governor, "run_pass", run_pass)
    assert background.ensure_governed(store, ["a-aaaa"], **how) == Result()
    assert made == passes and started == [store.url]


# ── Starting one ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("size", "kept"), [(0, True), (100, True), (background._LOG_BYTES, False)])
def test_the_log_of_the_governor_before_is_kept_up_to_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, kept: bool
) -> None:
    started: list[tuple[list[str], dict[str, object]]] = []
    monkeypatch.setattr(detached.subprocess, "Popen", lambda line, **how: started.append((line, how)))
    said = tmp_path / "x.log"
    said.write_bytes(b"x" * size)
    background._spawn("file:///s", tmp_path / "x.lock", 7, said)
    assert said.stat().st_size == (size if kept else 0)
    ((line, how),) = started
    assert line[1:] == ["-m", "stoker.governor.background", "file:///s", str(tmp_path / "x.lock"), "7"]
    assert how["start_new_session"] is True and how["pass_fds"] == (7,) and how["cwd"] == tmp_path


def test_the_first_governor_of_a_store_has_no_log_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detached.subprocess, "Popen", lambda *_, **__: None)
    background._spawn("file:///s", tmp_path / "x.lock", 7, tmp_path / "x.log")
    assert (tmp_path / "x.log").read_bytes() == b""


def test_where_none_can_be_started_a_person_is_told_what_to_keep_running(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(background, "_spawn", fail)
    with pytest.raises(StokerError, match=r"no space left.*stoker govern --watch"):
        background.ensure_governor(store.url)


@pytest.mark.parametrize("report", [OK, "the bucket refuses"])
def test_its_process_hands_the_lock_to_no_node_and_says_what_it_governs(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, report: str
) -> None:
    lock, handle = held_lock(store)
    os.set_inheritable(handle, True)
    ran: list[tuple[str, Path, int, bool, str]] = []

    def run(of: Store, lock: Path, handle: int) -> None:
        ran.append((of.url, lock, handle, os.get_inheritable(handle), read_report(handle)))

    def refuse(_: Store) -> bool:
        raise StoreDenied(report)

    monkeypatch.setattr(background, "run", run)
    monkeypatch.setattr(background.sys, "argv", ["background", store.url, str(lock), str(handle)])
    if report != OK:
        monkeypatch.setattr(background, "is_idle", refuse)
    background.main()
    assert ran == [(store.url, lock, handle, False, report)], "its callers wait for what its first read says"
    said = capsys.readouterr().out.splitlines()
    assert said[0].endswith(f"governs {store.url} as process {os.getpid()}") and said[1].endswith("no job is active")
    os.close(handle)


# ── Governing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def done(active: int, *, can_send: bool = False, **rest: object) -> Pass:
    return Pass(active=active, at=datetime.now(timezone.utc), can_send=can_send, **rest)  # type: ignore[arg-type]


def governed_by(monkeypatch: pytest.MonkeyPatch, watch: object) -> None:
    monkeypatch.setattr(background, "Governor", type("Watching", (Governed,), {"watch": watch}))


def test_it_ends_when_nothing_is_active_and_everything_is_told(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[bool] = []

    def watch(self, until, on_pass, on_error) -> None:  # type: ignore[no-untyped-def]
        open_job(store, "a-aaaa")
        answers.append(until(done(1)))
        answers.append(until(done(0, can_send=True)))
        store.delete([keys.active("a-aaaa", 1)])
        answers.append(until(done(1)))
        answers.append(until(done(0)))

    governed_by(monkeypatch, watch)
    lock, handle = held_lock(store)
    background._govern(store, lock, handle)
    assert answers == [False, False, True, True], "a pass over markers without a log leaves nothing to do either"
    os.close(handle)


def test_what_it_did_and_could_not_do_is_in_its_log(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def watch(self, until, on_pass, on_error) -> None:  # type: ignore[no-untyped-def]
        on_pass(done(1, actions=(Unmark("a-aaaa", (1,), "it has ended"),), problems={"b-bbbb": "no spec"}))
        on_error(StoreUnavailable("did not answer"))

    governed_by(monkeypatch, watch)
    lock, handle = held_lock(store)
    background._govern(store, lock, handle)
    said = capsys.readouterr().out
    assert "a-aaaa: Unmark: it has ended" in said and "b-bbbb: no spec" in said and "did not answer" in said
    os.close(handle)


def test_a_folder_that_is_away_is_waited_for_a_minute_since_the_last_pass(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, limit_s = [1000.0], background._FOLDER_GONE_S
    monkeypatch.setattr(background.time, "monotonic", lambda: now_s[0])
    outcomes: list[str] = []

    def watch(self, until, on_pass, on_error) -> None:  # type: ignore[no-untyped-def]
        for step_s in (0.0, limit_s):
            now_s[0] += step_s
            on_error(StoreUnavailable("is away"))
        outcomes.append("waited")
        on_pass(done(1))
        now_s[0] += limit_s
        on_error(StoreUnavailable("is away"))
        outcomes.append("begun anew after a pass")
        now_s[0] += limit_s + 1
        on_error(StoreUnavailable("is away"))
        outcomes.append("never reached")

    governed_by(monkeypatch, watch)
    lock, handle = held_lock(store)
    with pytest.raises(background._GiveUp, match="is away"):
        background._govern(store, lock, handle)
    assert outcomes == ["waited", "begun anew after a pass"]
    os.close(handle)


def test_a_bucket_that_does_not_answer_in_between_is_not_given_up(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, limit_s = [1000.0], background._BUCKET_REFUSED_S
    monkeypatch.setattr(background.time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(type(store), "is_local", False)

    def watch(self, until, on_pass, on_error) -> None:  # type: ignore[no-untyped-def]
        on_error(StoreDenied("not yours"))
        now_s[0] += limit_s - 1
        on_error(StoreUnavailable("did not answer"))
        now_s[0] += 10
        on_error(StoreDenied("not yours"))

    governed_by(monkeypatch, watch)
    lock, handle = held_lock(store)
    background._govern(store, lock, handle)
    os.close(handle)


@pytest.mark.parametrize(
    ("is_local", "error", "away_s"), [(True, StoreUnavailable, 30.0), (False, StoreDenied, 3600.0)]
)
def test_a_folder_is_waited_for_seconds_and_a_bucket_for_hours(
    store: Store, monkeypatch: pytest.MonkeyPatch, is_local: bool, error: type[StoreError], away_s: float
) -> None:
    now_s = [1000.0]
    monkeypatch.setattr(background.time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(type(store), "is_local", is_local)

    def watch(self, until, on_pass, on_error) -> None:  # type: ignore[no-untyped-def]
        on_error(error("is away"))
        now_s[0] += away_s
        on_error(error("is away"))

    governed_by(monkeypatch, watch)
    lock, handle = held_lock(store)
    background._govern(store, lock, handle)
    os.close(handle)


@pytest.mark.parametrize("report", ["pass", "error"])
def test_a_governor_whose_lock_is_another_file_ends(store: Store, monkeypatch: pytest.MonkeyPatch, report: str) -> None:
    """Its home was removed and made again: another governor may hold the new lock."""

    def watch(self, until, on_pass, on_error) -> None:  # type: ignore[no-untyped-def]
        lock.rename(lock.with_suffix(".old"))
        lock.touch()
        if report == "pass":
            on_pass(done(1))
        else:
            on_error(StoreUnavailable("did not answer"))

    governed_by(monkeypatch, watch)
    lock, handle = held_lock(store)
    with pytest.raises(background._GiveUp, match="not this governor's any more"):
        background._govern(store, lock, handle)
    os.close(handle)


def test_a_lock_is_taken_once(store: Store) -> None:
    lock, handle = held_lock(store)
    fcntl.flock(handle, fcntl.LOCK_UN)
    other = os.open(lock, os.O_RDWR)
    assert background._try_lock(handle) and not background._try_lock(other)
    os.close(handle)
    assert background._try_lock(other)
    os.close(other)
