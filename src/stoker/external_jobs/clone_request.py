"""A training job of SageMaker's once more: the request that makes its clone, from its description. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

ORIGIN = "stoker:origin"
CLONE_OF = "stoker:clone-of"
NUMBER = "stoker:clone"
_OWN = (ORIGIN, CLONE_OF, NUMBER)
# Between the three where there is room for one tag alone. No name has it, and a tag may.
_JOINT = "/"

# All that a request may have and a description tells. A test compares it with AWS's own model, so that what AWS adds
# is noticed.
KEPT = (
    "HyperParameters",
    "AlgorithmSpecification",
    "RoleArn",
    "InputDataConfig",
    "OutputDataConfig",
    "ResourceConfig",
    "VpcConfig",
    "StoppingCondition",
    "EnableNetworkIsolation",
    "EnableInterContainerTrafficEncryption",
    "EnableManagedSpotTraining",
    "CheckpointConfig",
    "DebugHookConfig",
    "DebugRuleConfigurations",
    "TensorBoardOutputConfig",
    "ExperimentConfig",
    "ProfilerConfig",
    "ProfilerRuleConfigurations",
    "Environment",
    "RetryStrategy",
    "RemoteDebugConfig",
    "InfraCheckConfig",
    "ServerlessJobConfig",
    "MlflowConfig",
    "ModelPackageConfig",
)
# What a request may have and no description tells: a clone is without it.
UNTOLD = ("SessionChainingConfig",)
# Told, and refused in a request.
_READ_ONLY = {"ResourceConfig": ("SelectedInstanceType", "SelectedInstanceCount")}
# An empty one is how a description says that there is none.
_KEYS = ("KmsKeyId", "VolumeKmsKeyId")
_LONGEST_NAME = 63
_CLONE = re.compile(r"(?P<begin>.+)-r(?P<number>[0-9]{1,4})-[0-9a-f]{6}")
_MOST_TAGS = 50
_DIGITS = re.compile(r"[0-9]{1,4}")
# How SageMaker refuses what it told itself.
MAY_NOT_MEASURE = re.compile(r"override the metric definitions", re.IGNORECASE)


def request(
    description: Mapping[str, Any],
    tags: Iterable[Mapping[str, Any]],
    *,
    name: str,
    origin: str,
    number: int,
    spot: bool,
) -> dict[str, Any]:
    """What `CreateTrainingJob` is asked for: everything of the original, another name, and where it comes from.

    Without `spot` it has machines of its own, and so no bound on the wait for others.
    """
    wanted = {key: _cleaned(key, description[key]) for key in KEPT if description.get(key) not in (None, {}, [])}
    wanted["TrainingJobName"] = name
    if description.get("EnableManagedSpotTraining") is True and not spot:
        wanted["EnableManagedSpotTraining"] = False
        stopping = dict(wanted.get("StoppingCondition", {}))
        stopping.pop("MaxWaitTimeInSeconds", None)
        wanted["StoppingCondition"] = stopping
    told = {str(tag["Key"]): str(tag.get("Value", "")) for tag in tags if tag.get("Key")}
    lineage = Lineage(origin, str(description.get("TrainingJobName", "")), number)
    every = {**_kept(told), **lineage.tags(_MOST_TAGS - len(_kept(told)))}
    wanted["Tags"] = [{"Key": key, "Value": value} for key, value in every.items()]
    return wanted


@dataclass(frozen=True)
class Lineage:
    """Where a clone comes from, as its tags tell, which anybody may write. Of a job that is none: empty, and 0."""

    origin: str
    of: str
    number: int

    def tags(self, room: int) -> dict[str, str]:
        """A tag for each, or one for all where there is no room: the original's are all kept."""
        each = (self.origin, self.of, str(self.number))
        return dict(zip(_OWN, each, strict=True)) if room >= len(_OWN) else {ORIGIN: _JOINT.join(each)}


def lineage(tags: Mapping[str, str]) -> Lineage:
    """What the tags of a training job tell of it. What makes no sense is left open."""
    origin, of, number = (tags.get(key, "") for key in _OWN)
    if origin.count(_JOINT) == len(_OWN) - 1:
        origin, of, number = origin.split(_JOINT)
    return Lineage(origin, of, int(number) if _DIGITS.fullmatch(number) else 0)


def has_room(tags: Mapping[str, str]) -> bool:
    """Whether a clone of a job with these tags can have one more, to tell where it comes from."""
    return len(_kept(tags)) < _MOST_TAGS


def _kept(tags: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in tags.items() if not key.lower().startswith("aws:") and key not in _OWN}


def without_metrics(request: Mapping[str, Any]) -> dict[str, Any]:
    """The same request without definitions of metrics."""
    algorithm = {key: value for key, value in request["AlgorithmSpecification"].items() if key != "MetricDefinitions"}
    return {**request, "AlgorithmSpecification": algorithm}


def clone_name(of: str, created_at: datetime | None) -> str:
    """The same for whoever clones this very job, and nobody else's: the end is of what it is a clone of.

    Nothing else has a part in it, such as what a store knows of it: houses that govern one account make one clone
    between them, whatever each saw before.
    """
    found = _CLONE.fullmatch(of)
    number = int(found["number"]) + 1 if found else 1
    # The moment of its making too: a name can be used again once a job is deleted.
    moment = "" if created_at is None else f"{created_at.timestamp():.0f}"
    end = f"-r{number}-{hashlib.sha256(f'{of}/{moment}'.encode()).hexdigest()[:6]}"
    return f"{begin(of)[: _LONGEST_NAME - len(end)].rstrip('-')}{end}"


def begin(name: str) -> str:
    """How the names of a job and of all its clones begin, as far as there is room."""
    found = _CLONE.fullmatch(name)
    return found["begin"] if found else name


def _cleaned(key: str, value: Any) -> Any:
    refused = _READ_ONLY.get(key, ())
    if not isinstance(value, Mapping):
        return value
    return {
        name: part for name, part in value.items() if name not in refused and not (name in _KEYS and part in ("", None))
    }
