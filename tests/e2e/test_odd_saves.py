"""Programs that save faster than a folder settles, in ways of their own, interrupted at random moments.

No commit is torn or a mix of two saves, and no start meets a bad checkpoint. STOKER_ODD_INTERRUPTIONS=5 interrupts each
program five times, STOKER_INTERRUPTION_SEED=7 at other moments.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from harness import until
from training_world import JOB, TrainingWorld

from stoker.store.base import open_store
from stoker.store.checkpoints import list_checkpoints

SCRIPTS = Path(__file__).parent / "scripts" / "saves"
INTERRUPTIONS = int(os.environ.get("STOKER_ODD_INTERRUPTIONS", "1"))
SEED = int(os.environ.get("STOKER_INTERRUPTION_SEED", "1"))
STYLES = (
    *("pickle", "raw", "replace", "folder", "link", "shards", "ranks", "sqlite", "thread", "pair", "slow_pair"),
    *("removed", "hard_link", "named_first", "mapped", "best", "logged", "numbered", "trainer"),
)


def entries(ledger: Path, kind: str) -> list[dict[str, Any]]:
    lines = ledger.read_text().splitlines() if ledger.exists() else []
    return [entry for entry in map(json.loads, lines) if entry["kind"] == kind]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("style", STYLES)
def test_odd_saves_are_whole(style: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    load = importlib.import_module("odd").STYLES[style][1]
    rng = random.Random(f"{SEED} {style}")
    world = TrainingWorld(tmp_path, open_store(str(tmp_path / "store")), settle_s=2.0)
    world.env = {"PYTHONPATH": str(SCRIPTS)}
    events: list[str] = []
    seen: set[str] = set()
    lost: Counter[int] = Counter()
    finished = 0
    for attempt in range(INTERRUPTIONS + 1):
        ledger = tmp_path / f"ledger-{attempt}"
        handler = rng.choice(("none", "none", "exits", "saves"))
        kind, period_s = rng.choice(("notice", "kill", "crash")), rng.choice((0.1, 0.5, 1.0))
        argv = (sys.executable, str(SCRIPTS / "odd.py"))
        world.start("", style, "checkpoints", str(ledger), handler, str(period_s), argv=argv)
        until(lambda ledger=ledger: entries(ledger, "start") or entries(ledger, "bad"), "it starts")
        assert not entries(ledger, "bad"), f"{events}\n{entries(ledger, 'bad')}"
        resumed = entries(ledger, "start")[0]["step"]
        if attempt:
            lost[finished - resumed] += 1
            events.append(f"   {finished} finished, resumed from {resumed}")
        if attempt < INTERRUPTIONS:
            until(lambda ledger=ledger: len(entries(ledger, "saved")) > 1, "it saves twice")
            time.sleep(rng.uniform(0.0, 6.0))
        events.append(f"{kind}, handler {handler}, every {period_s} s")
        if kind == "notice":
            world.tell(10.0)
        else:
            world.kill(number=signal.SIGKILL if kind == "kill" else signal.SIGSEGV)
        events.append(f"   held back: {world.sync.status().held_back}")
        finished = max((one["step"] for one in entries(ledger, "saved")), default=resumed)
        for checkpoint in list_checkpoints(world.store, JOB):
            if checkpoint.key not in seen:
                seen.add(checkpoint.key)
                try:
                    load(world.restored(checkpoint.key))
                except Exception as error:
                    raise AssertionError(f"{checkpoint.key}: {error!r}\n" + "\n".join(events)) from error
    print(*events, sep="\n")
    print(f"{style}: {len(seen)} commits, saves lost: {dict(sorted(lost.items()))}")
