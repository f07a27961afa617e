"""`stoker policy approve` and `stoker policy approvals`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stoker.cli.completers import complete_job, complete_rule
from stoker.cli.options import json_option, named_job, opened_store, store_option

if TYPE_CHECKING:
    from datetime import date

    from stoker.model.policy import Policy, Rule
    from stoker.policy.approvals import Approval
    from stoker.store.base import Store


@click.command(short_help="Let one job break a rule of the policy.")
@click.argument("job", shell_complete=complete_job)
@click.option(
    "--rule",
    "names",
    metavar="NAME",
    multiple=True,
    shell_complete=complete_rule,
    help="This rule; default: those that the job waits for.",
)
@click.option(
    "--until",
    metavar="WHEN",
    default="7d",
    show_default=True,
    help="The last day, in UTC: 2026-12-31, or a span such as 7d.",
)
@click.option("--why", metavar="TEXT", required=True, help="The reason, for later readers.")
@click.option("--external", is_flag=True, help="JOB is the name of an external job; default: where no job has it.")
@store_option
def approve(job: str, names: tuple[str, ...], until: str, why: str, external: bool) -> None:
    """Let one job break a rule of the policy until a day. You must be one of the rule's approvers, by the identity that
    the cloud of the store knows (on a folder, the user of this computer)."""
    from stoker.cli.format import say, warn
    from stoker.governor import deployment_record
    from stoker.model.errors import StokerError, UserError
    from stoker.policy import approvals, versions
    from stoker.submit.identity import submitter_of

    store = opened_store()
    last, policy = _last_day(until), versions.current_policy(store)
    job, external = _id_of(store, policy, job, external=external)
    rules = _rules(store, policy, job, names, external=external)
    me = submitter_of(store.url)
    if me.doubt:
        warn(f"{me.doubt}; the approval is recorded as by {me.name}")
    for rule in rules:
        if not approvals.may_approve(rule, me.name):
            who = f"its approvers are {', '.join(rule.approvers)}" if rule.approvers else "it has no approvers"
            raise UserError(f"policy {rule.name}: {me.name} may not approve; {who}")
    for rule in rules:
        given = approvals.Approval(job, rule.name, me.name, last.isoformat(), " ".join(why.split()), external)
        approvals.write(store, given)
        title = f"the external job {job}" if external else job
        say(f"{title} may break policy {rule.name} until {last}, approved by {me.name}")
    try:
        deployment_record.wake(store, ())
    except StokerError as error:
        say(str(error))


@click.command("approvals")
@json_option
@store_option
def list_approvals(as_json: bool) -> None:
    """List the approvals that have not expired."""
    from datetime import datetime, timezone

    from stoker.cli.format import print_json, say, table, to_json
    from stoker.policy.approvals import ApprovalReader
    from stoker.read.safe_text import legible

    found = ApprovalReader(opened_store()).valid(datetime.now(timezone.utc).date())
    if as_json:
        print_json(to_json(found))
    elif found:
        rows = [[_title(each), each.rule, each.until, legible(each.by), legible(each.why)] for each in found]
        click.echo(table(("JOB", "RULE", "UNTIL", "BY", "WHY"), rows))
    else:
        say("no job is approved; `stoker policy approve JOB` approves one")


def _title(approval: Approval) -> str:
    return f"{approval.job} (external)" if approval.external else approval.job


def _last_day(text: str) -> date:
    """The last day that `--until` names. Raises UserError for one that is past, and for anything else."""
    from datetime import datetime, timedelta, timezone

    from stoker.jobfile.value_forms import read_date, read_duration
    from stoker.model.errors import UserError

    now = datetime.now(timezone.utc)
    try:
        last = read_date(text)
    except ValueError:
        try:
            if text.strip().replace(".", "", 1).isdigit():
                raise ValueError("no unit")  # In a job file this means seconds; here it is a mistake.
            last = (now + timedelta(seconds=read_duration(text))).date()
        except (ValueError, OverflowError):
            raise UserError(f"--until {text}: expected a day such as 2026-12-31, or a span such as 7d") from None
    if last < now.date():
        raise UserError(f"--until {text}: is over; name a day from {now.date()} on")
    return last


def _id_of(store: Store, policy: Policy, text: str, *, external: bool) -> tuple[str, bool]:
    """The id of the job, and whether it is external. An external job is named before it starts, so that its name need
    not be known. Raises UserError."""
    from stoker.external_jobs.training_job import NAME
    from stoker.model.errors import NoSuchJob, UserError

    if not external:
        try:
            return named_job(store, text), False
        except NoSuchJob:
            if policy.sagemaker is None or NAME.fullmatch(text) is None:
                raise
    if policy.sagemaker is None:
        raise UserError("--external: the policy governs no external jobs; `sagemaker.regions` makes it govern them")
    if NAME.fullmatch(text) is None:
        raise UserError(f"--external {text!r}: no training job can have this name; give its name in SageMaker")
    return text, True


def _rules(store: Store, policy: Policy, job: str, names: tuple[str, ...], *, external: bool) -> list[Rule]:
    """The rules to approve: those named, or those that the job's log says it waits for. Raises UserError."""
    from stoker.core.next_claim import APPROVAL
    from stoker.core.policy_rules import PREFIX
    from stoker.model.errors import UserError
    from stoker.store import job_log

    if not names:
        state = None if external else job_log.read(store, job)
        waits = state.warned if state is not None else ()
        names = tuple(rule.name for rule in policy.rules if f"{PREFIX}{rule.name}:{APPROVAL}" in waits)
        if not names:
            known = ", ".join(rule.name for rule in policy.rules if rule.approvers) or "no rule has approvers"
            raise UserError(f"{job}: waits for no approval; name a rule with --rule ({known})")
    known_rules = {rule.name: rule for rule in policy.rules}
    for name in names:
        if name not in known_rules:
            raise UserError(f"--rule {name}: the policy has no such rule; there are: {', '.join(known_rules)}")
    return [known_rules[name] for name in dict.fromkeys(names)]
