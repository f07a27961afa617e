"""Say where it trains: in a prefix of its own, which is kept for the next time."""

from __future__ import annotations

import os
import sys

from stoker import train


def main() -> None:
    for step in range(1, 4):
        train.report(step=step, loss=1 / step)
    print(f"Python {sys.version.split()[0]} in {os.environ['CONDA_PREFIX']}")


if __name__ == "__main__":
    main()
