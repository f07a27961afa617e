"""A rehearsal on this computer says nothing of any market."""

from __future__ import annotations

import json

from harness import World, fields

from stoker.model import keys


def test_a_reclaim_on_this_computer_is_no_sighting(world: World) -> None:
    world.script("counter.py")
    market = {"price": 3.0, "spot_price": 1.0}
    # The governor that is left in charge, and the one that waits for the end below: both see every close.
    job = world.submit(params={"steps": 60, "pause": 0.05, "every": 5}, resources={"spot": True, "local": market})
    world.training(job, step=5)
    world.interrupt(job, grace_s=5)
    summary = world.ended(job)
    assert fields(summary, "outcome") == [("reclaimed",), ("succeeded",)], world.story(job)
    assert list(world.store.list(keys.MARKET)) == []
    offered = world.cli("offers", "--json", "--set", "resources.spot=true")
    (offer,) = json.loads(offered.stdout)
    assert (offer["last_24h"]["reclaims"], offer["last_24h"]["launches"]) == (0, 0)
