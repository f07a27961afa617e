"""What is known of a provider's images before a machine has booted one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

# A version, such as (3, 12).
Python = tuple[int, int]

# The tags of agents, by the Pythons they serve: each serves this one, and the last of them all that are newer.
SERVED: dict[str, Python] = {"cp310": (3, 10), "cp311": (3, 11)}


# Which field names the image that an agent finds its Python in: most machines are booted from one of their own.
IMAGE = "resources.image"
CONTAINER_IMAGE = "environment.container.image"


def version_text(python: Python) -> str:
    return f"{python[0]}.{python[1]}"


def newer_image(tags: Iterable[str]) -> str:
    """What to do where no Python fits the agents that were packed, such as `cp311-x86_64`: enough on any machine."""
    oldest: dict[str, Python] = {}
    for tag in tags:
        python, _, arch = tag.partition("-")
        served = SERVED.get(python, max(SERVED.values()))
        oldest[arch] = min(served, oldest.get(arch, served))
    enough = max(oldest.values(), default=min(SERVED.values()))
    return f"choose a {IMAGE} with Python {version_text(enough)} or newer"


class Images(Protocol):
    """The module `images` of a provider that knows some images by name."""

    def python_of(self, wanted: str | None, gpus: int) -> Python | None:
        """A Python that is sure to be in the image which a job names, or gets without a name; None: nobody knows."""
