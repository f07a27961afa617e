"""Follow a job and govern meanwhile, until the job ends or the person leaves.

Every way of leaving hands the job over to another governor: Ctrl-C, a closed terminal (SIGHUP, or a write that fails),
a pipe without a reader, SIGTERM. The handover guard covers what cannot be handled here: SIGKILL and crashes.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from stoker.governor import background
from stoker.governor.background import GovernorChoice
from stoker.governor.handover_guard import HandoverGuard, guarding
from stoker.governor.observe import active_jobs
from stoker.governor.thread import governing_in_thread
from stoker.model import keys
from stoker.model.errors import StokerError
from stoker.notifications.outbox_store import has_unsent_events
from stoker.read.follow import Follower
from stoker.read.job_status import read_record
from stoker.read.screens import Screen
from stoker.store import job_index, job_log
from stoker.store.base import Store
from stoker.store.job_index import IndexRecord
from stoker.submit.stop import may_be_held

# How long machines of an ended job are waited for: they leave by themselves.
RETIRE_S = 20.0


class _HungUp(KeyboardInterrupt):
    """The terminal was closed, or this process was asked to terminate: leave the job running, in silence."""


@dataclass(frozen=True)
class FollowResult:
    """Why following a job came to an end.

    `record` is the job that has `ended`. For the other reasons the job continues, and `governor` drives it.
    """

    reason: Literal["ended", "interrupted", "hung-up", "output-lost"]
    record: IndexRecord | None = None
    governor: GovernorChoice | None = None
    error: OSError | None = None


def follow_and_govern(
    store: Store, job: str, screen: Screen, *, since: int = 0, guard: HandoverGuard | None = None
) -> FollowResult:
    """Follow the job to its end on this screen, and govern in a thread.

    `since` is the last decision before a resumption: earlier decisions and lines are not shown again. `guard` already
    watches over this process; without one, a new guard does. Raises StokerError when the job cannot be followed.
    """
    if guard is not None:
        return _follow(store, job, screen, guard, since)
    with guarding(store.url) as own:
        own.job(job)
        return _follow(store, job, screen, own, since)


def _follow(store: Store, job: str, screen: Screen, guard: HandoverGuard, since: int) -> FollowResult:
    if guard.problem is not None:
        screen.event(
            f"warning: if this command is killed, {job} has no governor ({guard.problem}); run `stoker govern --watch` "
            "then"
        )
    try:
        with governing_in_thread(store.url, guard.passed, screen.event), _leaving_on_signals():
            Follower(store, job, screen, since=since).run(0 if since else None)
            _wait_until_retired(store, job)
    except _HungUp:
        return FollowResult("hung-up", governor=_hand_over(store, job, guard))
    except KeyboardInterrupt:
        return FollowResult("interrupted", governor=_hand_over(store, job, guard))
    except OSError as error:
        return FollowResult("output-lost", governor=_hand_over(store, job, guard), error=error)
    except StokerError as error:
        # The job is in the store and must not be submitted again: this is no mistake in the command any more.
        raise StokerError(f"{error}; {job} was submitted: look with `stoker show {job}`") from error
    _hand_over_the_rest(store, screen)
    record = read_record(job, store)
    # The governor of this process is about to end, perhaps before it has written the index.
    job_index.write_index(store, record)
    return FollowResult("ended", record)


def _hand_over(store: Store, job: str, guard: HandoverGuard) -> GovernorChoice:
    """Hand the job over. Where that fails, the guard tries once more, and writes to the governor's log why it fails:
    nothing can be said on a terminal that is closed."""
    governed = background.ensure_governed(store, [job])
    if not governed.is_governed:
        guard.close()
    return governed


@contextmanager
def _leaving_on_signals() -> Iterator[None]:
    def leave(_number: int, _frame: object) -> None:
        raise _HungUp

    # A signal that is ignored already stays ignored: `nohup` means that this command continues.
    wanted = [number for number in (signal.SIGHUP, signal.SIGTERM) if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, leave) for number in wanted}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait_until_retired(store: Store, job: str) -> None:
    state = job_log.read(store, job)
    if state is None or may_be_held(store, state):
        return  # The machine stays for as long as the spec says.
    if not any(claim.launched for claim in state.claims):
        return  # The job never had a machine.
    deadline = time.monotonic() + RETIRE_S
    while time.monotonic() < deadline and next(iter(store.list(f"{keys.ACTIVE}{job}/")), None) is not None:
        time.sleep(0.05 if store.is_local else 1.0)


def _hand_over_the_rest(store: Store, screen: Screen) -> None:
    """Start a governor for the other jobs and unsent notifications of the store, which this process looked after."""
    try:
        if active_jobs(store) or has_unsent_events(store):
            warning = background.ensure_governor(store.url)
            if warning:
                screen.event(f"warning: {warning}")
    except StokerError as error:
        screen.event(str(error))
