"""Random stories of several ranks that save without `stoker.train`, each with its real sync, in virtual time.

A program saves on all ranks: they begin a save within ten seconds of one another, in their own folders, and every file
says of which save it is. Heartbeats take their time and overtake one another, stores are slow or fail, ranks die and
are replaced, agents are started again. One seed is one story.
"""

from __future__ import annotations

import heapq
import itertools
import os
import random
import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from checkpoint_world import JOB, checkpoints, memory_store
from gang_ranks import APART_S, Rank, Scenario, file_ns

from stoker.agent.checkpoints import folder_commits
from stoker.agent.checkpoints.sync_options import SyncOptions
from stoker.agent.checkpoints.whole_saves import TrainingEnd
from stoker.model import keys
from stoker.model.errors import StoreError
from stoker.testing.memory_store import Fault


class Story:
    """One job through its attempts. `run` returns what went wrong; None: nothing."""

    def __init__(self, seed: int, root: Path, *, calm: bool = False) -> None:
        self.rng = random.Random(f"{seed}-{calm}")
        self.root = root
        self.scenario = Scenario.draw(self.rng, calm=calm)
        self.store = memory_store(is_local=self.scenario.is_local)
        self.now = 0.0
        self.ranks: list[Rank] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        # What each rank's own files are after each save, by the number of the save.
        self.expected: dict[int, dict[int, dict[str, str]]] = {}
        self.number = 0
        self.checked: set[str] = set()
        self.log: list[str] = []
        self.wrong: str | None = None
        # The saves that were followed by a pause, and those that became checkpoints.
        self.paused: list[int] = []
        self.committed: set[int] = set()

    # ── Time ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    def after(self, seconds: float, happens: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), happens))

    def run_until(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            at, _, happens = heapq.heappop(self._events)
            self.now = max(self.now, at)
            happens()
        self.now = max(self.now, until)

    def fault(self, rank: Rank, method: str, _key: str) -> Fault | None:
        if not self.scenario.fails or self.rng.random() >= self.scenario.fails:
            return None
        if method == "create" and self.rng.random() < 0.3:
            return Fault(later=lambda land: self.after(self.rng.uniform(0.0, 60.0), lambda: _land(land)))
        return Fault(after=self.rng.random() < 0.5)

    # ── The program ───────────────────────────────────────────────────────────────────────────────────────────────────

    def paths(self, rank: int, number: int) -> list[str]:
        names = range(self.scenario.files)
        match self.scenario.style:
            case "numbered":
                return [f"epoch_{number}/part{name}-{rank}.bin" for name in names]
            case "folders":
                return [f"{'abc'[name]}/shard-{rank}.bin" for name in names]
            case _:
                return [f"{'abc'[name]}-{rank}.bin" for name in names]

    def begin_save(self) -> float:
        """All ranks have come to a save. Return when the last of them has ended it."""
        number = self.number = self.number + 1
        latest = 0.0
        for rank in self.ranks:
            state = dict(self.expected[number - 1].get(rank.number, {}))
            self.expected.setdefault(number, {})[rank.number] = state
            seldom = rank.number in self.scenario.seldom and number % 2
            if rank.number in self.scenario.idle or seldom:
                continue
            at = self.rng.uniform(0.0, APART_S) if rank.number else self.rng.choice([0.0, APART_S])
            for path in self.paths(rank.number, number):
                text = f"save {number} of rank {rank.number} in attempt {rank.claim}: {path}"
                state[path] = text
                # Nothing shows that a file is still to come, if it is renamed into its place.
                took_s = self.rng.choice([0.0, 0.3, 1.0, 1.0 if self.scenario.style == "renamed" else 8.0])
                self.after(at, partial(self.open_file, rank, path))
                self.after(at + took_s, partial(self.close_file, rank, path, text))
                at += took_s + self.rng.uniform(0.02, 0.8)
            latest = max(latest, at)
        self.say(f"save {number}")
        return self.now + latest

    def open_file(self, rank: Rank, path: str) -> None:
        if rank.alive and rank.ends is None and self.scenario.style != "renamed":
            self.put(rank, path, "half")
            rank.world.open.add(path)

    def close_file(self, rank: Rank, path: str, text: str) -> None:
        if rank.alive and rank.ends is None:
            self.put(rank, path, text)
            rank.world.open.discard(path)

    def put(self, rank: Rank, path: str, text: str) -> None:
        target = rank.world.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if self.scenario.style == "renamed":
            target.unlink(missing_ok=True)
        target.write_text(text)
        at_ns = file_ns(self.now + rank.offset_s)
        os.utime(target, ns=(at_ns, at_ns))

    # ── Attempts ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def run(self) -> str | None:
        with ExitStack() as stack:
            stack.enter_context(mock.patch.object(folder_commits, "SCAN_CPU_SHARE", 1e9))
            stack.enter_context(mock.patch.object(folder_commits, "_HURRIED_CPU_SHARE", 1e9))
            stack.enter_context(mock.patch.object(SyncOptions, "workers", 1))
            self.expected[0] = {rank: {} for rank in range(self.scenario.nodes)}
            for claim in range(1, self.scenario.attempts + 1):
                self.attempt(claim)
                if self.wrong is not None:
                    return self.wrong
        return None

    def attempt(self, claim: int) -> None:
        rng, scenario = self.rng, self.scenario
        self.say(f"attempt {claim}")
        self._events.clear()
        self.ranks = []
        self.ranks = [Rank(self, number, claim) for number in range(scenario.nodes)]
        found = checkpoints(self.store)
        for rank in self.ranks:
            shutil.rmtree(rank.world.folder, ignore_errors=True)
            rank.world.folder.mkdir(parents=True)
            if found:
                client, rank.world.store = rank.world.store, self.store
                rank.world.restore(found[-1].key)
                rank.world.store = client
            rank.world.begin()
        if found:
            # The program goes on from the restored save.
            saved = self.number_of(self.contents_of(found[-1]))
            self.expected[self.number] = self.expected[saved]
        else:
            self.expected[self.number] = {rank: {} for rank in range(scenario.nodes)}
        for rank in self.ranks:
            self.after(rng.uniform(0.0, 1.0), rank.round)
            self.after(rng.uniform(0.0, 1.0), rank.look)
        self.run_until(self.now + rng.uniform(1.0, 5.0))
        for _ in range(scenario.saves):
            ended = self.begin_save()
            self.run_checked(ended + rng.uniform(*scenario.pause_s))
            self.paused.append(self.number)
        self.end_attempt()

    def end_attempt(self) -> None:
        rng, scenario = self.rng, self.scenario
        how = "finish" if scenario.calm else rng.choice(["finish", "kill one", "kill one", "kill all", "signal"])
        if how != "finish" or rng.random() < 0.5:
            ended = self.begin_save()
            self.run_checked(self.now + rng.uniform(0.0, 40.0) if how != "finish" else ended + rng.uniform(0.1, 5.0))
        self.say(how)
        dead: list[Rank] = []
        if how in ("kill one", "kill all"):
            dead = [rng.choice(self.ranks)] if how == "kill one" else list(self.ranks)
        for rank in dead:
            rank.kill()
            self.say(f"kill {rank.number}")
        apart_s = 2.0 if how == "finish" else 15.0
        for rank in self.ranks:
            end = TrainingEnd("finished" if how == "finish" else "died")
            self.after(rng.uniform(0.0, apart_s), partial(rank.end, end))
        for rank in dead:
            self.after(rng.uniform(3.0, 60.0), rank.flush)
        for _ in range(100):
            self.run_checked(self.now + 5.0)
            if all(rank.finished or not rank.alive for rank in self.ranks):
                break
        self.run_checked(self.now + 70.0)

    # ── What must hold ────────────────────────────────────────────────────────────────────────────────────────────────

    def run_checked(self, until: float) -> None:
        while self.now < until and self.wrong is None:
            self.run_until(min(until, self.now + 5.0))
            self.check()

    def check(self) -> None:
        for one in checkpoints(self.store):
            if one.key in self.checked:
                continue
            self.checked.add(one.key)
            contents = self.contents_of(one)
            number = self.number_of(contents)
            self.say(f"{one.key}: save {number}")
            if number < 0:
                self.wrong = f"{one.key} is of no one save: {contents}"
                return
            self.committed.add(number)

    def contents_of(self, one: Any) -> dict[int, dict[str, str]]:
        found: dict[int, dict[str, str]] = {rank: {} for rank in range(self.scenario.nodes)}
        for rank, manifest in one.manifests.items():
            for blob in manifest.files:
                stored = self.store.get(keys.blob(JOB, rank, blob.name))
                assert stored is not None, f"{one.key} lacks {blob.path}"
                found[rank][blob.path] = stored.data.decode()
        return found

    def number_of(self, contents: Mapping[int, Mapping[str, str]]) -> int:
        """Return the newest save of which these are the files of all ranks; -1: there is none."""
        return max((number for number, state in self.expected.items() if state == contents), default=-1)

    def say(self, what: str) -> None:
        self.log.append(f"{self.now:7.1f} {what}")


def _land(land: Callable[[], object]) -> None:
    with suppress(StoreError):
        land()
