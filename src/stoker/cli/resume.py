"""`stoker resume`."""

from __future__ import annotations

import click

from stoker.cli.completers import complete_jobs_that, is_resumable
from stoker.cli.options import checkpoint_option, job_argument_of, opened_store, store_option


@click.command("resume")
@job_argument_of(complete_jobs_that(is_resumable))
@checkpoint_option("Go on from this one, by its REF of `stoker checkpoints` or its name; what is newer is left aside.")
@click.option("-f", "--follow", "following", is_flag=True, help="Follow it, as `run` does.")
@store_option
def command(job: str, checkpoint: str | None, following: bool) -> int:
    """Let an ended job go on from its last checkpoint: the same job, next attempt.

    A checkpoint that attempts failed on is passed over unless --checkpoint names it.
    """
    from stoker import client
    from stoker.cli.format import say, tell_problem
    from stoker.governor.background import carry_on
    from stoker.governor.handover_guard import guarding
    from stoker.store.find_job import find_job

    store = opened_store()
    found = find_job(store, job)
    plan = client.prepare_resume(found, store, checkpoint)
    with guarding(store.url) as guard:
        client.ask_to_resume(plan, store)
        guard.job(found)
        for text in plan.told:
            say(text)
        if following:
            from stoker.cli.follow_and_govern import follow_governing
            from stoker.governor.background import call_deployed
            from stoker.providers import registry

            tell_problem(call_deployed(store, [found]))
            paid = registry.capabilities(client.summary(found, store).provider).paid
            return follow_governing(store, found, paid=paid, since=plan.state.seq, guard=guard)
        tell_problem(carry_on(store, [found]))
    say(f"{found} goes on; follow it with: stoker logs -f {found}")
    return 0
