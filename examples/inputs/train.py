"""Fit a line through the points of this node's own files."""

from __future__ import annotations

import csv
import os
from pathlib import Path

from stoker import train


def main() -> None:
    files = sorted(Path(os.environ["STOKER_INPUT_POINTS"]).glob("*.csv"))
    points = [(float(row["x"]), float(row["y"])) for file in files for row in csv.DictReader(file.open())]
    slope = offset = 0.0
    for step in range(1, 201):
        errors = [(slope * x + offset - y, x) for x, y in points]
        slope -= 0.5 * sum(error * x for error, x in errors) / len(points)
        offset -= 0.5 * sum(error for error, _ in errors) / len(points)
        if step % 50 == 0:
            train.report(step=step, loss=sum(error**2 for error, _ in errors) / len(points))
    names = ", ".join(file.name for file in files)
    print(f"node {os.environ['NODE_RANK']} read {names}: y = {slope:.1f} x {offset:+.1f}")


if __name__ == "__main__":
    main()
