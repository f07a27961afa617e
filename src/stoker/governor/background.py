"""The background governor: one process for each store on this computer, as long as a job is active.

    python -m stoker.governor.background STORE LOCK LOCK_FD

The process that starts it takes the lock first and passes it on, so two can never start. It checks for active jobs once
more *after* it released the lock: a submitter that found the lock taken had marked its job before, so that check sees
the job.
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
from stoker.governor.loop import Governor, Pass
from stoker.governor.observe import is_idle
from stoker.model.errors import StokerError, StoreDenied
from stoker.model.spec import Spec
from stoker.notifications.outbox_store import has_unsent_events
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


def ensure_governor(store_url: str) -> bool:
    """Make sure that a background governor runs for this store. True: this call started it.

    Call it after the job is marked active. Raises StokerError when none can be started.
    """
    try:
        lock, output = files_for(store_url)
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if not _try_lock(handle):
                return False
            _spawn(store_url, lock, handle, output)
            return True
        finally:
            os.close(handle)
    except OSError as error:
        raise StokerError(
            f"no governor can be started in the background ({error}); keep `stoker govern --watch` running"
        ) from None


@dataclass(frozen=True)
class GovernorChoice:
    """The governor from now on: the deployed one named `by`, else one on this computer. `problem`: why the deployed one
    cannot be used. `warning`: something that the deployed one will not be able to do."""

    by: str | None = None
    problem: str | None = None
    warning: str | None = None


def ensure_governed(store: Store, jobs: Iterable[str], *, at_once: bool = True) -> GovernorChoice:
    """Act on a person's command at once (unless `at_once` is false), and make sure that a governor continues.

    That is the deployed governor, if there is one that can reach the jobs' machines and that is seen to pass.
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
    ensure_governor(store.url)
    return GovernorChoice(problem=governed.problem, warning=governed.warning)


def take_over(store_url: str, jobs: Iterable[str]) -> None:
    """Govern the jobs of a process that ended without handing them over. Logs the result to the background governor's
    log.

    Without `jobs`, that process ended during a submission: the store shows whether it got as far as a job, after a
    moment for requests that were still under way.
    """
    store, named = open_store(store_url), list(jobs)
    _say(f"takes over {', '.join(named) or 'a submission'}: the process that governed has ended, or stands still")
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
            ensure_governor(store_url)
            governed = GovernorChoice()
        _say(f"handed over to {governed.by or 'the governor in the background'}")
    except StokerError as error:
        _say(f"could not hand over: {error}")


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
    from stoker.governor import machine_role_check

    remarks = (machine_role_check.role_warning(found, spec) for spec in specs)
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


def _spawn(store_url: str, lock: Path, handle: int, log: Path) -> None:
    mode = "ab" if log.exists() and log.stat().st_size < _LOG_BYTES else "wb"
    with log.open(mode) as output:
        subprocess.Popen(
            [sys.executable, "-m", "stoker.governor.background", store_url, str(lock), str(handle)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            # Its own session: closing the terminal does not end it.
            start_new_session=True,
            cwd=lock.parent,
            pass_fds=(handle,),
        )


def run(store: Store, lock: Path, handle: int) -> None:
    """Govern until no job is active. `handle` holds the lock, which is released on return."""
    while True:
        try:
            _govern(store, lock, handle)
        except _GiveUp as reason:
            _say(f"gives up: {reason}")
            return
        fcntl.flock(handle, fcntl.LOCK_UN)
        # A submitter that saw the lock taken had marked its job before, so this check sees it.
        if _idle(store) or not _try_lock(handle):
            return


def _govern(store: Store, lock: Path, handle: int) -> None:
    failing_since: float | None = None

    def on_pass(done: Pass) -> None:
        nonlocal failing_since
        failing_since = None
        for action in done.actions:
            _say(f"{action.job}: {type(action).__name__}: {action.reason}")
        for job, problem in done.problems.items():
            _say(f"{job}: {problem}")
        _check_home(lock, handle)

    def on_error(error: StokerError) -> None:
        nonlocal failing_since
        _say(str(error))
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
    _say(f"governs {store_url} as process {os.getpid()}")
    run(open_store(store_url), Path(lock), int(handle))
    _say("no job is active")


if __name__ == "__main__":
    main()
