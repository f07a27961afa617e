"""Check a job against the policy before it is submitted. Its governor repeats the check."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass, replace
from datetime import date, datetime, timezone

from stoker.core import budget_verdict, policy_rules
from stoker.core.acceptable_offerings import within_cost_limit
from stoker.core.budget_reservations import first_request
from stoker.core.budget_state import BudgetState, has_budget
from stoker.core.concurrency import describe_limits
from stoker.core.governor_settings import DEFAULT
from stoker.core.limits import exhausted_limit
from stoker.core.market import by_expected_cost
from stoker.core.policy_defaults import FilledSpec, fill_in
from stoker.core.policy_rules import EffectiveLimits, Subject
from stoker.core.prior_usage import used_before
from stoker.core.unpriced_offerings import left_out
from stoker.governor.budget_tracker import BudgetTracker
from stoker.governor.market_records import MarketReader
from stoker.governor.observe import Memory, active_jobs
from stoker.model.durations import span_text
from stoker.model.errors import PolicyRefused, UserError
from stoker.model.job_state import JobState
from stoker.model.observed import Known, Observed
from stoker.model.offerings import Offering
from stoker.model.policy import NO_RULES, Policy, RuleAction
from stoker.model.spec import Spec
from stoker.policy import versions
from stoker.store.base import Store


@dataclass(frozen=True)
class PolicyCheck:
    """The offerings that the rules leave, and lines for the plan: warnings, and notes."""

    offerings: tuple[Offering, ...]
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    # The limits of spec and policy together.
    limits: EffectiveLimits | None = None


def read_policy(store: Store | None) -> Policy:
    """The policy of a store. Without a store: a policy without rules."""
    return versions.current_policy(store) if store is not None else NO_RULES


def policy_limits(policy: Policy, spec: Spec, job: str | None = None) -> EffectiveLimits:
    """The limits of spec and policy together, today. `job` is the id of a job that was submitted before."""
    return policy_rules.effective_limits(policy, Subject(spec, _today(), job))


def policy_filled(policy: Policy, spec: Spec, written: Set[str] | None) -> FilledSpec:
    """The spec with what the policy fills in. `written` are the fields that the job sets; None: all of them."""
    return FilledSpec(spec) if written is None else fill_in(policy, Subject(spec, _today()), written)


@dataclass(frozen=True)
class BudgetForecast:
    """The budgets that the job would exceed now, each with its reason and its consequence.

    `balances` says how much of each budget is spent, reserved and left; `in_use` how many machines of each limit are in
    use.
    """

    exceeded: tuple[tuple[str, RuleAction], ...] = ()
    balances: tuple[str, ...] = ()
    in_use: tuple[str, ...] = ()


def forecast_budgets(
    store: Store, policy: Policy, spec: Spec, offerings: Iterable[Offering], job: str | None = None
) -> BudgetForecast:
    """Forecast the policy's budgets for a job that is to be submitted, by its cheapest offering."""
    if not policy.rules or not has_budget(policy, spec.tags):
        return BudgetForecast()
    # By this computer's clock; governors use the store's.
    now = datetime.now(timezone.utc)
    subject, books = Subject(spec, now.date(), job), read_budget_state(store, policy, now)
    bounds = policy_rules.effective_limits(policy, subject)
    offered = tuple(offerings)
    # Where the rules forbid all machines, the budgets speak of those that the job asks for: people learn of everything
    # at once.
    ask = first_request(bounds, policy_rules.allowed(policy, subject, offered) or offered, now)
    exceeded = budget_verdict.forecast(policy, subject, books, now, ask)
    if not isinstance(books, Known):
        return BudgetForecast(exceeded)
    return BudgetForecast(
        exceeded,
        tuple(budget_verdict.describe_budgets(policy, subject, books.value, now, ask)),
        tuple(describe_limits(policy, subject, books.value.limits)),
    )


def read_budget_state(store: Store, policy: Policy, now: datetime) -> Observed[BudgetState]:
    """The state of the policy's budgets, as of the governor's last pass over each job."""
    tracker = BudgetTracker(store, Memory())
    tracker.begin(tuple(active_jobs(store)), whole=False)
    return tracker.read_state(policy, now)


def check_policy(
    policy: Policy,
    spec: Spec,
    offerings: tuple[Offering, ...],
    store: Store | None = None,
    job: str | None = None,
    *,
    limits: EffectiveLimits | None = None,
    submitter_doubts: tuple[str, ...] = (),
) -> PolicyCheck:
    """Check a job against every rule of the policy. Raises PolicyRefused with everything that the rules refuse.

    `store` holds the state of budgets and markets. `job` is the id of a job that was submitted before. `limits` are
    those of `policy_limits`, where the caller has them. `submitter_doubts` are warnings if a rule names submitters.
    """
    judged = policy_rules.judge(policy, Subject(spec, _today(), job), offerings)
    budget = forecast_budgets(store, policy, spec, offerings, job) if store is not None else BudgetForecast()
    pending = [each for each in judged.findings if each.needs_approval]
    refusals = [line for each in judged.findings if each.refuses and each not in pending for line in each.lines]
    refusals += [reason for reason, then in budget.exceeded if then == "refuse"]
    if refusals:
        raise PolicyRefused(tuple(refusals))
    if pending:
        # The machines that the job gets once it is approved.
        subject, approved = Subject(spec, _today(), job), policy_rules.without_pending(policy, pending)
        judged = replace(judged, allowed=policy_rules.allowed(approved, subject, offerings))
    limits = limits or policy_limits(policy, spec, job)
    unpriced = left_out(policy, Subject(spec, _today(), job), limits.spec, judged.allowed) if policy.rules else {}
    usable = tuple(each for each in judged.allowed if each.key not in unpriced)
    return PolicyCheck(
        offerings=_in_launch_order(policy, spec, store, usable),
        warnings=(
            *(submitter_doubts if judged.names_submitters else ()),
            *(
                line + (policy_rules.approval_text(each.rule, job) if each in pending else "")
                for each in judged.findings
                for line in each.lines
            ),
            *(reason for reason, _ in budget.exceeded),
            *uncounted(policy, spec, judged.allowed),
            *dict.fromkeys(unpriced.values()),
        ),
        notes=(*(_limit_note(limits, field) for field in limits.by_rule), *budget.balances, *budget.in_use),
        limits=limits,
    )


def refusals_without_machines(policy: Policy, spec: Spec, store: Store | None = None) -> tuple[str, ...]:
    """Everything that the rules refuse whatever the machines, one line each: for a job that no machine fits."""
    found = policy_rules.broken(policy, Subject(spec, _today()))
    budget = forecast_budgets(store, policy, spec, ()) if store is not None else BudgetForecast()
    return (
        *(line for each in found if each.refuses and not each.needs_approval for line in each.lines),
        *(reason for reason, then in budget.exceeded if then == "refuse"),
    )


def check_used_limits(policy: Policy, spec: Spec, state: JobState, offerings: tuple[Offering, ...]) -> None:
    """Raise UserError where the policy's limits leave nothing to a job that is to be resumed.

    These limits count all attempts of a job, before and after a resumption.
    """
    now = datetime.now(timezone.utc)
    used = used_before(replace(state, opened_seq=state.seq), spec, now)
    bounds = policy_rules.effective_limits(policy, Subject(spec, now.date(), state.job, used))
    reason = exhausted_limit(bounds)
    if reason is None and "max_cost" in bounds.by_rule:
        whose, spent = bounds.named("max_cost"), bounds.used_of("max_cost")
        _, reason = within_cost_limit(bounds.spec, list(offerings), DEFAULT.leave_s, cost_bound=whose, used=spent)
    if reason:
        advice = f"the owner of the policy can raise the limit, or list {state.job} under the rule's `except`"
        raise UserError(f"{reason}; {advice}")


def uncounted(policy: Policy, spec: Spec, offerings: tuple[Offering, ...]) -> list[str]:
    """A warning for each budget that cannot count this job, because no price of its machines is known. A limit on the
    cost accepts no machine without a price."""
    if any(each.price is not None or each.on_demand_price is not None for each in offerings):
        return []
    where = spec.resources.provider
    refresh = f"`stoker prices --provider {where} --refresh` may bring one"
    return [
        f"policy {rule.name}: not enforced for this job, since no price of its machines on {where} is known; {refresh}"
        for rule in policy.about("budget")
        if offerings and policy_rules.in_scope(rule, spec.tags)
    ]


def _in_launch_order(
    policy: Policy, spec: Spec, store: Store | None, offerings: tuple[Offering, ...]
) -> tuple[Offering, ...]:
    """The offerings in the order in which they will be tried, by the recent launches of all jobs of the store."""
    if store is None or spec.resources.spot == "never":
        return offerings
    # Only people read a plan: a clock that is wrong by minutes does no harm here.
    now = datetime.now(timezone.utc)
    seen = MarketReader(store, now, policy).of(spec.resources.provider)
    return tuple(by_expected_cost(offerings, seen, now, spec.resources.machine))


def _limit_note(bounds: EffectiveLimits, field: str) -> str:
    value = limit_text(field, bounds.value(field))
    meanings = {
        "max_runtime": f"at most {value} of training",
        "max_wait": f"at most {value} without a machine",
        "max_cost": f"at most {value}",
        "spot_wait": f"after {value} without spot it takes on-demand machines",
        "on_demand_after": f"on-demand after more reclaims than {value}",
        "resumes": f"an attempt that fails for no known reason after long training is resumed, {value} times at most",
    }
    return f"{bounds.named(field)}: {meanings[field]}"


def limit_text(field: str, value: float | None) -> str:
    """A limit of the policy as people read it: `72 h`, `$400.00`, `2`."""
    if value is None:
        return "none"
    if field == "max_cost":
        return f"${value:,.2f}"
    return f"{value:g}" if field in ("on_demand_after", "resumes") else span_text(value)


def _today() -> date:
    return datetime.now(timezone.utc).date()
