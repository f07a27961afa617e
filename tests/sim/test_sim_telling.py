"""The simulation with a channel: whatever goes wrong, every event is told, and telling disturbs no job."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from datetime import timedelta

import pytest

from stoker.governor.loop import Governor
from stoker.model import keys
from stoker.model.errors import StoreDenied, StoreUnavailable
from stoker.model.log_entries import Entry
from stoker.model.policy import House
from stoker.notifications.dispatcher import Send, Teller
from stoker.notifications.events import Letter, tell
from stoker.notifications.outbox import SENDING
from stoker.policy import versions
from stoker.store import job_log
from tests.support.sim import Caller, World
from tests.support.sim_data import at
from tests.support.sim_scenario import make_scenario

SEEDS, BATCHES = 160, 8


class Telling(World):
    """A world whose house has a channel; a letter arrives at once, or now and then not at all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.heard: list[Letter] = []
        # Every entry that was ever in a log: jobs may be removed.
        self.entries: dict[str, list[Entry]] = {}
        self.refused = 0
        versions.write(self.store, "notify: [{to: 'json://heard', at_most: 100000}]", "jane")
        self.house: House = versions.house(versions.current(self.store))

    def sync(self) -> None:
        super().sync()
        for job in self.jobs.values():
            seen = self.entries.setdefault(job.name, [])
            while job.state is not None and len(seen) < job.state.seq:
                found = self.store.get(keys.log_entry(job.name, len(seen) + 1))
                assert found is not None
                seen.append(job_log.parse(len(seen) + 1, found))

    def open(self, _to: str) -> Send:
        def send(letter: Letter) -> None:
            self.refused += 1
            if not self.quiet and self.refused % 7 == 3:
                raise OSError("answers with 500")
            self.heard.append(letter)

        return send

    def _new_governor(self, caller: Caller) -> Governor:
        governor = super()._new_governor(caller)
        governor.teller = Teller(governor.store, caller.name, governor.applier.token, self.open)
        return governor

    def flush(self) -> None:
        """Whoever governs next tells what is left."""
        teller, now = Teller(self.store, "last", open_=self.open), at(self.now_s)
        for _ in range(8):
            now += SENDING + timedelta(seconds=1)
            teller.begin(self.house)
            teller.note({}, now)
            teller.send(lambda now=now: now)  # type: ignore[misc]
        assert not teller.pending

    def expected(self) -> set[tuple[str, int]]:
        """What the logs tell, or told before their jobs were removed."""
        found = set()
        for job in self.jobs.values():
            assert job.state is not None
            for entry in self.entries[job.name]:
                told = tell(entry, job.state, job.spec, self.house)
                if told is not None:
                    found.add((job.name, told.seq))
        return found


def world(seed: int) -> Telling:
    source = random.Random(seed)
    scenario, jobs = make_scenario(seed, source)
    return Telling(scenario, {job.name: job for job in jobs}, source)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_every_event_is_told_and_no_job_is_disturbed(batch: int) -> None:
    for seed in range(batch, SEEDS, BATCHES):
        made = world(seed)
        made.run()
        made.flush()
        events = [told for letter in made.heard for told in letter.events]
        heard = Counter((told.job, told.seq) for told in events if not told.thing)
        assert set(heard) == made.expected(), f"seed {seed}"
        # Sent by somebody who died, or was out of the world for minutes, before it could write that down.
        excuses = sum("crashes before" in line for line in made.trace) + len(made.scenario.incidents)
        assert sum(heard.values()) - len(heard) <= 3 * excuses, f"seed {seed}"
        removed = Counter(told.thing for told in events if told.thing)
        assert all(thing.startswith("sim ") for thing in removed)
        in_order: dict[str, int] = {}
        for told in events:
            if not told.thing and heard[told.job, told.seq] == 1:
                assert told.seq > in_order.get(told.job, 0), f"seed {seed}: {told}"
                in_order[told.job] = told.seq


def test_machines_of_nobody_are_told_of() -> None:
    made = world(3)
    made.run()
    made.flush()
    removed = {told.job for letter in made.heard for told in letter.events if told.kind == "orphan"}
    assert "ghost" in removed


@pytest.mark.parametrize(
    "error", [StoreDenied("you may not write told/"), StoreUnavailable("no answer"), ZeroDivisionError("a bug")]
)
def test_whatever_is_wrong_with_telling_jobs_end_as_they_would(error: Exception) -> None:
    """A governor with an older role may not write there; any bug is as good as that; and nothing is held for ever."""

    class Broken(Teller):
        def note(self, *_: object, **__: object) -> None:
            raise error

    class Mute(Telling):
        def _new_governor(self, caller: Caller) -> Governor:
            governor = super()._new_governor(caller)
            governor.teller = Broken(governor.store, caller.name)
            return governor

    source = random.Random(5)
    scenario, jobs = make_scenario(5, source)
    calm = replace(scenario, rates=dict.fromkeys(scenario.rates, 0.0), incidents=())
    made = Mute(calm, {job.name: job for job in jobs}, source)
    made.run()
    assert all(job.state is not None and job.state.ended is not None for job in jobs)
