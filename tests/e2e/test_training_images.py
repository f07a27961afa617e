"""A machine that boots an image for training: its PyTorch is found, and its driver, which comes late, is waited for."""

from __future__ import annotations

import pytest
from ec2_world import Ec2World

from tests.support.machines import why_no_machines
from tests.support.package_index import make_wheel, package_index
from tests.support.servers import isolated, pytest_isolated

if why_no_machines() is not None:
    pytest.skip(str(why_no_machines()), allow_module_level=True)

# As everybody writes it: it imports what the image has, and what its requirements name.
TRAIN = """\
import sys
import torch, alpha, numpy
print("torch", torch.__version__, "alpha", alpha.__version__, "numpy", numpy.__version__, "in", sys.prefix, flush=True)
"""
RESOURCES = {"machine": ["g5.xlarge"], "image": "pytorch-12-amd64-*", "gpus": "A10G:1"}

if isolated():

    def installs_driver(world: Ec2World, job: str) -> None:
        """Wait until the machine waits for its driver, and install it."""
        told = "[stoker] this machine was sold with 1 × A10G, and no NVIDIA GPU can be seen"
        world.until(job, lambda: any(line.startswith(told) for line in world.lines(job)), "the driver is missed")
        world.machine(job).run("sh", "-c", "echo 1 >/run/gpus.new && mv /run/gpus.new /run/gpus")

    def test_a_project_with_requirements_finds_the_images_pytorch(ec2: Ec2World) -> None:
        ec2.write(TRAIN)
        (ec2.code / "requirements.txt").write_text("alpha\nnumpy>=2\n")
        wheels = (
            make_wheel("alpha", "1.0", requires=["torch"]),
            make_wheel("torch", "2.10.0"),
            make_wheel("numpy", "2.0"),
        )
        with package_index(*wheels, host=ec2.cloud.gateway) as index, ec2.governed():
            settings = {"UV_DEFAULT_INDEX": index.url_at(ec2.cloud.gateway)}
            run = ["sh", "-c", "python train.py && python3 train.py && torchrun && command -v pip"]
            job = ec2.submit(env=settings, run=run, resources=RESOURCES)
            installs_driver(ec2, job)
            assert ec2.ended(job).phase == "succeeded", ec2.story(job)
        lines = ec2.lines(job)
        top = "Python 3.11.2 with torch 2.9.0+cu129 (/opt/pytorch/bin/python)"
        advice = "environment.system_packages: false makes a clean environment"
        told = [
            "[stoker] 1 × A10G are there, after ",
            f"[stoker] requirements.txt: its packages go on top of {top}; {advice}",
            "[stoker] requirements.txt: replaced of what /opt/pytorch/bin/python has: numpy 1.26.4 → 2.0",
            "[stoker] requirements.txt: kept of what /opt/pytorch/bin/python has: torch 2.9.0+cu129",
            "torch 2.9.0+cu129 alpha 1.0 numpy 2.0 in /var/lib/stoker/environments/",
        ]
        # In this order: nothing was installed before the driver was there.
        where = [next((n for n, line in enumerate(lines) if line.startswith(one)), -1) for one in told]
        assert -1 not in where and where == sorted(where), ec2.story(job)
        assert len([line for line in lines if line.startswith(told[-1])]) == 2
        folder = next(line for line in lines if line.startswith(told[-1])).rpartition(" ")[2]
        assert f"torchrun of {folder}" in lines and f"{folder}/bin/pip" in lines

    def test_a_project_without_requirements_does_too(ec2: Ec2World) -> None:
        ec2.write("import sys, torch\nprint('torch', torch.__version__, 'in', sys.prefix, flush=True)\n")
        with ec2.governed():
            run = ["sh", "-c", "python train.py && python3 train.py && torchrun"]
            job = ec2.submit(run=run, resources=RESOURCES)
            installs_driver(ec2, job)
            assert ec2.ended(job).phase == "succeeded", ec2.story(job)
        lines = ec2.lines(job)
        assert "[stoker] python is Python 3.11.2 with torch 2.9.0+cu129 (/opt/pytorch/bin/python)" in lines
        assert lines.count("torch 2.9.0+cu129 in /opt/pytorch") == 2 and "torchrun of /opt/pytorch" in lines

else:

    def test_training_images_in_a_network_of_their_own() -> None:
        pytest_isolated(__file__)
