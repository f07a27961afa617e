"""`framework_version` and `py_version`: the images there are, the Python in them, and what is told at submission."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from stoker.jobfile import Job
from stoker.model import dlc_images
from stoker.model.errors import UserError
from stoker.providers.sagemaker import request
from stoker.sagemaker import PyTorch, TensorFlow
from stoker.sagemaker.arguments import BadArgument
from stoker.sagemaker.image_python import check_image, check_packages, describe_python
from stoker.submit.local_environment import unknown_image


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STOKER_STORE", (tmp_path / "store").as_uri())
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def image(kind: type[PyTorch] | type[TensorFlow], version: str, python: str) -> str:
    made: Any = kind(
        entry_point="train.py", instance_type="ml.p3.2xlarge", framework_version=version, py_version=python
    )
    return str(made.job()["environment"]["container"]["image"])


def test_an_image_older_than_the_agent_is_used_as_it_is() -> None:
    """`py_version='py39'` for 1.13.1 is what SageMaker's own documentation has."""
    assert image(PyTorch, "1.13.1", "py39") == "dlc/pytorch:1.13.1-py39"
    assert image(PyTorch, "1.13", "py39") == "dlc/pytorch:1.13.1-py39"
    resolved = dlc_images.resolve("dlc/pytorch:1.13.1-py39", "us-east-1")
    assert resolved == "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:1.13.1-gpu-py39"
    spec = Job(run="python train.py", environment={"container": {"image": "dlc/pytorch:1.13.1-py39"}}).spec()
    assert describe_python(spec) == ("the training runs in the image's own Python, 3.9: dlc/pytorch:1.13.1-py39",)
    newer = Job(run="python train.py", environment={"container": {"image": "dlc/pytorch:2.5-py311"}}).spec()
    assert describe_python(newer) == ()


def test_the_guides_py3_is_the_newest_python_of_that_image() -> None:
    """`framework_version = '1.15', py_version = 'py3'` of the guide about spot instances."""
    assert image(TensorFlow, "1.15", "py3") == "dlc/tensorflow:1.15.5-py37"
    assert image(PyTorch, "1.4.0", "py3") == "dlc/pytorch:1.4.0-py36"
    assert image(TensorFlow, "1.14", "py3") == "dlc/tensorflow:1.14.0-py3"
    assert dlc_images.problem("dlc/tensorflow:1.14.0-py3") is None


@pytest.mark.parametrize(
    ("version", "python", "message"),
    [
        (
            "1.13.1",
            "py311",
            r"^py_version: the image of pytorch 1\.13\.1 has py39, not py311; write py_version='py39'",
        ),
        ("2.5", "py39", r"^py_version: the image of pytorch 2\.5\.1 has py311, not py39; "),
        ("1.8.1", "py38", r"^py_version: the image of pytorch 1\.8\.1 has py3 and py36, not py38; "),
        ("1.9", "py3", None),
        ("1.0", "py3", r"^framework_version: there is no image of pytorch 1\.0; the oldest is of 1\.2\.0; image_uri"),
    ],
)
def test_a_pair_without_an_image_is_told_at_submission(version: str, python: str, message: str | None) -> None:
    if message is None:
        check_image(image(PyTorch, version, python))
        return
    with pytest.raises(BadArgument, match=message):
        check_image(image(PyTorch, version, python))


@pytest.mark.parametrize(
    ("alias", "message"),
    [
        (
            "dlc/pytorch:2.5-py39",
            "the image of pytorch 2.5.1 has py311, not py39; write another version or Python, or ",
        ),
        ("dlc/pytorch:1.0-py36-cpu", "there is no image of pytorch 1.0; the oldest is of 1.2.0; write another "),
    ],
)
def test_a_job_file_with_such_an_alias_is_refused_too(alias: str, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(f"environment.container.image: {message}")):
        Job(run="python train.py", environment={"container": {"image": alias}}).spec()


def test_an_alias_may_name_its_region() -> None:
    """As the message about a wrong alias says: `dlc/FRAMEWORK:VERSION-pyXY[-cpu][@REGION]`."""
    for alias in ("dlc/pytorch:2.5-py311-cpu@eu-west-1", "dlc/huggingface-pytorch:2.5.1-py311@eu-west-1"):
        spec = Job(run="python train.py", environment={"container": {"image": alias}}).spec()
        assert spec.environment.container is not None and spec.environment.container.image == alias
        assert ".dkr.ecr.eu-west-1.amazonaws.com/" in dlc_images.resolve(alias, "us-east-1")


def test_fit_refuses_it_before_anything_is_sent(place: Path) -> None:
    estimator = PyTorch(
        "train.py",
        "1.13.1",
        "py311",
        instance_type="ml.g5.xlarge",
        stoker={"resources": {"provider": "ec2"}},
    )
    with pytest.raises(BadArgument, match=r"^py_version: the image of pytorch 1\.13\.1 has py39"):
        estimator.fit()
    assert not (place / "store").exists()


def test_versions_newer_than_the_table_are_taken_as_they_are() -> None:
    assert image(PyTorch, "3.1", "py315") == "dlc/pytorch:3.1-py315"
    check_image("dlc/pytorch:3.1-py315")
    spec = Job(run="python train.py", environment={"container": {"image": "dlc/pytorch:3.1-py315"}}).spec()
    assert describe_python(spec) == () and unknown_image(Job(run="true").spec()) == ()
    (line,) = unknown_image(spec)
    assert line.startswith("dlc/pytorch:3.1-py315: no image of pytorch 3.1 is known (as of 20")
    check_image("repository/of-ones-own:1")


@pytest.mark.parametrize(
    ("name", "python"),
    [
        ("dlc/pytorch:1.13.1-py39-cpu@eu-west-1", (3, 9)),
        ("dlc/tensorflow:1.14.0-py3", (3, 7)),
        ("763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:1.13.1-gpu-py39-cu117-ubuntu20.04", (3, 9)),
        ("763104351884.dkr.ecr.us-east-1.amazonaws.com/tensorflow-training:2.18-gpu-py310", (3, 10)),
        ("docker.io/me/tool:v2-py39", None),
        ("1.dkr.ecr.us-east-1.amazonaws.com/own:1", None),
    ],
)
def test_the_python_of_an_image_is_in_its_tag(name: str, python: tuple[int, int] | None) -> None:
    assert dlc_images.python_of(name) == python


TOO_OLD = "1.dkr.ecr.us-east-1.amazonaws.com/own-training:1.0-gpu-py35"


@pytest.mark.parametrize("name", ["dlc/tensorflow:1.15.5-py37", "dlc/pytorch:1.5.0-py36", "dlc/pytorch:1.13.1-py39"])
def test_packages_are_installed_for_every_python_that_an_image_has(place: Path, name: str) -> None:
    """As the agent does: https://docs.astral.sh/uv/reference/policies/python/ has 3.6 as the oldest."""
    (place / "requirements.txt").write_text("six\n")
    check_packages(Job(run="python train.py", environment={"container": {"image": name}}).spec(), place)


def test_packages_for_a_python_that_is_too_old_are_told_at_submission(place: Path) -> None:
    old = Job(run="python train.py", environment={"container": {"image": TOO_OLD}})
    check_packages(old.spec(), place)
    (place / "requirements.txt").write_text("six\n")
    with pytest.raises(BadArgument, match=r"^framework_version: packages, as in requirements\.txt, are installed"):
        check_packages(old.spec(), place)
    without = {"container": {"image": TOO_OLD}, "requirements": "none"}
    check_packages(Job(run="python train.py", environment=without).spec(), place)


@pytest.mark.parametrize("python", ["3.9", "3.12"])
def test_on_sagemaker_the_agent_needs_a_python_of_the_image(python: str) -> None:
    """There it runs inside the image: an older one would be a machine that starts and exits."""
    versions = {"3.9": "1.13.1-py39", "3.12": "2.7.1-py312"}
    fields = {"container": {"image": f"dlc/pytorch:{versions[python]}"}}
    spec = Job(run="python train.py", environment=fields, resources={"provider": "sagemaker"}).spec()
    if python == "3.12":
        request.check(spec)
        return
    with pytest.raises(UserError, match=r"^environment\.container\.image: dlc/pytorch:1\.13\.1-py39 has Python 3\.9"):
        request.check(spec)
