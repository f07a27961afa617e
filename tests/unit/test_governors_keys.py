"""What a governor writes and removes in the store, as it does, against what the clouds' policies allow it there."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from datetime import date, datetime, timezone
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, Literal

import external_world
import pytest

from stoker.governor.loop import Governor
from stoker.model import keys
from stoker.notifications.dispatcher import NotificationDispatcher
from stoker.policy import versions
from stoker.providers.ec2 import iam as amazon
from stoker.providers.gce import iam as google
from stoker.store.store_clock import read_clock
from stoker.testing.memory_store import Fault, Faults, MemoryStore
from tests.support.sim import Caller, World
from tests.support.sim_scenario import make_scenario

SEEDS = 12
Change = tuple[Literal["write", "remove"], str]
CHANGES: dict[str, Literal["write", "remove"]] = {"put": "write", "create": "write", "delete": "remove"}
# What the stories below do not reach.
RARE: tuple[Change, ...] = (
    ("write", keys.dry("ec2/m/z/spot")),
    ("remove", keys.dry("ec2/m/z/spot")),
    ("write", keys.active("gpt-ab12", 4)),
    ("write", keys.budget_warning("team", date(2026, 1, 1), "vision", "spent")),
)
WRITTEN = [
    *("external_jobs/index", "external_jobs/sagemaker", "governors", "index", "jobs"),
    *("market", "outbox", "places", "probes", "spent"),
]
REMOVED = ["active", "index", "market", "outbox", "probes"]


class Watched(World):
    """A world whose governors' every change of the store is noted."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.changed: set[Change] = set()
        versions.write(self.store, "notify: ['json://heard']", "jane")
        # Of a day that nobody looks back on.
        self.store.put(f"{keys.MARKET}2000-01-01/sim/m/z/spot/07/x.1.reclaimed.5", b"")

    def _new_governor(self, caller: Caller) -> Governor:
        governor = super()._new_governor(caller)
        store = governor.store
        assert isinstance(store, MemoryStore)
        store.faults = noting(self.changed, store.faults)
        governor.notifier.dispatcher = NotificationDispatcher(
            store, caller.name, governor.applier.token, lambda _to: lambda _message: None
        )
        return governor


def noting(found: set[Change], faults: Faults | None = None) -> Faults:
    """Asked at every call of a store, it notes those that change something."""

    def note(operation: str, key: str) -> Fault | None:
        if operation in CHANGES:
            found.add((CHANGES[operation], key))
        return faults(operation, key) if faults is not None else None

    return note


@cache
def reached() -> frozenset[Change]:
    """Every change that governors make in stories of all kinds: of jobs, of training jobs of others, of the clock."""
    found: set[Change] = set()
    for seed in range(SEEDS):
        source = random.Random(seed)
        scenario, jobs = make_scenario(seed, source)
        world = Watched(scenario, {job.name: job for job in jobs}, source)
        world.run()
        found |= world.changed
    others = external_world.World(external_world.STALL)
    assert isinstance(others.store, MemoryStore)
    others.store.faults = noting(found)
    external_world.idle(others)
    others.wake()
    read_clock(MemoryStore(lambda: datetime.now(timezone.utc), faults=noting(found)), "me", lambda: 0.0)
    return frozenset(found)


def head(key: str) -> str:
    parts = key.split("/")
    return "/".join(parts[:2]) if parts[0] == "external_jobs" else parts[0]


def test_the_stories_reach_what_they_are_for() -> None:
    assert sorted({head(key) for change, key in reached() if change == "write"}) == WRITTEN
    assert sorted({head(key) for change, key in reached() if change == "remove"}) == REMOVED


def allowed_by_aws(change: str, key: str) -> bool:
    """As IAM matches: * and ? take slashes as well."""
    action = {"write": "s3:PutObject", "remove": "s3:DeleteObject"}[change]
    (grant,) = (each for each in amazon.grants("s3://b/team").grants if each.name == "governor")
    resources = [each["Resource"] for each in grant.policy["Statement"] if each["Action"] == action]
    return any(fnmatchcase(f"arn:aws:s3:::b/team/{key}", pattern) for each in resources for pattern in each)


def allowed_by_google(change: str, key: str) -> bool:
    """As its conditions say it: how names begin, and that a log's entry is one."""
    role = {"write": "roles/storage.objectCreator", "remove": "projects/$PROJECT/roles/stokerRemover"}[change]
    (grant,) = (each for each in google.grants("gs://b/team").grants if each.name == "governor")
    bindings: list[Any] = grant.policy["bindings"]
    (told,) = (each["condition"]["expression"] for each in bindings if each["role"] == role)
    starts = re.findall(r'startsWith\("projects/_/buckets/b/objects/team/([^"]*)"\)', told)
    logs = "/log/" in told and re.match(r"jobs/[^/]+/log/", key) is not None
    return logs or any(key.startswith(start) for start in starts)


@pytest.mark.parametrize("allowed", [allowed_by_aws, allowed_by_google])
def test_a_governor_may_do_in_the_store_what_it_does(allowed: Callable[[str, str], bool]) -> None:
    forbidden = [each for each in (*reached(), *RARE) if not allowed(*each)]
    assert forbidden == []
    # And not everything.
    assert not allowed("write", keys.spec("gpt-ab12")) and not allowed("remove", keys.log_entry("gpt-ab12", 1))
    assert not allowed("write", keys.deployed("aws")) and not allowed("remove", keys.spent_day(date(2026, 1, 1)))
