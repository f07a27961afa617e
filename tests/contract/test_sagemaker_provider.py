"""The sagemaker provider keeps its promises, on a SageMaker with a memory."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace

import pytest

from stoker.model.errors import AuthDenied, InvalidRequest, NotFound, QuotaExceeded, Throttled, Transient
from stoker.model.offerings import Offering
from stoker.model.resources import Resources, SagemakerResources
from stoker.model.spec import Spec
from stoker.providers import registry
from stoker.providers.base import LaunchOrder, Provider, SupportsEndReason
from stoker.providers.sagemaker import names
from stoker.testing.provider_contract import Connect, OrderFactory, ProviderContract
from tests.support.sagemaker import ACCOUNT, NO_CAPACITY, REGION, SageMakerCloud
from tests.support.servers import isolated, pytest_isolated

MACHINE = "ml.g5.xlarge"
OFFERING = Offering("sagemaker", MACHINE, "", False, REGION, 1.4, 1.4, "test", 4, 16 << 30, "A10G", 1)
ROLE = f"arn:aws:iam::{ACCOUNT}:role/stoker-training"

if isolated():

    class TestSageMaker(ProviderContract):
        @pytest.fixture(autouse=True)
        def strict(self, sagemaker: SageMakerCloud) -> Iterator[None]:
            sagemaker.move_by_itself()
            yield
            assert sagemaker.broken() == []

        @pytest.fixture
        def store(self) -> str:
            return f"s3://contract/{uuid.uuid4().hex}"

        @pytest.fixture
        def connect(self, sagemaker: SageMakerCloud) -> Connect:
            def connected(store: str) -> Provider:
                return registry.connect("sagemaker", registry.Context(store=store))

            return connected

        @pytest.fixture
        def order(self) -> OrderFactory:
            def made(*, store: str, claim: int = 1, nodes: int = 1) -> LaunchOrder:
                resources = Resources(
                    provider="sagemaker", machine=(MACHINE,), region=REGION, sagemaker=SagemakerResources(role=ROLE)
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
                    bundles={"cp311-x86_64": "0" * 64},
                )

            return made

        def test_ending_one_rank_leaves_the_others(self, provider: Provider, order: OrderFactory, store: str) -> None:
            """Not here: a training job is stopped as a whole. What is told of its hosts is true of each."""
            first, second = self.launch(provider, order(store=store, nodes=2))
            self.end(provider, first.id)
            assert provider.state([second.id]) == {second.id: "gone"}

        def test_a_lost_reply_launches_once(
            self, provider: Provider, order: OrderFactory, store: str, sagemaker: SageMakerCloud
        ) -> None:
            sagemaker.faults.lose_replies("CreateTrainingJob")
            with pytest.raises(Transient):
                self.launch(provider, order(store=store, nodes=2))
            made = self.launch(provider, order(store=store, nodes=2))
            assert len(made) == 2 and len(sagemaker.names()) == 1

        def test_a_job_with_a_long_name_is_known_by_its_tags(
            self, provider: Provider, connect: Connect, order: OrderFactory, store: str, sagemaker: SageMakerCloud
        ) -> None:
            job = "a-name-that-is-as-long-as-names-may-be-40-7f3k"
            (made,) = self.launch(provider, replace(order(store=store, claim=12), job=job))
            assert len(sagemaker.names()[0]) <= 63
            elsewhere = connect(store)
            for _ in range(2):
                (listed,) = elsewhere.list_instances()
                assert (listed.id, listed.job, listed.claim) == (made.id, job, 12)
            # Asked once: it does not change.
            assert sagemaker.calls()["ListTags"] == 1

        def test_a_training_job_that_only_looks_like_ours_is_not(
            self, provider: Provider, order: OrderFactory, store: str, sagemaker: SageMakerCloud
        ) -> None:
            (asked,) = provider.build(order(store=store))
            sagemaker.client().create_training_job(
                **{**asked.params, "TrainingJobName": f"x-{names.prefix(store)}a-1x1"}
            )
            assert provider.list_instances() == ()

        def test_errors_are_mapped_by_code(
            self, provider: Provider, order: OrderFactory, store: str, sagemaker: SageMakerCloud
        ) -> None:
            faults = sagemaker.faults
            for claim, (fault, kind) in enumerate(
                (
                    (lambda: faults.limit(MACHINE), QuotaExceeded),
                    (lambda: faults.throttle("CreateTrainingJob"), Throttled),
                    (lambda: faults.unauthorized("CreateTrainingJob"), AuthDenied),
                    (lambda: faults.internal_error("CreateTrainingJob"), Transient),
                ),
                20,
            ):
                number = fault()
                with pytest.raises(kind):
                    self.launch(provider, order(store=store, claim=claim))
                faults.clear(number)
            spec = replace(order(store=store), offering=replace(OFFERING, machine="ml.x9.large"))
            with pytest.raises(InvalidRequest):
                self.launch(provider, spec)
            sagemaker.broken(reset=True)

        def test_no_capacity_is_told_late(
            self, provider: Provider, order: OrderFactory, store: str, sagemaker: SageMakerCloud
        ) -> None:
            assert isinstance(provider, SupportsEndReason)
            sagemaker.account.on_created = None
            (made,) = self.launch(provider, order(store=store))
            assert provider.state([made.id])[made.id] == "pending" and provider.end_reason(made.id) is None
            sagemaker.run_dry(sagemaker.names()[0])
            why = provider.end_reason(made.id)
            assert why is not None and why.dry and why.reason == NO_CAPACITY
            assert provider.state([made.id])[made.id] == "gone"

        def test_a_failed_boot_is_told_in_its_own_words(
            self, provider: Provider, order: OrderFactory, store: str, sagemaker: SageMakerCloud
        ) -> None:
            assert isinstance(provider, SupportsEndReason)
            (made,) = self.launch(provider, order(store=store))
            sagemaker.fail(sagemaker.names()[0], "AlgorithmError: boot failed: no Python", exit=1)
            why = provider.end_reason(made.id)
            assert why is not None and not why.reclaimed
            assert why.reason == "boot failed: no Python, exit code: 1"

        def test_sagemaker_s_own_trouble_is_nobody_s_fault(
            self, provider: Provider, order: OrderFactory, store: str, sagemaker: SageMakerCloud
        ) -> None:
            assert isinstance(provider, SupportsEndReason)
            (made,) = self.launch(provider, order(store=store))
            sagemaker.fail(sagemaker.names()[0], "InternalServerError: We encountered an internal error.")
            assert provider.end_reason(made.id) is None

        def test_pages_of_the_list(self, provider: Provider, order: OrderFactory, store: str) -> None:
            for claim in range(1, 103):
                self.launch(provider, order(store=store, claim=claim))
            assert len(provider.list_instances()) == 102

        def test_what_is_interrupted_is_not_gone(
            self, provider: Provider, order: OrderFactory, store: str, sagemaker: SageMakerCloud
        ) -> None:
            spot = replace(order(store=store), offering=replace(OFFERING, spot=True), max_life_s=3600.0)
            (made,) = self.launch(provider, spot)
            sagemaker.interrupt(sagemaker.names()[0])
            assert provider.state([made.id])[made.id] == "pending"
            assert [each.id for each in provider.list_instances()] == [made.id]

        def test_a_role_by_its_name_needs_the_account(
            self, provider: Provider, order: OrderFactory, store: str
        ) -> None:
            named = order(store=store)
            ours = SagemakerResources(role="trainer")
            spec = replace(named.spec, resources=replace(named.spec.resources, sagemaker=ours))
            (asked,) = provider.build(replace(named, spec=spec))
            assert asked.params["RoleArn"] == "arn:aws:iam::(this account):role/trainer"

        def test_interrupting_what_is_gone(self, provider: Provider) -> None:
            with pytest.raises(NotFound):
                provider.interrupt("never-there", 1.0)  # type: ignore[attr-defined]

else:

    def test_sagemaker_in_a_network_of_its_own() -> None:
        pytest_isolated(__file__)


def test_names_tell_whose_they_are() -> None:
    name = names.training_job("s3://b/p", "spirals-7f3k", 3, 4)
    assert name.startswith(names.prefix("s3://b/p")) and name.endswith("-spirals-7f3k-3x4")
    assert names.read(name) == names.TrainingJobName("spirals-7f3k", 3, 4)
    assert names.training_job_of(names.host(name, 1)) == name and names.host(name, 1).endswith(".algo-2")
    long = names.training_job("s3://b/p", "x" * 45, 1234, 16)
    assert len(long) <= 63 and names.read(long) == names.TrainingJobName(None, 1234, 16)
    assert long != names.training_job("s3://b/p", "x" * 44 + "y", 1234, 16)
    assert names.read("stoker-0123456789-x") is None and names.read("my-job") is None
