"""Train with a package that was installed for this job."""

from __future__ import annotations

import sys

import humanize

from stoker import train


def main() -> None:
    for step in range(1, 4):
        train.report(step=step, loss=1 / step)
    print(f"{humanize.ordinal(3)} step, with packages from {sys.prefix}")


if __name__ == "__main__":
    main()
