"""Programs that save as public ones do, interrupted at random moments of their saves.

No commit is torn, no start meets a bad checkpoint, and at most one save is lost each time. STOKER_INTERRUPTIONS=200
interrupts two hundred times, STOKER_INTERRUPTION_SEED=7 at other moments. The agent's own supervision and sync run in
this process; the programs, the signals and the kernel's OOM killer are real.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from harness import PATIENCE_S, until
from training_world import JOB, TrainingWorld

from stoker.agent.supervise import TrainingOutcome
from stoker.processes import stat_of
from stoker.store.base import open_store
from stoker.store.checkpoints import list_checkpoints

PROGRAMS = ("nanogpt", "trainer", "lightning", "keras", "ddp")
SCRIPTS = Path(__file__).parent / "scripts" / "saves"
# All programs together.
INTERRUPTIONS = int(os.environ.get("STOKER_INTERRUPTIONS", "25"))
SEED = int(os.environ.get("STOKER_INTERRUPTION_SEED", "1"))
KINDS = ("notice", "notice", "notice", "kill", "oom", "crash")
HANDLERS = ("none", "exits", "saves")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
MEMORY = Path("/sys/fs/cgroup/memory")


def alive(pid: int) -> bool:
    stat = stat_of(pid)
    return stat is not None and stat.alive


@dataclass
class Story:
    """One job of one program, attempt after attempt."""

    name: str
    world: TrainingWorld
    rng: random.Random
    loader: Any
    attempts: int = 0
    # What the next start has to have: the newest save that is known to be in the store.
    durable: int = 0
    # The newest save that the program had finished.
    finished: int = 0
    seen: set[str] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)
    events: list[str] = field(default_factory=list)

    def ledger(self, kind: str) -> list[dict[str, Any]]:
        path = self.place / "ledger"
        lines = path.read_text().splitlines() if path.exists() else []
        return [entry for entry in map(json.loads, lines) if entry["kind"] == kind]

    def start(self, handler: str) -> None:
        self.attempts += 1
        self.place = self.world.root / f"ledger-{self.attempts}"
        self.place.mkdir()
        launcher = TORCHRUN if self.name == "ddp" else ()
        self.world.env = {
            "PYTHONPATH": str(SCRIPTS),
            "KERAS_ARCHIVE": str(self.attempts // 4 % 2),
            "OMP_NUM_THREADS": "1",
        }
        argv = (sys.executable, *launcher, str(SCRIPTS / f"{self.name}.py"))
        self.world.start("", "checkpoints", str(self.place / "ledger"), handler, argv=argv)
        until(lambda: self.ledger("start") or self.ledger("bad"), f"it starts\n{self.tell()}", PATIENCE_S)
        assert not self.ledger("bad"), self.tell()
        resumed = self.ledger("start")[0]["step"]
        # Saves follow one another only when the one before is durable: so at most one save is lost.
        assert resumed >= self.durable, f"resumed from {resumed}, and {self.durable} was durable\n{self.tell()}"
        self.counts["rescued" if resumed > self.durable else "lost" if self.finished > resumed else "nothing lost"] += 1
        self.durable = self.finished = resumed

    def train(self) -> None:
        """Some saves that nothing disturbs, until they are durable; then the one that is disturbed begins."""
        for _ in range(self.rng.choice((0, 1, 1, 2))):
            before = self.world.sync.status().commits
            self.allow(self.durable + 1)
            until(lambda: [one for one in self.ledger("saved") if one["step"] > self.durable], f"a save\n{self.tell()}")

            def safe(before: int = before) -> bool:
                status = self.world.sync.status()
                return status.commits > before and status.unsynced_bytes == 0

            until(safe, f"it is durable\n{self.tell()}")
            self.durable = self.finished = self.ledger("saved")[-1]["step"]

    def allow(self, step: int) -> None:
        (self.place / f"go-{step}").touch()

    def interrupt(self, kind: str, handler: str) -> None:
        """At a random moment: before, in the middle of or right after a save."""
        pid = self.ledger("start")[0]["pid"]
        saves = self.rng.random() < 0.9
        if saves:
            self.allow(self.durable + 1)
            until(lambda: [one for one in self.ledger("saving") if one["step"] > self.durable], "it saves")
        moment_s = self.rng.uniform(0.0, 1.3 * self.save_s())
        time.sleep(moment_s)
        where = f"{moment_s:.2f} s into save {self.durable + 1}" if saves else "between saves"
        self.events.append(f"{self.attempts}: {kind}, handler {handler}, {where}")
        match kind:
            case "notice":
                ended = self.world.tell(PATIENCE_S / 4)
            case "kill":
                ended = self.world.kill()
            case "oom":
                ended = self.oom_kill(pid)
            case _:
                ended = self.world.kill(pid=pid, number=signal.SIGUSR1)
        self.events.append(
            f"   ended with {ended.code} {ended.signal}, held back: {self.world.sync.status().held_back}"
        )
        self.finished = max((one["step"] for one in self.ledger("saved")), default=self.durable)
        if kind == "notice" and handler == "saves" and not saves:
            # Asked to save, it did, and nothing was under way before.
            self.durable = self.finished

    def save_s(self) -> float:
        """How long a save takes about."""
        begun, ended = self.ledger("saving"), self.ledger("saved")
        return float(ended[0]["at"] - begun[0]["at"]) if ended else 1.0

    def oom_kill(self, pid: int) -> TrainingOutcome:
        """By the kernel, where a memory cgroup can be made; it takes the largest process, which is the program."""
        cell = MEMORY / f"stoker-test-{os.getpid()}"
        try:
            cell.mkdir()
        except OSError:
            return self.world.kill(pid=pid)
        try:
            (cell / "memory.limit_in_bytes").write_text(str(16 << 20))
            (cell / "cgroup.procs").write_text(str(pid))
            Path(f"/proc/{pid}/oom_score_adj").write_text("1000")
            hog = f"open('{cell}/cgroup.procs', 'w').write('0'); x = [bytearray(1 << 20) for _ in range(64)]"
            eater = subprocess.Popen([sys.executable, "-c", hog], stderr=subprocess.DEVNULL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                eater.wait(timeout=1.0)
            self.counts["oom kills by the kernel"] += not alive(pid)
            ended = self.world.kill(pid=pid) if alive(pid) else self.world.wait()
            eater.kill()
            eater.wait()
            return ended
        finally:
            with contextlib.suppress(OSError):
                cell.rmdir()

    def verify(self) -> None:
        """Every commit, by the program's own loader."""
        for checkpoint in list_checkpoints(self.world.store, JOB):
            if checkpoint.key in self.seen:
                continue
            self.seen.add(checkpoint.key)
            self.counts["commits"] += 1
            folder = self.world.restored(checkpoint.key)
            try:
                assert self.loader.load(folder) is not None
            except Exception as error:
                raise AssertionError(f"{checkpoint.key} is torn: {error}\n{self.tell()}") from error

    def tell(self) -> str:
        log = self.world.log.read_text(errors="replace") if self.attempts else ""
        return "\n".join([self.name, *self.events, f"durable {self.durable}", "…", log[-1500:]])


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_save_is_whole_or_it_is_none(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    store = open_store(str(tmp_path / "store"))
    rng = random.Random(f"{SEED} {name}")
    story = Story(name, TrainingWorld(tmp_path, store), rng, importlib.import_module(name))
    for _ in range(INTERRUPTIONS // len(PROGRAMS)):
        kind, handler = rng.choice(KINDS), rng.choice(HANDLERS)
        story.start(handler)
        story.train()
        story.interrupt(kind, handler)
        story.verify()
        story.counts[f"{kind}/{handler}" if kind == "notice" else kind] += 1
    story.start("none")
    story.world.kill()
    story.verify()
    print(*story.events, sep="\n")
    print(f"{name}: {dict(sorted(story.counts.items()))}")
