"""The longest life of a machine, which its cloud or the machine itself enforces without any governor."""

from __future__ import annotations

from stoker.core import policy_rules
from stoker.core.costs import dollars_per_s
from stoker.core.prior_usage import used_before
from stoker.model.job_state import Claim, JobState
from stoker.model.policy import Policy
from stoker.model.spec import Spec

# Added to `max_runtime` for a machine's longest life: boot, set-up, waiting and saving are not training time.
_LIFE_MARGIN_S = 3600.0


def longest_life_s(spec: Spec, burn_per_s: float = 0.0) -> float | None:
    """The longest life of a machine of this job; None where the job has no time limit.

    `burn_per_s` is the price of the machine and its peers, where it is known: the machine is held for debugging no
    longer than the job's money lasts.
    """
    max_runtime_s, max_cost = spec.limits.max_runtime_s, spec.limits.max_cost
    if max_runtime_s is None:
        return None
    held_s = spec.retry.hold_on_failure_s
    if max_cost is not None and burn_per_s > 0:
        held_s = min(held_s, max(0.0, max_cost) / burn_per_s)
    return max(0.0, max_runtime_s) + held_s + _LIFE_MARGIN_S


def claim_life_s(policy: Policy, state: JobState, spec: Spec, claim: Claim) -> float | None:
    """The longest life of a claim's machines, also by the bounds of the policy.

    Computed as of the claim's time, so that every governor that finishes the claim asks for the same.
    """
    subject = policy_rules.Subject(spec, claim.at.date(), state.job, used_before(state, spec, claim.at))
    return longest_life_s(policy_rules.effective_limits(policy, subject).spec, dollars_per_s(claim, claim.nodes))
