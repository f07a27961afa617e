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
from stoker.model.policy import Policy
from stoker.notifications.dispatcher import NotificationDispatcher
from stoker.notifications.events import Message, notification_of
from stoker.notifications.outbox import SENDING_LEASE
from stoker.notifications.senders import Send
from stoker.policy import versions
from stoker.store import job_log
from tests.support.sim import Caller, World
from tests.support.sim_data import at
from tests.support.sim_scenario import make_scenario

SEEDS, BATCHES = 160, 8


class Telling(World):
    """A world whose policy has a channel; a letter arrives at once, or now and then not at all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.heard: list[Message] = []
        # Every entry that was ever in a log: jobs may be removed.
        self.entries: dict[str, list[Entry]] = {}
        self.refused = 0
        versions.write(self.store, "notify: [{to: 'json://heard', at_most: 100000}]", "jane")
        self.policy: Policy = versions.parsed_policy(versions.current(self.store))

    def sync(self) -> None:
        super().sync()
        for job in self.jobs.values():
            seen = self.entries.setdefault(job.name, [])
            while job.state is not None and len(seen) < job.state.seq:
                found = self.store.get(keys.log_entry(job.name, len(seen) + 1))
                assert found is not None
                seen.append(job_log.parse(len(seen) + 1, found))

    def open(self, _to: str) -> Send:
        def send(message: Message) -> None:
            self.refused += 1
            if not self.quiet and self.refused % 7 == 3:
                raise OSError("answers with 500")
            self.heard.append(message)

        return send

    def _new_governor(self, caller: Caller) -> Governor:
        governor = super()._new_governor(caller)
        governor.notifier.dispatcher = NotificationDispatcher(
            governor.store, caller.name, governor.applier.token, self.open
        )
        return governor

    def flush(self) -> None:
        """Whoever governs next tells what is left."""
        dispatcher, now = NotificationDispatcher(self.store, "last", open_=self.open), at(self.now_s)
        for _ in range(8):
            now += SENDING_LEASE + timedelta(seconds=1)
            dispatcher.begin(self.policy)
            dispatcher.record({}, now)
            dispatcher.send(lambda now=now: now)  # type: ignore[misc]
        assert not dispatcher.pending

    def expected(self) -> set[tuple[str, int]]:
        """What the logs tell, or told before their jobs were removed."""
        found = set()
        for job in self.jobs.values():
            assert job.state is not None
            for entry in self.entries[job.name]:
                told = notification_of(entry, job.state, job.spec, self.policy)
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
        events = [told for message in made.heard for told in message.events]
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
    removed = {told.job for message in made.heard for told in message.events if told.kind == "orphan"}
    assert "ghost" in removed


@pytest.mark.parametrize(
    "error", [StoreDenied("you may not write outbox/"), StoreUnavailable("no answer"), ZeroDivisionError("a bug")]
)
def test_whatever_is_wrong_with_telling_jobs_end_as_they_would(error: Exception) -> None:
    """A governor with an older role may not write there; any bug is as good as that; and nothing is held for ever."""

    class Broken(NotificationDispatcher):
        def record(self, *_: object, **__: object) -> None:
            raise error

    class Mute(Telling):
        def _new_governor(self, caller: Caller) -> Governor:
            governor = super()._new_governor(caller)
            governor.notifier.dispatcher = Broken(governor.store, caller.name)
            return governor

    source = random.Random(5)
    scenario, jobs = make_scenario(5, source)
    calm = replace(scenario, rates=dict.fromkeys(scenario.rates, 0.0), incidents=())
    made = Mute(calm, {job.name: job for job in jobs}, source)
    made.run()
    assert all(job.state is not None and job.state.ended is not None for job in jobs)
