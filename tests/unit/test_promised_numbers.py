"""Tests that the documentation names the numbers that decide about jobs, money and stored data."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"

# The number, and a sentence of the documentation that has it in words.
DOCUMENTED = [
    ("core.governor_settings", "DEFAULT.unfinished_s", 60.0, "governance.md",
     "that no governor has launched for a minute"),
    ("core.governor_settings", "DEFAULT.evidence_s", 60.0, "governance.md", "one minute for the evidence"),
    ("core.governor_settings", "DEFAULT.most_without_progress", 5, "how-it-works.md",
     "After five attempts in a row without progress"),
    ("core.governor_settings", "DEFAULT.most_reclaims_without_progress", 20, "how-it-works.md",
     "or twenty if all were reclaims"),
    ("core.market", "LATELY_S", 86400.0, "spot.md", "Placement uses the last 24 hours."),
    ("core.market", "_PRIOR_RECLAIMS / _PRIOR_HOURS", 1 / 20, "spot.md", "reclaimed once in twenty hours"),
    ("core.market", "_PRIOR_HOURS", 10.0, "spot.md", "has the weight of ten observed hours"),
    ("core.market", "_RECLAIM_COSTS_H", 0.5, "spot.md", "a reclaim counts as half an hour of work"),
    ("core.market", "_DRY_COSTS_H", 3 / 60, "spot.md", "a try without capacity as three minutes"),
    ("governor.market_records", "KEPT.days", 30, "spot.md", "under `market/`, for a month"),
    ("notifications.outbox", "GIVE_UP_AFTER.total_seconds()", 6 * 3600, "notifications.md",
     "six hours without success"),
    ("notifications.outbox", "FRESH_FOR.total_seconds()", 3 * 3600, "notifications.md",
     "an event is older than three hours when first seen"),
    ("notifications.outbox", "[each.total_seconds() for each in RETRY_PAUSES]", [20, 120, 600, 3600],
     "notifications.md",
     "tries again after 20 s, 2 min, 10 min, then hourly"),
    ("notifications.outbox", "MAX_WAITING", 400, "notifications.md", "| 400 events | events are counted |"),
    ("notifications.events", "MAX_LINES", 20, "notifications.md", "| 20 lines | jobs with the same event"),
    ("notifications.outbox_store", "_LATE.total_seconds()", 600, "notifications.md",
     "any message that has waited for ten minutes"),
    ("core.budget_reservations", "START_S", 600.0, "governance.md", "ten minutes for the start"),
    ("submit.shared_objects", "COLLECT_AFTER.days", 1, "bounds.md", "than a day"),
    ("maintenance.delete", "UNUSED_FOR.days", 30, "how-it-works.md", "of what was unused for 30 days"),
    ("governor.index_writer", "_FAR_RECORDS_PER_S", 0.2, "costs.md", "refreshed every `jobs / 0.2` seconds"),
    ("governor.index_writer", "REFRESH_FAR_S", 60.0, "costs.md", "and at least a minute apart"),
]  # fmt: skip


@pytest.mark.parametrize(("module", "name", "value", "page", "sentence"), DOCUMENTED)
def test_the_documentation_names_the_number_that_counts(
    module: str, name: str, value: object, page: str, sentence: str
) -> None:
    found = eval(name, vars(importlib.import_module(f"stoker.{module}")))
    assert found == pytest.approx(value)
    assert sentence in " ".join((DOCS / page).read_text().split())
