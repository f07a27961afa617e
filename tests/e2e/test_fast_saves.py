"""Programs that save up to ten times a second, in formats that prove nothing, killed without warning.

No commit is torn or a mix of two saves, and no start meets a bad checkpoint. STOKER_FAST_KILLS=20 kills each program
twenty times, and more programs; STOKER_INTERRUPTION_SEED=7 does so at other moments. The number of saves that each kill
cost is printed.
"""

from __future__ import annotations

import importlib
import json
import os
import random
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
KILLS = int(os.environ.get("STOKER_FAST_KILLS", "1"))
SEED = int(os.environ.get("STOKER_INTERRUPTION_SEED", "1"))
STYLES = ("raw", "sqlite", "mapped", "renamed", "raw_best")
if "STOKER_FAST_KILLS" in os.environ:
    STYLES += ("pickle", "table", "raw_link", "raw_pair", "raw_folder", "two_stages", "hard_link", "best")
PERIODS_S = (0.1, 0.33, 1.0)


def entries(ledger: Path, kind: str) -> list[dict[str, Any]]:
    lines = ledger.read_text().splitlines() if ledger.exists() else []
    return [entry for entry in map(json.loads, lines) if entry["kind"] == kind]


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("style", STYLES)
def test_fast_saves_are_whole(style: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    load = importlib.import_module("odd").STYLES[style][1]
    rng = random.Random(f"{SEED} {style}")
    world = TrainingWorld(tmp_path, open_store(str(tmp_path / "store")), settle_s=2.0)
    world.spacing_s = None
    world.env = {"PYTHONPATH": str(SCRIPTS)}
    events: list[str] = []
    seen: set[str] = set()
    lost: dict[float, Counter[int]] = {period_s: Counter() for period_s in PERIODS_S}
    finished, period_s = 0, 0.0
    for attempt in range(KILLS + 1):
        ledger = tmp_path / f"ledger-{attempt}"
        before_s, period_s = period_s, rng.choice(PERIODS_S)
        argv = (sys.executable, str(SCRIPTS / "odd.py"))
        world.start("", style, "checkpoints", str(ledger), "none", str(period_s), argv=argv)
        until(lambda ledger=ledger: entries(ledger, "start") or entries(ledger, "bad"), "it starts")
        assert not entries(ledger, "bad"), f"{events}\n{entries(ledger, 'bad')}"
        resumed = entries(ledger, "start")[0]["step"]
        if attempt:
            lost[before_s][finished - resumed] += 1
            events.append(f"   {finished} finished, resumed from {resumed}")
        if attempt < KILLS:
            until(lambda ledger=ledger: entries(ledger, "saved"), "it saves")
            time.sleep(rng.uniform(0.0, 8.0))
        world.kill()
        finished = max((one["step"] for one in entries(ledger, "saved")), default=resumed)
        events.append(f"every {period_s} s: {finished - resumed} saves; held back: {world.sync.status().held_back}")
        for checkpoint in list_checkpoints(world.store, JOB):
            if checkpoint.key not in seen:
                seen.add(checkpoint.key)
                try:
                    load(world.restored(checkpoint.key))
                except Exception as error:
                    raise AssertionError(f"{checkpoint.key}: {error!r}\n" + "\n".join(events)) from error
    print(*events, sep="\n")
    told = {period_s: dict(sorted(counts.items())) for period_s, counts in lost.items()}
    print(f"{style}: {len(seen)} commits, saves lost: {told}")
