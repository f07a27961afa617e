"""boto3's model of SageMaker in the function's package.

Lambda brings a boto3 that is months old, and boto3 drops the fields of an answer that its model lacks: a clone would be
without them. So the package has the model of the boto3 that deployed, and the function uses it where it is the newer.
"""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path

# The folder of the package with the models, and the file with their version.
FOLDER = "botocore_models"
VERSION = "VERSION"
_SERVICE = "sagemaker"
# botocore reads models here first: https://botocore.amazonaws.com/v1/documentation/api/latest/reference/loaders.html
_VARIABLE = "AWS_DATA_PATH"


def files() -> dict[str, bytes]:
    """The model of the installed botocore, by its name in the package; empty without botocore."""
    try:
        distribution = metadata.distribution("botocore")
    except metadata.PackageNotFoundError:
        return {}
    data = Path(str(distribution.locate_file("botocore"))) / "data"
    found = {
        f"{FOLDER}/{path.relative_to(data).as_posix()}": path.read_bytes()
        for path in (data / _SERVICE).rglob("*")
        if path.name.startswith(("service-2.json", "endpoint-rule-set-1.json", "paginators-1."))
    }
    return {**found, f"{FOLDER}/{VERSION}": distribution.version.encode()} if found else {}


def use_newer(root: Path) -> bool:
    """Let botocore use the models of the package in this folder, if they are newer than its own. Returns whether they
    are. Call it before the first client is made."""
    folder = root / FOLDER
    try:
        packaged = _parsed((folder / VERSION).read_text("utf-8"))
        if packaged <= _parsed(metadata.version("botocore")):
            return False
    except (OSError, ValueError, metadata.PackageNotFoundError):
        return False
    others = os.environ.get(_VARIABLE, "")
    if str(folder) not in others.split(os.pathsep):
        os.environ[_VARIABLE] = os.pathsep.join(filter(None, (str(folder), others)))
    return True


def _parsed(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.strip().split(".")[:3])
