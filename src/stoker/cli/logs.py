"""`stoker logs`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from stoker.cli import EXIT_INTERRUPTED
from stoker.cli.completers import complete_attempt, complete_node
from stoker.cli.options import job_argument, opened_store, store_option

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stoker.model.job_state import JobState
    from stoker.read.logs import Line, NodeLog
    from stoker.store.base import Store


# More than an agent writes.
_MOST_EVIDENCE = 16 * 1024 * 1024


@click.command("logs")
@job_argument
@click.option("-f", "--follow", "following", is_flag=True, help="Go on until the job has ended, across restarts.")
@click.option(
    "--node", "rank", type=click.IntRange(min=0), metavar="R", shell_complete=complete_node, help="Only this node."
)
@click.option(
    "--attempt", type=click.IntRange(min=1), metavar="N", shell_complete=complete_attempt, help="Only this attempt."
)
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Only the last lines of what is there.")
@click.option("--evidence", is_flag=True, help="What the processes of a job that stood still were doing.")
@store_option
def command(job: str, following: bool, rank: int | None, attempt: int | None, tail: int | None, evidence: bool) -> int:
    """Print or follow a job's log: all attempts and nodes in one stream.

    Lines that begin with [boot] are of a machine that could not start an agent: what its boot said, or its console.
    """
    from stoker.cli.follow_view import Follower, Screen
    from stoker.cli.format import counted, say
    from stoker.model.errors import UserError
    from stoker.read.node_chunks import node_logs
    from stoker.store import job_index, job_log
    from stoker.store.find_job import find_job

    store = opened_store()
    found = find_job(store, job)
    state = job_log.read(store, found)
    if state is None:
        raise UserError(f"{found} was not submitted, or is half removed; `stoker rm {found}` clears it away")
    nodes = job_index.read_submission(store, state).spec.nodes
    if rank is not None and rank >= nodes:
        has = "only node 0" if nodes == 1 else f"nodes 0 to {nodes - 1}"
        raise UserError(f"--node {rank}: {found} has {has}")
    if attempt is not None and not following and attempt > len(state.attempts):
        raise UserError(f"--attempt {attempt}: {found} has had {counted(len(state.attempts), 'attempt')} so far")
    if evidence:
        return _print_evidence(store, state, rank, attempt)
    live = following and sys.stdout.isatty() and sys.stderr.isatty()
    screen = Screen(sys.stdout, prefix=nodes > 1 and rank is None, live=live)
    if following:
        follower = Follower(store, found, screen, rank=rank, attempt=attempt, events=live, since=state.seq)
        try:
            follower.run(tail)
        except KeyboardInterrupt:
            say(f"\n{found} goes on. Come back: stoker logs -f {found}   Stop it: stoker stop {found}")
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
    from stoker.cli.format import legible, say
    from stoker.model import keys

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
        say(f"no evidence was collected of {state.job}; that is done when a rule finds that it stands still")
    return 0


def _say_no_machine(state: JobState) -> None:
    """A job that never had a machine has no log: what there is to read is why."""
    from stoker.cli.format import legible, say

    if state.attempts:
        return
    if state.ended is not None:
        say(legible(f"{state.job} never had a machine: {state.ended.reason or state.ended.outcome}"))
    else:
        say(f"{state.job} has no machine yet; `stoker explain {state.job}` tells what it waits for")


def _lines(store: Store, state: JobState, nodes: Sequence[NodeLog], tail: int | None) -> Iterator[Line]:
    """What is there now, in order, with the consoles of machines of whom nothing else is left."""
    from stoker.read.logs import read_lines, read_tail

    if tail is not None:
        found = read_tail(store, state.job, nodes, tail)
        # Of several attempts those that spoke tell more.
        yield from found or list(consoles(store, state, nodes))[-tail:] if tail else ()
        return
    for attempt in sorted({node.attempt for node in nodes}):
        these = [node for node in nodes if node.attempt == attempt]
        yield from read_lines(store, state.job, these)
        yield from consoles(store, state, these)


def consoles(store: Store, state: JobState, nodes: Sequence[NodeLog]) -> Iterator[Line]:
    """The consoles of machines that are over and never wrote a word, where their provider keeps them."""
    from stoker.governor.connected_providers import Fleet
    from stoker.model.errors import StokerError
    from stoker.providers.base import Speaks
    from stoker.read.logs import console_lines, unheard_of

    untrained = {claim.number: claim for claim in state.attempts if claim.closed and not claim.closed.trained_s}
    fleet = Fleet(store.url)
    for node in unheard_of(store, state.job, [node for node in nodes if node.claim in untrained]):
        offering = untrained[node.claim].offering
        try:
            provider = fleet.provider(offering.provider)
            output = provider.console(node.instance, offering.region) if isinstance(provider, Speaks) else None
        except StokerError:
            continue  # It would have been more to read. What was decided on it is in `show`.
        yield from console_lines(node, output or "")
