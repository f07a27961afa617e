"""The gce provider keeps its promises, on machines that boot."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace

import pytest

from stoker.model.errors import InvalidRequest, NoCapacity, NoSuchResource, QuotaExceeded, Transient
from stoker.model.offerings import Offering
from stoker.model.resources import GceResources, Resources
from stoker.model.spec import Spec
from stoker.providers import registry
from stoker.providers.base import (
    HttpRequest,
    LaunchOrder,
    Provider,
    SupportsEndReason,
    SupportsLeftovers,
    SupportsPreflight,
)
from stoker.testing.provider_contract import Connect, OrderFactory, ProviderContract
from tests.support.gce import PROJECT, REGION, Fault, GceCloud, why_no_gce
from tests.support.servers import isolated, pytest_isolated

if why_no_gce() is not None:
    pytest.skip(str(why_no_gce()), allow_module_level=True)

# A machine that boots, does nothing, and stays.
IDLE = "#!/bin/sh\ntrue\n"
PLACE = f"{PROJECT}/{REGION}"
ZONE = f"{REGION}-a"
MACHINE = "n2-standard-2"
OFFERING = Offering("gce", MACHINE, ZONE, False, PLACE, 0.1, 0.1, "test", 2, 8 << 30)

if isolated():

    class TestGce(ProviderContract):
        @pytest.fixture(autouse=True)
        def swept(self, google_cloud: GceCloud) -> Iterator[None]:
            """Placement policies outlive the machines that the suite ends: nobody governs here."""
            yield
            assert google_cloud.broken() == []
            google_cloud.clear()

        @pytest.fixture
        def store(self) -> str:
            return f"gs://contract/{uuid.uuid4().hex}"

        @pytest.fixture
        def connect(self, google_cloud: GceCloud) -> Connect:
            def connected(store: str) -> Provider:
                return registry.connect("gce", registry.Context(store=store))

            return connected

        @pytest.fixture
        def order(self) -> OrderFactory:
            def made(*, store: str, claim: int = 1, nodes: int = 1) -> LaunchOrder:
                idle = {"metadata": {"items": [{"key": "startup-script", "value": IDLE}]}}
                resources = Resources(
                    provider="gce",
                    machine=(MACHINE,),
                    region=PLACE,
                    image="debian/12",
                    gce=GceResources(overrides=idle),
                )
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
            self, provider: Provider, order: OrderFactory, store: str, google_cloud: GceCloud
        ) -> None:
            assert isinstance(provider, SupportsLeftovers)
            assert provider.list_leftovers(PLACE) == ()
            made = self.launch(provider, order(store=store, claim=4, nodes=2))
            (policy,) = provider.list_leftovers(PLACE)
            assert (policy.kind, policy.job, policy.claim) == ("placement-policy", "contract-7f3k", 4)
            # Disks that hang on a machine end with it; a policy that is in use cannot be removed yet.
            with pytest.raises(Transient):
                provider.remove(policy)
            for instance in made:
                self.end(provider, instance.id)
            self.until(lambda: not google_cloud.left().instances, "the machines to be gone")
            provider.remove(policy)
            provider.remove(policy)
            assert provider.list_leftovers(PLACE) == () and not google_cloud.left()

        def test_a_gang_comes_whole_or_not_at_all(
            self, provider: Provider, order: OrderFactory, store: str, google_cloud: GceCloud
        ) -> None:
            google_cloud.faults.no_capacity(available=1)
            with pytest.raises(NoCapacity):
                self.launch(provider, order(store=store, nodes=2))
            self.until(lambda: not google_cloud.left().instances, "the half that came to be given back")

        @pytest.mark.parametrize("details", [False, True])
        def test_a_dry_zone_is_told_inside_the_operation(
            self, provider: Provider, order: OrderFactory, store: str, google_cloud: GceCloud, details: bool
        ) -> None:
            google_cloud.faults.no_capacity(zone=ZONE, details=details)
            with pytest.raises(NoCapacity, match=MACHINE):
                self.launch(provider, order(store=store))

        def test_a_quota_is_told_inside_the_operation_or_at_once(
            self, provider: Provider, order: OrderFactory, store: str, google_cloud: GceCloud
        ) -> None:
            google_cloud.faults.refuse_launch()
            with pytest.raises(QuotaExceeded):
                self.launch(provider, order(store=store))
            google_cloud.faults.clear()
            google_cloud.faults.no_quota()
            with pytest.raises(QuotaExceeded):
                self.launch(provider, order(store=store, claim=2))

        def test_a_machine_that_powered_itself_off_is_off_and_not_forgotten(
            self, provider: Provider, order: OrderFactory, store: str, google_cloud: GceCloud
        ) -> None:
            """Its disk costs money, and it can be started again."""
            (made,) = self.launch(provider, order(store=store))
            machine = google_cloud.machine(made.id)
            machine.wait_up()
            machine.run("systemctl", "poweroff", check=False)
            machine.wait_stopped()
            (listed,) = provider.list_instances(PLACE)
            assert (listed.id, listed.state) == (made.id, "off")
            assert isinstance(provider, SupportsEndReason)
            why = provider.end_reason(made.id, PLACE)
            assert why is not None and why.by_itself
            self.end(provider, made.id)

        def test_a_preempted_machine_is_gone_and_was_reclaimed(
            self, provider: Provider, order: OrderFactory, store: str, google_cloud: GceCloud
        ) -> None:
            (made,) = self.launch(provider, order(store=store))
            google_cloud.machine(made.id).wait_running()
            google_cloud.machine(made.id).preempt(0.0, notice_s=0.0)
            google_cloud.machine(made.id).wait_until(lambda one: one.state() in ("TERMINATED", "terminated"), "to end")
            assert isinstance(provider, SupportsEndReason)
            why = provider.end_reason(made.id, PLACE)
            assert why is not None and why.reclaimed

        def test_a_name_that_is_free_again_is_another_machines(
            self, provider: Provider, order: OrderFactory, store: str, google_cloud: GceCloud
        ) -> None:
            """Machines are told apart by numbers, and a request by its id."""
            asked = order(store=store)
            (first,) = self.launch(provider, asked)
            self.end(provider, first.id)
            self.until(lambda: not google_cloud.left().instances, "the machine to be gone")
            # The same claim, finished once more: it stands for the machine that it had.
            (again,) = self.launch(provider, asked)
            assert again.id == first.id and provider.state([again.id], PLACE)[again.id] == "gone"
            assert not google_cloud.left().instances

        def test_a_launch_that_takes_long_is_asked_about_again(
            self,
            provider: Provider,
            order: OrderFactory,
            store: str,
            google_cloud: GceCloud,
            monkeypatch: pytest.MonkeyPatch,
        ) -> None:
            from stoker.providers.gce import launch as module

            monkeypatch.setattr(module, "_LAUNCH_S", 0.0)
            google_cloud.faults.operations_take(2.0)
            requests = provider.build(order(store=store))
            with pytest.raises(Transient, match="still being made"):
                provider.launch(requests)
            monkeypatch.setattr(module, "_LAUNCH_S", 60.0)
            (made,) = provider.launch(requests)
            assert [each.id for each in provider.list_instances(PLACE)] == [made.id]

        def test_credentials_that_are_not_taken_are_read_anew(
            self, provider: Provider, order: OrderFactory, store: str, google_cloud: GceCloud
        ) -> None:
            google_cloud.faults.add(Fault("authError", ("instances.insert",), status=401, times=1))
            (made,) = self.launch(provider, order(store=store))
            assert made.state == "pending"
            # For good, it is nothing that a job has to end for.
            google_cloud.faults.add(Fault("authError", ("instances.insert",), status=401))
            with pytest.raises(Transient):
                provider.launch(provider.build(order(store=store, claim=2)))

        def test_a_launch_that_failed_is_not_asked_about_for_an_hour(
            self, provider: Provider, order: OrderFactory, store: str, google_cloud: GceCloud
        ) -> None:
            """Asked again under the same id, Google tells of the same failure: another claim has to try."""
            google_cloud.faults.refuse_launch("INTERNAL_ERROR", times=1)
            with pytest.raises(NoCapacity):
                self.launch(provider, order(store=store))
            assert len(self.launch(provider, order(store=store, claim=2))) == 1

        def test_a_governor_of_another_version_finishes_the_claim_all_the_same(
            self, provider: Provider, order: OrderFactory, store: str
        ) -> None:
            (made,) = self.launch(provider, order(store=store))
            (asked,) = provider.build(order(store=store))
            assert isinstance(asked, HttpRequest)
            other = replace(asked, body={**asked.body, "description": "by another version"})
            self.until_state(provider, made.id, "running")
            (found,) = provider.launch((other,))
            assert found.id == made.id

        def test_what_the_job_names_and_google_does_not_have(
            self, provider: Provider, order: OrderFactory, store: str
        ) -> None:
            asked = order(store=store)
            spec = replace(asked.spec, resources=replace(asked.spec.resources, image="family:debian-cloud/debian-99"))
            with pytest.raises(InvalidRequest, match=r"^resources\.image: "):
                provider.launch(provider.build(replace(asked, spec=spec)))

        @pytest.mark.parametrize("nodes", [1, 2])
        def test_a_rehearsal_looks_and_makes_nothing(
            self, provider: Provider, order: OrderFactory, store: str, google_cloud: GceCloud, nodes: int
        ) -> None:
            assert isinstance(provider, SupportsPreflight)
            google_cloud.calls(reset=True)
            provider.preflight(provider.build(order(store=store, nodes=nodes)))
            assert google_cloud.calls(reset=True) == {"networks.get": 1}
            there = naming(order(store=store, nodes=nodes), reservation="held")
            provider.preflight(provider.build(replace(there, offering=replace(OFFERING, zone=f"{REGION}-b"))))
            assert not google_cloud.left()

        @pytest.mark.parametrize("nodes", [1, 2])
        @pytest.mark.parametrize(
            ("field", "name"),
            [
                ("network", "training"),
                ("network", "subnet:training"),
                ("placement_policy", "close"),
                ("reservation", "block-7"),
                ("service_account", "trainer"),
            ],
        )
        def test_a_rehearsal_says_what_google_does_not_have(
            self, provider: Provider, order: OrderFactory, store: str, nodes: int, field: str, name: str
        ) -> None:
            """What is said is what the launch would have ended with, in words that name the field too."""
            assert isinstance(provider, SupportsPreflight)
            wrong = provider.build(naming(order(store=store, nodes=nodes), **{field: name}))
            for refused in (provider.preflight, provider.launch):
                with pytest.raises(InvalidRequest) as raised:
                    refused(wrong)
                assert f"{name.removeprefix('subnet:')}" in str(raised.value)
                if refused == provider.preflight:
                    assert isinstance(raised.value, NoSuchResource) and f"resources.gce.{field}: " in str(raised.value)

        def test_a_rehearsal_that_may_not_be_is_none(
            self, provider: Provider, order: OrderFactory, store: str, google_cloud: GceCloud
        ) -> None:
            assert isinstance(provider, SupportsPreflight)
            wrong = naming(order(store=store), network="training")
            for faulty in (google_cloud.faults.unauthorized, google_cloud.faults.internal_error):
                number = faulty("networks.get")
                provider.preflight(provider.build(wrong))
                google_cloud.faults.clear(number)
            with pytest.raises(NoSuchResource):
                provider.preflight(provider.build(wrong))

        def test_a_reservation_of_another_zone_is_no_wrong_name(
            self, provider: Provider, order: OrderFactory, store: str
        ) -> None:
            """It is used there; here the launch is refused, and the next zone is tried."""
            asked = naming(order(store=store), reservation="held")
            with pytest.raises(InvalidRequest) as raised:
                provider.launch(provider.build(asked))
            assert not isinstance(raised.value, NoSuchResource) and "resources.gce.reservation" in str(raised.value)
            there = replace(asked, claim=2, offering=replace(OFFERING, zone=f"{REGION}-b"))
            assert len(self.launch(provider, there)) == 1

        def test_a_reservation_is_for_machines_of_its_type(
            self, provider: Provider, order: OrderFactory, store: str
        ) -> None:
            asked = naming(order(store=store), reservation="held")
            other = replace(asked, offering=replace(OFFERING, machine="n1-standard-4", zone=f"{REGION}-b"))
            with pytest.raises(InvalidRequest, match="No available resources in specified reservations"):
                provider.launch(provider.build(other))
            assert isinstance(provider, SupportsPreflight)
            with pytest.raises(
                NoSuchResource, match="held is for n2-standard-2 in us-central1-b, and not for n1-standard-4"
            ):
                provider.preflight(provider.build(other))

        def test_only_what_is_reserved_is_offered(self, provider: Provider) -> None:
            resources = Resources(
                provider="gce", machine=(MACHINE,), region=PLACE, spot="prefer", gce=GceResources(reservation="held")
            )
            found = provider.offerings(resources)
            assert {each.zone for each in found if not each.spot} == {f"{REGION}-b"}
            assert len({each.zone for each in found if each.spot}) > 1

    def naming(order: LaunchOrder, **names: str) -> LaunchOrder:
        """An order that names these in `resources.gce`."""
        resources = order.spec.resources
        assert resources.gce is not None
        told = replace(resources, gce=replace(resources.gce, **names))
        return replace(order, spec=replace(order.spec, resources=told))

else:

    def test_gce_in_a_network_of_its_own() -> None:
        pytest_isolated(__file__)
