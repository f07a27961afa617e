"""Find the rules of a policy that cannot be enforced everywhere, because prices are unknown."""

from __future__ import annotations

from collections.abc import Iterator

from stoker.model.policy import Policy
from stoker.providers import registry

_PROVIDER = "sagemaker"


def price_warnings(policy: Policy) -> Iterator[str]:
    """A line for each region of external training jobs without prices, and for what is unknown until a job ends.

    Jobs of Stoker are checked when they are submitted: no limit on the cost accepts a machine without a price.
    """
    limits = [rule.name for rule in policy.rules if rule.max_cost is not None]
    budgets = [rule.name for rule in policy.rules if rule.budget is not None]
    if policy.sagemaker is None or not (limits or budgets):
        return
    named = ", ".join(f"policy {name}" for name in (*limits, *budgets))
    known = registry.prices(_PROVIDER).tables()
    for region in policy.sagemaker.regions:
        if region not in known:
            refresh = f"`stoker prices --provider {_PROVIDER} --refresh --region {region}`"
            yield (
                f"warning: {named}: not enforced for training jobs in {region}, of which no price is known; "
                f"a deployed governor asks AWS for them if its role allows pricing:GetProducts, and here {refresh} does"
            )
    if limits:
        named = ", ".join(f"policy {name}" for name in limits)
        yield (
            f"warning: {named}: not enforced for training jobs on managed spot that Stoker did not start, while they "
            "train: SageMaker reports what they cost when they are over"
        )
