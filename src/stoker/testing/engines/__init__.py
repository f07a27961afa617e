"""Docker and podman for tests: Debian's, each with a folder of its own and an image made from a root filesystem.

Needs root and Debian's packages: `why_no_docker()` and `why_no_podman()` say what is missing.
"""

from __future__ import annotations

from stoker.testing.engines.docker import Docker, docker, why_no_docker
from stoker.testing.engines.podman import Podman, podman, why_no_podman
from stoker.testing.engines.tree import IMAGE

__all__ = ["IMAGE", "Docker", "Podman", "docker", "podman", "why_no_docker", "why_no_podman"]
