"""The costs as a table for spreadsheets: one row for each line of `stoker costs`, without the total."""

from __future__ import annotations

import csv
from typing import TextIO

from stoker.read.costs import AMOUNTS, CostReport

# A cell that begins with one of these is a formula for spreadsheets: a tag could then run something.
_FORMULAS = ("=", "+", "-", "@", "\t", "\r")


def write_csv(file: TextIO, found: CostReport, by: str) -> int:
    """Write the rows, and return their number. Unknown amounts are empty; `incomplete` names the amounts of which a
    part is unknown."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow((_cell(by), "jobs", *AMOUNTS, "incomplete"))
    for row in found.rows:
        amounts = [getattr(row, name) for name in AMOUNTS]
        known = ["" if amount.known is None else round(amount.known, 6) for amount in amounts]
        missing = " ".join(name for name, amount in zip(AMOUNTS, amounts, strict=True) if not amount.complete)
        writer.writerow((_cell(row.name), len(row.jobs), *known, missing))
    return len(found.rows)


def _cell(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULAS) else text
