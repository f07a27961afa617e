"""A governor in the background: one for each store on this computer, as long as a job is active.

    python -m stoker.governor.background STORE LOCK LOCK_FD

Whoever starts it takes the lock first and hands it over, so there is no moment at which two could start. It looks once
more *after* it gave the lock back: a job whose submitter found the lock taken was marked before, and is seen then.
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
from stoker.model.errors import STUMBLES, StokerError, StoreDenied
from stoker.model.spec import Spec
from stoker.notifications.outbox_store import something_waits
from stoker.providers import registry
from stoker.store import job_log
from stoker.store.base import Store, open_store
from stoker.store.home import home, make_home
from stoker.store.job_index import read_submission

# What an earlier governor said is kept up to this size.
_LOG_BYTES = 1024 * 1024
# A folder that has been away this long was removed, not unmounted for a moment.
_FOLDER_GONE_S = 60.0
# A bucket that has refused this long was removed, or is not this person's any more. One that does not answer may be
# behind a laptop's lid, and is waited for.
_BUCKET_REFUSED_S = 6 * 3600.0
# What a process sent to the store before it was killed has arrived by then.
_ON_ITS_WAY_S = 5.0


class _GiveUp(Exception):
    """There is nothing left to govern, nor anybody who could find this governor."""


def files_for(store_url: str) -> tuple[Path, Path]:
    """The lock and the log of the background governor of a store."""
    name = hashlib.sha256(store_url.encode()).hexdigest()[:12]
    folder = home() / "governors"
    return folder / f"{name}.lock", folder / f"{name}.log"


def ensure_governor(store_url: str) -> bool:
    """Make sure that a background governor runs for this store. True: this call started it.

    Call it after the job is marked active. Raises StokerError when none can be started.
    """
    lock, output = files_for(store_url)
    try:
        make_home()
        lock.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if not _take(handle):
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
class Governed:
    """Who governs from here on: the deployed governor `by`, else one on this computer. `problem`: why not that one.
    `remark`: what it will not be able to do."""

    by: str | None = None
    problem: str | None = None
    remark: str | None = None


def carry_on(store: Store, jobs: Iterable[str], *, at_once: bool = True) -> Governed:
    """After a person's command: act on it at once (unless `at_once` is false), and see to it that a governor goes on.

    A governor that is deployed does it, where there is one that can reach the jobs' machines, and that is seen to pass.
    """
    named = list(jobs)
    specs = [_spec(store, job) for job in named]
    here = any(map(_runs_here, specs))
    governed = call_deployed(store, named, relied_on=not here, specs=[spec for spec in specs if spec is not None])
    if governed.by is not None and not here:
        return governed
    try:
        if at_once:
            governor = Governor(store)
            if UNDECIDED in governor.run_pass(only=set(named)).waiting.values():
                # Whose turn it is shows only beside the others.
                governor.run_pass()
    except (StokerError, *STUMBLES):
        pass  # The background governor tries again for as long as it takes.
    ensure_governor(store.url)
    return Governed(problem=governed.problem, remark=governed.remark)


def take_over(store_url: str, jobs: Iterable[str]) -> None:
    """Govern what a process left behind that ended without handing over. Says in the background governor's log what
    it did, or why it could not.

    Without `jobs` that process ended while it submitted: whether it did is seen in the store, a moment later for what
    was still on its way.
    """
    store, named = open_store(store_url), list(jobs)
    _say(f"takes over {', '.join(named) or 'a submission'}: the process that governed has ended, or stands still")
    if not _has_work(store):
        if named:
            return
        time.sleep(_ON_ITS_WAY_S)
        if not _has_work(store):
            return
    try:
        if named:
            governed = carry_on(store, named, at_once=False)
        else:
            ensure_governor(store_url)
            governed = Governed()
        _say(f"handed over to {governed.by or 'the governor in the background'}")
    except StokerError as error:
        _say(f"could not hand over: {error}")


def _has_work(store: Store) -> bool:
    """Whether a governor is needed; also where the store does not tell."""
    try:
        return not is_idle(store) or something_waits(store)
    except StokerError:
        return True


def call_deployed(
    store: Store, jobs: Iterable[str], *, relied_on: bool = False, specs: Iterable[Spec] = ()
) -> Governed:
    """Wake the governor that is deployed for this store, if one is. Never raises: others may govern as well.

    `relied_on`: nobody else will, so wait until it is seen to do something. `specs`: what the jobs ask for.
    """
    from stoker.governor import deployment_record

    try:
        found = deployment_record.wake(store, jobs, within_s=deployment_record.ANSWERS_WITHIN_S if relied_on else None)
    except StokerError as error:
        return Governed(problem=str(error))
    if found is None:
        return Governed()
    from stoker.governor import pass_role

    remarks = (pass_role.remark(found, spec) for spec in specs)
    return Governed(by=f"{found.name} in {found.region}", remark=next(filter(None, remarks), None))


def _spec(store: Store, job: str) -> Spec | None:
    """What the job asks for; None where nobody can tell."""
    try:
        state = job_log.read(store, job)
        return None if state is None else read_submission(store, state).spec
    except StokerError:
        return None


def _runs_here(spec: Spec | None) -> bool:
    """Whether only a governor on this computer can see to the job's machines; also where nobody can tell."""
    try:
        return spec is None or registry.capabilities(spec.resources.provider).here
    except StokerError:
        return True


def _take(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _spawn(store_url: str, lock: Path, handle: int, said: Path) -> None:
    mode = "ab" if said.exists() and said.stat().st_size < _LOG_BYTES else "wb"
    with said.open(mode) as output:
        subprocess.Popen(
            [sys.executable, "-m", "stoker.governor.background", store_url, str(lock), str(handle)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            # Its own session: closing the terminal is nothing to it.
            start_new_session=True,
            cwd=lock.parent,
            pass_fds=(handle,),
        )


def run(store: Store, lock: Path, handle: int) -> None:
    """Govern until no job is active. `handle` holds the lock, and holds it no more on return."""
    while True:
        try:
            _govern(store, lock, handle)
        except _GiveUp as reason:
            _say(f"gives up: {reason}")
            return
        fcntl.flock(handle, fcntl.LOCK_UN)
        # A submitter that saw the lock taken had marked its job before: now it can be seen.
        if _idle(store) or not _take(handle):
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
        patience_s = _FOLDER_GONE_S if store.near else _BUCKET_REFUSED_S if isinstance(error, StoreDenied) else None
        if patience_s is None:
            failing_since = None
            return
        failing_since = time.monotonic() if failing_since is None else failing_since
        if time.monotonic() - failing_since > patience_s:
            raise _GiveUp(str(error))

    def until(done: Pass) -> bool:
        return not done.untold and (done.active == 0 or _idle(store))

    Governor(store).watch(until=until, on_pass=on_pass, on_error=on_error)


def _check_home(lock: Path, handle: int) -> None:
    """A lock that has lost its name keeps nobody out: another governor may run already."""
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
    os.set_inheritable(int(handle), False)  # The nodes that it launches must not keep the lock.
    _say(f"governs {store_url} as process {os.getpid()}")
    run(open_store(store_url), Path(lock), int(handle))
    _say("no job is active")


if __name__ == "__main__":
    main()
