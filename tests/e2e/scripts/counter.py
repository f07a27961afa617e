"""A training whose every step is a link of a hash chain, and which keeps its own record of what it did.

The record is a file outside Stoker's reach, synced line by line. A lock proves that nobody else trains meanwhile.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

from stoker import train

TRUTH = Path(os.environ["TRUTH"])
RANK = int(os.environ.get("NODE_RANK", "0"))
ATTEMPT = train.attempt() or 0


def note(kind: str, step: int, text: str = "") -> None:
    line = json.dumps({"kind": kind, "attempt": ATTEMPT, "rank": RANK, "step": step, "text": text})
    handle = os.open(TRUTH / "journal", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(handle, line.encode() + b"\n")
    os.fsync(handle)
    os.close(handle)


def say(step: int, text: str) -> None:
    """Print, then note: what is noted was printed, even if we are killed in between."""
    line = f"a{ATTEMPT} r{RANK} s{step} {text} {time.monotonic_ns()}"
    os.write(1, line.encode() + b"\n")
    note("line", step, line)


def take_lock() -> None:
    lock = os.open(TRUTH / f"lock-{RANK}", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        note("overlap", 0, "another attempt trains at this moment")
        sys.exit(97)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=40)
    options.add_argument("--pause", type=float, default=0.05)
    options.add_argument("--every", type=int, default=5)
    options.add_argument("--sure", type=int, default=0, help="wait until each save is durable, and note it")
    options.add_argument("--sharded", type=int, default=0)
    options.add_argument("--stubborn", type=int, default=0, help="ignore SIGTERM and every notice")
    options.add_argument("--held", type=int, default=0, help="the first attempt waits here to be interrupted")
    args = options.parse_args()
    take_lock()
    if args.stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    # Every rank its own file, where each saves its part.
    name = f"state-{RANK if args.sharded else 0}.json"
    step, link = 0, ""
    saved = train.latest()
    if saved is not None:
        state = json.loads((saved / name).read_text())
        step, link = state["step"], state["link"]
    note("start", step)
    say(step, "starts")

    while step < args.steps:
        step += 1
        link = hashlib.sha256(f"{link}{step}".encode()).hexdigest()
        time.sleep(args.pause)
        train.report(step=step, loss=1.0 / step)
        say(step, link[:8])
        note("step", step)
        while step == args.held and ATTEMPT == 1 and not train.interrupted():
            time.sleep(args.pause)
        stop = not args.stubborn and train.interrupted()
        if step % args.every == 0 or stop:
            with train.checkpoint(f"step-{step}", step=step, sharded=bool(args.sharded)) as folder:
                (folder / name).write_text(json.dumps({"step": step, "link": link}))
            note("save", step)
            if args.sure and train.wait_durable(60):
                note("durable", step, f"step-{step}")
        if stop:
            note("interrupted", step)
            say(step, "interrupted")
            return
    if "STOKER_OUTPUT_DIR" in os.environ:
        (train.output_dir() / "result.txt").write_text(link)
    note("finish", step, link)
    say(step, f"finished {link}")


if __name__ == "__main__":
    main()
