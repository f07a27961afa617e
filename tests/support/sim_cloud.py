"""A simulated cloud: capacity, tokens, lagging lists, lost replies, slow ends. Its provider keeps the real contract."""

# The contract names arguments that one simulated region with one kind of machine has no use for.

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stoker.model.errors import NoCapacity, NotFound, QuotaExceeded, Throttled, Transient
from stoker.model.offerings import Capabilities, Instance, InstanceState, Offering
from stoker.model.resources import Resources
from stoker.providers.base import LaunchOrder, Request, TerminateResult
from tests.support.sim_data import OFFERINGS, at

if TYPE_CHECKING:
    from tests.support.sim import Caller, World
    from tests.support.sim_agent import Agent

# How long a list may lag behind, and how long a machine that is gone stays in it.
LIST_LAG_S = 50.0
GONE_LISTED_S = 300.0


@dataclass
class Machine:
    """One simulated machine. `stopping` machines still run what runs on them."""

    id: str
    job: str
    claim: int
    rank: int
    zone: str
    price: float
    created_s: float
    state: InstanceState = "running"
    changed_s: float = 0.0
    agent: Agent | None = None

    @property
    def alive(self) -> bool:
        return self.state != "gone"


@dataclass
class Cloud:
    """Everything that the provider's account holds."""

    world: World
    machines: dict[str, Machine] = field(default_factory=dict)
    tokens: dict[str, tuple[float, tuple[str, ...]]] = field(default_factory=dict)

    def create(self, job: str, claim: int, rank: int, offering: Offering) -> Machine:
        name = f"i{len(self.machines)}-{claim}-{rank}"
        machine = Machine(name, job, claim, rank, offering.zone, offering.price or 0.0, self.world.now_s)
        self.machines[name] = machine
        self.world.boot(machine)
        return machine

    def power_off(self, machine: Machine) -> None:
        """From inside: it stops, and is gone a while later."""
        if machine.state in ("pending", "running"):
            machine.state, machine.changed_s = "stopping", self.world.now_s
            self.world.after(self.world.random.choice((5.0, 40.0, 150.0)), lambda: self.vanish(machine))

    def vanish(self, machine: Machine) -> None:
        """It is no more, and nothing on it."""
        if machine.alive:
            machine.state, machine.changed_s = "gone", self.world.now_s
            self.world.note(f"{machine.id} is gone")
            if machine.agent is not None:
                machine.agent.lose_machine()

    def told(self, machine: Machine, state: InstanceState | None = None) -> Instance:
        return Instance(
            id=machine.id,
            provider="sim",
            job=machine.job,
            claim=machine.claim,
            rank=machine.rank,
            state=state or machine.state,
            created_at=at(machine.created_s),
            zone=machine.zone,
        )


class SimProvider:
    """A `Provider` over the simulated cloud, as one governor sees it: every call may be interleaved, fail or crash."""

    name = "sim"

    def __init__(self, world: World, caller: Caller) -> None:
        self._world = world
        self._caller = caller

    @property
    def capabilities(self) -> Capabilities:
        return self._world.scenario.capabilities

    def offerings(self, resources: Resources) -> tuple[Offering, ...]:
        self._enter("offerings")
        return OFFERINGS

    def build(self, order: LaunchOrder) -> tuple[Request, ...]:
        params: dict[str, Any] = {"order": order}
        return (Request(service="sim", operation="launch", params=params),)

    def launch(self, requests: tuple[Request, ...]) -> tuple[Instance, ...]:
        (request,) = requests
        order: LaunchOrder = request.params["order"]
        self._enter(f"launch {order.token}")
        world, cloud = self._world, self._world.cloud
        known = cloud.tokens.get(order.token)
        if known is not None and world.now_s - known[0] < self.capabilities.token_lifetime_s:
            return tuple(cloud.told(cloud.machines[name]) for name in known[1])
        if world.chance("quota"):
            raise QuotaExceeded("the account may not have more of these")
        if world.now_s < world.dry_until_s.get(order.offering.key, 0.0) or world.chance("no_capacity"):
            world.dry_until_s[order.offering.key] = world.now_s + world.random.uniform(0.0, 60.0)
            world.note(f"no capacity for claim {order.claim}")
            raise NoCapacity(f"{order.offering.key} is dry")
        count = order.nodes
        if order.nodes > 1 and world.chance("partial_gang"):
            count = world.random.randrange(0, order.nodes)
        world.checks.bought(self._caller, order.job)
        made = [cloud.create(order.job, order.claim, rank, order.offering) for rank in range(count)]
        world.note(f"{self._caller.name} launches {[machine.id for machine in made]} for {order.token}")
        if known is not None or any(
            other.claim == order.claim and other.job == order.job and other not in made
            for other in cloud.machines.values()
        ):
            world.launched_twice.add(order.token)
        cloud.tokens[order.token] = (world.now_s, tuple(machine.id for machine in made))
        if world.chance("lost_reply"):
            world.note(f"… and the reply is lost ({order.token})")
            raise Transient("connection reset")
        return tuple(cloud.told(machine) for machine in made)

    def list_instances(self, region: str | None = None) -> tuple[Instance, ...]:
        self._enter("list")
        world = self._world
        machines = [
            machine
            for machine in world.cloud.machines.values()
            if machine.job != "foreign" and (machine.alive or world.now_s - machine.changed_s < GONE_LISTED_S)
        ]
        world.random.shuffle(machines)
        if not world.chance("stale_list"):
            return tuple(world.cloud.told(machine) for machine in machines)
        world.note(f"{self._caller.name} gets a stale list")
        horizon_s = world.now_s - world.random.uniform(1.0, LIST_LAG_S)
        return tuple(
            world.cloud.told(machine, "running" if machine.changed_s > horizon_s else None)
            for machine in machines
            if machine.created_s <= horizon_s
        )

    def state(self, ids: Iterable[str], region: str | None = None) -> Mapping[str, InstanceState]:
        self._enter("state")
        machines = self._world.cloud.machines
        return {name: machines[name].state if name in machines else "gone" for name in ids}

    def terminate(self, instance: str, region: str | None = None) -> TerminateResult:
        self._enter(f"terminate {instance}")
        machine = self._world.cloud.machines.get(instance)
        if machine is None:
            raise NotFound(instance)
        if not machine.alive:
            return "gone"
        if machine.state != "stopping":
            self._world.note(f"{self._caller.name} terminates {instance}")
            self._world.checks.terminated(machine)
            self._world.cloud.power_off(machine)
        return "requested"

    def _enter(self, call: str) -> None:
        self._world.point(self._caller, call)
        if self._world.chance("throttled"):
            raise Throttled("too many calls")
        if self._world.chance("transient"):
            raise Transient("no answer")
