"""Facts about a provider's images that are known before a machine boots one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

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


class ImagesModule(Protocol):
    """The module `images` of a provider that knows some images by name."""

    def python_of(self, wanted: str | None, gpus: int, gpu: str | None = None) -> Python | None:
        """A Python that the job's image, or the default image, certainly has; None if that is not known."""
