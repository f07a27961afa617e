"""Build requests to this computer, as data and purely."""

from __future__ import annotations

import hashlib
import random
from typing import Any

from stoker.model import codec
from stoker.model.node_config import NodeConfig
from stoker.model.resources import LocalResources
from stoker.providers.base import LaunchOrder, Request

_PLACE_LENGTH = 10


def build(order: LaunchOrder, place: str) -> tuple[Request, ...]:
    """One request for each rank. Pure: the same order gives the same requests, including the simulated spot market."""
    return tuple(_start_node(order, rank, place) for rank in range(order.nodes))


def instance_id(store: str, job: str, claim: int, rank: int, place: str) -> str:
    """The name of the only machine that this rank of this claim can have at this place."""
    digest = hashlib.sha256(f"{store}\0{job}\0{claim}\0{rank}\0{place}".encode()).hexdigest()[:8]
    # Readable at the front, unique by the digest; short enough for a file name even for a long job name.
    return f"{job[:60]}-{claim}-{rank}-{place}-{digest}"


def place_name(computer: str, home: str) -> str:
    """The name of one home on one computer: its nodes can be seen, started and ended only from there."""
    return hashlib.sha256(f"{computer}\0{home}".encode(errors="surrogateescape")).hexdigest()[:_PLACE_LENGTH]


def place_of(instance: str) -> str | None:
    """The place in an instance's name; None if the name has none."""
    _, _, place = instance.rpartition("-")[0].rpartition("-")
    return place if len(place) == _PLACE_LENGTH else None


def root_name(store: str) -> str:
    """The folder of a store's nodes; nodes of other stores are never seen."""
    return hashlib.sha256(store.encode()).hexdigest()[:12]


def _start_node(order: LaunchOrder, rank: int, place: str) -> Request:
    local = order.spec.resources.local or LocalResources()
    instance = instance_id(order.store, order.job, order.claim, rank, place)
    config = NodeConfig(
        store=order.store,
        provider="local",
        job=order.job,
        claim=order.claim,
        rank=rank,
        nodes=order.nodes,
        instance=instance,
        max_life_s=order.max_life_s,
    )
    params: dict[str, Any] = {
        "node": codec.dump(config),
        "spot": order.offering.spot,
        "grace_s": local.grace_s,
    }
    if local.capacity is not None:
        params["capacity"] = local.capacity
    if order.offering.spot and local.reclaim_mean_s is not None:
        # Seeded with values that are the same in each run, so that a simulation is repeatable: the job's name and the
        # number of its attempts, not the job's id and the numbers of its claims.
        market = random.Random(f"{local.seed}/{order.name}/{order.attempt}/{rank}")
        params["reclaim_after_s"] = round(market.expovariate(1.0 / local.reclaim_mean_s), 3)
    return Request("local", "start-node", params)
