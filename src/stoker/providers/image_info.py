"""Facts about a provider's images that are known before a machine boots one."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol

from stoker.model.errors import UserError
from stoker.model.spec import Spec

# A version, such as (3, 12).
Python = tuple[int, int]

# The Python that each agent tag serves. The last tag also serves all newer versions.
SERVED: dict[str, Python] = {"cp310": (3, 10), "cp311": (3, 11)}


# The field that names the image in which an agent finds its Python: most machines boot from an image of their own.
IMAGE = "resources.image"
CONTAINER_IMAGE = "environment.container.image"


def version_text(python: Python) -> str:
    return f"{python[0]}.{python[1]}"


def newer_image(tags: Iterable[str]) -> str:
    """The advice if no Python of the image fits the packed agents, whose tags look like `cp311-x86_64`.

    The version that it names is sufficient on every architecture.
    """
    oldest: dict[str, Python] = {}
    for tag in tags:
        python, _, arch = tag.partition("-")
        served = SERVED.get(python, max(SERVED.values()))
        oldest[arch] = min(served, oldest.get(arch, served))
    version = max(oldest.values(), default=min(SERVED.values()))
    return f"choose another {IMAGE}, with Python {version_text(version)} or newer"


def check_driver(spec: Spec, plain: Collection[str]) -> None:
    """Raise UserError if a job asks for accelerators on one of the plain images, which have no driver, and installs
    none: its machines would be given back, one after the other."""
    gpus, image = spec.resources.gpus, spec.resources.image
    if gpus is None or gpus.count == 0 or image not in plain or spec.may_install_driver:
        return
    # Nothing that runs in the container reaches the machine.
    install = "" if spec.environment.container else ", or install the driver in setup or environment.apt"
    raise UserError(f"{IMAGE}: {image} has no driver for accelerators; leave it out for one that has{install}")


class ImagesModule(Protocol):
    """The module `images` of a provider that knows some images by name."""

    def python_of(self, wanted: str | None, gpus: int, gpu: str | None = None) -> Python | None:
        """A Python that the job's image, or the default image, certainly has; None if that is not known."""
