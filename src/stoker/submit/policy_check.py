"""Hold a job against the rules of the house before it is submitted. Whoever governs it does the same again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import date, datetime, timezone

from stoker.core import budgets, limits, policy_rules
from stoker.core.budget_reservations import Ask, first_need
from stoker.core.budget_state import Books, concerned
from stoker.core.governor_settings import DEFAULT
from stoker.core.market import ordered
from stoker.core.placement import that_pay
from stoker.core.policy_rules import Subject
from stoker.core.prior_usage import used_before
from stoker.governor.budget_tracker import Bookkeeper
from stoker.governor.market_records import MarketReader
from stoker.governor.observe import Memory, active_jobs
from stoker.model.durations import span_text
from stoker.model.errors import UserError
from stoker.model.job_state import JobState
from stoker.model.observed import Known, Observed
from stoker.model.offerings import Offering
from stoker.model.policy import NO_RULES, House, Then
from stoker.model.spec import Spec
from stoker.policy import versions
from stoker.store.base import Store


@dataclass(frozen=True)
class Heeded:
    """What the rules leave of the offerings, the warnings, and what else the plan should say."""

    offerings: tuple[Offering, ...]
    told: tuple[str, ...] = ()
    noted: tuple[str, ...] = ()
    # The house's bounds; None: nobody asked for them.
    bounds: policy_rules.Bounded | None = None


def house_of(store: Store | None) -> House:
    """The rules of a store. Without one nobody knows of any."""
    return versions.house(versions.current(store)) if store is not None else NO_RULES


def as_housed(house: House, spec: Spec) -> Spec:
    """The spec with what the house says of spot and of cost: both say which machines it may come to."""
    bounded = policy_rules.bounded(house, _subject(spec)).spec
    return replace(
        spec,
        resources=bounded.resources,
        retry=replace(spec.retry, spot_wait_s=bounded.retry.spot_wait_s),
        limits=replace(spec.limits, max_cost=bounded.limits.max_cost),
    )


def cost_bound(house: House, spec: Spec) -> str:
    """Who says what the job may cost, in words."""
    return policy_rules.bounded(house, _subject(spec)).named("max_cost")


@dataclass(frozen=True)
class Forecast:
    """What the policy's budgets say to a job as they stand now, each with what comes of it; and how they stand."""

    coming: tuple[tuple[str, Then], ...] = ()
    stands: tuple[str, ...] = ()


def forecast(store: Store, house: House, spec: Spec, offerings: Iterable[Offering], job: str | None = None) -> Forecast:
    """Judge a job that is to be submitted by the cheapest of the offerings that would do."""
    if not concerned(house, spec.tags):
        return Forecast()
    # By this computer's clock: governors go by the store's.
    now = datetime.now(timezone.utc)
    subject, books = Subject(spec, now.date(), job), books_of(store, house, now)
    bounds = policy_rules.bounded(house, subject)
    needs = [first_need(bounds, offering) for offering in policy_rules.allowed(house, subject, offerings)]
    ask = Ask(min(needs, key=lambda need: need.dollars), now) if needs else None
    stands = budgets.stands(house, subject, books.value, now, ask) if isinstance(books, Known) else ()
    return Forecast(budgets.forecast(house, subject, books, now, ask), tuple(stands))


def books_of(store: Store, house: House, now: datetime) -> Observed[Books]:
    """How the budgets of the house stand, as of the last pass over each job."""
    keeper = Bookkeeper(store, Memory())
    keeper.begin(tuple(active_jobs(store)), whole=False)
    return keeper.look(house, now)


def heed(
    house: House, spec: Spec, offerings: tuple[Offering, ...], store: Store | None = None, job: str | None = None
) -> Heeded:
    """Raises UserError with all the rules that refuse the job. How budgets and markets stand is asked of the store.

    `job` is the id of one that was submitted before.
    """
    subject = Subject(spec, _today(), job)
    found = policy_rules.broken(house, subject, offerings)
    money = forecast(store, house, spec, offerings, job) if store is not None else Forecast()
    refusals = [str(each) for each in found if each.refuses]
    refusals += [reason for reason, then in money.coming if then == "refuse"]
    if refusals:
        raise UserError("; ".join(refusals))
    bounds = policy_rules.bounded(house, subject)
    noted = tuple(_noted(bounds, field) for field in bounds.by_rule)
    noted += money.stands
    told = (*map(str, found), *(reason for reason, _ in money.coming))
    return Heeded(_as_seen(house, spec, store, policy_rules.allowed(house, subject, offerings)), told, noted, bounds)


def heed_used(house: House, spec: Spec, state: JobState, offerings: tuple[Offering, ...]) -> None:
    """Raises UserError where the house's bounds, which count all attempts of a job, leave nothing to one that is to be
    opened again."""
    now = datetime.now(timezone.utc)
    used = used_before(replace(state, opened_seq=state.seq), spec, now)
    bounds = policy_rules.bounded(house, Subject(spec, now.date(), state.job, used))
    told = limits.used_up(bounds)
    if told is None and "max_cost" in bounds.by_rule:
        whose, spent = bounds.named("max_cost"), bounds.used_of("max_cost")
        _, told = that_pay(bounds.spec, list(offerings), DEFAULT.leave_s, cost_bound=whose, used=spent)
    if told:
        raise UserError(f"{told}; who keeps the rules can raise the bound, or list {state.job} under its `except`")


def _as_seen(house: House, spec: Spec, store: Store | None, offerings: tuple[Offering, ...]) -> tuple[Offering, ...]:
    """The offerings in the order in which they will be tried, by what others saw of them lately."""
    if store is None or spec.resources.spot == "never":
        return offerings
    # A plan is for people: a clock that goes wrong by minutes does no harm here.
    now = datetime.now(timezone.utc)
    seen = MarketReader(store, now, house).of(spec.resources.provider)
    return tuple(ordered(offerings, seen, now, spec.resources.machine))


def _noted(bounds: policy_rules.Bounded, field: str) -> str:
    value = bound_value(field, bounds.value(field))
    told = {
        "max_runtime": f"at most {value} of training",
        "max_wait": f"at most {value} without a machine",
        "max_cost": f"at most {value}",
        "spot_wait": f"after {value} without spot it takes on-demand machines",
        "on_demand_after": f"on-demand after more reclaims than {value}",
        "resumes": f"what failed for no known reason after long training is resumed, {value} times at most",
    }
    return f"{bounds.named(field)}: {told[field]}"


def bound_value(field: str, value: float | None) -> str:
    """A bound of the house as people read it: `72 h`, `$400.00`, `2`."""
    if value is None:
        return "none"
    if field == "max_cost":
        return f"${value:,.2f}"
    return f"{value:g}" if field in ("on_demand_after", "resumes") else span_text(value)


def _subject(spec: Spec) -> Subject:
    return Subject(spec, _today())


def _today() -> date:
    return datetime.now(timezone.utc).date()
