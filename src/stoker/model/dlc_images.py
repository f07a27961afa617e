"""AWS's Deep Learning Containers by alias: `dlc/pytorch:2.5-py311`, `dlc/tensorflow:2.18-py310-cpu@eu-west-1`. Pure.

Hugging Face's name the version of transformers too: `dlc/huggingface-pytorch:2.5.1-transformers4.49.0-py311`. Without
it, the newest of that framework and Python is meant.

Accounts, Pythons, and the tags of Hugging Face's images are in `dlc_tables`, written by `scripts/write_dlc_tables.py`;
other images are taken as they are written. Tags of the other frameworks are the short ones that every release lists:
https://github.com/aws/deep-learning-containers/releases.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from stoker.model.dlc_tables import ACCOUNTS, DATE, HUGGINGFACE, PYTHONS

# The oldest Python that Stoker's agent runs in. The training runs in any.
OLDEST_AGENT_PYTHON = (3, 10)
PREFIX = "dlc/"
# Default if none is named and the machine is in no region of AWS.
DEFAULT_REGION = "us-east-1"
FRAMEWORKS = ("pytorch", "tensorflow", "huggingface-pytorch", "huggingface-tensorflow")

# In the tag of an image, such as `1.13.1-gpu-py39-cu117-ubuntu20.04-sagemaker`.
_TAGGED = re.compile(r":(?:.*-)?py3(\d{1,2})(?:-.*)?(?:@[a-z0-9:-]+)?")

_HUGGINGFACE = "huggingface-"
_ALIAS = re.compile(
    r"dlc/(?P<framework>[a-z-]+):(?P<version>\d+(?:\.\d+){1,2})(?:-transformers(?P<transformers>\d+(?:\.\d+){1,2}))?"
    r"-(?P<python>py(?:3|\d{2,3}))(?:-(?P<device>cpu|gpu))?(?:@(?P<region>[a-z0-9-]+))?"
)
_AWS_REGION = re.compile(r"[a-z]{2,4}(-[a-z]+)+-\d")
_IN_FULL = "give the image in full, as ACCOUNT.dkr.ecr.REGION.amazonaws.com/NAME-training:TAG"


def problem(image: str) -> str | None:
    """Describe the error in an alias; None if it is right, or not an alias."""
    if not image.startswith(PREFIX):
        return None
    found = _ALIAS.fullmatch(image)
    if found is None:
        return f"{image!r} is no alias; write dlc/FRAMEWORK:VERSION-pyXY[-cpu][@REGION], such as dlc/pytorch:2.5-py311"
    if found["framework"] not in FRAMEWORKS:
        return f"there are no Deep Learning Containers for {found['framework']!r}; there are {', '.join(FRAMEWORKS)}"
    if found["region"] and found["region"] not in ACCOUNTS:
        return f"{_no_account(found['region'])}; name another region, or {_IN_FULL}"
    if found["framework"].startswith(_HUGGINGFACE):
        return None if _tag(found) is not None else _no_tag(image, found)
    if found["transformers"]:
        named = f"{PREFIX}{_HUGGINGFACE}{found['framework']}"
        return f"{image!r}: only Hugging Face's images have transformers; write {named}:…"
    return None


def region_problem(image: str, region: str) -> str | None:
    """Describe why an alias cannot be resolved for a region of AWS; None if it can, or is no alias, or names another
    region."""
    found = _ALIAS.fullmatch(image)
    if found is None or found["region"] or region in ACCOUNTS or not _AWS_REGION.fullmatch(region):
        return None
    return f"{_no_account(region)}; {_IN_FULL}"


def resolve(image: str, region: str | None) -> str:
    """Resolve an alias for a machine in `region`; any other image is returned unchanged.

    The alias is one without a `problem`.
    """
    found = _ALIAS.fullmatch(image)
    if found is None:
        return image
    where = found["region"] or (region if region in ACCOUNTS else DEFAULT_REGION)
    assert where is not None
    account, domain = ACCOUNTS[where]
    return f"{account}.dkr.ecr.{where}.{domain}/{found['framework']}-training:{_tag(found)}"


@dataclass(frozen=True)
class Alias:
    """An alias in its parts."""

    framework: str
    version: str
    python: str


def parse(image: str) -> Alias | None:
    """Parse an alias; None for any other image."""
    found = _ALIAS.fullmatch(image)
    return Alias(found["framework"], found["version"], found["python"]) if found is not None else None


@dataclass(frozen=True)
class FrameworkImage:
    """The image of one version of a framework, and the names of its Pythons, oldest first."""

    version: str
    pythons: tuple[str, ...]

    @property
    def is_old(self) -> bool:
        """It has no Python that Stoker's agent could run in; short tags such as `1.15-gpu-py37` are not sure either."""
        return all(_minor(python) < OLDEST_AGENT_PYTHON[1] for python in self.pythons)


def framework_image(framework: str, version: str) -> FrameworkImage | None:
    """The newest image of a version, such as 2.5 or 2.5.1; None for one that is not known here."""
    found = [one for one in _images(framework) if one.version == version or one.version.startswith(f"{version}.")]
    return found[-1] if found else None


def oldest_image(framework: str) -> str | None:
    """The oldest version of a framework that has an image; None for a framework without a table."""
    return next((one.version for one in _images(framework)), None)


def python_of(image: str) -> tuple[int, int] | None:
    """The Python of an image that has it in its tag, as AWS's images do; None where it is not known."""
    found = _ALIAS.fullmatch(image)
    if found is not None:
        return (3, _minor(found["python"]))
    tagged = _TAGGED.search(image) if ".dkr.ecr." in image else None
    return (3, int(tagged[1])) if tagged is not None else None


def _images(framework: str) -> Iterator[FrameworkImage]:
    for version, pythons in PYTHONS.get(framework, {}).items():
        yield FrameworkImage(version, pythons)


def _minor(python: str) -> int:
    """The minor version in a name such as `py39`; for `py3`, of before 2020, the newest that it may be."""
    digits = python.removeprefix("py3")
    return int(digits) if digits.isdigit() else 7


def _tag(found: re.Match[str]) -> str | None:
    """Return the image's tag; None for an image of Hugging Face's that the table does not have."""
    device = found["device"] or "gpu"
    if not found["framework"].startswith(_HUGGINGFACE):
        return f"{found['version']}-{device}-{found['python']}"
    fitting = [
        (_numbers(transformers), _numbers(version), f"{version}-transformers{transformers}", devices[device])
        for (framework, version, transformers, python), devices in HUGGINGFACE.items()
        if found["framework"] == f"{_HUGGINGFACE}{framework}"
        and _is_version(version, found["version"])
        and _is_version(transformers, found["transformers"] or transformers)
        and python == found["python"]
        and device in devices
    ]
    if not fitting:
        return None
    *_, versions, rest = max(fitting)
    return "-".join(part for part in (versions, device, found["python"], rest) if part)


def _is_version(version: str, written: str) -> bool:
    """Return whether this is the version that was written, perhaps without its last number."""
    return version == written or version.startswith(f"{written}.")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _no_account(region: str) -> str:
    return f"the account of the Deep Learning Containers in {region!r} is not known (as of {DATE})"


def _no_tag(image: str, found: re.Match[str]) -> str:
    known = sorted(_aliases(found["framework"]), key=lambda alias: _numbers(".".join(re.findall(r"\d+", alias))))
    newest = ", ".join(known[-3:])
    return f"{image!r} is none of Hugging Face's images as of {DATE}; the newest are {newest}; or {_IN_FULL}"


def _aliases(wanted: str) -> Iterator[str]:
    for framework, version, transformers, python in HUGGINGFACE:
        if wanted == f"{_HUGGINGFACE}{framework}":
            yield f"{PREFIX}{wanted}:{version}-transformers{transformers}-{python}"
