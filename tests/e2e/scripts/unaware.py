"""Knows nothing of Stoker: rewrites one file in place now and then, and goes on from it if it is there."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

MODEL = Path("checkpoints/model.bin")
PADDING = 200_000


def note(kind: str, step: int) -> None:
    record = {"kind": kind, "attempt": int(os.environ["STOKER_ATTEMPT"]), "rank": 0, "step": step, "text": ""}
    with Path(os.environ["TRUTH"], "journal").open("a") as file:
        file.write(json.dumps(record) + "\n")


def save(step: int) -> None:
    MODEL.parent.mkdir(exist_ok=True)
    body = f"{step:012d}".encode() * (PADDING // 12)
    with MODEL.open("r+b" if MODEL.exists() else "wb") as file:
        for start in range(0, len(body), 20_000):
            file.write(body[start : start + 20_000])
            file.flush()


def load() -> int:
    body = MODEL.read_bytes()
    # A file that holds two steps was caught half written.
    assert body == body[:12] * (PADDING // 12), "a torn checkpoint was restored"
    return int(body[:12])


step = load() if MODEL.exists() else 0
note("start", step)
while step < int(sys.argv[1]):
    step += 1
    time.sleep(0.1)
    if step % 50 == 0:
        save(step)
        note("save", step)
    note("step", step)
print(f"finished at {step}")
