"""Connect to a job's provider and choose, among its offerings, those that the spec and the policy allow."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from stoker.core.acceptable_offerings import fitting_for_new_job
from stoker.core.costs import in_dollars
from stoker.core.governor_settings import DEFAULT
from stoker.core.policy_rules import EffectiveLimits
from stoker.model.errors import PolicyRefused, UserError
from stoker.model.offerings import Offering
from stoker.model.policy import Policy
from stoker.model.resources import Resources, idle_gpus
from stoker.model.spec import Spec
from stoker.providers import registry
from stoker.providers.base import Provider, SupportsQuotaCheck
from stoker.providers.regional_offerings import offerings_in_regions
from stoker.store.base import Store
from stoker.submit.job_regions import (
    check_quotas,
    check_regions,
    frozen_regions,
    regions_left_out,
    transfer_remark,
)
from stoker.submit.policy_check import (
    PolicyCheck,
    check_policy,
    policy_limits,
    read_policy,
    refusals_without_machines,
)


@runtime_checkable
class ExplainsNoOffering(Protocol):
    """A provider that can say why it offers nothing."""

    def why_none(self, resources: Resources) -> str: ...


@runtime_checkable
class PlansFromTables(Protocol):
    """A provider that can plan offline, from tables of its own."""

    def unchecked(self, resources: Resources) -> tuple[str, ...]:
        """A line for each named resource that no table lists. Raises UserError for one that is certainly wrong."""


@dataclass(frozen=True)
class OfferingChoice:
    """The spec with the resources that are frozen at submission, and the offerings that the policy leaves."""

    spec: Spec
    limits: EffectiveLimits
    all_offerings: tuple[Offering, ...]
    check: PolicyCheck
    # Resources that an offline plan could not check, one line each.
    unchecked: tuple[str, ...] = ()
    # About several regions, one line each: which are not in the plan, and why; and what else may surprise.
    about_regions: tuple[str, ...] = ()

    @property
    def offerings(self) -> tuple[Offering, ...]:
        """The offerings that spec and policy allow, best first."""
        return self.check.offerings


def connect(spec: Spec, store: Store, *, offline: bool = False) -> Provider:
    """Connect to the spec's provider. Raises UserError when there is none of that name."""
    return registry.connect(spec.resources.provider, registry.Context(store=store.url, offline=offline))


def choose_offerings(
    spec: Spec,
    provider: Provider,
    store: Store | None,
    *,
    offline: bool = False,
    submitter_doubts: tuple[str, ...] = (),
    policy: Policy | None = None,
) -> OfferingChoice:
    """Choose the offerings that spec, policy and quotas allow. Raises UserError when none is left.

    `store` holds the policy, and what it knows of budgets and markets; None: it may not be asked. `policy` is the
    policy, where the caller has read it. The spec that is returned has its region and GPU count fixed.
    `submitter_doubts` are those of `check_policy`.
    """
    policy = read_policy(store) if policy is None else policy
    named = spec.resources
    found = offerings_in_regions(provider, named)
    check_regions(provider, named, found, offline=offline)
    offered = found.offerings
    unchecked = _unchecked(provider, named) if offline else ()
    about_regions = (*regions_left_out(provider, named, found), *transfer_remark(named))
    spec = replace(spec, resources=_frozen_resources(named, offered))
    limits = policy_limits(policy, spec)
    # Offline, prices that change by the hour are unknown, and the plan must be shown all the same.
    try:
        fitting = fitting_offerings(limits, provider, offered, unpriced=offline)
    except UserError as error:
        # The submitter learns of everything at once.
        problems = refusals_without_machines(policy, spec)
        if not problems:
            raise
        raise PolicyRefused((*problems, str(error))) from None
    check = check_policy(policy, spec, fitting, store, limits=limits, submitter_doubts=submitter_doubts)
    if not offline and isinstance(provider, SupportsQuotaCheck):
        about_regions += check_quotas(provider, check.offerings, spec.nodes)
    return OfferingChoice(spec, limits, offered, check, unchecked, about_regions)


def fitting_offerings(
    limits: EffectiveLimits, provider: Provider, offered: tuple[Offering, ...], *, unpriced: bool = False
) -> tuple[Offering, ...]:
    """The offerings that the spec allows under the limits of spec and policy, best first.

    Raises UserError with the reason when there are none.
    """
    fitting = fitting_for_new_job(limits, offered, DEFAULT.leave_s, unpriced=unpriced)
    if fitting.offerings:
        return fitting.offerings
    if fitting.too_little_money:
        raise UserError(fitting.reason)
    reason = fitting.reason
    if not offered and isinstance(provider, ExplainsNoOffering):
        reason = provider.why_none(limits.spec.resources) or reason
    raise UserError(f"{reason}; `stoker offers` lists the machines on offer")


def _frozen_resources(resources: Resources, offered: tuple[Offering, ...]) -> Resources:
    """Fix what must not change after submission.

    The region, whole: a governor may run elsewhere later, or in another project. And the number of GPUs of a machine:
    offerings change, and larger machines were not in the plan.
    """
    if not offered:
        return resources
    if resources.gpus is not None and not resources.machine:
        most = max(offering.gpus for offering in offered)
        resources = replace(resources, gpus=replace(resources.gpus, most=most))
    return frozen_regions(resources, offered)


def _unchecked(provider: Provider, resources: Resources) -> tuple[str, ...]:
    """The lines about resources that an offline plan could not check, of all regions, each once."""
    if not isinstance(provider, PlansFromTables):
        return ()
    lines = (provider.unchecked(resources.in_region(region)) for region in resources.regions or (None,))
    return tuple(dict.fromkeys(line for each in lines for line in each))


def unpriced_spot_warning(choice: OfferingChoice) -> tuple[str, ...]:
    """Warn when a job that prefers spot gets none although it is offered, because its price is unknown."""
    return spot_left_out(choice.limits, choice.offerings, choice.all_offerings)


def spot_left_out(limits: EffectiveLimits, fitting: Iterable[Offering], offered: Iterable[Offering]) -> tuple[str, ...]:
    """The warning of `unpriced_spot_warning`, for these offerings."""
    spec = limits.spec
    if spec.resources.spot != "prefer" or spec.limits.max_cost is None or any(each.spot for each in fitting):
        return ()
    if not any(each.spot and each.price is None for each in offered):
        return ()
    refresh = f"`stoker prices --provider {spec.resources.provider} --refresh` may fetch one"
    instead = "" if "max_cost" in limits.by_rule else ", or set limits.max_runtime instead"
    return (f"spot is left out: {limits.named('max_cost')} needs a known price; {refresh}{instead}",)


def idle_gpus_warning(spec: Spec, offerings: Iterable[Offering]) -> tuple[str, ...]:
    """Warn that a launch may buy more GPUs than the job asked for: a line for the best of those offerings."""
    asked = spec.resources.gpus
    larger = next((each for each in offerings if idle_gpus(asked, each.gpus)), None)
    if asked is None or larger is None:
        return ()
    name = f"{asked.name or 'GPU'}:{asked.count}"
    price = "" if larger.price is None else f" at {in_dollars(larger.price)}/h"
    on_all = f" on each of {spec.nodes} nodes" if spec.nodes > 1 else ""
    bought = f"{larger.machine} {larger.kind} has {larger.gpus} × {larger.gpu}{price}"
    unused = f"{idle_gpus(asked, larger.gpus)} of {larger.gpus} GPUs stay idle{on_all}, and are paid for"
    return (f"resources.gpus: {name} was asked for, and {bought}: {unused}; resources.max_price bounds the price",)
