"""The background governor: one process for each store on this computer, as long as a job is active.

    python -m stoker.governor.background STORE LOCK LOCK_FD

The process that starts it takes the lock first and passes it on, so two can never start. It checks for active jobs once
more *after* it released the lock: a submitter that found the lock taken had marked its job before, so that check sees
the job.

The content of the lock file says whether the process that holds the lock governs: nothing while it starts, then `ok` or
the error of its last pass. Callers wait for that, so a process that dies at its start is never taken for a governor.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from stoker.core.place_capacity import UNDECIDED
from stoker.governor.background_report import (
    INSTEAD,
    OK,
    POLL_S,
    REPORTS_WITHIN_S,
    await_report,
    judge,
    last_line_since,
    read_report,
    write_report,
)
from stoker.governor.loop import Governor, Pass
from stoker.governor.observe import is_idle
from stoker.model.errors import NotGoverned, StokerError, StoreDenied
from stoker.model.spec import Spec
from stoker.notifications.outbox_store import has_unsent_events
from stoker.processes.detached import start_detached
from stoker.providers import registry
from stoker.store import job_log
from stoker.store.base import Store, open_store
from stoker.store.home import make_home
from stoker.store.job_index import read_submission

# The log of earlier governors is continued up to this size, then started anew.
_LOG_BYTES = 1024 * 1024
# A folder that has been missing this long was removed, not unmounted for a moment.
_FOLDER_GONE_S = 60.0
# A bucket that has refused this long was removed, or this person lost access. A bucket that does not answer is waited
# for without limit: the laptop may be closed.
_BUCKET_REFUSED_S = 6 * 3600.0
# Requests that a process sent to the store before it was killed have arrived after this time.
_ARRIVES_WITHIN_S = 5.0


class _GiveUp(Exception):
    """The store is gone for good, or the lock is not this governor's any more."""


def files_for(store_url: str) -> tuple[Path, Path]:
    """The lock and the log of the background governor of a store, in a folder that this creates if absent."""
    name = hashlib.sha256(store_url.encode()).hexdigest()[:12]
    folder = make_home() / "governors"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name}.lock", folder / f"{name}.log"


def ensure_governor(store_url: str) -> str | None:
    """Make sure that a background governor runs for this store. Returns the error of its last pass; None: it succeeded.

    Waits until the governor, new or old, reports that it has read the store, for half a minute at most. Call it after
    the job is marked active. Raises StokerError where no governor is known to run, and says why and what to do.
    """
    until_s = time.monotonic() + REPORTS_WITHIN_S
    try:
        lock, output = files_for(store_url)
        while True:
            handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                if _try_lock(handle):
                    write_report(handle, "")
                    began = _kept_bytes(output)
                    child = _spawn(store_url, lock, handle, output)
                    break
                report = read_report(handle)
            finally:
                # The child has the lock: this process must not hold it when the child dies.
                os.close(handle)
            if report or time.monotonic() > until_s:
                return judge(report, output)
            time.sleep(POLL_S)
    except OSError as error:
        raise StokerError(f"no governor can be started in the background ({error}); {INSTEAD}") from None
    return judge(await_report(child, lock, until_s, last_line_since(output, began)), output)


@dataclass(frozen=True)
class GovernorChoice:
    """The governor from now on.

    `by` names the deployed governor, which was seen to make a pass, or was woken where another governor acts as well.
    Without `by` it is a governor on this computer: it runs, and has read the store since it started. `is_governed` is
    false where no governor is known to run; `problem` says why then, and what to do. Otherwise `problem` says why the
    deployed governor cannot be used. `warning`: something that the governor cannot do, or cannot do now.
    """

    by: str | None = None
    problem: str | None = None
    warning: str | None = None
    is_governed: bool = True


def ensure_governed(store: Store, jobs: Iterable[str], *, at_once: bool = True) -> GovernorChoice:
    """Act on a person's command at once (unless `at_once` is false), and make sure that a governor continues.

    That is the deployed governor, if there is one that can reach the jobs' machines and that is seen to pass. Raises
    nothing: where no governor can be had, the result says so.
    """
    named = list(jobs)
    specs = [_spec(store, job) for job in named]
    is_local_only = any(map(_needs_local_governor, specs))
    known = [spec for spec in specs if spec is not None]
    governed = wake_deployed(store, named, relied_on=not is_local_only, specs=known)
    if governed.by is not None and not is_local_only:
        return governed
    try:
        if at_once:
            governor = Governor(store)
            if UNDECIDED in governor.run_pass(only=set(named)).waiting.values():
                # The order of jobs that wait for capacity can only be decided with all of them in view.
                governor.run_pass()
    except Exception:  # noqa: BLE001 - the edge of a command that has done its work already
        pass  # The background governor repeats it until it succeeds.
    try:
        warning = ensure_governor(store.url)
    except StokerError as error:
        return GovernorChoice(problem="; ".join(filter(None, (governed.problem, str(error)))), is_governed=False)
    return GovernorChoice(problem=governed.problem, warning=warning or governed.warning)


def check_governed(job: str, governed: GovernorChoice) -> None:
    """Raise NotGoverned unless a governor drives this job, which is in the store."""
    if not governed.is_governed:
        raise NotGoverned(f"{job} was submitted and must not be submitted again, but {governed.problem}")


def take_over(store_url: str, jobs: Iterable[str]) -> None:
    """Govern the jobs of a process that ended without handing them over. Logs the result to the background governor's
    log.

    Without `jobs`, that process ended during a submission: the store shows whether it got as far as a job, after a
    moment for requests that were still under way.
    """
    named = list(jobs)
    _say(f"takes over {', '.join(named) or 'a submission'}: the process that governed has ended, or stands still")
    try:
        store = open_store(store_url)
    except StokerError as error:
        _say(f"could not hand over: {error}")
        return
    if not _has_work(store):
        if named:
            return
        time.sleep(_ARRIVES_WITHIN_S)
        if not _has_work(store):
            return
    try:
        if named:
            governed = ensure_governed(store, named, at_once=False)
        else:
            governed = GovernorChoice(warning=ensure_governor(store_url))
    except StokerError as error:
        governed = GovernorChoice(problem=str(error), is_governed=False)
    if not governed.is_governed:
        _say(f"could not hand over: {governed.problem}")
        return
    _say(f"handed over to {governed.by or 'the governor in the background'}")
    if governed.warning is not None:
        _say(governed.warning)


def _has_work(store: Store) -> bool:
    """Return whether a governor is needed. True where the store does not answer."""
    try:
        return not is_idle(store) or has_unsent_events(store)
    except StokerError:
        return True


def wake_deployed(
    store: Store, jobs: Iterable[str], *, relied_on: bool = False, specs: Iterable[Spec] = ()
) -> GovernorChoice:
    """Wake the governor that is deployed for this store, if there is one. Never raises: others may govern as well.

    `relied_on`: no other governor will act, so wait until it is seen to pass. `specs`: the specs of the jobs.
    """
    from stoker.governor import deployment_record

    try:
        found = deployment_record.wake(store, jobs, within_s=deployment_record.ANSWERS_WITHIN_S if relied_on else None)
    except StokerError as error:
        return GovernorChoice(problem=str(error))
    if found is None:
        return GovernorChoice()
    from stoker.governor import region_events_check

    checks = (deployment_record.role_warning, region_events_check.events_warning)
    remarks = (check(found, spec) for spec in specs for check in checks)
    return GovernorChoice(by=f"{found.name} in {found.region}", warning=next(filter(None, remarks), None))


def _spec(store: Store, job: str) -> Spec | None:
    """The job's spec; None where it cannot be read."""
    try:
        state = job_log.read(store, job)
        return None if state is None else read_submission(store, state).spec
    except StokerError:
        return None


def _needs_local_governor(spec: Spec | None) -> bool:
    """Return whether only a governor on this computer can reach the job's machines. True where that is unknown."""
    try:
        return spec is None or registry.capabilities(spec.resources.provider).runs_locally
    except StokerError:
        return True


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _spawn(store_url: str, lock: Path, handle: int, log: Path) -> subprocess.Popen[bytes]:
    if not _kept_bytes(log):
        log.write_bytes(b"")
    return start_detached("stoker.governor.background", (store_url, str(lock), str(handle)), log, handle)


def _kept_bytes(log: Path) -> int:
    """Return how much of the log of earlier governors is continued."""
    size = log.stat().st_size if log.exists() else 0
    return size if size < _LOG_BYTES else 0


def run(store: Store, lock: Path, handle: int) -> None:
    """Govern until no job is active. `handle` holds the lock, which is released on return."""
    while True:
        try:
            _govern(store, lock, handle)
        except _GiveUp as reason:
            _say(f"gives up: {reason}")
            return
        write_report(handle, "")
        fcntl.flock(handle, fcntl.LOCK_UN)
        # A submitter that saw the lock taken had marked its job before, so this check sees it.
        if _idle(store) or not _try_lock(handle):
            return
        write_report(handle, OK)


def _govern(store: Store, lock: Path, handle: int) -> None:
    failing_since: float | None = None
    reported = read_report(handle)

    def report(text: str) -> None:
        nonlocal reported
        if text != reported:
            write_report(handle, text)
            reported = text

    def on_pass(done: Pass) -> None:
        nonlocal failing_since
        failing_since = None
        report(OK)
        for action in done.actions:
            _say(f"{action.job}: {type(action).__name__}: {action.reason}")
        for job, problem in done.problems.items():
            _say(f"{job}: {problem}")
        _check_home(lock, handle)

    def on_error(error: StokerError) -> None:
        nonlocal failing_since
        _say(str(error))
        report(str(error))
        _check_home(lock, handle)
        patience_s = _FOLDER_GONE_S if store.is_local else _BUCKET_REFUSED_S if isinstance(error, StoreDenied) else None
        if patience_s is None:
            failing_since = None
            return
        failing_since = time.monotonic() if failing_since is None else failing_since
        if time.monotonic() - failing_since > patience_s:
            raise _GiveUp(str(error))

    def until(done: Pass) -> bool:
        return not done.can_send and (done.active == 0 or _idle(store))

    Governor(store).watch(until=until, on_pass=on_pass, on_error=on_error)


def _check_home(lock: Path, handle: int) -> None:
    """Raise _GiveUp if the lock file was replaced: it excludes no other governor any more, and one may run already."""
    try:
        same = os.path.samestat(lock.stat(), os.fstat(handle))
    except OSError:
        same = False
    if not same:
        raise _GiveUp(f"{lock} is not this governor's any more")


def _idle(store: Store) -> bool:
    try:
        return is_idle(store)
    except StokerError:
        return False


def _say(text: str) -> None:
    print(f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ} {text}", flush=True)


def main() -> None:
    store_url, lock, handle = sys.argv[1:]
    os.set_inheritable(int(handle), False)  # Nodes that it launches must not hold the lock.
    try:
        store = open_store(store_url)
    except StokerError as error:
        _say(f"cannot govern {store_url}: {error}")
        sys.exit(1)
    _say(f"governs {store_url} as process {os.getpid()}")
    write_report(int(handle), _first_read(store))
    run(store, Path(lock), int(handle))
    _say("no job is active")


def _first_read(store: Store) -> str:
    """Read the store once, as every pass does. Returns the report."""
    try:
        is_idle(store)
    except StokerError as error:
        return str(error)
    return OK


if __name__ == "__main__":
    main()
