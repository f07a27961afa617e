"""The estimator `HuggingFace`: its image, and what machines without it get."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.sagemaker import HuggingFace
from stoker.sagemaker.arguments import BadArgument


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("STOKER_STORE", (tmp_path / "store").as_uri())
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)


HUGGING_FACE = {"entry_point": "train.py", "py_version": "py311", "pytorch_version": "2.5"}
EU = "763104351884.dkr.ecr.eu-west-1.amazonaws.com"


def image_of(estimator: HuggingFace) -> str:
    return str(estimator.job()["environment"]["container"]["image"])


def told(estimator: HuggingFace, provider: str = "ec2") -> list[str]:
    return list(estimator._translate(None, None, provider).warnings)


def test_hugging_face_has_its_own_image() -> None:
    """The one that `sagemaker.image_uris.retrieve("huggingface", …)` of the SDK names."""
    estimator = HuggingFace(**HUGGING_FACE, instance_type="ml.g5.xlarge", transformers_version="4.49")
    assert image_of(estimator) == "dlc/huggingface-pytorch:2.5-transformers4.49-py311"
    tag = "2.5.1-transformers4.49.0-gpu-py311-cu124-ubuntu22.04"
    assert estimator.training_image_uri("eu-west-1") == f"{EU}/huggingface-pytorch-training:{tag}"
    assert not any("transformers_version" in line for line in told(estimator)) and estimator.framework == "pytorch"
    old = {"py_version": "py38", "pytorch_version": None, "tensorflow_version": "2.6.3"}
    other = HuggingFace(
        **{**HUGGING_FACE, **old}, instance_type="ml.p3.2xlarge", transformers_version="4.17.0", model_dir=False
    )
    assert image_of(other) == "dlc/huggingface-tensorflow:2.6.3-transformers4.17.0-py38"
    assert other.framework == "tensorflow"


def test_hugging_face_without_transformers_or_gpus_is_on_pytorch_or_tensorflow() -> None:
    cpu = HuggingFace(**HUGGING_FACE, instance_type="ml.m5.large", transformers_version="4.49")
    assert image_of(cpu) == "dlc/pytorch:2.5-py311-cpu"
    assert (
        "transformers_version: not honoured: Hugging Face's images are for GPUs, and m5.large has the one of pytorch; "
        "put transformers into requirements.txt" in told(cpu)
    )
    assert image_of(HuggingFace(**HUGGING_FACE, instance_type="ml.g5.xlarge")) == "dlc/pytorch:2.5-py311"
    other = {"py_version": "py311", "entry_point": "train.py", "tensorflow_version": "2.18"}
    assert image_of(HuggingFace(**other, instance_type="ml.g5.xlarge")) == "dlc/tensorflow:2.18-py311"
    local = HuggingFace(**HUGGING_FACE, instance_type="local", transformers_version="4.49")
    assert "container" not in local.job()["environment"]
    assert any(
        line.startswith("transformers_version: not honoured: this computer's own Python")
        for line in told(local, "local")
    )


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (
            "9.9",
            r"^transformers_version: 'dlc/huggingface-pytorch:2\.5-transformers9\.9-py311' is none of Hugging Face's",
        ),
        ("new", r"^transformers_version: .* is no alias; .*image_uri names any other one$"),
    ],
)
def test_versions_that_hugging_face_has_no_image_of_are_refused(version: str, message: str) -> None:
    estimator = HuggingFace(**HUGGING_FACE, instance_type="ml.g5.xlarge", transformers_version=version)
    with pytest.raises(BadArgument, match=message):
        estimator.job()
