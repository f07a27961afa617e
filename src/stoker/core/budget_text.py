"""Sentences about budgets. Pure."""

from __future__ import annotations

from stoker.core.budget_state import BudgetStatus, Period, denies_launches
from stoker.core.costs import in_dollars
from stoker.core.tag_groups import group_text
from stoker.model.policy import Budget, Rule


def exactly(amount: int) -> str:
    """An amount in millionths of a dollar."""
    return in_dollars(amount / 1e6)


def title_of(rule: Rule) -> str:
    return f"policy {rule.name}{' (audit)' if rule.audit else ''}"


def status_text(rule: Rule, status: BudgetStatus, value: str, period: Period) -> str:
    """Describe the status of a budget and its consequence."""
    assert rule.budget is not None
    consequence = "; audit: nothing is done" if rule.audit else ""
    if denies_launches(rule) and status.spent >= rule.budget.dollars:
        consequence = "; no new machines until then"
    spent = spent_until(rule.budget, status, value, period)
    return f"{title_of(rule)}: {spent}{forecast_text(rule.budget, status)}{consequence}"


def forecast_text(budget: Budget, status: BudgetStatus) -> str:
    """`; at this pace $1,240.00 by then (124%)`, where more will be spent than the budget has."""
    if not budget.forecast or not status.spent < budget.dollars < status.forecast:
        return ""
    return f"; at this pace {in_dollars(status.forecast)} by its end ({status.forecast / budget.dollars:.0%})"


def spent_until(budget: Budget, status: BudgetStatus, value: str, period: Period) -> str:
    return f"{spent_text(budget, status, value)}, until {period.over_at:%Y-%m-%d %H:%M} UTC"


def spent_text(budget: Budget, status: BudgetStatus, value: str) -> str:
    spent, all_of_it = in_dollars(status.spent), in_dollars(budget.dollars)
    share = status.spent / budget.dollars
    return f"{spent} of {all_of_it} a {budget.period}{owner_text(budget, value)} are spent ({share:.0%})"


def budget_name(name: str, budget: Budget, value: str) -> str:
    """`budget each-team of team=nlp`; the word `budget` is not repeated for a rule of that name."""
    known = name.lower() in ("budget", "budgets")
    return f"{'budget' if known else f'budget {name}'}{owner_text(budget, value)}"


def owner_text(budget: Budget, value: str) -> str:
    text = group_text(budget.by, value)
    return f" of {text}" if text else ""


def unpriced_text(status: BudgetStatus) -> str:
    first, *more = status.unpriced
    others = f" and {len(more)} more" if more else ""
    return f"and an unknown amount: {first}{others} had machines without a price"
