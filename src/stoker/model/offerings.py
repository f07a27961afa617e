"""Offerings, instances and leftovers of providers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

# `off`: powered off but still existing, so it costs money and may be started again. Its training is over, because an
# agent never trains on a machine that had one before. `unheard-of`: see `Provider.state`.
InstanceState = Literal["pending", "running", "stopping", "off", "gone", "unheard-of"]


@dataclass(frozen=True)
class Capabilities:
    """Abilities and time limits of a provider. Frozen: decisions may rest on them."""

    # Costs money: jobs without a bound get one, and `run` asks before spending.
    paid: bool
    # How long a launch token prevents a repeated launch from creating a second machine.
    token_lifetime_s: float
    # Machines younger than this are never orphans: their claim may not be readable yet.
    newborn_s: float
    # The first heartbeat is overdue after this time since the launch.
    boot_timeout_s: float
    # A silent node is suspected after this time, or after three heartbeat intervals if that is longer; if it stays
    # silent for as long again, it is terminated.
    silence_s: float
    # Fields of the job file that this provider supports, by dotted name; all others are refused.
    honours: frozenset[str] = frozenset()
    # `stoker interrupt` works.
    interrupts: bool = False
    # `wait` returns early on events of a machine.
    wakes: bool = False
    # Machines are processes on the submitter's own computer, and share its Python, programs and folders.
    runs_locally: bool = False
    # Machines install their agent from the store, where the submitter uploads it.
    bundled: bool = False
    # All jobs avoid an offering for this long after one found no capacity. 0: the answer says nothing about the future.
    dry_for_s: float = 0.0
    # The stores that its machines can reach, by scheme, such as `s3`. Empty: all.
    stores: tuple[str, ...] = ()
    # Machine types, networks and images are EC2's own, so that the arguments of SageMaker's SDK apply unchanged.
    ec2_machines: bool = False
    # The owner of the price list that `stoker prices --refresh` asks; empty without one.
    price_list: str = ""


@dataclass(frozen=True)
class Reservation:
    """Capacity that an account has for a time, such as a capacity block of EC2.

    The cloud begins to end the machines in it at `ends_machines_at`. Where that is None, they go on after `ends_at`.
    """

    name: str
    # None: it has started, or its start is not known.
    starts_at: datetime | None = None
    # None: until its owner ends it.
    ends_at: datetime | None = None
    ends_machines_at: datetime | None = None
    # How many it has, used ones included; None where that is not known, or it is one of several.
    machines: int | None = None


@dataclass(frozen=True)
class Offering:
    """Machine type × zone × spot or on-demand × price. `price` is $/h for a node; None is unknown, never free."""

    provider: str
    machine: str
    zone: str
    spot: bool
    region: str | None = None
    price: float | None = None
    on_demand_price: float | None = None
    price_source: str = ""
    cpus: int | None = None
    memory_bytes: int | None = None
    gpu: str | None = None
    gpus: int = 0
    # The cloud keeps the request in a queue for a bounded time, and ends the machine after a fixed one. Its price is an
    # upper bound.
    queued: bool = False
    # Its machines are in this reservation, and nowhere else.
    reservation: Reservation | None = None
    # Most nodes of all jobs at this place at once, if the provider knows; beyond that jobs queue.
    most_nodes: int | None = None

    @property
    def names(self) -> tuple[str, str, str, str]:
        """Provider, machine, zone and kind. The region stands in for the zone if the provider chooses the zone."""
        where = self.zone or self.region or "any"
        return self.provider, self.machine, where, self.kind

    @property
    def kind(self) -> str:
        """How the machine is bought."""
        return kind_text(spot=self.spot, queued=self.queued, reserved=self.reservation is not None)

    @property
    def key(self) -> str:
        """Identity of the offering independent of its price, used to remember missing capacity."""
        return "/".join(self.names)

    @property
    def place(self) -> tuple[str | None, str]:
        """Region and zone: machines of one place share its network."""
        return self.region, self.zone

    @property
    def title(self) -> str:
        """Text for people: `n1-standard-4 spot in us-central1-a`."""
        return f"{self.machine} {self.kind} in {self.zone or 'any zone'}"


@dataclass(frozen=True)
class Instance:
    """A machine with this store's tag, as the provider reports it."""

    id: str
    provider: str
    job: str
    claim: int
    rank: int
    state: InstanceState
    created_at: datetime
    region: str | None = None
    zone: str | None = None


@dataclass(frozen=True)
class Leftover:
    """A resource with this store's tag that no machine uses: a disk, a placement group.

    `created_at` is None if the cloud does not report it.
    """

    kind: str
    id: str
    provider: str
    job: str
    claim: int
    region: str | None = None
    created_at: datetime | None = None


def zone_text(zone: str | None) -> str:
    """The zone; `any zone` where the cloud chooses it."""
    return zone or "any zone"


def kind_text(*, spot: bool, queued: bool, reserved: bool = False) -> str:
    """How a machine is bought: `spot`, `flex-start`, `reserved` or `on-demand`."""
    return "spot" if spot else "flex-start" if queued else "reserved" if reserved else "on-demand"
