"""The environment for training that a machine's image brings, such as `/opt/pytorch` on AWS's images.

Nothing puts it on the PATH of services: its users activate it in their shells. So the agent does, once for everything
that it starts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

# Of AWS's and Google's images, older and newer. The base of conda comes late: it rarely has a framework.
_ENVIRONMENTS = ("opt/conda/envs/pytorch", "opt/pytorch", "opt/tensorflow", "opt/conda")
# Images for Inferentia and Trainium have one for each version and purpose; those without a purpose are for training.
_NEURON = re.compile(r"aws_neuronx?_venv_pytorch(?P<version>(?:_\d+)*)")
_FRAMEWORKS = ("torch", "tensorflow", "jax")
# Where a distribution has its own Python, which is not meant for training.
_DISTRIBUTION = ("/usr/", "/bin", "/sbin")


def image_path(search: str, root: Path = Path("/")) -> str:
    """Return this PATH with the programs of the image's environments first: those of the one with a framework.

    A Python that is on the PATH already, and is not the distribution's, is the image's own choice, and precedes others.
    """
    given = [folder for folder in search.split(os.pathsep) if folder]
    chosen = next((Path(folder) for folder in given if _has_python(Path(folder))), None)
    found = [chosen] if chosen is not None and _is_environment(chosen) else []
    found += [folder for folder in _candidates(root) if _has_python(folder)]
    # Stable: where none has a framework, or several have one, their order stays.
    found.sort(key=lambda folder: not _has_framework(folder.parent))
    return os.pathsep.join(dict.fromkeys([*map(str, found), *given]))


def _candidates(root: Path) -> Iterator[Path]:
    for name in _ENVIRONMENTS:
        yield root / name / "bin"
    neuron = [(match, path) for path in (root / "opt").glob("aws_neuron*") if (match := _NEURON.fullmatch(path.name))]
    for _, path in sorted(((_numbers(match["version"]), path) for match, path in neuron), reverse=True):
        yield path / "bin"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in version.split("_") if number)


def _has_python(folder: Path) -> bool:
    return os.access(folder / "python", os.X_OK)


def _is_environment(folder: Path) -> bool:
    """Tell Pythons with packages of their own from the distribution's, and from scripts that start another one."""
    return not str(folder).startswith(_DISTRIBUTION) and any(folder.parent.glob("lib*/python3*"))


def _has_framework(environment: Path) -> bool:
    return any(
        (site / name).exists() for site in environment.glob("lib*/python3*/site-packages") for name in _FRAMEWORKS
    )
