"""For which machines wheels are gathered."""

from __future__ import annotations

import importlib
import platform
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from stoker import Job
from stoker.model.errors import UserError
from stoker.model.offerings import Offering
from stoker.model.spec import Spec
from stoker.model.submission import Wheel
from stoker.providers import registry
from stoker.submit.wheel_targets import pack_wheels, reuse_wheels


def spec(provider: str, image: str | None = None, **environment: object) -> Spec:
    resources = {"provider": provider} | ({"image": image} if image else {})
    wishes = {"wheels": "pack", "requirements": "requirements.txt"} | environment
    return Job(run="python train.py", resources=resources, environment=wishes).spec()


def offering(machine: str, gpus: int = 0) -> Offering:
    return Offering("ec2", machine, "us-east-1a", spot=False, price=1.0, on_demand_price=1.0, gpus=gpus)


def arches(offerings: Iterable[Offering]) -> set[str]:
    return {"arm64" if one.machine.startswith("c7g") else "x86_64" for one in offerings}


def planned(wanted: Spec, *offerings: Offering) -> str:
    capabilities = registry.capabilities(wanted.resources.provider)
    found, told = pack_wheels(wanted, capabilities, offerings, arches, ..., offline=True)  # type: ignore[arg-type]
    assert found is None
    return "".join(told).rpartition("for ")[2]


def test_the_python_of_a_known_image_and_every_processor() -> None:
    assert planned(spec("ec2", "debian/12"), offering("c7i.large")) == "3.11-x86_64"
    both = planned(spec("ec2", "ubuntu/22.04"), offering("c7i.large"), offering("c7g.large"))
    assert both == "3.10-arm64, 3.10-x86_64"


def test_a_version_that_is_named() -> None:
    assert planned(spec("ec2", "ami-0123", python="3.12.4"), offering("c7i.large")) == "3.12-x86_64"


def test_on_this_computer_its_own() -> None:
    here = planned(spec("local", python=sys.executable), offering("local"))
    assert here.startswith(f"3.{sys.version_info[1]}-")


@pytest.mark.parametrize(
    ("image", "environment"),
    [
        ("ami-0123", {}),
        ("debian/12", {"python": "/opt/conda/bin/python"}),
        ("debian/12", {"python": "pytorch"}),
        ("debian/12", {"container": {"image": "trainer"}}),
    ],
)
def test_where_nobody_knows_it_is_asked_for(image: str, environment: dict[str, object]) -> None:
    with pytest.raises(
        UserError, match=r"environment.wheels: the Python version of the machines .* set environment.python to it"
    ):
        planned(spec("ec2", image, **environment), offering("c7i.large"))


def test_nothing_to_gather() -> None:
    wanted = spec("ec2", "debian/12", requirements="none")
    with pytest.raises(
        UserError, match=r"environment.wheels: there is nothing to gather; set environment.requirements"
    ):
        pack_wheels(wanted, registry.capabilities("ec2"), (offering("c7i.large"),), arches, ...)  # type: ignore[arg-type]
    without = replace(wanted, environment=replace(wanted.environment, wheels=None))
    assert pack_wheels(without, registry.capabilities("ec2"), (), arches, ...) == (None, ())  # type: ignore[arg-type]


def test_a_clone_takes_over_what_fits() -> None:
    wheels = {"3.11-x86_64": (Wheel("a-1-py3-none-any.whl", "0", 1),), "3.11-arm64": ()}
    ec2 = registry.capabilities("ec2")
    found = reuse_wheels(spec("ec2", "debian/12"), ec2, (offering("c7i.large"),), arches, wheels)
    assert found is not None and found.wheels == {"3.11-x86_64": wheels["3.11-x86_64"]}
    with pytest.raises(UserError, match=r"gathered for 3.11-arm64, 3.11-x86_64, and this needs 3.13-x86_64; submit it"):
        reuse_wheels(spec("ec2", "debian/13"), ec2, (offering("c7i.large"),), arches, wheels)
    with pytest.raises(UserError, match=r"gathered for none, and this needs 3.11-x86_64; submit it from its folder"):
        reuse_wheels(spec("ec2", "debian/12"), ec2, (offering("c7i.large"),), arches, {})
    wanted = spec("ec2", "debian/12")
    without = replace(wanted, environment=replace(wanted.environment, wheels=None))
    assert reuse_wheels(without, ec2, (offering("c7i.large"),), arches, wheels) is None


@pytest.mark.parametrize(("machine", "arch"), [("x86_64", "x86_64"), ("aarch64", "arm64"), ("arm64", "arm64")])
def test_this_computers_processor_is_called_as_clouds_call_it(
    monkeypatch: pytest.MonkeyPatch, machine: str, arch: str
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert planned(spec("local", python=sys.executable), offering("local")).endswith(f"-{arch}")
    # In a container here it is the version that is named, on this processor.
    contained = spec("local", python="3.12", container={"image": "trainer"})
    assert planned(contained, offering("local")) == f"3.12-{arch}"


@pytest.mark.parametrize("python", ["/nowhere/python", "/bin/false"])
def test_a_python_that_does_not_run_is_named(python: str) -> None:
    with pytest.raises(UserError, match=f"^environment.python: {python} does not run: "):
        planned(spec("local", python=python), offering("local"))


def test_they_are_gathered_from_the_index_that_the_job_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []

    def gather(*given: object) -> str:
        asked.append(given)
        return "gathered"

    monkeypatch.setattr(importlib.import_module("stoker.submit.wheels"), "gather_wheels", gather)
    (tmp_path / "requirements.txt").write_text("numpy\n")
    wanted = spec("ec2", "debian/12", index={"url": "https://index/simple"})
    found, told = pack_wheels(wanted, registry.capabilities("ec2"), (offering("c7i.large"),), arches, tmp_path)
    assert (found, told) == ("gathered", ())
    ((code, lines, targets, index),) = asked
    assert (code, index) == (tmp_path, wanted.environment.index) and "numpy" in str(lines)
    assert {target.name for target in targets} == {"3.11-x86_64"}  # type: ignore[attr-defined]
