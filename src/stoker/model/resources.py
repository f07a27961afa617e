"""The `resources` section of a spec: the machines a job runs on.

Frozen and canonical, as `stoker.model.spec` describes.
"""

# `file_field` makes a field(), which is what dataclass defaults are for.
# ruff: noqa: RUF009

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from stoker.model.errors import UserError
from stoker.model.file_field import MAX_NODES, MAX_PRICE, file_field
from stoker.model.keywords import checks_fields

Spot = Literal["never", "prefer", "only"]


@checks_fields
@dataclass(frozen=True)
class Gpus:
    """Accelerators of one kind on each node. `name` is empty if any kind is acceptable.

    `most` is the number on the machine that the plan showed when the job was submitted.
    """

    name: str
    count: int
    most: int | None = None


def idle_gpus(asked: Gpus | None, bought: int) -> int:
    """The GPUs of one machine beyond those asked for; 0 where none were asked for."""
    return max(0, bought - asked.count) if asked is not None and asked.count > 0 else 0


@checks_fields
@dataclass(frozen=True)
class LocalResources:
    """This computer as a small cloud, with a spot market to practise on."""

    capacity: int | None = file_field(
        "most nodes at once on this computer; further jobs wait, and start in order",
        default=None,
        least=1,
        most=MAX_NODES,
    )
    reclaim_mean_s: float | None = file_field(
        "spot nodes are reclaimed after this long on average", form="duration", default=None, above=0
    )
    grace_s: float = file_field(
        "time between a simulated notice and the reclaim", form="duration", default=30.0, least=0
    )
    seed: int = file_field("the simulated market repeats itself with the same seed", default=0)
    price: float = file_field(
        "on-demand price of a local node, $/h, so that cost is real arithmetic", default=0.0, least=0, most=MAX_PRICE
    )
    spot_price: float | None = file_field(
        "spot price of a local node, $/h; default: 32 % of `price`", default=None, least=0, most=MAX_PRICE
    )


@checks_fields
@dataclass(frozen=True)
class Ec2Resources:
    """Settings of EC2 alone."""

    profile: str | None = file_field("instance profile of the nodes", default=None)
    subnet: tuple[str, ...] = file_field(
        "subnet ids; each zone is tried in its own subnet, the first that has free addresses", form="words", default=()
    )
    security_groups: tuple[str, ...] = file_field("security group ids", form="words", default=())
    key: str | None = file_field("key pair for SSH", default=None)
    public_ip: bool | None = file_field("give nodes a public address", default=None)
    placement_group: str | None = file_field("an existing placement group", default=None)
    reservation: str | None = file_field(
        "capacity reservation, `block:ID` for a capacity block, or the ARN of a group of either", default=None
    )
    efa: bool = file_field("attach Elastic Fabric Adapters", default=False)
    overrides: dict[str, Any] = file_field("merged last into the RunInstances request", form="mapping", factory=dict)


@checks_fields
@dataclass(frozen=True)
class GceResources:
    """Settings of Compute Engine alone."""

    project: str | None = file_field("Google Cloud project", default=None)
    service_account: str | None = file_field("service account of the nodes", default=None)
    scopes: tuple[str, ...] = file_field("OAuth scopes of the nodes", form="words", default=())
    network: str | None = file_field("network, or `subnet:NAME`; default: the network `default`", default=None)
    gpu_networks: tuple[str, ...] = file_field(
        "networks of the network cards beside the first, in order, for A3 and A4 machines with 8 GPUs",
        form="words",
        default=(),
    )
    public_ip: bool | None = file_field("give nodes a public address; default: yes", default=None)
    placement_policy: str | None = file_field("an existing placement policy", default=None)
    reservation: str | None = file_field(
        "reservation to consume; `calendar:NAME` for one of a future reservation in calendar mode", default=None
    )
    flex_start: bool = file_field(
        "request machines by flex-start instead of on demand: the request waits in Google's queue, within "
        "`limits.max_wait`, and a machine runs for 7 days at most",
        default=False,
    )
    overrides: dict[str, Any] = file_field("merged last into the instance body", form="mapping", factory=dict)


@checks_fields
@dataclass(frozen=True)
class SagemakerResources:
    """Settings of SageMaker alone."""

    role: str | None = file_field(
        "execution role of the training job, by name or ARN; default: stoker-training", default=None
    )
    subnets: tuple[str, ...] = file_field("subnet ids; with security_groups", form="words", default=())
    security_groups: tuple[str, ...] = file_field("security group ids; with subnets", form="words", default=())
    keep_alive_s: float | None = file_field(
        "keep the machines warm this long for the next attempt or job, and pay for it; not with spot",
        form="duration",
        default=None,
        above=0,
    )
    channels: bool = file_field(
        "with contract: sagemaker, inputs in S3 are channels of the training job; false: the agent fetches them",
        default=True,
    )
    checkpoint_copy: bool = file_field(
        "with contract: sagemaker, SageMaker copies /opt/ml/checkpoints for people, too (CheckpointConfig)",
        default=True,
    )
    kms_key: str | None = file_field("KMS key that encrypts the disks and what SageMaker writes", default=None)
    encrypt_traffic: bool = file_field("encrypt what nodes send to each other", default=False)
    overrides: dict[str, Any] = file_field(
        "merged last into the CreateTrainingJob request", form="mapping", factory=dict
    )


@checks_fields
@dataclass(frozen=True)
class Resources:
    """The machines a job runs on."""

    provider: str = file_field("provider of the machines: local, ec2, gce, sagemaker, …", default="local")
    gpus: Gpus | None = file_field(
        "accelerators on each node, such as `A100:8`; machines with more only if none has exactly this many",
        form="gpus",
        default=None,
    )
    machine: tuple[str, ...] = file_field("machine types in order of preference", form="words", default=())
    cpus: int | None = file_field(
        "at least this many CPUs on each node, such as `8+`", form="at-least", default=None, least=1
    )
    memory_bytes: int | None = file_field(
        "at least this much memory on each node, such as `64GB+`", form="size", default=None, above=0
    )
    spot: Spot = file_field("true, false, or prefer (on-demand when there is none)", form="spot", default="never")
    region: str | tuple[str, ...] | None = file_field(
        "region of the cloud, or a list of several: each attempt runs in one of them", form="regions", default=None
    )
    zones: tuple[str, ...] = file_field("zones to use; any by default", form="zones", default=())
    max_price: float | None = file_field("most $/h for a node", default=None, above=0, most=MAX_PRICE)
    disk_bytes: int | None = file_field(
        "size of the node's disk; the fast disks of a machine hold its folders if they have as much",
        form="size",
        default=None,
        above=0,
    )
    image: str | None = file_field("machine image: id, name, family or alias", default=None)
    ec2: Ec2Resources | None = file_field("settings of EC2 alone", default=None)
    gce: GceResources | None = file_field("settings of Compute Engine alone", default=None)
    sagemaker: SagemakerResources | None = file_field("settings of SageMaker alone", default=None)
    local: LocalResources | None = file_field("this computer's capacity and simulated spot market", default=None)

    @property
    def regions(self) -> tuple[str, ...]:
        """The regions that the job names, in its order; for those of `in_region`, that one."""
        return self.region if isinstance(self.region, tuple) else () if self.region is None else (self.region,)

    @property
    def only_region(self) -> str | None:
        """The region of resources in one region: those of a job that names one at most, and those of `in_region`.

        Raises UserError for several.
        """
        if isinstance(self.region, tuple):
            if self.is_one_of_several:
                return self.region[0]
            raise UserError(f"resources.region: names {', '.join(self.region)}, and one is possible here; name one")
        return self.region

    @property
    def names_several(self) -> bool:
        """Return whether the job names several regions, also where these are its resources in one of them."""
        return isinstance(self.region, tuple)

    @property
    def is_one_of_several(self) -> bool:
        """Return whether these are of `in_region`: names that are in another region of the job are no mistake then."""
        return isinstance(self.region, tuple) and len(self.region) == 1

    def in_region(self, region: str | None) -> Resources:
        """These resources in one of their regions, with the zones that are in it. Unchanged for a job of one region.

        The name of a zone begins with that of its region; of several such regions it is in the one with the longest
        name: `europe-west12-a` is not in `europe-west1`.
        """
        if not isinstance(self.region, tuple) or region is None:
            return self
        return replace(
            self, region=(region,), zones=tuple(zone for zone in self.zones if self.region_of(zone) == region)
        )

    def regions_problem(self) -> str | None:
        """Describe what is wrong with a list of regions and the zones in them; None where nothing is, and for one
        region, whose provider checks its zones."""
        regions = self.regions
        short = [short_region(region) for region in regions]
        if twice := next((region for region in short if short.count(region) > 1), None):
            return f"resources.region: names {twice} twice"
        if len(regions) < 2 or not self.zones:
            return None
        named = {zone: self.region_of(zone) for zone in self.zones}
        if stray := next((zone for zone, region in named.items() if region is None), None):
            return f"resources.zones: {stray} is in none of {', '.join(regions)}; name zones of these, or `any`"
        # A region without a named zone would have to use none of its zones, or all of them: say which.
        if bare := next((region for region in regions if region not in named.values()), None):
            return f"resources.zones: none is in {bare}; name one there, or leave {bare} out of resources.region"
        return None

    def region_of(self, zone: str) -> str | None:
        """The named region that a zone is in; None if it is in none of them."""
        around = (region for region in self.regions if zone.startswith(short_region(region)))
        return max(around, key=lambda region: len(short_region(region)), default=None)


def short_region(region: str) -> str:
    """The name of a region without the project that some clouds put before it: `us-central1` of
    `vision-1/us-central1`."""
    return region.rpartition("/")[2]
