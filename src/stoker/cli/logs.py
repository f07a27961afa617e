"""`stoker logs`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from stoker.cli import EXIT_INTERRUPTED
from stoker.cli.completers import complete_node
from stoker.cli.options import attempt_option, job_argument, named_job, opened_store, store_option

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stoker.model.job_state import JobState
    from stoker.read.logs import LogLine, NodeLog
    from stoker.store.base import Store


# The most bytes of a stack dump to read: more than an agent writes.
_MOST_EVIDENCE = 16 * 1024 * 1024


@click.command("logs")
@job_argument
@click.option("-f", "--follow", "following", is_flag=True, help="Follow until the job has ended, across restarts.")
@click.option(
    "--node",
    "rank",
    type=click.IntRange(min=0),
    metavar="R",
    shell_complete=complete_node,
    help="Only this node.",
)
@attempt_option("Only this attempt.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N lines.")
@click.option("--evidence", is_flag=True, help="Print the stack dumps of a job that stalled instead of its log.")
@store_option
def command(job: str, following: bool, rank: int | None, attempt: int | None, tail: int | None, evidence: bool) -> int:
    """Print or follow a job's log: all attempts and nodes in one stream.

    Lines that begin with [boot] come from a machine that could not start an agent: its boot output, or its console.
    """
    from stoker.cli.follow_and_govern import come_back_hint
    from stoker.cli.format import say
    from stoker.read.follow import Follower
    from stoker.read.node_chunks import check_selection, node_logs
    from stoker.read.screens import TerminalScreen
    from stoker.store import job_index, job_log
    from stoker.submit.submitted_state import half_removed

    store = opened_store()
    found = named_job(store, job)
    state = job_log.read(store, found)
    if state is None:
        raise half_removed(found)
    nodes = job_index.read_submission(store, state).spec.nodes
    check_selection(state, nodes, rank=rank, attempt=attempt, following=following, dashes="--")
    if evidence:
        return _print_evidence(store, state, rank, attempt)
    live = following and sys.stdout.isatty() and sys.stderr.isatty()
    screen = TerminalScreen(sys.stdout, prefix=nodes > 1 and rank is None, live=live)
    if following:
        follower = Follower(store, found, screen, rank=rank, attempt=attempt, events=live, since=state.seq)
        try:
            follower.run(tail)
        except KeyboardInterrupt:
            say(f"\n{come_back_hint(found)}")
            return EXIT_INTERRUPTED
        if follower.state is not None:
            for line in consoles(store, follower.state, node_logs(follower.state, rank, attempt)):
                screen.line(line)
            if not live or state.ended:
                _say_no_machine(follower.state)
        screen.flush()
        return 0
    for line in _lines(store, state, node_logs(state, rank, attempt), tail):
        screen.line(line)
    screen.flush()
    _say_no_machine(state)
    return 0


def _print_evidence(store: Store, state: JobState, rank: int | None, attempt: int | None) -> int:
    from stoker.cli.format import say
    from stoker.model import keys
    from stoker.read.safe_text import legible

    shown = 0
    for claim in state.attempts:
        if attempt is not None and claim.attempt != attempt:
            continue
        prefix = f"{keys.WORK}{state.job}/{keys.number(claim.number)}/"
        for key in sorted(meta.key for meta in store.list(prefix) if "/evidence/" in meta.key):
            node = key.removeprefix(prefix).partition("/")[0]
            if rank is not None and node != str(rank):
                continue
            found = store.get(key, limit=_MOST_EVIDENCE)
            if found is not None:
                click.secho(
                    f"attempt {claim.attempt}, node {node}, {found.meta.modified:%Y-%m-%d %H:%M:%S} UTC", bold=True
                )
                for line in found.data.decode(errors="replace").splitlines():
                    click.echo(legible(line))
                shown += 1
    if not shown:
        say(f"there are no stack dumps of {state.job}; they are taken when a rule finds that the job stalls")
    return 0


def _say_no_machine(state: JobState) -> None:
    """Say why a job that never had a machine has no log."""
    from stoker.cli.format import say
    from stoker.read.safe_text import legible

    if state.attempts:
        return
    if state.ended is not None:
        say(legible(f"{state.job} never had a machine: {state.ended.reason or state.ended.outcome}"))
    else:
        say(f"{state.job} has no machine yet; `stoker explain {state.job}` shows what it waits for")


def _lines(store: Store, state: JobState, nodes: Sequence[NodeLog], tail: int | None) -> Iterator[LogLine]:
    """The log so far, in order, with the consoles of machines that wrote nothing else."""
    from stoker.read.logs import read_lines, read_tail

    if tail is not None:
        found = read_tail(store, state.job, nodes, tail)
        # Attempts that wrote a log say more than consoles.
        yield from found or list(consoles(store, state, nodes))[-tail:] if tail else ()
        return
    for attempt in sorted({node.attempt for node in nodes}):
        these = [node for node in nodes if node.attempt == attempt]
        yield from read_lines(store, state.job, these)
        yield from consoles(store, state, these)


def consoles(store: Store, state: JobState, nodes: Sequence[NodeLog]) -> Iterator[LogLine]:
    """The consoles of ended machines that never wrote to the store, where their provider keeps them."""
    from stoker.governor.connected_providers import Fleet
    from stoker.model.errors import StokerError
    from stoker.providers.base import SupportsConsole
    from stoker.read.logs import console_lines, silent_nodes

    untrained = {claim.number: claim for claim in state.attempts if claim.closed and not claim.closed.trained_s}
    fleet = Fleet(store.url)
    for node in silent_nodes(store, state.job, [node for node in nodes if node.claim in untrained]):
        offering = untrained[node.claim].offering
        try:
            provider = fleet.provider(offering.provider)
            output = provider.console(node.instance, offering.region) if isinstance(provider, SupportsConsole) else None
        except StokerError:
            continue  # The console is optional; `show` has the decision about the attempt.
        yield from console_lines(node, output or "")
