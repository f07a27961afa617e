"""Follow a job on the terminal and govern meanwhile: what `run` and `resume -f` do after the submission."""

from __future__ import annotations

import errno
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from stoker.cli import EXIT_CLOUD
from stoker.cli.format import discard_lost_output, print_json, report_governor, say, to_json
from stoker.cli.job_report import print_end
from stoker.store.base import Store

if TYPE_CHECKING:
    from stoker.governor.background import GovernorChoice
    from stoker.governor.handover_guard import HandoverGuard


def follow_job(
    store: Store,
    job: str,
    *,
    nodes: int,
    paid: bool,
    as_json: bool = False,
    since: int = 0,
    guard: HandoverGuard | None = None,
) -> int:
    """Follow the job to its end on this terminal, governing in a thread. Returns the exit code.

    `nodes` is the number of the job's nodes; `paid`: its machines cost money.
    `since` and `guard` are those of `stoker.read.govern_while_following.follow_and_govern`.
    """
    from stoker.read.govern_while_following import follow_and_govern
    from stoker.read.screens import TerminalScreen

    out = sys.stderr if as_json else sys.stdout
    live = sys.stderr.isatty() and (out.isatty() or as_json)
    screen = TerminalScreen(out, prefix=nodes > 1, live=live)
    result = follow_and_govern(store, job, screen, since=since, guard=guard)
    match result.reason:
        case "ended":
            assert result.record is not None
            return print_end(result.record, store, as_json=as_json)
        case "hung-up":
            return 0
        case "output-lost":
            assert result.error is not None
            return _report_lost_output(job, result.error, result.governor)
        case "interrupted":
            assert result.governor is not None
            print_governor(result.governor, paid=paid)
            say(f"\n{come_back_hint(job, result.governor)}")
            if as_json:
                from stoker import client

                print_json(to_json(client.summary(job, store)))
            return 0


def detach(store: Store, job: str, *, paid: bool) -> GovernorChoice:
    """Hand the job over to another governor, and say which one where machines cost money, or that there is none."""
    from stoker.governor.background import ensure_governed

    governor = ensure_governed(store, [job])
    print_governor(governor, paid=paid)
    return governor


def print_governor(governor: GovernorChoice, *, paid: bool) -> None:
    """Say which governor drives the job from now on. For machines that cost nothing, only a missing one needs a
    line."""
    if not paid and governor.is_governed:
        return
    report_governor(governor)
    if not governor.is_governed:
        return
    if governor.by is not None:
        say(f"governed by {governor.by}")
        return
    text = "its governor runs on this computer: while that is off, reclaimed machines are not replaced"
    say(text if governor.problem else f"{text}; `stoker deploy` puts one into the cloud")


def come_back_hint(job: str, governor: GovernorChoice | None = None) -> str:
    """How to follow or stop a job that continues without this command."""
    is_governed = governor is None or governor.is_governed
    state = "goes on" if is_governed else "is submitted, and no governor runs"
    return f"{job} {state}. Come back: stoker logs -f {job}   Stop it: stoker stop {job}"


def _report_lost_output(job: str, error: OSError, governor: GovernorChoice | None) -> int:
    """Say, where that can still be read, that the output has no reader any more. Returns the exit code."""
    discard_lost_output()
    with suppress(OSError):
        if not isinstance(error, BrokenPipeError) and error.errno != errno.EIO:
            say(f"nothing more can be printed ({error.strerror or error})")
        if governor is not None and not governor.is_governed:
            report_governor(governor)
        say(come_back_hint(job, governor))
    discard_lost_output()
    return 128 + signal.SIGPIPE if isinstance(error, BrokenPipeError) else EXIT_CLOUD
