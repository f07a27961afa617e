"""Offerings, instances and leftovers: what a provider has and what it runs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

# `off`: it is switched off and still there, so it costs money, and may be started again; but what ran on it is over,
# for an agent never trains on a machine that had one before. `unheard-of`: see `Provider.state`.
InstanceState = Literal["pending", "running", "stopping", "off", "gone", "unheard-of"]


@dataclass(frozen=True)
class Capabilities:
    """What a provider can do, and what its clocks allow. Frozen: decisions may rest on it."""

    # Costs money: jobs without a bound get one, and `run` asks before spending.
    paid: bool
    # How long a launch token keeps a repeated launch from making a second machine.
    token_lifetime_s: float
    # Machines younger than this are never orphans: their claim may not be readable yet.
    newborn_s: float
    # Longest time from launch until an agent's first heartbeat is overdue.
    boot_timeout_s: float
    # Without a heartbeat for this long a node is suspected; after as long again, it is ended.
    silence_s: float
    # Fields of the job file this provider honours, by dotted name; the rest is refused by name.
    honours: frozenset[str] = frozenset()
    # `stoker interrupt` works.
    interrupts: bool = False
    # `wait` returns early when something happens on a machine.
    wakes: bool = False
    # Machines are processes of the submitter's own computer: its Python, programs and folders are theirs as well.
    here: bool = False
    # Machines install their agent from the store, which the submitter puts there.
    bundled: bool = False
    # What was found dry for one job is left alone by all jobs for so long. 0: it says nothing about the next moment.
    dry_for_s: float = 0.0
    # The stores that its machines can reach, by scheme, such as `s3`. None named: all.
    stores: tuple[str, ...] = ()


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
    # How many nodes of all jobs the place holds at once, where the provider knows; beyond it jobs queue.
    most_nodes: int | None = None

    @property
    def names(self) -> tuple[str, str, str, str]:
        """Provider, machine, where, and kind. Where is its region if the provider chooses the zone."""
        where = self.zone or self.region or "any"
        return self.provider, self.machine, where, "spot" if self.spot else "on-demand"

    @property
    def key(self) -> str:
        """The same for the same thing whatever its price: what is remembered when it is dry."""
        return "/".join(self.names)

    @property
    def title(self) -> str:
        """The same for people: `n1-standard-4 spot in us-central1-a`."""
        return f"{self.machine} {'spot' if self.spot else 'on-demand'} in {self.zone or 'any zone'}"


@dataclass(frozen=True)
class Instance:
    """A machine that carries this store's tag, as the provider tells it."""

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
    """Something beside a machine that carries this store's tag, and that no machine uses: a disk, a placement group.

    `created_at` is None where the cloud does not tell.
    """

    kind: str
    id: str
    provider: str
    job: str
    claim: int
    region: str | None = None
    created_at: datetime | None = None
