"""Machines without a known price, under a budget. Pure.

An unknown price is never free: while another machine of the job has a price, those without one are left out. Where none
has one, the job reserves nothing, and the plan says that its cost is not counted.
"""

from __future__ import annotations

from collections.abc import Iterable

from stoker.core import spot
from stoker.core.budget_reservations import priced_of
from stoker.core.budget_state import denies_launches
from stoker.core.name_list import first_names
from stoker.core.policy_rules import Subject, applies
from stoker.model.offerings import Offering
from stoker.model.policy import Policy
from stoker.model.spec import Spec


def left_out(policy: Policy, subject: Subject, spec: Spec, offerings: Iterable[Offering]) -> dict[str, str]:
    """The offerings, by key, that a budget leaves out because others of the job have a price, with one reason for all.

    `spec` is the job's with the limits of the policy. Budgets that only warn leave nothing out.
    """
    rules = [rule for rule in policy.about("budget") if applies(rule, subject) and denies_launches(rule)]
    kinds = {spec.resources.spot == "only"}
    if spec.resources.spot == "prefer" or spot.falls_back_to_on_demand(spec):
        kinds = {False, True}
    accepted = [each for each in offerings if each.spot in kinds] if rules else []
    kept = {each.key for each in priced_of(accepted)}
    lacking = [each for each in accepted if each.key not in kept]
    if not lacking:
        return {}
    machines = list(dict.fromkeys(each.machine for each in lacking))
    what = f"{first_names(machines)} {'is' if len(machines) == 1 else 'are'} left out"
    refresh = f"`stoker prices --provider {lacking[0].provider} --refresh` may bring one"
    reason = f"policy {rules[0].name}: {what}: no price is known, and other machines have one; {refresh}"
    return {each.key: reason for each in lacking}
