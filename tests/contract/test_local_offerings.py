"""What this computer offers: its prices, and why a job does not fit it."""

from __future__ import annotations

import os

import pytest

from stoker.model.resources import Gpus, LocalResources, Resources
from stoker.providers.local import offers


class TestOfferings:
    def test_prices(self) -> None:
        spot, on_demand = offers.offerings(Resources(local=LocalResources(price=2.0)))
        assert (spot.spot, spot.price, spot.on_demand_price) == (True, 0.64, 2.0)
        assert (on_demand.spot, on_demand.price, on_demand.on_demand_price) == (False, 2.0, 2.0)
        assert spot.price_source == on_demand.price_source == "job file"
        named, _ = offers.offerings(Resources(local=LocalResources(price=2.0, spot_price=0.5)))
        assert named.price == 0.5

    def test_free_by_default_and_not_taken_away_first(self) -> None:
        first, second = offers.offerings(Resources())
        assert (first.spot, first.price) == (False, 0.0)
        assert (second.spot, second.price) == (True, 0.0)
        assert first.cpus == len(os.sched_getaffinity(0))

    @pytest.mark.parametrize(
        ("resources", "field"),
        [
            (Resources(cpus=100_000), "resources.cpus"),
            (Resources(memory_bytes=10**18), "resources.memory"),
            (Resources(machine=("p4d.24xlarge",)), "resources.machine"),
            (Resources(zones=("us-east-1a",)), "resources.zones"),
            (Resources(gpus=Gpus("no such", 1)), "resources.gpus"),
            (Resources(gpus=Gpus("", 10_000)), "resources.gpus"),
        ],
    )
    def test_what_this_computer_does_not_have(self, resources: Resources, field: str) -> None:
        assert offers.offerings(resources) == ()
        assert offers.why_none(resources).startswith(field)

    def test_what_it_has(self) -> None:
        fitting = Resources(cpus=1, memory_bytes=1, machine=("other", "local"), zones=("this-computer",))
        assert offers.why_none(fitting) == ""
        assert len(offers.offerings(fitting)) == 2

    def test_gpu_names(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(offers, "gpu_names", lambda: ("NVIDIA A100-SXM4-40GB",) * 2)
        assert offers.why_none(Resources(gpus=Gpus("a100", 2))) == ""
        assert offers.why_none(Resources(gpus=Gpus("", 1))) == ""
        assert offers.why_none(Resources(gpus=Gpus("A100", 3)))
        assert offers.why_none(Resources(gpus=Gpus("A10", 1)))
        (offering, _) = offers.offerings(Resources())
        assert (offering.gpu, offering.gpus) == ("NVIDIA A100-SXM4-40GB", 2)
