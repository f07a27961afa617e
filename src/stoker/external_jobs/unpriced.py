"""Find the rules about money that cannot be enforced for an external job, because its price is unknown. Pure.

A limit on an unknown cost is never reached, and a budget cannot count it: people have to know that.
"""

from __future__ import annotations

from collections.abc import Iterator

from stoker.core import policy_rules
from stoker.core.policy_rules import PREFIX, Subject
from stoker.external_jobs.clone_chain import RuleWarning
from stoker.external_jobs.snapshot import ExternalJobSnapshot, RecordEvent
from stoker.model.policy import Policy


def unpriced_warnings(snapshot: ExternalJobSnapshot, policy: Policy, subject: Subject) -> Iterator[RecordEvent]:
    """A warning for each rule about money that does not hold for this job, once."""
    job = snapshot.job
    for rule in policy.rules:
        limit = rule.max_cost is not None and policy_rules.applies(rule, subject)
        budget = rule.budget is not None and policy_rules.in_scope(rule, job.tags)
        code = f"{PREFIX}{rule.name}"
        if (job.name, f"{code}/price") in snapshot.chain.warned:
            continue
        if snapshot.price is None and (limit or budget):
            what = "nothing stops it at that cost" if limit else "its cost is not counted"
            text = f"{_no_price(job.machines, job.region)}; {what}"
        elif limit and job.spot:
            text = "what it costs on spot is known only when it is over; nothing stops it at that cost before"
        else:
            continue
        reason = f"policy {rule.name} is not enforced: {text}"
        yield RecordEvent(RuleWarning(job.name, code, f"{code}/price"), reason)


def _no_price(machines: tuple[str, ...], region: str) -> str:
    if len(machines) > 1:
        return "its hosts are of several types, and it is unknown which host has which"
    refresh = f"`stoker prices --provider sagemaker --refresh --region {region}` may bring one"
    return f"there is no price of {machines[0] if machines else 'its machines'} in {region}; {refresh}"
