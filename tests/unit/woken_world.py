"""A store with one job on a cloud that is only a dictionary, for tests of governors that events wake."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from stoker import Job, client
from stoker.governor.connected_providers import Fleet
from stoker.model import codec, keys
from stoker.model.job_state import JobState
from stoker.model.node_facts import Heartbeat, NoticeFact
from stoker.model.offerings import Capabilities, Instance, InstanceState, Offering
from stoker.model.resources import Resources
from stoker.providers.base import LaunchOrder, Request, TerminateResult
from stoker.providers.local.capabilities import CAPABILITIES
from stoker.store import job_log
from stoker.store.base import Store


class Cloud:
    """A provider by any name, whose machines are as the test says."""

    name = "local"

    def __init__(self) -> None:
        self.machines: dict[str, Instance] = {}
        self.asked: list[str] = []

    @property
    def capabilities(self) -> Capabilities:
        return replace(CAPABILITIES, paid=True, runs_locally=False, wakes=False)

    def offerings(self, resources: Resources) -> tuple[Offering, ...]:
        return tuple(Offering("local", "m", zone, spot=False, region="us-east-1", price=1.0) for zone in "ab")

    def build(self, order: LaunchOrder) -> tuple[Request, ...]:
        return (Request("test", "launch", {"order": order}),)

    def launch(self, requests: tuple[Request, ...]) -> tuple[Instance, ...]:
        order: LaunchOrder = requests[0].params["order"]
        ours = [each for each in self.machines.values() if (each.job, each.claim) == (order.job, order.claim)]
        if not ours:
            name = f"i-{len(self.machines):017x}"
            now = datetime.now(timezone.utc)
            made = Instance(name, "local", order.job, order.claim, 0, "running", now, region="us-east-1")
            self.machines[name] = made
            ours = [made]
        return tuple(ours)

    def list_instances(self, region: str | None = None) -> tuple[Instance, ...]:
        return tuple(each for each in self.machines.values() if each.state != "gone")

    def state(self, ids: Iterable[str], region: str | None = None) -> Mapping[str, InstanceState]:
        return {name: self.machines[name].state if name in self.machines else "unheard-of" for name in ids}

    def terminate(self, instance: str, region: str | None = None) -> TerminateResult:
        self.end(instance)
        return "gone"

    def end(self, instance: str) -> None:
        self.machines[instance] = replace(self.machines[instance], state="gone")

    def job_of(self, instance: str, region: str | None = None) -> str | None:
        self.asked.append(instance)
        found = self.machines.get(instance)
        return found.job if found is not None else None


class Clock:
    """A schedule that remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    @property
    def is_on(self) -> bool:
        return bool(self.told) and self.told[-1] == "on"

    def on(self) -> None:
        self.told.append("on")

    def off(self) -> None:
        self.told.append("off")


def fleet(store: Store, cloud: Cloud) -> Fleet:
    return Fleet(store.url, connect=lambda _name: cloud)


def submit(store: Store, folder: Path) -> str:
    return client.submit(Job(name="x", run="true", code=str(folder)), store=store)


def state_of(store: Store, job: str) -> JobState:
    found = job_log.read(store, job)
    assert found is not None
    return found


def node_of(store: Store, job: str, claim: int | None = None) -> str:
    """Where the agent of a claim's only machine writes."""
    claims = [each for each in state_of(store, job).claims if each.launched and claim in (None, each.number)]
    launched = claims[-1].launched
    assert launched is not None
    return keys.node(job, claims[-1].number, 0, keys.boot(launched[0].instance, 0))


def beat(store: Store, job: str) -> None:
    now = datetime.now(timezone.utc)
    told = Heartbeat(beat=1, phase="training", at=now, interval_s=2.0, training_since=now, trained_s=9.0)
    store.put(keys.heartbeat(node_of(store, job)), codec.dumps(told))


def warn(store: Store, job: str, *, hard: bool = True) -> None:
    """What the agent says when its machine is to be taken away."""
    beat(store, job)
    told = NoticeFact(hard=hard, source="test", at=datetime.now(timezone.utc), grace_s=120.0)
    store.put(keys.notice(node_of(store, job)), codec.dumps(told))
