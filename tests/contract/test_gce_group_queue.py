"""Several flex-start machines: queued for together, the same for every governor, and withdrawn with all they need."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from flex_start_launches import MACHINE, OFFERING, PLACE, ZONE, launch, make_order, until

from stoker.model.errors import InvalidRequest, NoCapacity, ProviderError, QuotaExceeded, StillQueued, Transient
from stoker.providers import registry
from stoker.providers.base import LaunchOrder, SupportsLeftovers
from stoker.providers.gce import names
from stoker.providers.gce.provider import GceProvider
from tests.support.gce import PROJECT, GceCloud, why_no_gce
from tests.support.servers import isolated, pytest_isolated

if why_no_gce() is not None:
    pytest.skip(str(why_no_gce()), allow_module_level=True)

NO_TYPE = f"The resource 'projects/{PROJECT}/zones/{ZONE}/machineTypes/{MACHINE}' was not found"
# The calls of a launch, in order.
CALLS = ("regionInstanceTemplates.insert", "instanceGroupManagers.insert", "instanceGroupManagerResizeRequests.insert")

if isolated():

    @pytest.fixture(autouse=True)
    def swept(google_cloud: GceCloud) -> Iterator[None]:
        yield
        assert google_cloud.broken() == []
        google_cloud.clear()

    @pytest.fixture
    def order() -> LaunchOrder:
        return make_order(2)

    @pytest.fixture
    def provider(order: LaunchOrder) -> GceProvider:
        return connected(order)

    def connected(order: LaunchOrder) -> GceProvider:
        found = registry.connect("gce", registry.Context(store=order.store))
        assert isinstance(found, GceProvider)
        return found

    def queue(provider: GceProvider, order: LaunchOrder) -> None:
        with pytest.raises(StillQueued):
            provider.launch(provider.build(order))

    def sweep(provider: GceProvider) -> None:
        """Remove everything that was left, as governors do once no open claim owns it."""
        assert isinstance(provider, SupportsLeftovers)

        def gone() -> bool:
            left = provider.list_leftovers(PLACE)
            for each in left:
                try:
                    provider.remove(each)
                except Transient:
                    return False
            return not left

        until(gone, "nothing to be left")

    def test_they_wait_together_and_any_governor_gets_the_same(
        google_cloud: GceCloud, provider: GceProvider, order: LaunchOrder
    ) -> None:
        number = google_cloud.faults.scarce()
        for _ in range(3):
            with pytest.raises(StillQueued, match=rf"waits in Google's queue for 2 × {MACHINE} in {ZONE} at once"):
                provider.launch(provider.build(order))
        assert provider.list_instances(PLACE) == ()
        assert {name: count for name, count in google_cloud.calls().items() if name in CALLS} == dict.fromkeys(CALLS, 1)
        google_cloud.faults.clear(number)
        made = launch(provider, order)
        assert [each.rank for each in made] == [0, 1]
        assert {google_cloud.machine(each.id).name for each in made} == {*names.machines(order)}
        for each in made:
            google_cloud.machine(each.id).wait_running()
        assert launch(connected(order), order) == tuple(replace(each, state="running") for each in made)
        assert len(google_cloud.left().instances) == 2
        # The group is in use: with it, Google would delete its machines.
        group = next(each for each in provider.list_leftovers(PLACE) if each.kind == "instance-group")
        with pytest.raises(Transient, match="it has machines"):
            provider.remove(group)
        for each in made:
            provider.terminate(each.id, PLACE)
        until(lambda: not google_cloud.left().instances, "the machines to be gone")
        sweep(provider)
        assert not google_cloud.left()

    def test_their_group_deletes_them_so_that_it_makes_them_never_again(
        google_cloud: GceCloud, provider: GceProvider, order: LaunchOrder
    ) -> None:
        """ "if you delete or update a VM in a MIG by using the instances API instead of the required instance group
        manager API, the MIG will not be aware of your intent and, at any time in the future, the MIG might
        automatically attempt to recreate or revert that VM"
        https://cloud.google.com/compute/docs/instance-groups/working-with-managed-instances"""
        first, second = launch(provider, order)
        google_cloud.machine(second.id).wait_running()
        assert provider.terminate(first.id, PLACE) == "requested"
        until(lambda: provider.terminate(first.id, PLACE) == "gone", "the machine to be gone")
        calls = google_cloud.calls()
        assert calls["instanceGroupManagers.deleteInstances"] >= 1
        assert provider.state([first.id, second.id], PLACE) == {first.id: "gone", second.id: "running"}
        # "This method reduces the targetSize of the managed instance group by the number of instances that you delete."
        group = f"/compute/v1/projects/{PROJECT}/zones/{ZONE}/instanceGroupManagers/{names.base(order)}"
        assert provider.api.get(group)["targetSize"] == 1
        provider.terminate(second.id, PLACE)
        until(lambda: provider.terminate(second.id, PLACE) == "gone", "the other machine to be gone")
        assert provider.api.get(group)["targetSize"] == 0

    def test_what_the_group_does_not_do_is_done_without_it(
        google_cloud: GceCloud, provider: GceProvider, order: LaunchOrder
    ) -> None:
        first, second = launch(provider, order)
        google_cloud.faults.unauthorized("instanceGroupManagers.deleteInstances", "instances.get")
        for each in (first, second):
            until(lambda name=each.id: provider.terminate(name, PLACE) == "gone", "it to be gone")  # type: ignore[misc]

    def test_one_that_waited_for_its_turn_is_cancelled_for_good(
        google_cloud: GceCloud, provider: GceProvider, order: LaunchOrder
    ) -> None:
        """ "Cancelled resize request does no longer wait for the resources to be provisioned." """
        google_cloud.faults.scarce()
        queue(provider, order)
        # Ten minutes where the job may use several zones.
        google_cloud.age_requests(300.0)
        queue(provider, order)
        # Google's clock, as its answers have it, counts whole seconds.
        google_cloud.age_requests(301.0)
        with pytest.raises(NoCapacity, match="flex-start found no machines in time"):
            provider.launch(provider.build(order))
        google_cloud.faults.clear()
        # Another governor, which has not seen that the claim is over, brings nothing back.
        with pytest.raises(NoCapacity):
            connected(order).launch(provider.build(order))
        sweep(provider)
        with pytest.raises(NoCapacity, match="was withdrawn"):
            connected(order).launch(provider.build(order))
        assert not google_cloud.left()

    def test_what_google_says_of_a_request_that_waits_is_told(
        google_cloud: GceCloud, provider: GceProvider, order: LaunchOrder
    ) -> None:
        """ "Information about the last attempt to fulfill the request. The value is temporary since the ResizeRequest
        can retry, as long as it's still active […] the value may be stale and no longer show an active problem." So a
        quota that others use up, as these two machines would fit into it, is waited for."""
        number = google_cloud.faults.scarce(says="QUOTA_EXCEEDED", metric="PREEMPTIBLE_NVIDIA_L4_GPUS", limit=2.0)
        told = "when Google last tried: Quota 'PREEMPTIBLE_NVIDIA_L4_GPUS' exceeded"
        queue(provider, order)
        until(lambda: told in waiting(provider, order), "Google's words to be told")
        google_cloud.age_requests(601.0)
        with pytest.raises(NoCapacity, match=told):
            provider.launch(provider.build(order))
        google_cloud.faults.clear(number)
        sweep(provider)
        assert not google_cloud.left()

    def waiting(provider: GceProvider, order: LaunchOrder) -> str:
        with pytest.raises(StillQueued) as raised:
            provider.launch(provider.build(order))
        return str(raised.value)

    @pytest.mark.parametrize(
        ("fault", "error", "told"),
        [
            # Two machines never fit into it.
            (
                {"says": "QUOTA_EXCEEDED", "metric": "PREEMPTIBLE_NVIDIA_L4_GPUS", "limit": 1.0},
                QuotaExceeded,
                "L4_GPUS",
            ),
            ({"says": "RESOURCE_NOT_FOUND", "message": NO_TYPE}, InvalidRequest, "resources.machine"),
        ],
    )
    def test_a_request_that_no_wait_cures_is_withdrawn_at_once(
        google_cloud: GceCloud,
        provider: GceProvider,
        order: LaunchOrder,
        fault: dict[str, Any],
        error: type[ProviderError],
        told: str,
    ) -> None:
        google_cloud.faults.scarce(**fault)
        with pytest.raises(error, match=told):
            launch(provider, order)
        google_cloud.faults.clear()
        # It left Google's queue, so that no machine comes of it.
        with pytest.raises(NoCapacity):
            launch(provider, order)
        sweep(provider)
        assert not google_cloud.left()

    def test_machines_that_come_while_their_request_is_cancelled_are_used(
        google_cloud: GceCloud, provider: GceProvider, order: LaunchOrder
    ) -> None:
        made = launch(provider, order)
        google_cloud.age_requests(3600.0)
        assert [each.id for each in launch(provider, order)] == [each.id for each in made]

    def test_a_request_that_fails_found_no_capacity(
        google_cloud: GceCloud, provider: GceProvider, order: LaunchOrder
    ) -> None:
        """ "If the request fails during provisioning, any VMs that were created […] are rolled back" """
        google_cloud.faults.no_capacity()
        with pytest.raises(NoCapacity, match="does not have enough resources"):
            launch(provider, order)
        assert not google_cloud.left().instances
        sweep(provider)
        google_cloud.faults.clear()
        google_cloud.faults.refuse_launch()
        another = replace(order, claim=3)
        with pytest.raises(QuotaExceeded, match="ask for more at"):
            launch(provider, another)
        sweep(provider)
        assert not google_cloud.left()

    def test_a_machine_that_is_gone_before_its_name_was_written_takes_the_others_with_it(
        google_cloud: GceCloud, provider: GceProvider, order: LaunchOrder
    ) -> None:
        first, _ = launch(provider, order)
        until(lambda: provider.terminate(first.id, PLACE) == "gone", "the machine to be gone")
        with pytest.raises(NoCapacity, match="ended before the job could use it"):
            launch(provider, order)

    @pytest.mark.parametrize("done", range(len(CALLS) + 1))
    @pytest.mark.parametrize("goes_on", [True, False])
    def test_a_governor_dies_between_two_calls(
        google_cloud: GceCloud, provider: GceProvider, order: LaunchOrder, done: int, goes_on: bool
    ) -> None:
        """Another one finishes the launch, with the same machines; or nothing is left, where the claim is over."""
        google_cloud.faults.scarce()
        if done < len(CALLS):
            google_cloud.faults.internal_error(CALLS[done])
            with pytest.raises(Transient):
                provider.launch(provider.build(order))
        else:
            # All was asked for, and no answer was seen.
            google_cloud.faults.lose_replies(CALLS[-1])
            with pytest.raises(Transient):
                provider.launch(provider.build(order))
        google_cloud.faults.clear()
        another = connected(order)
        if goes_on:
            assert len(launch(another, order)) == 2 and len(google_cloud.left().instances) == 2
            for each in another.list_instances(PLACE):
                another.terminate(each.id, PLACE)
            until(lambda: not google_cloud.left().instances, "the machines to be gone")
        sweep_all(google_cloud, another)

    def sweep_all(google_cloud: GceCloud, provider: GceProvider) -> None:
        def gone() -> bool:
            for each in provider.list_instances(PLACE):
                provider.terminate(each.id, PLACE)
            for left in provider.list_leftovers(PLACE):
                try:
                    provider.remove(left)
                except Transient:
                    return False
            return not google_cloud.left()

        until(gone, "nothing to be left")

    def test_a_request_that_waits_is_withdrawn_with_its_group_and_template(
        google_cloud: GceCloud, provider: GceProvider, order: LaunchOrder
    ) -> None:
        google_cloud.faults.scarce()
        queue(provider, order)
        listed = provider.list_leftovers(PLACE)
        assert [(each.kind, each.job, each.claim) for each in listed] == [
            ("instance-group", order.job, order.claim),
            ("instance-template", order.job, order.claim),
        ]
        assert all(each.created_at is not None for each in listed)
        # Another store of the same project sees none of it.
        assert connected(replace(order, store="gs://contract/another")).list_leftovers(PLACE) == ()
        group, template = listed
        with pytest.raises(Transient, match="already being used"):
            provider.remove(template)
        provider.remove(group)
        provider.remove(template)
        assert not google_cloud.left()
        provider.remove(group)
        google_cloud.faults.clear()
        # Its launch, by a governor that is late, brings nothing back.
        with pytest.raises(NoCapacity, match="was withdrawn"):
            provider.launch(provider.build(order))
        assert not google_cloud.left()

    def test_what_google_refuses_is_the_fault_of_the_request(
        google_cloud: GceCloud, provider: GceProvider, order: LaunchOrder
    ) -> None:
        wrong = replace(order, offering=replace(OFFERING, machine="n2-standard-2", gpus=0, gpu=None))
        with pytest.raises(InvalidRequest, match="does not support the FLEX_START provisioning model"):
            provider.launch(provider.build(wrong))
        sweep(provider)
        assert not google_cloud.left()

else:

    def test_groups_in_a_network_of_their_own() -> None:
        pytest_isolated(__file__)
