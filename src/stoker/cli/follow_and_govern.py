"""Follow a job and govern meanwhile: what `run` and `resume -f` do until the job ends or the person leaves.

Every way of leaving hands the job over to another governor: Ctrl-C, a closed terminal (SIGHUP, or a write that fails),
a pipe without a reader, SIGTERM. What cannot be handled here (SIGKILL, a crash) is left to the guard.
"""

from __future__ import annotations

import errno
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from stoker.cli import EXIT_CLOUD
from stoker.cli.format import give_up_lost_streams, print_json, say, tell_problem, warn, whole
from stoker.cli.job_report import show_end
from stoker.model import keys
from stoker.model.errors import StokerError
from stoker.store.base import Store

if TYPE_CHECKING:
    from stoker.governor.handover_guard import Guard

# After the end, machines are waited for this long: they leave by themselves.
_RETIRE_S = 20.0
# What is still to be told then is waited for this long.
_TELLING_S = 10.0


class _HungUp(KeyboardInterrupt):
    """The terminal was closed, or we were asked to go: leave the job running, without a word."""


def follow_governing(
    store: Store, job: str, *, paid: bool, as_json: bool = False, since: int = 0, guard: Guard | None = None
) -> int:
    """Follow the job to its end, governing in a thread of its own. Answers the exit code.

    `since` is the last decision before a resumption: what was told and printed until then is not told again. `guard` is
    the one that watches over this process already.
    """
    from stoker.governor.handover_guard import guarding

    if guard is not None:
        return _follow(store, job, guard, paid=paid, as_json=as_json, since=since)
    with guarding(store.url) as own:
        own.job(job)
        return _follow(store, job, own, paid=paid, as_json=as_json, since=since)


def _follow(store: Store, job: str, guard: Guard, *, paid: bool, as_json: bool, since: int) -> int:
    from stoker.cli.follow_view import Follower, Screen

    if guard.problem is not None:
        warn(f"if this command is killed, {job} has no governor ({guard.problem}); run `stoker govern --watch` then")
    try:
        out = sys.stderr if as_json else sys.stdout
        live = sys.stderr.isatty() and (out.isatty() or as_json)
        follower = Follower(store, job, Screen(out, prefix=_many_nodes(store, job), live=live), since=since)
        with _governing(store, guard), _hanging_up():
            follower.run(0 if since else None)
            _wait_until_retired(store, job)
    except _HungUp:
        leave_detached(store, job, paid=paid, silent=True)
        return 0
    except KeyboardInterrupt:
        leave_detached(store, job, paid=paid)
        say(f"\n{job} goes on. Come back: stoker logs -f {job}   Stop it: stoker stop {job}")
        if as_json:
            from stoker import client

            print_json(whole(client.summary(job, store)))
        return 0
    except OSError as error:
        return _leave_unheard(store, job, error)
    except StokerError as error:
        # No mistake in what was asked for any more: the job is in the store, and not to be submitted again.
        raise StokerError(f"{error}; {job} was submitted: look with `stoker show {job}`") from error
    _leave_no_job_alone(store)
    return show_end(store, job, as_json=as_json)


def _leave_unheard(store: Store, job: str, error: OSError) -> int:
    """What is printed reaches no reader any more: hand the job over, and say so where that can still be read."""
    give_up_lost_streams()
    leave_detached(store, job, paid=False, silent=True)
    with suppress(OSError):
        if not isinstance(error, BrokenPipeError) and error.errno != errno.EIO:
            say(f"nothing more can be printed ({error.strerror or error})")
        say(f"{job} goes on. Come back: stoker logs -f {job}   Stop it: stoker stop {job}")
    give_up_lost_streams()
    return 128 + signal.SIGPIPE if isinstance(error, BrokenPipeError) else EXIT_CLOUD


@contextmanager
def _governing(store: Store, guard: Guard) -> Iterator[None]:
    """A governor in a thread of its own. A daemon: a second Ctrl-C need not wait for it."""
    from stoker.governor.loop import Governor
    from stoker.store.base import open_store

    enough = threading.Event()
    # Its own connection too: what the other thread does is never in its way.
    governor = Governor(open_store(store.url))

    def until(_done: object) -> bool:
        guard.passed()
        return enough.is_set()

    def work() -> None:
        while not enough.is_set():
            try:
                governor.watch(until=until, on_error=lambda _error: guard.passed())
            except Exception as error:  # noqa: BLE001 - the edge of the thread: without it nobody would govern the job
                # The terminal may be what failed.
                with suppress(OSError, ValueError):
                    say(f"[stoker] the governor met an error and goes on ({type(error).__name__}: {error})")
                enough.wait(1.0)

    thread = threading.Thread(target=work, name="governor", daemon=True)
    thread.start()
    try:
        yield
    finally:
        enough.set()
        if governor.teller.pending:
            thread.join(_TELLING_S)


@contextmanager
def _hanging_up() -> Iterator[None]:
    def leave(_number: int, _frame: object) -> None:
        raise _HungUp

    # What is ignored already stays so: `nohup` means that this command goes on.
    wanted = [number for number in (signal.SIGHUP, signal.SIGTERM) if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, leave) for number in wanted}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def leave_detached(store: Store, job: str, *, paid: bool, silent: bool = False) -> None:
    from stoker.governor.background import carry_on

    governed = carry_on(store, [job])
    if not paid or silent:
        return
    tell_problem(governed)
    if governed.by is not None:
        say(f"governed by {governed.by}")
        return
    what = "its governor runs on this computer: while that is off, reclaimed machines are not replaced"
    say(what if governed.problem else f"{what}; `stoker deploy` puts one into the cloud")


def _wait_until_retired(store: Store, job: str) -> None:
    from stoker import client
    from stoker.store import job_log

    state = job_log.read(store, job)
    if state is None or client.may_be_held(store, state):
        return  # Its machine stays for as long as the spec says.
    if not any(claim.launched for claim in state.claims):
        return  # It never had one.
    deadline = time.monotonic() + _RETIRE_S
    while time.monotonic() < deadline and next(iter(store.list(f"{keys.ACTIVE}{job}/")), None) is not None:
        time.sleep(0.05 if store.near else 1.0)


def _leave_no_job_alone(store: Store) -> None:
    """This process governed every job of the store, and told of them; what goes on or waits needs somebody else now."""
    from stoker.governor.background import ensure_governor
    from stoker.governor.observe import active_jobs
    from stoker.notifications.outbox_store import something_waits

    try:
        if active_jobs(store) or something_waits(store):
            ensure_governor(store.url)
    except StokerError as error:
        say(str(error))


def _many_nodes(store: Store, job: str) -> bool:
    from stoker.store import job_index, job_log

    state = job_log.read(store, job)
    return state is not None and job_index.read_submission(store, state).spec.nodes > 1
