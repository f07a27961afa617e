"""AWS's Deep Learning Containers by alias: `dlc/pytorch:2.5-py311`, `dlc/tensorflow:2.18-py310-cpu@eu-west-1`. Pure.

Images and accounts as of 2025-05, from the image configuration that the SageMaker Python SDK 2.244 ships
(`image_uri_config/pytorch.json` and `tensorflow.json`, the same table in both) and the release notes at
https://github.com/aws/deep-learning-containers/releases, where every release lists its short tags.
"""

from __future__ import annotations

import re

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

_ALIAS = re.compile(
    r"dlc/(?P<framework>[a-z-]+):(?P<version>\d+(?:\.\d+){1,2})-(?P<python>py\d{2,3})(?:-(?P<device>cpu|gpu))?"
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
