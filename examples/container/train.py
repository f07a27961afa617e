"""Count, and save; go on from what was saved."""

from __future__ import annotations

import os
import platform
import time

from stoker import train


def main() -> None:
    saved = train.latest()
    start = int((saved / "step").read_text()) if saved is not None else 0
    print(f"Python {platform.python_version()} in a container, process {os.getpid()}, from step {start}")
    for step in range(start + 1, 21):
        time.sleep(0.1)
        train.report(step=step, loss=1 / step)
        if step % 5 == 0 or train.interrupted():
            with train.checkpoint(f"step-{step}", step=step) as folder:
                (folder / "step").write_text(str(step))
        if train.interrupted():
            return


if __name__ == "__main__":
    main()
