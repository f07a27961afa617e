"""A store in memory and a cloud whose every answer a test decides, for tests of a governor's single steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from stoker.governor.apply import Applier
from stoker.governor.connected_providers import Fleet
from stoker.governor.loop import Governor
from stoker.governor.observe import Memory
from stoker.model import codec, keys
from stoker.model.job_state import JobState
from stoker.model.log_entries import Claimed, Event, Record, Submitted
from stoker.model.offerings import Capabilities, Instance, InstanceState, Leftover, Offering
from stoker.model.resources import Resources
from stoker.model.spec import Spec
from stoker.model.submission import Submission
from stoker.providers.base import EndReason, LaunchOrder, Request, TerminateResult
from stoker.store import job_log
from stoker.store.job_index import read_submission
from stoker.testing.memory_store import MemoryStore
from tests.support.sim_data import CAPABILITIES, OFFERINGS, at, make_spec


@dataclass
class ScriptedCloud:
    """A provider. `errors` names a method and what it raises; `calls` lists what was asked for."""

    name: str = "sim"
    capabilities: Capabilities = CAPABILITIES
    machines: dict[str, Instance] = field(default_factory=dict)
    errors: dict[str, Exception] = field(default_factory=dict)
    leftovers: list[Leftover] = field(default_factory=list)
    consoles: dict[str, str] = field(default_factory=dict)
    endings: dict[str, EndReason] = field(default_factory=dict)
    calls: list[tuple[str, Any]] = field(default_factory=list)
    now_s: float = 0.0

    def called(self, method: str) -> list[Any]:
        return [argument for name, argument in self.calls if name == method]

    def offerings(self, resources: Resources) -> tuple[Offering, ...]:
        self._enter("offerings", resources)
        return OFFERINGS

    def build(self, order: LaunchOrder) -> tuple[Request, ...]:
        self._enter("build", order)
        return (Request("sim", "launch", {"order": order}),)

    def launch(self, requests: tuple[Any, ...]) -> tuple[Instance, ...]:
        order: LaunchOrder = requests[0].params["order"]
        self._enter("launch", order)
        made = [
            Instance(f"i-{order.token}-{rank}", "sim", order.job, order.claim, rank, "running", at(self.now_s))
            for rank in range(order.nodes)
        ]
        return tuple(self.machines.setdefault(each.id, each) for each in made)

    def list_instances(self, region: str | None = None) -> tuple[Instance, ...]:
        self._enter("list_instances", region)
        return tuple(self.machines.values())

    def state(self, ids: Iterable[str], region: str | None = None) -> Mapping[str, InstanceState]:
        wanted = list(ids)
        self._enter("state", wanted)
        return {each: self.machines[each].state if each in self.machines else "unheard-of" for each in wanted}

    def terminate(self, instance: str, region: str | None = None) -> TerminateResult:
        self._enter("terminate", instance)
        if instance in self.machines:
            self.machines[instance] = replace(self.machines[instance], state="gone")
        return "gone"

    def list_leftovers(self, region: str | None = None) -> tuple[Leftover, ...]:
        self._enter("list_leftovers", region)
        return tuple(self.leftovers)

    def remove(self, leftover: Leftover) -> None:
        self._enter("remove", leftover.id)

    def end_reason(self, instance: str, region: str | None = None) -> EndReason | None:
        self._enter("end_reason", instance)
        return self.endings.get(instance)

    def console(self, instance: str, region: str | None = None) -> str:
        self._enter("console", instance)
        return self.consoles.get(instance, "")

    def _enter(self, method: str, argument: object) -> None:
        self.calls.append((method, argument))
        error = self.errors.get(method)
        if error is not None:
            raise error


class ScriptedWorld:
    """The store, the cloud, and a clock that moves when a test moves it."""

    def __init__(self, *, is_local: bool = True) -> None:
        self.cloud = ScriptedCloud()
        self.store = MemoryStore(lambda: at(self.cloud.now_s), is_local=is_local)
        self.fleet = Fleet(self.store.url, connect=lambda _name: self.cloud)

    def submit(self, job: str, *events: Event, spec: Spec | None = None) -> JobState:
        """A job whose log has these events after its submission."""
        data = codec.dumps(Submission(job=job, spec=spec or make_spec(), submitter="jane"))
        self.store.put(keys.spec(job), data)
        self.store.put(keys.active(job, 1), b"")
        for event in events:
            if isinstance(event, Claimed):
                self.store.put(keys.place(event.offering.provider, event.offering.region), b"")
        for seq, event in enumerate((Submitted(codec.digest(data), "jane"), *events), start=1):
            assert job_log.append(self.store, job, seq, Record(job_log.new_token(), "test", f"entry {seq}", event))
        return self.state(job)

    def state(self, job: str) -> JobState:
        found = job_log.read(self.store, job)
        assert found is not None
        return found

    def governor(self) -> Governor:
        return Governor(self.store, self.fleet, name="g", monotonic=lambda: self.cloud.now_s)

    def applier(self) -> Applier:
        """One that has observed every job in the store."""
        memory = Memory()
        for job in self.store.folders(keys.JOBS):
            memory.states[job] = self.state(job)
            memory.submissions[job] = read_submission(self.store, memory.states[job])
        return Applier(self.store, self.fleet, memory, "g")
