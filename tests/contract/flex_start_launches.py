"""Launches of flex-start machines by the provider of Compute Engine."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

from stoker.model.errors import StillQueued
from stoker.model.offerings import Instance, Offering
from stoker.model.resources import GceResources, Gpus, Resources
from stoker.model.spec import Spec
from stoker.providers.base import LaunchOrder, Provider
from tests.support.gce import PROJECT, REGION

PLACE = f"{PROJECT}/{REGION}"
ZONE = f"{REGION}-a"
MACHINE = "g2-standard-4"
OFFERING = Offering("gce", MACHINE, ZONE, False, PLACE, 0.7, 0.7, "test", 4, 16 << 30, "L4", 1, queued=True)


def make_order(nodes: int) -> LaunchOrder:
    """So many machines that do nothing, for a store of its own."""
    idle = {"metadata": {"items": [{"key": "startup-script", "value": "#!/bin/sh\ntrue\n"}]}}
    gce = GceResources(overrides=idle, flex_start=True)
    resources = Resources(
        provider="gce", gpus=Gpus("L4", 1), machine=(MACHINE,), region=PLACE, image="debian/12", gce=gce
    )
    return LaunchOrder(
        job="flex-7f3k",
        name="flex",
        claim=2,
        nodes=nodes,
        attempt=1,
        store=f"gs://contract/{uuid.uuid4().hex}",
        spec=Spec(name="flex", run="true", nodes=nodes, resources=resources),
        submitter="jane@laptop",
        offering=OFFERING,
    )


def until(condition: Callable[[], bool], what: str) -> None:
    until_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until_s, f"waited 60 s for {what}"
        time.sleep(0.05)


def launch(provider: Provider, order: LaunchOrder) -> tuple[Instance, ...]:
    """Launch, repeated as governors do while it is queued or still being made."""
    found: list[tuple[Instance, ...]] = []

    def tried() -> bool:
        try:
            found.append(provider.launch(provider.build(order)))
        except StillQueued:
            return False
        return True

    until(tried, "the machines to come")
    return found[0]
