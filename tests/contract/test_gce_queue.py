"""A flex-start request is idempotent, waits in Google's queue, is listed and ended like a machine, or finds none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from flex_start_launches import MACHINE, PLACE, ZONE, launch, make_order, until

from stoker.model.errors import NoCapacity, StillQueued
from stoker.providers import registry
from stoker.providers.base import LaunchOrder, Provider
from tests.support.gce import GceCloud, why_no_gce
from tests.support.servers import isolated, pytest_isolated

if why_no_gce() is not None:
    pytest.skip(str(why_no_gce()), allow_module_level=True)


if isolated():

    @pytest.fixture(autouse=True)
    def swept(google_cloud: GceCloud) -> Iterator[None]:
        yield
        assert google_cloud.broken() == []
        google_cloud.clear()

    @pytest.fixture
    def order() -> LaunchOrder:
        return make_order(1)

    @pytest.fixture
    def provider(order: LaunchOrder) -> Provider:
        return registry.connect("gce", registry.Context(store=order.store))

    @pytest.mark.parametrize("silent", [False, True])
    def test_it_waits_and_any_governor_gets_the_same_machine(
        google_cloud: GceCloud, provider: Provider, order: LaunchOrder, silent: bool
    ) -> None:
        number = google_cloud.faults.scarce(silent=silent)
        for _ in range(3):
            with pytest.raises(StillQueued, match=rf"waits in Google's queue for {MACHINE} in {ZONE}"):
                provider.launch(provider.build(order))
        # It is something that may become a machine: it is listed, as no machine that runs.
        (listed,) = provider.list_instances(PLACE)
        assert (listed.job, listed.claim, listed.state) == (order.job, order.claim, "pending")
        google_cloud.faults.clear(number)
        (made,) = launch(provider, order)
        assert made.id == listed.id and len(google_cloud.left().instances) == 1
        google_cloud.machine(made.id).wait_running()
        assert launch(provider, order) == (replace(made, state="running"),)

    @pytest.mark.parametrize("silent", [False, True])
    def test_a_request_that_waited_in_vain_found_no_capacity(
        google_cloud: GceCloud, provider: Provider, order: LaunchOrder, silent: bool
    ) -> None:
        google_cloud.faults.scarce(silent=silent)
        with pytest.raises(StillQueued):
            provider.launch(provider.build(order))
        (listed,) = provider.list_instances(PLACE)
        google_cloud.machine(listed.id).expire_request()
        with pytest.raises(NoCapacity):
            launch(provider, order)
        assert not google_cloud.left() and provider.list_instances(PLACE) == ()
        # Nothing that could become a machine is made by a repetition.
        with pytest.raises(NoCapacity):
            provider.launch(provider.build(order))
        assert not google_cloud.left()

    def test_a_request_is_ended_like_a_machine(google_cloud: GceCloud, provider: Provider, order: LaunchOrder) -> None:
        google_cloud.faults.scarce()
        with pytest.raises(StillQueued):
            provider.launch(provider.build(order))
        (listed,) = provider.list_instances(PLACE)
        until(lambda: provider.terminate(listed.id, PLACE) == "gone", "the request to be gone")
        assert not google_cloud.left()

    def test_a_machine_that_came_and_went_unnamed_found_no_capacity(
        google_cloud: GceCloud, provider: Provider, order: LaunchOrder
    ) -> None:
        """An expired request may leave the same: "Compute Engine deletes the Flex-start VM". The job loses nothing, as
        user code runs only on machines that its log names."""
        (made,) = launch(provider, order)
        until(lambda: provider.terminate(made.id, PLACE) == "gone", "the machine to be gone")
        with pytest.raises(NoCapacity, match="flex-start found no machine in time"):
            launch(provider, order)

else:

    def test_flex_start_in_a_network_of_its_own() -> None:
        pytest_isolated(__file__)
