"""Wait until the job's log names this machine, and later until it lets this claim train."""

from __future__ import annotations

import logging
import time

from stoker.agent.peers import PeerWatch
from stoker.agent.phases.context import AttemptContext
from stoker.agent.phases.leaving import LeaveEarly
from stoker.core.gate import Go, Leave, Wait
from stoker.core.governor_settings import DEFAULT as SETTINGS
from stoker.model.durations import span_text
from stoker.model.job_state import JobState

_log = logging.getLogger(__name__)

# How often a waiting node reads the log: the gap between two attempts is at least this long.
_LOCAL_POLL_S = 0.05
_REMOTE_POLL_S = 1.0


def wait_until_named(context: AttemptContext) -> JobState:
    """Wait until `launched` names this instance: user code of any kind runs only on machines that the log knows.

    Raises LeaveEarly.
    """
    deadline_s = time.monotonic() + SETTINGS.wait_limit_s
    while True:
        state = context.log_watch.poll()
        context.leaving.check()
        claim = context.log_watch.claim()
        if state is not None and claim is not None and claim.launched is not None:
            return state
        if time.monotonic() > deadline_s:
            raise LeaveEarly("waited", "the log never named this machine")
        time.sleep(_poll_s(context))


def watch_peers(context: AttemptContext) -> None:
    """Watch the other ranks from the very start: otherwise a rank that leaves early would be waited for in vain."""
    claim = context.log_watch.claim()
    assert claim is not None
    peers = context.leaving.peers = PeerWatch(context.store, context.config.job, claim, context.config.rank)
    peers.start(context.wake.set)


def wait_until_allowed(context: AttemptContext) -> JobState:
    """Wait until every older claim has left for good: another attempt may still be saving. Raises LeaveEarly."""
    context.heartbeat.change(phase="waiting")
    began_s = time.monotonic()
    logged = ""
    while True:
        context.record.waited_s = time.monotonic() - began_s
        match context.log_watch.permission():
            case Go():
                assert context.log_watch.state is not None
                return context.log_watch.state
            case Leave(reason=reason, why=why):
                raise LeaveEarly(why, reason)
            case Wait(reason=reason):
                if reason != logged and time.monotonic() - began_s > 1.0:
                    _log.info("waiting: %s", reason)
                    logged = reason
        if time.monotonic() - began_s > SETTINGS.wait_limit_s:
            raise LeaveEarly("waited", f"waited {span_text(SETTINGS.wait_limit_s)} to be allowed to train")
        context.leaving.check_notices()
        time.sleep(_poll_s(context))


def _poll_s(context: AttemptContext) -> float:
    return _LOCAL_POLL_S if context.store.is_local else _REMOTE_POLL_S
