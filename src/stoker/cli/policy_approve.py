"""`stoker policy approve`, `stoker policy withdraw` and `stoker policy approvals`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stoker.cli.completers import complete_job, complete_rule
from stoker.cli.options import json_option, named_job, opened_store, store_option

if TYPE_CHECKING:
    from datetime import date

    from stoker.model.policy import Policy, Rule
    from stoker.policy.approvals import Approval, StoredApproval
    from stoker.store.base import Store

_job_argument = click.argument("job", shell_complete=complete_job)
_why_option = click.option(
    "--why",
    metavar="TEXT",
    required=True,
    callback=lambda _context, _parameter, text: _reason(text),
    help="The reason, for later readers.",
)
_external_option = click.option(
    "--external", is_flag=True, help="JOB is the name of an external job; default: where no job has it."
)


def _reason(text: str) -> str:
    """The reason in one line. Raises UserError where nothing is left of it."""
    from stoker.model.errors import UserError

    reason = " ".join(text.split())
    if not reason:
        raise UserError("--why: is empty; write the reason, which later readers of the log will see")
    return reason


@click.command(short_help="Let one job break a rule of the policy.")
@_job_argument
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
@_why_option
@_external_option
@store_option
def approve(job: str, names: tuple[str, ...], until: str, why: str, external: bool) -> None:
    """Let one job break a rule of the policy until a day. You must be one of the rule's approvers, by the identity that
    the cloud of the store knows (on a folder, the user of this computer)."""
    from stoker.cli.format import say
    from stoker.model.errors import UserError
    from stoker.policy import approvals, versions

    store = opened_store()
    last, policy = _last_day(until), versions.current_policy(store)
    job, external = _id_of(store, policy, job, external=external)
    rules = _rules(store, policy, job, names, external=external)
    me = _identity(store, "approval")
    for rule in rules:
        if not approvals.may_approve(rule, me):
            raise UserError(f"policy {rule.name}: {me} may not approve; {_approvers_text(rule)}")
    for rule in rules:
        given = approvals.Approval(job, rule.name, me, last.isoformat(), why, external)
        approvals.write(store, given)
        title = f"the external job {job}" if external else job
        say(f"{title} may break policy {rule.name} until {last}, approved by {me}")
    _wake(store)


@click.command(short_help="Withdraw the approvals of one job.")
@_job_argument
@click.option(
    "--rule",
    "names",
    metavar="NAME",
    multiple=True,
    shell_complete=complete_rule,
    help="The approval of this rule; default: all that the job has.",
)
@_why_option
@_external_option
@store_option
def withdraw(job: str, names: tuple[str, ...], why: str, external: bool) -> None:
    """Withdraw the approvals of one job: the rules hold for it again, as if the approvals had expired. You must be one
    of the rule's approvers, or have approved it yourself."""
    from stoker.cli.format import say
    from stoker.model.errors import UserError
    from stoker.policy import approvals, versions
    from stoker.store import job_log

    store = opened_store()
    policy = versions.current_policy(store)
    job, external = _id_of(store, policy, job, external=external)
    found = _standing(store, job, names, external=external)
    me = _identity(store, "withdrawal")
    rules = {rule.name: rule for rule in policy.rules}
    for name, by in ((each.approval.rule, each.approval.by) for each in found):
        rule = rules.get(name)
        if by != me and not (rule is not None and approvals.may_approve(rule, me)):
            who = _approvers_text(rule) if rule is not None else "the policy has no such rule any more"
            raise UserError(f"policy {name}: {me} may not withdraw the approval by {by}; {who}")
    for each in found:
        if approvals.withdraw(store, each, approvals.Withdrawal(me, why)):
            say(f"{_title(each.approval)}: policy {each.approval.rule} holds again: its approval was withdrawn by {me}")
        else:
            say(f"{_title(each.approval)}: the approval of policy {each.approval.rule} was withdrawn already")
    state = None if external else job_log.read(store, job)
    if state is not None and state.ended is None and state.attempts:
        say(f"{job} has begun: limits hold from now on, and rules about machines for its next attempts")
    _wake(store)


@click.command("approvals")
@json_option
@store_option
def list_approvals(as_json: bool) -> None:
    """List the approvals that have neither expired nor been withdrawn."""
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


def _identity(store: Store, what: str) -> str:
    """The identity of this user, by the cloud of the store. Warns where it is doubtful."""
    from stoker.cli.format import warn
    from stoker.submit.identity import submitter_of

    me = submitter_of(store.url)
    if me.doubt:
        warn(f"{me.doubt}; the {what} is recorded as by {me.name}")
    return me.name


def _approvers_text(rule: Rule) -> str:
    return f"its approvers are {', '.join(rule.approvers)}" if rule.approvers else "it has no approvers"


def _wake(store: Store) -> None:
    """Wake the deployed governor. One that cannot be called is only reported: the decision is in the store."""
    from stoker.cli.format import say
    from stoker.governor import deployment_record
    from stoker.model.errors import StokerError

    try:
        deployment_record.wake(store, ())
    except StokerError as error:
        say(str(error))


def _standing(store: Store, job: str, names: tuple[str, ...], *, external: bool) -> list[StoredApproval]:
    """The approvals to withdraw: those of the rules named, or all of the job. Raises UserError where there is none."""
    from datetime import datetime, timezone

    from stoker.model.errors import UserError
    from stoker.policy.approvals import ApprovalReader

    everything = ApprovalReader(store).standing(datetime.now(timezone.utc).date())
    own = [each for each in everything if each.approval.job == job and each.approval.external == external]
    rules = ", ".join(dict.fromkeys(each.approval.rule for each in own))
    for name in names:
        if not any(each.approval.rule == name for each in own):
            raise UserError(f"--rule {name}: {job} has no approval of it; {f'it has: {rules}' if rules else 'nor any'}")
    if not own:
        raise UserError(f"{job}: has no approval to withdraw; `stoker policy approvals` lists all of them")
    return [each for each in own if not names or each.approval.rule in names]


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
