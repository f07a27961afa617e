"""Judge a launch by the policy's budgets, and by its limits of machines at the same time: allow it, warn, let the job
wait, or refuse it. Pure.

A budget stops launches, never running machines. A launch is allowed only if budget − spent − reserved covers what it
may cost, so a budget is exceeded only by jobs that cost more than was reserved for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime

from stoker.core.budget_reservations import LaunchRequest, Reserved, Waiting, micro
from stoker.core.budget_state import (
    FORECAST,
    FULL,
    NEARLY,
    RESERVED,
    SHARED,
    UNPRICED,
    BudgetState,
    BudgetStatus,
    code_of,
    denies_launches,
    period_of,
    spans_of,
    value_of,
)
from stoker.core.budget_text import (
    budget_name,
    exactly,
    forecast_text,
    owner_text,
    spent_text,
    spent_until,
    status_text,
    title_of,
    unpriced_text,
)
from stoker.core.concurrency import no_room
from stoker.core.costs import in_dollars
from stoker.core.daily_costs import midnight
from stoker.core.name_list import first_names
from stoker.core.policy_patterns import is_one_value
from stoker.core.policy_rules import Subject, applies, approval_text, in_scope
from stoker.core.tag_groups import values_of_group
from stoker.model.observed import Known, Observed, Unknown
from stoker.model.policy import Policy, Rule, RuleAction

_DUE = {FORECAST: "will be spent before its end", NEARLY: "is nearly spent", FULL: "is spent"}
# Kind of the warning, in its code, that a limit which only warns has no room.
ROOM = "room"


@dataclass(frozen=True)
class BudgetWarning:
    """A warning that is written once; `code` prevents a second one."""

    code: str
    reason: str


@dataclass(frozen=True)
class LaunchDenied:
    """The denial of a launch, for now."""

    rule: str
    reason: str
    # When it may change by itself.
    until: datetime | None = None
    # A job that never ran is ended.
    refuses: bool = False
    # The reason for waiting. The rule and the end come first, because lists of jobs cut the text off.
    waits: str = ""
    # Millionths of a dollar that the job waits for in the queue; 0 if it is not queued for money.
    amount: int = 0
    # Nodes and accelerators that the job waits for in the queue; None if it is not queued for machines.
    machines: tuple[int, int] | None = None
    # The job can never have what it needs.
    never: bool = False
    # The state of the budget is unknown.
    unknown: bool = False


def judge(
    policy: Policy,
    subject: Subject,
    budget_state: Observed[BudgetState] | None,
    now: datetime,
    request: LaunchRequest | None = None,
) -> tuple[BudgetWarning | LaunchDenied, ...]:
    """Return the warnings about a launch, then the reasons that deny it.

    `request` says what the launch may cost; without it, only spent money denies the launch. An unknown budget denies it
    as well: missing information never causes a launch.
    """
    rules = [rule for rule in policy.about("budget", "concurrent") if applies(rule, subject)]
    if not rules:
        return ()
    if not isinstance(budget_state, Known):
        error = budget_state.error if isinstance(budget_state, Unknown) else "no governor has looked"
        return tuple(_unknown(rule, error) for rule in rules if denies_launches(rule))
    warnings: list[BudgetWarning | LaunchDenied] = []
    held: list[BudgetWarning | LaunchDenied] = []
    for rule in rules:
        unreadable = budget_state.value.unreadable_of(rule, subject.spec.tags)
        if unreadable is not None and denies_launches(rule):
            held.append(_unknown(rule, f"{unreadable.job} cannot be read: {unreadable.why}"))
        if rule.budget is None:
            continue
        status, period = budget_state.value.of(rule, subject.spec.tags), period_of(rule.budget, now)
        value = value_of(rule, subject.spec.tags)
        text = f"{title_of(rule)}: {spent_until(rule.budget, status, value, period)}"
        if status.unpriced:
            warnings.append(BudgetWarning(code_of(rule, period, UNPRICED), f"{text}; {unpriced_text(status)}"))
        never = _deny_forever(rule, status, subject, request, now) if request is not None else None
        if never is not None and denies_launches(rule):
            held.append(never)
            continue
        if status.spent < rule.budget.dollars:
            held_back = _deny_if_short(rule, status, subject, request, now) if request is not None else None
            if held_back is not None and denies_launches(rule):
                held.append(held_back)
            elif held_back is not None:
                warnings.append(BudgetWarning(code_of(rule, period, RESERVED), held_back.reason))
            continue
        reason = status_text(rule, status, value, period)
        warnings.append(BudgetWarning(code_of(rule, period, FULL), reason))
        if denies_launches(rule):
            spent = spent_text(rule.budget, status, value)
            waits = f"{title_of(rule)}: no machine until {period.over_at:%Y-%m-%d %H:%M} UTC: {spent}"
            held.append(LaunchDenied(code_of(rule), reason, period.over_at, rule.action == "refuse", waits))
    if request is not None:
        for each in _room_verdicts(policy, subject, budget_state.value, request):
            (held if isinstance(each, LaunchDenied) else warnings).append(each)
    approvable = {code_of(rule): rule for rule in rules if rule.approvers}
    return (*warnings, *(_approvable(each, approvable, subject.job) for each in held))


def _approvable(
    each: BudgetWarning | LaunchDenied, rules: Mapping[str, Rule], job: str | None
) -> BudgetWarning | LaunchDenied:
    """The denial by a rule that has approvers: the job waits for one of them."""
    if isinstance(each, BudgetWarning) or each.rule not in rules or each.unknown:
        return each
    text = approval_text(rules[each.rule], job)
    waits = each.waits or each.reason
    return replace(each, reason=each.reason + text, waits=waits + text, refuses=False, never=False)


def _room_verdicts(
    policy: Policy, subject: Subject, budget_state: BudgetState, request: LaunchRequest
) -> Iterator[BudgetWarning | LaunchDenied]:
    """The verdicts of the limits of machines at the same time."""
    for each in no_room(policy, subject, budget_state.limits, request):
        code = code_of(each.rule)
        if denies_launches(each.rule):
            refuses, machines = each.rule.action == "refuse", None if each.never else (request.nodes, request.gpus)
            yield LaunchDenied(code, each.reason, None, refuses, each.waits, machines=machines, never=each.never)
        else:
            yield BudgetWarning(f"{code}:{ROOM}", each.reason)


def _unknown(rule: Rule, error: str) -> LaunchDenied:
    what = "what was spent" if rule.budget is not None else "what is in use"
    return LaunchDenied(code_of(rule), f"policy {rule.name}: {what} is not known: {error}", unknown=True)


def warnings_of_job(
    policy: Policy, job: str, tags: Mapping[str, str], budget_state: Observed[BudgetState] | None, now: datetime
) -> Iterator[BudgetWarning]:
    """The warnings that this job writes on behalf of all jobs of a budget, so that not every job writes them."""
    if not isinstance(budget_state, Known):
        return
    for rule in policy.about("budget"):
        status = budget_state.value.of(rule, tags)
        if status.reporter == job and in_scope(rule, tags):
            assert rule.budget is not None
            period = period_of(rule.budget, now)
            yield BudgetWarning(
                code_of(rule, period, status.due), status_text(rule, status, value_of(rule, tags), period)
            )


@dataclass(frozen=True)
class BudgetMark:
    """Identifies one warning about a budget: its rule, the first day of its period, the tag's value, one of SHARED."""

    rule: str
    start: date
    value: str
    kind: str


@dataclass(frozen=True)
class UnreportedWarning:
    """A warning about a budget none of whose jobs is alive to write it. `tags` are those that its jobs share."""

    mark: BudgetMark
    title: str
    reason: str
    audit: bool
    tags: Mapping[str, str]

    @property
    def order(self) -> int:
        """Sort key: by period, and in each period as SHARED has them."""
        return len(SHARED) * self.mark.start.toordinal() + SHARED.index(self.mark.kind)


def unreported_warnings(policy: Policy, budget_state: BudgetState) -> Iterator[UnreportedWarning]:
    """The warnings about budgets whose jobs have all ended."""
    for rule in policy.about("budget"):
        assert rule.budget is not None
        period = period_of(rule.budget, budget_state.at)
        for (name, value), status in budget_state.statuses.items():
            if name == rule.name and status.due and status.reporter is None:
                shared = {tag: wanted[0] for tag, wanted in rule.scope.items() if is_one_value(wanted)}
                yield UnreportedWarning(
                    BudgetMark(name, period.start, value, status.due),
                    f"{budget_name(name, rule.budget, value)} {_DUE[status.due]}",
                    status_text(rule, status, value, period),
                    rule.audit,
                    shared | values_of_group(rule.budget.by, value),
                )


def mark_of_code(policy: Policy, tags: Mapping[str, str], code: str) -> BudgetMark | None:
    """The budget warning that a warning code stands for; None for any other code."""
    for rule in policy.about("budget"):
        found = code.removeprefix(f"{code_of(rule)}:").split(":")
        if code.startswith(f"{code_of(rule)}:") and len(found) == 2 and found[1] in SHARED:
            return BudgetMark(rule.name, date.fromisoformat(found[0]), value_of(rule, tags), found[1])
    return None


def without_reported(
    policy: Policy, budget_state: BudgetState, was_reported: Callable[[BudgetMark], bool]
) -> BudgetState:
    """Drop warnings that were already reported in this period, by a job that is not active any more."""
    starts = {
        rule.name: period_of(rule.budget, budget_state.at).start for rule in policy.about("budget") if rule.budget
    }
    return replace(
        budget_state,
        statuses={
            (name, value): replace(status, due="", reporter=None)
            if status.due and was_reported(BudgetMark(name, starts[name], value, status.due))
            else status
            for (name, value), status in budget_state.statuses.items()
        },
    )


def forecast(
    policy: Policy,
    subject: Subject,
    budget_state: Observed[BudgetState],
    now: datetime,
    request: LaunchRequest | None = None,
) -> tuple[tuple[str, RuleAction], ...]:
    """Messages of the budgets to a submission, each with the consequence: refuse, wait or warn. A job that would wait
    forever is refused."""
    found = judge(policy, subject, budget_state, now, request)
    held: list[tuple[str, RuleAction]] = [
        (each.reason, "refuse" if each.refuses or each.never else "wait")
        for each in found
        if isinstance(each, LaunchDenied)
    ]
    reasons = {reason for reason, _ in held}
    return (
        *held,
        *((each.reason, "warn") for each in found if isinstance(each, BudgetWarning) and each.reason not in reasons),
    )


# ── Small things ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _deny_if_short(
    rule: Rule, status: BudgetStatus, subject: Subject, request: LaunchRequest, now: datetime
) -> LaunchDenied | None:
    """Deny a launch that may cost more than is neither spent nor reserved; None if there is enough."""
    budget, period = rule.budget, None if rule.budget is None else period_of(rule.budget, now)
    assert budget is not None and period is not None
    all_of_it, value = micro(budget.dollars), value_of(rule, subject.spec.tags)
    wants = request.need.within((period.over_at - now).total_seconds())
    others, begun = _others(status, subject.job or "", request)
    ahead: list[Waiting] = []
    if request.claimed_at is None and not begun:
        # A job that has begun uses its own reservation, and does not queue.
        ahead = [each for each in status.queue if each.place < (request.since, subject.job or "")]
    taken = micro(status.spent) + sum(each.amount for each in others)
    # Each amount was rounded to a millionth.
    inexact = len(others) + len(ahead) + 2
    if not wants or taken + sum(each.amount for each in ahead) + wants <= all_of_it + inexact:
        own = next((each.later for each in status.reserved if begun and each.job == subject.job), 0)
        return _deny_if_short_later(rule, others, own, subject, request, now)
    whole = f"{in_dollars(budget.dollars)} a {budget.period}{owner_text(budget, value)}"
    needs = f"{title_of(rule)}: needs {exactly(wants)} ({request.need.why}) of {whole}"
    behind = (
        f"; {first_names([each.job for each in ahead])} {'is' if len(ahead) == 1 else 'are'} before it" if ahead else ""
    )
    by = (
        f" for {first_names([each.job for each in others if each.amount])}"
        if any(each.amount for each in others)
        else ""
    )
    waits = (
        f"{title_of(rule)}: waits for {exactly(wants)} of {whole}: {exactly(taken)} is spent or reserved{by}{behind}"
    )
    spent = f"{exactly(micro(status.spent))} is spent, {exactly(taken - micro(status.spent))} reserved{by}"
    reason = f"{needs}: {spent}{behind}"
    # Spent money returns only with the next period.
    until = period.over_at
    return LaunchDenied(code_of(rule), reason, until, rule.action == "refuse", waits, wants)


def _deny_if_short_later(
    rule: Rule, others: list[Reserved], own: int, subject: Subject, request: LaunchRequest, now: datetime
) -> LaunchDenied | None:
    """Deny a launch that fits into this period but not into the next: running jobs are not ended when a period begins,
    and could then exceed the budget. `own` is already reserved for the job in the next period."""
    budget = rule.budget
    assert budget is not None
    wants = request.need.after(*spans_of(budget, now))
    taken = sum(each.later for each in others)
    if wants <= own or taken + wants <= micro(budget.dollars) + len(others) + 2:
        return None
    period, value = period_of(budget, now), value_of(rule, subject.spec.tags)
    whole = f"{in_dollars(budget.dollars)} a {budget.period}{owner_text(budget, value)}"
    whole += f" from {period.over_at:%Y-%m-%d %H:%M} UTC"
    reserved = f"{exactly(taken)} is reserved then"
    reserved += f" for {first_names([each.job for each in others if each.later])}" if taken else ""
    reason = f"{title_of(rule)}: needs {exactly(wants)} ({request.need.why}) of {whole}: {reserved}"
    waits = f"{title_of(rule)}: waits for {exactly(wants)} of {whole}: {reserved}"
    # The queue counts what the job needs in this period.
    amount = request.need.within((period.over_at - now).total_seconds())
    return LaunchDenied(code_of(rule), reason, period.over_at, rule.action == "refuse", waits, amount)


def _deny_forever(
    rule: Rule, status: BudgetStatus, subject: Subject, request: LaunchRequest, now: datetime
) -> LaunchDenied | None:
    """Deny a job that needs more than the whole budget of a period. A job that had machines before waits for its turn
    instead."""
    assert rule.budget is not None
    budget, period = rule.budget, period_of(rule.budget, now)
    wants = request.need.within((period.over_at - midnight(period.start)).total_seconds())
    if wants <= micro(budget.dollars) + 1 or _others(status, subject.job or "", request)[1]:
        return None
    whole = f"{in_dollars(budget.dollars)} a {budget.period}{owner_text(budget, value_of(rule, subject.spec.tags))}"
    needs = f"{title_of(rule)}: needs {exactly(wants)} ({request.need.why}) of {whole}"
    advice = f"set limits.max_cost to at most {in_dollars(budget.dollars)}"
    reason = f"{needs}, and can never have so much; {advice}"
    return LaunchDenied(code_of(rule), reason, refuses=rule.action == "refuse", waits=reason, never=True)


def _others(status: BudgetStatus, job: str, request: LaunchRequest) -> tuple[list[Reserved], bool]:
    """The reservations that count against this launch, and whether the job had machines before.

    If more is reserved than the budget has (because it was lowered), jobs that have begun and have no machine must not
    block each other: the oldest goes first.
    """
    others = [each for each in status.reserved if each.job != job]
    begun = any(each.begun for each in status.reserved if each.job == job)
    if request.claimed_at is not None:
        others = [each for each in others if each.at <= request.claimed_at]
    if begun:
        others = [each for each in others if not each.idle or (each.since, each.job) < (request.since, job)]
    return others, begun


def describe_budgets(
    policy: Policy, subject: Subject, budget_state: BudgetState, now: datetime, request: LaunchRequest | None
) -> Iterator[str]:
    """Describe each budget of a job for a plan: spent, reserved and left, and what the job would reserve."""
    for rule in policy.about("budget"):
        if not applies(rule, subject) or rule.budget is None:
            continue
        budget, status = rule.budget, budget_state.of(rule, subject.spec.tags)
        owner = owner_text(budget, value_of(rule, subject.spec.tags))
        title = f"{title_of(rule)}: {in_dollars(budget.dollars)} a {budget.period}{owner}"
        parts = f"{in_dollars(status.spent)} spent, {in_dollars(status.set_aside)} reserved, "
        parts += f"{in_dollars(status.left_of(budget))} left"
        left_s = (period_of(budget, now).over_at - now).total_seconds()
        mine = (
            f"; this job reserves {exactly(request.need.within(left_s))} ({request.need.why})"
            if request is not None
            else ""
        )
        yield f"{title}: {parts}{forecast_text(budget, status)}{mine}"
