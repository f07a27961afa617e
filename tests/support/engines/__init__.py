"""Docker and podman for tests: Debian's, each with a folder of its own and an image made from a root filesystem.

Needs root and Debian's packages: `why_no_docker()` and its like say what is missing. `MACHINE` is what machines of the
clouds of tests boot that have a docker of their own.
"""

from __future__ import annotations

from tests.support.engines.docker import MACHINE, Docker, docker, why_no_docker, why_no_docker_machines
from tests.support.engines.podman import Podman, podman, why_no_podman
from tests.support.engines.tree import IMAGE

__all__ = [
    "IMAGE",
    "MACHINE",
    "Docker",
    "Podman",
    "docker",
    "podman",
    "why_no_docker",
    "why_no_docker_machines",
    "why_no_podman",
]
