"""A job that asks for accelerators on an image that is known to have no driver: each machine would be given back."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.model.errors import UserError
from stoker.model.resources import Gpus, Resources
from stoker.model.spec import Container, Environment, Spec
from stoker.providers.ec2 import request as ec2
from stoker.providers.gce import request as gce

CHECKS = {"ec2": ec2.check, "gce": gce.check}
# The region decides nothing here.
REGIONS = {"ec2": "us-east-1", "gce": "vision-1/us-central1"}
ANY = Gpus("", 1)
CONTAINER = Environment(container=Container("trainer:1"))


def spec(provider: str, image: str | None, gpus: Gpus | None = ANY, **fields: Any) -> Spec:
    return Spec("x", "x", resources=Resources(provider, region=REGIONS[provider], image=image, gpus=gpus), **fields)


@pytest.mark.parametrize("provider", CHECKS)
@pytest.mark.parametrize("image", ["debian/12", "debian/13", "ubuntu/22.04", "ubuntu/24.04"])
def test_an_image_without_a_driver_is_refused(provider: str, image: str) -> None:
    refused = f"resources.image: {image} has no driver for accelerators; leave it out for one that has"
    with pytest.raises(UserError) as found:
        CHECKS[provider](spec(provider, image))
    assert str(found.value) == f"{refused}, or install the driver in setup or environment.apt"
    with pytest.raises(UserError) as found:
        CHECKS[provider](spec(provider, image, setup="apt-get install driver", environment=CONTAINER))
    assert str(found.value) == refused, "the set-up of a container cannot"


@pytest.mark.parametrize("provider", CHECKS)
def test_other_images_and_jobs_that_install_it_are_taken(provider: str) -> None:
    check = CHECKS[provider]
    check(spec(provider, "debian/12", setup="apt-get install driver"))
    check(spec(provider, "debian/12", environment=Environment(apt=("nvidia-driver",))))
    check(spec(provider, "debian/12", None))
    check(spec(provider, "debian/12", Gpus("", 0)))
    check(spec(provider, None))
    check(spec(provider, "our-image"))


def test_a_tpu_is_none_of_these() -> None:
    """Which images serve one is not known well enough."""
    gce.check(spec("gce", "debian/12", Gpus("TPU-v6e", 4)))
