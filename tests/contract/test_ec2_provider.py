"""The ec2 provider keeps its promises, on machines that boot."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace

import pytest

from stoker.model.errors import NoCapacity, Transient
from stoker.model.offerings import Offering
from stoker.model.resources import Ec2Resources, Resources
from stoker.model.spec import Spec
from stoker.providers import registry
from stoker.providers.base import LaunchOrder, Provider, SupportsLeftovers
from stoker.testing.provider_contract import Connect, OrderFactory, ProviderContract
from tests.support.ec2 import IMAGES, Ec2Cloud, why_no_machines
from tests.support.servers import isolated, pytest_isolated

if why_no_machines() is not None:
    pytest.skip(str(why_no_machines()), allow_module_level=True)

# A machine that boots, does nothing, and stays.
IDLE = "#!/bin/sh\ntrue\n"
REGION = "us-east-1"
OFFERING = Offering("ec2", "c7i.large", f"{REGION}a", False, REGION, 0.1, 0.1, "test", 2, 4 << 30)

if isolated():

    class TestEc2(ProviderContract):
        @pytest.fixture(autouse=True)
        def swept(self, cloud: Ec2Cloud) -> Iterator[None]:
            """Placement groups outlive the machines that the suite ends: nobody governs here."""
            yield
            cloud.clear()

        @pytest.fixture
        def store(self) -> str:
            return f"s3://contract/{uuid.uuid4().hex}"

        @pytest.fixture
        def connect(self, cloud: Ec2Cloud) -> Connect:
            def connected(store: str) -> Provider:
                return registry.connect("ec2", registry.Context(store=store))

            return connected

        @pytest.fixture
        def order(self) -> OrderFactory:
            def made(*, store: str, claim: int = 1, nodes: int = 1) -> LaunchOrder:
                ec2 = Ec2Resources(overrides={"UserData": IDLE})
                resources = Resources(provider="ec2", machine=("c7i.large",), region=REGION, image="debian/12", ec2=ec2)
                return LaunchOrder(
                    job="contract-7f3k",
                    name="contract",
                    claim=claim,
                    nodes=nodes,
                    attempt=1,
                    store=store,
                    spec=Spec(name="contract", run="true", nodes=nodes, resources=resources),
                    submitter="jane@laptop",
                    offering=OFFERING,
                )

            return made

        def test_things_beside_machines_are_found_and_removed(
            self, provider: Provider, order: OrderFactory, store: str, cloud: Ec2Cloud
        ) -> None:
            assert isinstance(provider, SupportsLeftovers)
            assert provider.list_leftovers() == ()
            made = self.launch(provider, order(store=store, claim=4, nodes=2))
            (group,) = provider.list_leftovers()
            assert (group.kind, group.job, group.claim) == ("placement-group", "contract-7f3k", 4)
            # Disks that hang on a machine end with it; a group that is in use cannot be removed yet.
            with pytest.raises(Transient):
                provider.remove(group)
            for instance in made:
                self.end(provider, instance.id)
            provider.remove(group)
            provider.remove(group)
            assert provider.list_leftovers() == () and not cloud.left()

        def test_a_gang_comes_whole_or_not_at_all(
            self, provider: Provider, order: OrderFactory, store: str, cloud: Ec2Cloud
        ) -> None:
            cloud.faults.no_capacity(available=1)
            with pytest.raises(NoCapacity):
                self.launch(provider, order(store=store, nodes=2))
            assert provider.list_instances() == ()

        def test_a_name_is_that_of_our_own_newest_image(
            self, provider: Provider, order: OrderFactory, store: str
        ) -> None:
            """A stranger, a deprecation and another processor have newer ones."""
            import boto3

            asked = order(store=store)
            resources = replace(asked.spec.resources, image="docker-12-amd64-*")
            (made,) = self.launch(provider, replace(asked, spec=replace(asked.spec, resources=resources)))
            told = boto3.client("ec2", region_name=REGION).describe_instances(InstanceIds=[made.id])
            assert told["Reservations"][0]["Instances"][0]["ImageId"] == IMAGES[3].ami
            self.end(provider, made.id)

        def test_a_machine_that_somebody_stopped_is_not_forgotten(
            self, provider: Provider, order: OrderFactory, store: str
        ) -> None:
            """Its disk costs money, and it can be started again."""
            import boto3

            (made,) = self.launch(provider, order(store=store))
            self.until_state(provider, made.id, "running")
            boto3.client("ec2", region_name=REGION).stop_instances(InstanceIds=[made.id])
            self.until_state(provider, made.id, "off")
            (listed,) = provider.list_instances()
            assert listed.state == "off"
            self.end(provider, made.id)

        def test_a_store_whose_name_has_a_star_sees_its_own_machines_alone(
            self, provider: Provider, connect: Connect, order: OrderFactory, store: str
        ) -> None:
            self.launch(provider, order(store=store, nodes=2))
            greedy = connect(store[:-4] + "*")
            assert greedy.list_instances() == ()
            assert isinstance(greedy, SupportsLeftovers) and greedy.list_leftovers() == ()

        def test_a_machine_that_is_not_listed_yet_is_not_gone(
            self, provider: Provider, order: OrderFactory, store: str, cloud: Ec2Cloud
        ) -> None:
            cloud.faults.listing_lag(3600.0)
            (made,) = self.launch(provider, order(store=store))
            assert provider.list_instances() == ()
            assert provider.state([made.id]) == {made.id: "unheard-of"}
            cloud.faults.listing_lag(0.0)
            assert provider.state([made.id])[made.id] in ("pending", "running")

else:

    def test_ec2_in_a_network_of_its_own() -> None:
        pytest_isolated(__file__)
