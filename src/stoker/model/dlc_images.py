"""AWS's Deep Learning Containers by alias: `dlc/pytorch:2.5-py311`, `dlc/tensorflow:2.18-py310-cpu@eu-west-1`. Pure.

Images and accounts as of 2025-05, from the image configuration that the SageMaker Python SDK 2.244 ships
(`image_uri_config/pytorch.json` and `tensorflow.json`, the same table in both) and the release notes at
https://github.com/aws/deep-learning-containers/releases, where every release lists its short tags.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

# The oldest Python that Stoker's agent runs in. The training runs in any.
OLDEST_AGENT_PYTHON = (3, 10)
PREFIX = "dlc/"
# Default if none is named and the machine is in no region of AWS.
DEFAULT_REGION = "us-east-1"
FRAMEWORKS = ("pytorch", "tensorflow", "huggingface-pytorch")

_MOST = "763104351884"
_ACCOUNTS = {
    "af-south-1": "626614931356",
    "ap-east-1": "871362719292",
    "ap-east-2": "975050140332",
    "ap-northeast-1": _MOST,
    "ap-northeast-2": _MOST,
    "ap-northeast-3": "364406365360",
    "ap-south-1": _MOST,
    "ap-south-2": "772153158452",
    "ap-southeast-1": _MOST,
    "ap-southeast-2": _MOST,
    "ap-southeast-3": "907027046896",
    "ap-southeast-4": "457447274322",
    "ap-southeast-5": "550225433462",
    "ap-southeast-7": "590183813437",
    "ca-central-1": _MOST,
    "ca-west-1": "204538143572",
    "cn-north-1": "727897471807",
    "cn-northwest-1": "727897471807",
    "eu-central-1": _MOST,
    "eu-central-2": "380420809688",
    "eu-north-1": _MOST,
    "eu-south-1": "692866216735",
    "eu-south-2": "503227376785",
    "eu-west-1": _MOST,
    "eu-west-2": _MOST,
    "eu-west-3": _MOST,
    "il-central-1": "780543022126",
    "me-central-1": "914824155844",
    "me-south-1": "217643126080",
    "mx-central-1": "637423239942",
    "sa-east-1": _MOST,
    "us-east-1": _MOST,
    "us-east-2": _MOST,
    "us-gov-east-1": "446045086412",
    "us-gov-west-1": "442386744353",
    "us-west-1": _MOST,
    "us-west-2": _MOST,
}

# The Pythons of each image for training, oldest first, from the same files of the SDK 2.257.7 (October 2026). `py3` is
# the name of 3.6 and 3.7 in images of before 2020. Newer images than these are taken as they are written.
_PYTHONS = {
    "pytorch": """
1.2.0 py2 py3; 1.3.1 py2 py3; 1.4.0 py2 py3 py36; 1.5.0 py3 py36; 1.6.0 py3 py36; 1.7.1 py3 py36; 1.8.0 py3 py36;
1.8.1 py3 py36; 1.9.0 py38; 1.9.1 py38; 1.10.0 py38; 1.10.2 py38; 1.11.0 py38; 1.12.0 py38; 1.12.1 py38; 1.13.1 py39;
2.0.0 py310; 2.0.1 py310; 2.1.0 py310; 2.2.0 py310; 2.3.0 py311; 2.4.0 py311; 2.5.1 py311; 2.6.0 py312; 2.7.1 py312;
2.8.0 py312
""",
    "tensorflow": """
1.13.1 py3; 1.14.0 py2 py3; 1.15.0 py2 py3; 1.15.2 py2 py3 py37; 1.15.3 py2 py3 py37; 1.15.4 py3 py36 py37;
1.15.5 py3 py36 py37; 2.0.0 py2 py3; 2.0.1 py2 py3; 2.0.2 py2 py3; 2.0.3 py3 py36; 2.0.4 py3 py36; 2.1.0 py2 py3;
2.1.1 py2 py3; 2.1.2 py3 py36; 2.1.3 py3 py36; 2.2.0 py37; 2.2.1 py37; 2.2.2 py37; 2.3.0 py37; 2.3.1 py37; 2.3.2 py37;
2.4.1 py37; 2.4.3 py37; 2.5.0 py37; 2.5.1 py37; 2.6.0 py38; 2.6.2 py38; 2.6.3 py38; 2.7.1 py38; 2.8.0 py39; 2.9.2 py39;
2.10.1 py39; 2.11.0 py39; 2.12.0 py310; 2.13.0 py310; 2.14.1 py310; 2.16.2 py310; 2.18.0 py310; 2.19.0 py312
""",
}
# In the tag of an image, such as `1.13.1-gpu-py39-cu117-ubuntu20.04-sagemaker`.
_TAGGED = re.compile(r":(?:.*-)?py3(\d{1,2})(?:-.*)?(?:@[a-z0-9:-]+)?")

_ALIAS = re.compile(
    r"dlc/(?P<framework>[a-z-]+):(?P<version>\d+(?:\.\d+){1,2})-(?P<python>py(?:3|\d{2,3}))(?:-(?P<device>cpu|gpu))?"
    r"(?:@(?P<region>[a-z0-9-]+))?"
)


def problem(image: str) -> str | None:
    """Describe the error in an alias; None if it is right, or not an alias."""
    if not image.startswith(PREFIX):
        return None
    found = _ALIAS.fullmatch(image)
    if found is None:
        return f"{image!r} is no alias; write dlc/FRAMEWORK:VERSION-pyXY[-cpu][@REGION], such as dlc/pytorch:2.5-py311"
    if found["framework"] not in FRAMEWORKS:
        return f"there are no Deep Learning Containers for {found['framework']!r}; there are {', '.join(FRAMEWORKS)}"
    if found["region"] and found["region"] not in _ACCOUNTS:
        return f"the account of the Deep Learning Containers in {found['region']!r} is not known; name another region"
    return None


def resolve(image: str, region: str | None) -> str:
    """Resolve an alias for a machine in `region`; any other image is returned unchanged."""
    found = _ALIAS.fullmatch(image)
    if found is None:
        return image
    where = found["region"] or (region if region in _ACCOUNTS else DEFAULT_REGION)
    assert where is not None
    domain = "amazonaws.com.cn" if where.startswith("cn-") else "amazonaws.com"
    tag = f"{found['version']}-{found['device'] or 'gpu'}-{found['python']}"
    return f"{_ACCOUNTS[where]}.dkr.ecr.{where}.{domain}/{found['framework']}-training:{tag}"


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
    for row in _PYTHONS.get(framework, "").split(";"):
        version, *pythons = row.split() or [""]
        if version:
            yield FrameworkImage(version, tuple(pythons))


def _minor(python: str) -> int:
    """The minor version in a name such as `py39`; for `py3`, of before 2020, the newest that it may be."""
    digits = python.removeprefix("py3")
    return int(digits) if digits.isdigit() else 7
