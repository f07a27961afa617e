"""Accelerators that are not NVIDIA's: how they are asked for, and the images that have drivers for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from test_ec2_request import C7I, order, run_params

from stoker.jobfile.value_forms import read_gpus
from stoker.model.errors import UserError
from stoker.model.resources import Gpus, Resources
from stoker.providers.ec2 import catalog, images, offers, request

NEURON = "resolve:ssm:/aws/service/neuron/dlami/multi-framework/ubuntu-24.04/latest/image_id"


def offered(machine: tuple[str, ...] = (), **resources: Any) -> list[tuple[str, str | None, int]]:
    found = offers.offline(Resources(provider="ec2", region="us-east-1", machine=machine, **resources))
    return [(each.machine, each.gpu, each.gpus) for each in found if not each.spot]


@pytest.mark.parametrize(
    ("written", "machine", "kind", "count"),
    [
        ("Inferentia2:1", "inf2.xlarge", "Inferentia2", 1),
        ("inferentia2:6", "inf2.24xlarge", "Inferentia2", 6),
        ("Trainium:16", "trn1.32xlarge", "Trainium", 16),
        ("Trainium:1", "trn1.2xlarge", "Trainium", 1),
        ("Trainium2:16", "trn2.48xlarge", "Trainium2", 16),
        ("Gaudi:8", "dl1.24xlarge", "Gaudi", 8),
        ("Habana:8", "dl1.24xlarge", "Gaudi", 8),
    ],
)
def test_an_accelerator_is_asked_for_by_its_name(written: str, machine: str, kind: str, count: int) -> None:
    asked = read_gpus(written)
    assert (machine, kind, count) in offered(gpus=asked)


def test_gpus_without_a_name_run_cuda() -> None:
    for count in (1, 8, 16):
        for machine, _, _ in offered(gpus=Gpus("", count)):
            assert catalog.facts(machine).maker == "nvidia"


def test_what_ec2_describes() -> None:
    """As DescribeInstanceTypes answers: Gaudi is a GPU there, and Inferentia is listed twice."""
    common = {
        "VCpuInfo": {"DefaultVCpus": 96},
        "MemoryInfo": {"SizeInMiB": 786432},
        "ProcessorInfo": {"SupportedArchitectures": ["x86_64"]},
    }
    memory = {"MemoryInfo": {"SizeInMiB": 32768}}
    gaudi = {"Gpus": [{"Count": 8, "Manufacturer": "Habana", "Name": "Gaudi HL-205", **memory}]}
    radeon = {"Gpus": [{"Count": 1, "Manufacturer": "AMD", "Name": "Radeon Pro V520", **memory}]}
    neuron = {"NeuronDevices": [{"Count": 16, "Name": "Inferentia", **memory}]}
    inference = {"Accelerators": [{"Count": 16, "Manufacturer": "AWS", "Name": "Inferentia", **memory}]}
    qualcomm = {"Accelerators": [{"Count": 8, "Manufacturer": "Qualcomm", "Name": "Qualcomm AI100", **memory}]}
    for name, infos, kind, count, maker in (
        ("dl1.24xlarge", {"GpuInfo": gaudi}, "Gaudi", 8, "habana"),
        ("g4ad.xlarge", {"GpuInfo": radeon}, "Radeon Pro V520", 1, "amd"),
        ("inf1.24xlarge", {"NeuronInfo": neuron, "InferenceAcceleratorInfo": inference}, "Inferentia", 16, "aws"),
        ("dl2q.24xlarge", {"InferenceAcceleratorInfo": qualcomm}, "Qualcomm AI100", 8, "qualcomm"),
    ):
        found = catalog.described({"InstanceType": name, **common, **infos})
        assert (found.gpu, found.gpus, found.maker) == (kind, count, maker)
        known = catalog.facts(name)
        assert (known.gpu, known.gpus, known.maker) == (kind, count, maker)


@pytest.mark.parametrize(
    ("machine", "image"),
    [
        # "Ubuntu 24.04: Inf2, Trn1, Trn1n, Trn2, Trn3: Deep Learning AMI Neuron (Ubuntu 24.04)", whose parameter is
        # /aws/service/neuron/dlami/multi-framework/ubuntu-24.04/latest/image_id ("Neuron DLAMI User Guide")
        ("inf2.xlarge", NEURON),
        ("trn1.32xlarge", NEURON),
        ("trn1n.32xlarge", NEURON),
        ("trn2.48xlarge", NEURON),
        ("trn2u.48xlarge", NEURON),
        (
            "g5.xlarge",
            "resolve:ssm:/aws/service/deeplearning/ami/x86_64/oss-nvidia-driver-gpu-pytorch-2.9-ubuntu-24.04",
        ),
    ],
)
def test_the_default_image_has_the_drivers(machine: str, image: str) -> None:
    facts = catalog.facts(machine)
    asked = order(replace(C7I, machine=machine, gpu=facts.gpu, gpus=facts.gpus))
    assert run_params(asked)["ImageId"].startswith(image)


def test_a_type_that_is_newer_than_the_table_gets_its_image_by_its_accelerator() -> None:
    newer = replace(C7I, machine="trn9.48xlarge", gpu="Trainium9", gpus=16)
    assert run_params(order(newer))["ImageId"] == NEURON


def test_gaudi_gets_amazons_habana_image() -> None:
    """AWS publishes no parameter for "Deep Learning AMI Habana PyTorch … SynapseAI … (Ubuntu …)"."""
    look_up, _ = request.build(order(replace(C7I, machine="dl1.24xlarge", gpu="Gaudi", gpus=8)))
    assert look_up.operation == "DescribeImages" and look_up.params["Owners"] == ["amazon"]
    assert {"Name": "name", "Values": ["Deep Learning AMI Habana PyTorch*(Ubuntu*"]} in look_up.params["Filters"]


@pytest.mark.parametrize(
    ("resources", "said"),
    [
        ({"machine": ("g4ad.xlarge",)}, "resources.image: g4ad.xlarge has Radeon Pro V520, and no default image has"),
        ({"gpus": Gpus("V520", 1)}, "resources.image: g4ad.xlarge has Radeon Pro V520, and no default image has"),
        ({"machine": ("dl2q.24xlarge",)}, "resources.image: dl2q.24xlarge has Qualcomm AI100, and no default image"),
        # "Neuron DLAMIs released with version 2.26.1 no longer support Inf1 instance types"
        ({"gpus": Gpus("Inferentia", 4)}, "resources.image: inf1.6xlarge has Inferentia, and no default image has"),
        # "supported_ec2_instances: G4dn, G5, G6, Gr6, Gr6f, G6e, G6f, P4, P4de, P5, P5e, P5en, P6-B200" (OSS Nvidia
        # Driver AMI GPU PyTorch)
        ({"gpus": Gpus("V100", 1)}, "resources.image: p3.2xlarge has V100-16GB, and no default image has drivers"),
        (
            {"machine": ("p3dn.24xlarge",), "image": "dlami/pytorch-2.8"},
            "dlami/pytorch-2.8 has no drivers for it; set resources.image to an image that has them",
        ),
        (
            {"machine": ("trn1.2xlarge",), "image": "dlami/pytorch"},
            "trn1.2xlarge has Trainium, and dlami/pytorch has no drivers for it; set resources.image to dlami/neuron",
        ),
        (
            {"gpus": Gpus("A100", 8), "image": "dlami/neuron"},
            "and dlami/neuron has no drivers for it; set resources.image to dlami/pytorch",
        ),
        ({"gpus": Gpus("Gaudi", 16)}, "resources.gpus: EC2 has no machine with 16 of them; at most 8"),
        ({"gpus": Gpus("Gaudi3", 8)}, "resources.gpus: EC2 has no Gaudi3; choose one of: "),
    ],
)
def test_what_no_image_serves_is_refused_before(resources: dict[str, Any], said: str) -> None:
    asked = Resources(provider="ec2", region="us-east-1", **resources)
    assert not offers.offline(asked)
    assert said in offers.why_none(asked) and "\n" not in offers.why_none(asked)


def test_an_image_of_ones_own_serves_everything() -> None:
    for machine in ("p3.2xlarge", "g4ad.xlarge", "dl2q.24xlarge", "inf1.xlarge", "trn1.2xlarge", "dl1.24xlarge"):
        for image in ("my-image-*", "ubuntu/22.04", "dlami-neuron-ours", "self/dlami-neuron-ours"):
            assert offered((machine,), image=image), (machine, image)
    assert not offered(("trn1.2xlarge",), image="dlami") and offered(("g5.xlarge",), image="dlami")


def test_the_images_of_neuron_by_name() -> None:
    base = "resolve:ssm:/aws/service/neuron/dlami"
    for alias, part in (
        ("dlami/neuron-pytorch-2.9", "pytorch-2.9"),
        ("dlami/neuron-jax-0.7", "jax-0.7"),
        ("dlami/neuron-base", "base"),
    ):
        found = images.find(alias, "x86_64")
        assert (found.id, found.root) == (f"{base}/{part}/ubuntu-24.04/latest/image_id", "/dev/sda1")
    with pytest.raises(UserError, match="there is no dlami/neuron-mxnet; known are"):
        images.find("dlami/neuron-mxnet", "x86_64")


def test_the_python_of_the_default_image() -> None:
    assert images.python_of(None, 16, "Trainium") == (3, 12)
    assert images.python_of(None, 8, "Gaudi") is None
    assert images.python_of(None, 8, "A100-40GB") == (3, 12) == images.python_of(None, 0)
