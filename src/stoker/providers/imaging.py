"""What is known of a provider's images before a machine has booted one."""

from __future__ import annotations

from typing import Protocol

# A version, such as (3, 12).
Python = tuple[int, int]


class Images(Protocol):
    """The module `images` of a provider that knows some images by name."""

    def python_of(self, wanted: str | None, gpus: int) -> Python | None:
        """A Python that is sure to be in the image which a job names, or gets without a name; None: nobody knows."""
