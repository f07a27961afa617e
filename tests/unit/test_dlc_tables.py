"""AWS's Deep Learning Containers by alias: Hugging Face's real tags, accounts of regions, and what no table knows."""

from __future__ import annotations

import re

import pytest
from test_sagemaker_request import order, params

from stoker.model import dlc_images, dlc_tables
from stoker.model.errors import UserError
from stoker.model.resources import Gpus, Resources
from stoker.model.spec import Container, Environment
from stoker.providers.registry import Context
from stoker.providers.sagemaker import catalog
from stoker.providers.sagemaker.provider import SageMakerProvider

EU = "763104351884.dkr.ecr.eu-west-1.amazonaws.com"
ISO = "886529160074.dkr.ecr.us-iso-east-1.c2s.ic.gov"


@pytest.mark.parametrize(
    ("alias", "image"),
    [
        # As `sagemaker.image_uris.retrieve("huggingface", …)` of the SDK's 2.257 names it.
        (
            "dlc/huggingface-pytorch:2.5.1-transformers4.49.0-py311",
            f"{EU}/huggingface-pytorch-training:2.5.1-transformers4.49.0-gpu-py311-cu124-ubuntu22.04",
        ),
        (
            "dlc/huggingface-pytorch:2.5-transformers4.49-py311-gpu",
            f"{EU}/huggingface-pytorch-training:2.5.1-transformers4.49.0-gpu-py311-cu124-ubuntu22.04",
        ),
        # Without transformers: the newest of that framework.
        (
            "dlc/huggingface-pytorch:2.3-py311",
            f"{EU}/huggingface-pytorch-training:2.3.0-transformers4.48.0-gpu-py311-cu121-ubuntu20.04",
        ),
        (
            "dlc/huggingface-tensorflow:2.6-py38@us-iso-east-1",
            f"{ISO}/huggingface-tensorflow-training:2.6.3-transformers4.17.0-gpu-py38-cu112-ubuntu20.04",
        ),
        (
            "dlc/pytorch:2.8-py312@ap-southeast-6",
            "633930458069.dkr.ecr.ap-southeast-6.amazonaws.com/pytorch-training:2.8-gpu-py312",
        ),
        # Of AWS's page about regions: the SDK's 2.257.7 lacks it.
        (
            "dlc/pytorch:2.8-py312@me-west-1",
            "124382933778.dkr.ecr.me-west-1.amazonaws.com/pytorch-training:2.8-gpu-py312",
        ),
        (
            "dlc/pytorch:2.5-py311@us-isof-south-1",
            "454834333376.dkr.ecr.us-isof-south-1.csp.hci.ic.gov/pytorch-training:2.5-gpu-py311",
        ),
    ],
)
def test_an_alias_is_the_image_that_aws_publishes(alias: str, image: str) -> None:
    assert dlc_images.problem(alias) is None
    assert dlc_images.resolve(alias, "eu-west-1") == image


@pytest.mark.parametrize(
    ("alias", "told"),
    [
        ("dlc/huggingface-pytorch:2.5-transformers9.9-py311", "newest are .*2.8.0-transformers4.56.2-py312; or give"),
        ("dlc/huggingface-pytorch:2.5.1-transformers4.49.0-py310", "none of Hugging Face's images as of 20"),
        ("dlc/huggingface-pytorch:2.5-transformers4.4-py311", "none of Hugging Face's"),
        ("dlc/huggingface-pytorch:2.5-py311-cpu", "none of Hugging Face's"),
        ("dlc/pytorch:2.5-transformers4.49.0-py311", "write dlc/huggingface-pytorch"),
        ("dlc/pytorch:2.5-py311@eusc-de-east-1", "'eusc-de-east-1' is not known .*give the image in full, as ACCOUNT"),
    ],
)
def test_what_the_table_does_not_know_is_told_with_the_way_out(alias: str, told: str) -> None:
    assert re.search(told, dlc_images.problem(alias) or "")


def test_every_alias_of_the_table_has_its_own_tag() -> None:
    seen = set()
    for framework, version, transformers, python in dlc_tables.HUGGINGFACE:
        alias = f"dlc/huggingface-{framework}:{version}-transformers{transformers}-{python}"
        assert dlc_images.problem(alias) is None
        seen.add(dlc_images.resolve(alias, "us-east-1"))
    assert len(seen) == len(dlc_tables.HUGGINGFACE) and dlc_tables.DATE and dlc_tables.SOURCE


@pytest.mark.parametrize("region", ["eusc-de-east-1", "us-iso-west-1", "us-isob-west-1", "eu-isoe-west-1"])
def test_regions_of_which_aws_names_no_account_are_told(region: str) -> None:
    """https://aws.github.io/deep-learning-containers/reference/region_availability/ names none, nor does the SDK."""
    told = dlc_images.problem(f"dlc/pytorch:2.5-py311@{region}") or ""
    assert f"in {region!r} is not known" in told and "give the image in full" in told


def test_a_region_without_an_account_is_told_before_a_launch() -> None:
    """The images of us-east-1 are no way out: another partition of AWS cannot reach them."""
    provider = SageMakerProvider(Context(store="s3://bucket/team", offline=True))
    there = {"region": "eusc-de-east-1"}
    with pytest.raises(UserError, match=r"^environment\.container\.image: .*'eusc-de-east-1'.*give the image in full"):
        provider.check(order(resources=there).spec)
    full = Environment(container=Container("1.dkr.ecr.eusc-de-east-1.amazonaws.eu/pytorch-training:2.5"))
    provider.check(order(resources=there, environment=full).spec)
    provider.check(order(resources={"region": "ap-southeast-6"}).spec)


def test_hugging_faces_image_is_in_the_request() -> None:
    wanted = Environment(container=Container("dlc/huggingface-pytorch:2.5-py311"))
    image = params(order(environment=wanted))["AlgorithmSpecification"]["TrainingImage"]
    assert image == f"{EU}/huggingface-pytorch-training:2.5.1-transformers4.49.0-gpu-py311-cu124-ubuntu22.04"


def test_types_that_ec2_sells_no_more_are_known_and_chosen_only_by_name() -> None:
    from botocore.loaders import Loader

    known = Loader().load_service_model("sagemaker", "service-2")["shapes"]["TrainingInstanceType"]["enum"]
    assert set(known) == set(catalog.table()), "python scripts/write_sagemaker_tables.py"
    (volta,) = catalog.fitting(Resources(machine=("ml.p3.2xlarge",)))
    assert (volta.gpu, volta.gpus, volta.cpus, volta.gpu_memory_bytes) == ("V100-16GB", 1, 8, 16 << 30)
    named = {each.name for each in catalog.fitting(Resources(gpus=Gpus("V100-16GB", 1)))}
    assert "ml.p3.2xlarge" in named
    anything = {each.name for each in catalog.fitting(Resources(gpus=Gpus("", 1)))}
    assert anything and not any(name.startswith(("ml.p2.", "ml.p3.")) for name in anything)
    assert not any(each.name.startswith(("ml.c4.", "ml.m4.")) for each in catalog.fitting(Resources(cpus=4)))
