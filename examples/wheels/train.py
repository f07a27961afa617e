"""Train with a package that no index was asked for on this machine."""

from __future__ import annotations

import humanize

from stoker import train


def main() -> None:
    for step in range(1, 4):
        train.report(step=step, loss=1 / step)
    print(f"read {humanize.naturalsize(3_000_000)} with a package out of the store")


if __name__ == "__main__":
    main()
