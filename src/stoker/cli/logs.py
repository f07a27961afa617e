"""`stoker logs`."""

from __future__ import annotations

import sys

import click

from stoker.cli import EXIT_INTERRUPTED
from stoker.cli.options import job_argument, opened_store, store_option


@click.command("logs")
@job_argument
@click.option("-f", "--follow", "following", is_flag=True, help="Go on until the job has ended, across restarts.")
@click.option("--node", "rank", type=click.IntRange(min=0), metavar="R", help="Only this node.")
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="Only this attempt.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Only the last lines of what is there.")
@store_option
def command(job: str, following: bool, rank: int | None, attempt: int | None, tail: int | None) -> int:
    """Print or follow a job's log: all attempts and nodes in one stream."""
    from stoker import index, log
    from stoker.cli.following import Follower, Screen, node_logs
    from stoker.cli.printing import counted, say
    from stoker.errors import UserError
    from stoker.finding import find_job
    from stoker.reading.logs import read_lines, read_tail

    store = opened_store()
    found = find_job(store, job)
    state = log.read(store, found)
    if state is None:
        raise UserError(f"{found} was not submitted, or is half removed; `stoker rm {found}` clears it away")
    nodes = index.read_submission(store, state).spec.nodes
    if rank is not None and rank >= nodes:
        has = "only node 0" if nodes == 1 else f"nodes 0 to {nodes - 1}"
        raise UserError(f"--node {rank}: {found} has {has}")
    if attempt is not None and not following and attempt > len(state.attempts):
        raise UserError(f"--attempt {attempt}: {found} has had {counted(len(state.attempts), 'attempt')} so far")
    live = following and sys.stdout.isatty() and sys.stderr.isatty()
    screen = Screen(sys.stdout, prefix=nodes > 1 and rank is None, live=live)
    if following:
        follower = Follower(store, found, screen, rank=rank, attempt=attempt, events=live, since=state.seq)
        try:
            follower.run(tail)
        except KeyboardInterrupt:
            say(f"\n{found} goes on. Come back: stoker logs -f {found}   Stop it: stoker stop {found}")
            return EXIT_INTERRUPTED
        return 0
    narrowed = node_logs(state, rank, attempt)
    for line in read_lines(store, found, narrowed) if tail is None else read_tail(store, found, narrowed, tail):
        screen.line(line)
    screen.flush()
    return 0
