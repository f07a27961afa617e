"""What is asked of SageMaker: built purely, and never by surprise. `STOKER_GOLDEN=1` writes them anew."""

from __future__ import annotations

import base64
import json
import os
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.jobfile.provider_fields import check_honoured
from stoker.model import codec
from stoker.model.errors import QuotaExceeded, SpecError, UserError
from stoker.model.offerings import Offering
from stoker.model.resources import Resources, SagemakerResources
from stoker.model.spec import Container, Environment, Input, Limits, Retry, Spec
from stoker.providers import price_book
from stoker.providers.base import LaunchOrder
from stoker.providers.sagemaker import catalog, offers, prices, request
from stoker.providers.sagemaker.capabilities import CAPABILITIES
from stoker.providers.sagemaker.errors import mapped

GOLDEN = Path(__file__).parent / "golden"
C5 = Offering("sagemaker", "ml.c5.xlarge", "", False, "eu-west-1", 0.2, 0.2, "test", 4, 8 << 30)
P4D = Offering("sagemaker", "ml.p4d.24xlarge", "", True, "us-east-1", None, 37.0, "", 96, 1152 << 30, "A100", 8)


def order(
    offering: Offering = C5, nodes: int = 1, ours: SagemakerResources | None = None, **fields: Any
) -> LaunchOrder:
    resources = Resources(provider="sagemaker", sagemaker=ours, **fields.pop("resources", {}))
    spec = Spec(name="gpt", run="python train.py", nodes=nodes, resources=resources, **fields)
    return LaunchOrder(
        job="gpt-7f3k",
        name="gpt",
        claim=4,
        nodes=nodes,
        attempt=2,
        store="s3://bucket/team",
        spec=spec,
        submitter="jane doe (laptop)",
        offering=offering,
        max_life_s=90000.0,
        bundles={"cp310-x86_64": "c" * 64, "cp311-x86_64": "d" * 64},
    )


def params(found: LaunchOrder) -> dict[str, Any]:
    (built,) = request.build(found)
    assert (built.service, built.operation) == ("sagemaker", "CreateTrainingJob")
    return built.params


WHOLE = SagemakerResources(
    role="arn:aws:iam::123456789012:role/trainer",
    subnets=("subnet-1", "subnet-2"),
    security_groups=("sg-1",),
    keep_alive_s=1800.0,
    kms_key="1234abcd-12ab-34cd-56ef-1234567890ab",
    encrypt_traffic=True,
    overrides={"ResourceConfig": {"VolumeSizeInGB": 500}, "Tags": [{"Key": "cost", "Value": "42"}]},
)
ORDERS = {
    "one-on-demand": order(),
    "gang-on-spot": order(
        P4D,
        nodes=2,
        tags={"project": "vision"},
        limits=Limits(max_wait_s=7200.0),
        environment=Environment(container=Container("dlc/pytorch:2.5-py311")),
        metrics={"loss": "loss=([0-9.]+)", "long": "x" * 501},
        params={"lr": 0.1, "flag": True},
    ),
    "script": order(
        P4D,
        nodes=2,
        environment=Environment(container=Container("dlc/pytorch:2.5-py311"), contract="sagemaker"),
        params={"lr": 0.1, "name": "a b", "flag": True, "layers": "json:[64, 64]"},
        inputs={
            "train": Input("s3://data/train/"),
            "shards": Input("s3://data/shards/", shard=True),
            "images": Input("s3://data/images/", mode="mount"),
            "mine": Input(f"s3://bucket/team/inputs/{'e' * 64}"),
            "list": Input("s3://bucket/team/inputs/abc/list.csv"),
            "piped": Input("s3://data/piped/", mode="stream"),
        },
    ),
    "everything": order(
        ours=WHOLE,
        environment=Environment(container=Container("registry.example/train:1")),
        resources={"disk_bytes": 200_000_000_000},
    ),
}


@pytest.mark.parametrize("name", ORDERS)
def test_the_requests_are_the_golden_ones(name: str) -> None:
    built = [codec.dump(each) for each in request.build(ORDERS[name])]
    algorithm = built[0]["params"]["AlgorithmSpecification"]
    # Its own tests read it; here it would only hide what is asked of SageMaker.
    algorithm["ContainerArguments"] = "…"
    path = GOLDEN / f"sagemaker-{name}.json"
    if os.environ.get("STOKER_GOLDEN"):
        path.write_text(json.dumps(built, indent=2) + "\n")
    assert built == json.loads(path.read_text())


@pytest.mark.parametrize("name", ORDERS)
def test_the_model_of_the_service_takes_them(name: str) -> None:
    shapes = pytest.importorskip("tests.support.sagemaker.shapes")
    from tests.support.sagemaker.asking import refusal

    asked = params(ORDERS[name]) | {"RoleArn": "arn:aws:iam::123456789012:role/trainer"}
    assert shapes.check("CreateTrainingJob", asked) == []
    assert refusal(asked) is None


def test_building_is_pure_and_tells_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    first = request.build(ORDERS["gang-on-spot"])
    monkeypatch.setenv("AWS_REGION", "mars-1")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "do-not-tell")
    assert request.build(ORDERS["gang-on-spot"]) == first
    arguments = first[0].params["AlgorithmSpecification"]["ContainerArguments"]
    program = zlib.decompress(base64.b64decode("".join(arguments[2:]))).decode()
    assert "do-not-tell" not in program
    assert '"job": "gpt-7f3k"' in program and '"claim": 4' in program
    compile(program, "bootstrap", "exec")
    with pytest.raises(ValueError, match="AWS_SECRET_ACCESS_KEY"):
        request.build(replace(order(), environ={"AWS_SECRET_ACCESS_KEY": "x"}))


def test_a_claim_is_one_name_and_another_claim_another() -> None:
    names = {
        params(replace(order(), claim=claim, store=store))["TrainingJobName"] for claim in (1, 2) for store in "ab"
    }
    assert len(names) == 4
    assert params(order())["TrainingJobName"] == params(replace(order(), attempt=7))["TrainingJobName"]


def test_spot_waits_as_long_as_the_job_may() -> None:
    spot = replace(C5, spot=True)
    asked = params(order(spot, limits=Limits(max_wait_s=600.0)))
    assert asked["EnableManagedSpotTraining"] is True
    assert asked["StoppingCondition"] == {"MaxRuntimeInSeconds": 90000, "MaxWaitTimeInSeconds": 90600}
    assert params(order(spot))["StoppingCondition"]["MaxWaitTimeInSeconds"] == 93600
    assert "MaxWaitTimeInSeconds" not in params(order())["StoppingCondition"]
    longest = params(replace(order(), max_life_s=None))["StoppingCondition"]["MaxRuntimeInSeconds"]
    # What every account has, until it asks for more.
    assert longest == 5 * 86400
    assert params(replace(order(), max_life_s=1e9))["StoppingCondition"]["MaxRuntimeInSeconds"] == 28 * 86400


def test_the_image_is_the_jobs_or_awss_own() -> None:
    assert params(order())["AlgorithmSpecification"]["TrainingImage"].endswith("pytorch-training:2.5-cpu-py311")
    assert "us-east-1" in params(order(P4D))["AlgorithmSpecification"]["TrainingImage"]


@pytest.mark.parametrize(
    ("ours", "fields", "told"),
    [
        (SagemakerResources(subnets=("subnet-1",)), {}, r"^resources\.sagemaker\.security_groups: "),
        (SagemakerResources(security_groups=("sg-1",)), {}, r"^resources\.sagemaker\.subnets: "),
        (SagemakerResources(role="a role"), {}, r"^resources\.sagemaker\.role: 'a role'"),
        (SagemakerResources(keep_alive_s=60.0), {"resources": {"spot": "only"}}, r"keep_alive: .* no spot"),
        (SagemakerResources(keep_alive_s=86400.0), {}, r"keep_alive: .* 6h at most"),
        (SagemakerResources(kms_key="alias/mine"), {}, r"^resources\.sagemaker\.kms_key: alias/mine is an alias"),
        (SagemakerResources(kms_key="arn:aws:kms:us-east-1:1:alias/x"), {}, r"kms_key: .* the key's id or ARN"),
        (
            SagemakerResources(kms_key="alias/mine"),
            {"resources": {"machine": ("ml.g5.xlarge", "ml.c5.xlarge")}},
            r"kms_key: alias/mine is an alias",
        ),
        (SagemakerResources(overrides={"TrainingJobName": "x"}), {}, r"overrides\.TrainingJobName: is Stoker's own"),
        (SagemakerResources(overrides={"RetryStrategy": {}}), {}, r"overrides\.RetryStrategy: is Stoker's own"),
        (SagemakerResources(overrides={"EnableNetworkIsolation": True}), {}, "EnableNetworkIsolation: is Stoker's"),
        (SagemakerResources(overrides={"ResourceConfig": {"InstanceType": "x"}}), {}, "InstanceType: is Stoker's"),
        (SagemakerResources(overrides={"Colour": 1}), {}, r"overrides\.Colour: CreateTrainingJob has no such field"),
        (SagemakerResources(overrides={"Tags": [{"Key": "stoker:job", "Value": "x"}]}), {}, "stoker:job is Stoker's"),
        (None, {"tags": {"stoker:x": "y"}}, r"^tags\.stoker:x: "),
        (None, {"tags": {"a": "what?"}}, r"^tags\.a: SageMaker takes letters"),
        (None, {"tags": {"aws:a": "b"}}, r"^tags\.aws:a: "),
    ],
)
def test_what_cannot_be_is_refused_by_name(ours: SagemakerResources | None, fields: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        request.check(order(ours=ours, **fields).spec)
    request.check(order(ours=WHOLE).spec)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (
            {"environment": Environment(container=Container("x", run={"shm_size": "16g"}))},
            r"environment\.container\.run",
        ),
        (
            {"environment": Environment(container=Container("x", entrypoint=True))},
            r"environment\.container\.entrypoint",
        ),
        ({"retry": Retry(hold_on_failure_s=60.0)}, r"retry\.hold_on_failure"),
        ({"resources": {"image": "ami-1"}}, r"resources\.image"),
        ({"resources": {"zones": ("us-east-1a",)}}, r"resources\.zones"),
    ],
)
def test_what_sagemaker_cannot_honour_is_refused_by_name(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(SpecError, match=told):
        check_honoured(order(**fields).spec, "sagemaker", CAPABILITIES)


def test_no_key_for_disks_that_a_machine_has_of_its_own() -> None:
    ours = SagemakerResources(kms_key="alias/mine")
    asked = params(order(P4D, ours=ours, resources={"machine": (P4D.machine,)}))
    assert "VolumeKmsKeyId" not in asked["ResourceConfig"] and asked["OutputDataConfig"]["KmsKeyId"] == "alias/mine"
    request.check(order(P4D, ours=ours, resources={"machine": (P4D.machine,)}).spec)
    with_key = params(order(ours=SagemakerResources(kms_key="1234abcd")))
    assert with_key["ResourceConfig"]["VolumeKmsKeyId"] == "1234abcd"


def test_a_machine_whose_own_disk_is_too_small_is_left_out() -> None:
    wanted = Resources(machine=("ml.g5.xlarge", "ml.c5.xlarge"), region="us-east-1", disk_bytes=500_000_000_000)
    assert {each.machine for each in offers.offered(wanted)} == {"ml.c5.xlarge"}
    told = "resources.disk: ml.g5.xlarge has 250 GB of its own and takes no other disk; 500 GB are asked for"
    assert told in offers.unchecked(wanted)
    alone = replace(wanted, machine=("ml.g5.xlarge",))
    assert offers.offered(alone) == () and offers.why_none(alone) == told
    enough = replace(alone, disk_bytes=250_000_000_000)
    assert offers.offered(enough) and offers.unchecked(enough) == ()


@pytest.mark.parametrize(
    ("quota", "field"),
    [
        ("Longest run time for a training job' is 432000 Seconds", "limits.max_runtime"),
        ("Maximum keep alive period' is 3600 Seconds", "resources.sagemaker.keep_alive"),
        ("ml.g5.xlarge for training warm pool usage' is 0 Instances", "resources.sagemaker.keep_alive"),
        ("ml.g5.xlarge for training job usage' is 0 Instances", "ml.g5.xlarge"),
    ],
)
def test_a_quota_is_told_by_the_field_that_meets_it(quota: str, field: str) -> None:
    answer = {"Error": {"Code": "ResourceLimitExceeded", "Message": f"The account-level service limit '{quota}"}}
    told = mapped("ml.g5.xlarge", answer)
    assert isinstance(told, QuotaExceeded) and str(told).startswith(f"{field}: The account-level")


# ── Machines and prices ───────────────────────────────────────────────────────────────────────────────────────────────


def test_machines_are_ec2s_as_far_as_sagemaker_has_them() -> None:
    a100 = catalog.table()["ml.p4d.24xlarge"]
    assert (a100.gpu, a100.gpus) == ("A100-40GB", 8)
    assert "ml.u7i-12tb.224xlarge" not in catalog.table()
    assert catalog.facts("ml.p9.48xlarge").cpus is None
    with pytest.raises(UserError, match=r"no machine type 'p4d.24xlarge'; choose one of: .*ml\.p4d\.24xlarge"):
        catalog.fitting(Resources(machine=("p4d.24xlarge",)))


def test_unknown_prices_stay_unknown_until_they_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path))
    wanted = Resources(machine=("ml.g5.xlarge",), region="us-east-1")
    monkeypatch.setattr(price_book.PriceBook, "packaged", lambda _book: {})
    assert [each.price for each in offers.offered(wanted)] == [None, None]
    prices.refresh(Pricing(), ["us-east-1"])  # type: ignore[arg-type]
    on_demand, spot = offers.offered(wanted)
    assert (on_demand.price, on_demand.spot) == (1.41, False) and "SageMaker" in on_demand.price_source
    # Nobody tells a price for managed spot.
    assert (spot.price, spot.on_demand_price, spot.spot) == (None, 1.41, True)


class Pricing:
    """AWS's price list, two pages of it."""

    def get_products(self, ServiceCode: str, Filters: list[dict[str, str]], NextToken: str = "") -> dict[str, Any]:
        assert ServiceCode == "AmazonSageMaker"
        assert {each["Field"]: each["Value"] for each in Filters}["component"] == "Training"
        if not NextToken:
            return {"PriceList": [self._product("ml.g5.xlarge", "Training", "1.41")], "NextToken": "2"}
        hosting = self._product("ml.g5.2xlarge", "Hosting", "1.52")
        return {"PriceList": [hosting, self._product("ml.g5.4xlarge", "Training", "0.00")]}

    @staticmethod
    def _product(name: str, component: str, usd: str) -> str:
        dimension = {"unit": "Hrs", "pricePerUnit": {"USD": usd}}
        terms = {"OnDemand": {"x": {"priceDimensions": {"y": dimension}}}}
        attributes = {"instanceName": name, "component": component, "regionCode": "us-east-1"}
        return json.dumps({"product": {"attributes": attributes}, "terms": terms})
