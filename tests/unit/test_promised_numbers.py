"""Numbers that decide about jobs, money and stored data: those that the documentation names, and those that every
reader and writer of a bucket must agree on. A change of one is deliberate, and is made here too."""

from __future__ import annotations

import importlib
from datetime import timedelta
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
KB, MB = 1024, 1024 * 1024
DAY = timedelta(days=1)

# The number, and a sentence of the documentation that has it in words.
DOCUMENTED = [
    ("core.policy", "DEFAULT.unfinished_s", 60.0, "governance.md", "that no governor has launched for a minute"),
    ("core.policy", "DEFAULT.evidence_s", 60.0, "governance.md", "a minute for the evidence"),
    ("core.policy", "DEFAULT.most_without_progress", 5, "how-it-works.md", "five in a row without progress"),
    ("core.policy", "DEFAULT.most_reclaims_without_progress", 20, "how-it-works.md", "or twenty if all were reclaims"),
    ("core.market", "LATELY_S", 86400.0, "spot.md", "The last 24 hours count."),
    ("core.market", "_PRIOR_RECLAIMS / _PRIOR_HOURS", 1 / 20, "spot.md", "back once in twenty hours"),
    ("core.market", "_PRIOR_HOURS", 10.0, "spot.md", "counts as much as ten hours of watching"),
    ("core.market", "_RECLAIM_COSTS_H", 0.5, "spot.md", "half an hour for each reclaim in a machine-hour"),
    ("core.market", "_DRY_COSTS_H", 3 / 60, "spot.md", "three minutes for the share of tries that found nothing"),
    ("governor.market", "KEPT.days", 30, "spot.md", "after a month they are removed"),
    ("core.outbox", "GIVE_UP.total_seconds()", 6 * 3600, "notifications.md", "After six hours it is given up."),
    ("core.outbox", "FRESH.total_seconds()", 3 * 3600, "notifications.md", "What is more than three hours old when"),
    ("core.outbox", "[each.total_seconds() for each in PAUSES]", [20, 120, 600, 3600], "notifications.md",
     "It tries again after 20 seconds, then 2 minutes, 10 minutes, and each hour"),
    ("core.outbox", "MOST_WAITING", 400, "notifications.md", "beyond 400 events"),
    ("core.telling", "MOST_LINES", 20, "notifications.md", "Beyond twenty lines"),
    ("governor.mailbox", "_LATE.total_seconds()", 600, "notifications.md", "when something has waited for ten minutes"),
    ("core.reservations", "START_S", 600.0, "governance.md", "ten minutes for the start"),
    ("removing", "COLLECT_AFTER.days", 1, "bounds.md", "than a day"),
    ("removing", "UNUSED_FOR.days", 30, "how-it-works.md", "of what was unused for 30 days"),
    ("governor.indexing", "_FAR_RECORDS_PER_S", 0.2, "costs.md", "refreshed every `jobs / 0.2` seconds"),
    ("governor.indexing", "REFRESH_FAR_S", 60.0, "costs.md", "and at least a minute apart"),
]  # fmt: skip


@pytest.mark.parametrize(("module", "name", "value", "page", "sentence"), DOCUMENTED)
def test_the_documentation_names_the_number_that_counts(
    module: str, name: str, value: object, page: str, sentence: str
) -> None:
    found = eval(name, vars(importlib.import_module(f"stoker.{module}")))
    assert found == pytest.approx(value)
    assert sentence in " ".join((DOCS / page).read_text().split())


# What is believed of untrusted data, what a format is made of, and what decides between two readings of a log.
AGREED: dict[str, dict[str, object]] = {
    "core.costs": {"LONGEST_SPAN_S": 10 * 365 * 86400.0},
    "core.hold": {"LEAVE_S": 60.0},
    "core.outbox": {"HOUR": timedelta(hours=1), "SENDING": timedelta(minutes=5), "REMEMBERED": DAY},
    "core.placement": {"_SAME_REFUSALS": 3, "_LOOK_AGAIN": timedelta(minutes=10), "_FARTHEST_S": 86400.0},
    "core.reservations": {"UNBOUNDED_S": 86400.0},
    "core.snapshot": {"_MISSED_BEATS": 3, "_LONGEST_INTERVAL_S": 600.0},
    "core.stalls": {"_FRESH_BEATS": 6, "_STEP_FACTOR": 2.0},
    "core.tending": {"_WORD_COUNTS": timedelta(minutes=10), "_LONGEST_S": 1e8},
    "core.watching": {"_SESSION_S": 10.0, "_OWN_WINDOWS": 3},
    "core.look": {"_FARTHEST_WAKE_S": 86400.0},
    "core.patterns": {"LONGEST": 1000, "INSTRUCTIONS": 400, "MOST_EXPRESSIONS": 100, "STEPS": 1_000_000},
    "core.foreign.alarms": {"MINUTE_S": 60.0, "_LATE_S": 600.0, "_COVERED": 0.75, "_WAITING_CPU": 5.0},
    "core.foreign.clone": {"_LONGEST_NAME": 63, "_MOST_TAGS": 50},
    "core.foreign.going_on": {
        "_LATE_S": 86400.0,
        "_EARLY_S": 60.0,
        "_WITHIN_S": 300.0,
        "_BUDGET_S": 300.0,
        "_BY_HAND_S": 300.0,
    },
    "core.foreign.obeying": {"_CHANGING_S": 300.0, "_HEARD_S": 300.0},
    "core.foreign.sight": {"LOOK_S": 900.0},
    "governor.apply": {"_DRY_KEPT": DAY, "_LIFE_MARGIN_S": 3600.0},
    "governor.background": {"_FOLDER_GONE_S": 60.0, "_BUCKET_REFUSED_S": 6 * 3600.0, "_LOG_BYTES": MB},
    "governor.bookkeeping": {"FRESH_S": 60.0, "WARN_EVERY_S": 300.0},
    "governor.clock": {"FRESH_S": 120.0},
    "governor.foreign.index": {"ENDED_FOR": DAY, "_LISTED_FOR": timedelta(hours=25), "_MOST_ENDED": 500},
    "governor.govern": {"MOST_ROUNDS": 12, "SWEEP_EVERY_S": 60.0, "NOTED_WITHIN_S": 600.0},
    "governor.guard": {"SILENT_S": 90.0},
    "governor.mailbox": {
        "_KEPT": timedelta(minutes=10),
        "_KEPT_OF_MANY": timedelta(minutes=3),
        "_FORGOTTEN": timedelta(days=7),
    },
    "chunks": {"SEAL_BYTES": 64 * KB, "MAX_CHUNK_BYTES": 4 * MB, "MAX_READ_BYTES": 8 * MB, "HEADER_BYTES": 64},
    "facts": {
        "MAX_FACT_BYTES": 256 * KB,
        "MAX_BOOTS": 8,
        "MAX_BOOT_BYTES": 256 * KB,
        "_REASON_CHARS": 4000,
        "_TAIL_LINES": 50,
        "_TAIL_CHARS": 20000,
        "_KEY_CHARS": 300,
        "_EVIDENCE": 10,
        "_EVIDENCE_CHARS": 100,
        "_WARNINGS": 20,
    },
    "log": {"MAX_ENTRY_BYTES": 256 * KB, "MAX_REASON_CHARS": 8000},
    "manifests": {
        "MANIFEST_VERSION": 2,
        "MAX_FILES": 100_000,
        "MANIFEST_BYTES": 16 * MB,
        "TOTAL_BYTES": 96 * MB,
        "TOTAL_MANIFESTS": 4000,
        "MAX_ORDINAL": 99_999_999,
        "IMPORTED": 0,
        "_PATH_BYTES": 4000,
        "_NAME_BYTES": 255,
        "_PATH_DEPTH": 100,
    },
    "model": {"PROTOCOL_VERSION": 1},
    "pack": {"WARN_ABOVE_BYTES": 100 * 1000**2, "MOST_FILES": 200_000, "MOST_BYTES": 10 * 1000**3},
    "policyfile": {"MOST_BYTES": 256 * KB, "LONGEST_LOOK_BACK_S": 7 * 86400.0},
    "policies": {"_MOST_BYTES": 768 * KB},
    "reindexing": {"_ABANDONED_AFTER": timedelta(hours=1)},
    "series": {"FINEST_S": 1.0, "LONGEST_S": 86400.0, "MOST_WINDOWS": 1000, "_UNKNOWN": 255, "_STEPS": 200},
    "spec": {"MOST_PRICE": 1e6, "MOST_DOLLARS": 1e9, "MOST_NODES": 10_000, "DEFAULT_MASTER_PORT": 29500},
    "stores.folder": {"_STALE_AFTER_S": 60.0},
    "stores.transfer": {"_FICLONE": 0x40049409},
    "summary": {"_HEARD_S": 60.0},
}


@pytest.mark.parametrize("module", AGREED)
def test_readers_and_writers_agree_on_numbers(module: str) -> None:
    found = importlib.import_module(f"stoker.{module}")
    assert {name: getattr(found, name) for name in AGREED[module]} == AGREED[module]
