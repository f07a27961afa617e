"""`stoker resume`."""

from __future__ import annotations

import click

from stoker.cli.completers import complete_jobs_that, is_resumable
from stoker.cli.options import checkpoint_option, job_argument_of, named_job, opened_store, store_option


@click.command("resume")
@job_argument_of(complete_jobs_that(is_resumable))
@checkpoint_option("Continue from this checkpoint, named by REF or name; newer ones are left aside.")
@click.option("-f", "--follow", "following", is_flag=True, help="Follow the job, as `run` does.")
@store_option
def command(job: str, checkpoint: str | None, following: bool) -> int:
    """Continue a failed or stopped job from its last checkpoint: the same job, next attempt.

    A checkpoint on which attempts failed is passed over unless --checkpoint names it.
    """
    from stoker.cli.format import report_governor, say
    from stoker.governor.background import ensure_governed
    from stoker.governor.handover_guard import guarding
    from stoker.submit.resume import ask_to_resume, prepare_resume

    store = opened_store()
    found = named_job(store, job)
    plan = prepare_resume(found, store, checkpoint)
    with guarding(store.url) as guard:
        ask_to_resume(plan, store)
        guard.job(found)
        for text in plan.messages:
            say(text)
        if following:
            from stoker.cli.follow_and_govern import follow_job
            from stoker.governor.background import wake_deployed
            from stoker.providers import registry
            from stoker.store.job_index import read_submission

            report_governor(wake_deployed(store, [found]))
            spec = read_submission(store, plan.state).spec
            paid = registry.capabilities(spec.resources.provider).paid
            return follow_job(store, found, nodes=spec.nodes, paid=paid, since=plan.state.seq, guard=guard)
        governor = ensure_governed(store, [found])
        report_governor(governor)
    say(f"{found} {'goes on' if governor.is_governed else 'is resumed'}; follow it with: stoker logs -f {found}")
    return 0
