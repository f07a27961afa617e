"""Build the request that creates a clone of a training job, from the job's description. Pure."""

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
_LINEAGE_TAGS = (ORIGIN, CLONE_OF, NUMBER)
# Joins the three values where there is room for one tag only. Tags may contain it, and names of jobs cannot.
_SEPARATOR = "/"

# All fields that a request and a description share. A test compares them with AWS's own model, to notice new fields.
COPIED_FIELDS = (
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
# All other fields of a description: what SageMaker reports.
REPORTED_FIELDS = (
    "AutoMLJobArn",
    "BillableTimeInSeconds",
    "BillableTokenCount",
    "CreationTime",
    "DebugRuleEvaluationStatuses",
    "FailureReason",
    "FinalMetricDataList",
    "LabelingJobArn",
    "LastModifiedTime",
    "MlflowDetails",
    "ModelArtifacts",
    "OutputModelPackageArn",
    "ProfilerRuleEvaluationStatuses",
    "ProfilingStatus",
    "ProgressInfo",
    "SecondaryStatus",
    "SecondaryStatusTransitions",
    "TrainingEndTime",
    "TrainingJobArn",
    "TrainingJobName",
    "TrainingJobStatus",
    "TrainingStartTime",
    "TrainingTimeInSeconds",
    "TuningJobArn",
    "WarmPoolStatus",
)
# In place of fields where the answer itself cannot be read.
EVERYTHING = "unknown fields"
# Parts of a description that a request may not have.
_READ_ONLY = {"ResourceConfig": ("SelectedInstanceType", "SelectedInstanceCount")}
# An empty value of these in a description means that there is no key.
_KMS_KEYS = ("KmsKeyId", "VolumeKmsKeyId")
_MAX_NAME = 63
_CLONE = re.compile(r"(?P<begin>.+)-r(?P<number>[0-9]{1,4})-[0-9a-f]{6}")
_MAX_TAGS = 50
_DIGITS = re.compile(r"[0-9]{1,4}")
# SageMaker's refusal of metric definitions that it reported itself.
METRICS_REFUSED = re.compile(r"override the metric definitions", re.IGNORECASE)


def build_request(
    description: Mapping[str, Any],
    tags: Iterable[Mapping[str, Any]],
    *,
    name: str,
    origin: str,
    number: int,
    spot: bool,
) -> dict[str, Any]:
    """The request for `CreateTrainingJob`: all fields of the original, with another name and tags for the lineage.

    Without `spot` it has no `MaxWaitTimeInSeconds`, which is for spot only. The description must have no `lost_fields`.
    """
    wanted = {key: _cleaned(key, description[key]) for key in COPIED_FIELDS if not _is_empty(description.get(key))}
    wanted["TrainingJobName"] = name
    if description.get("EnableManagedSpotTraining") is True and not spot:
        wanted["EnableManagedSpotTraining"] = False
        stopping = dict(wanted.get("StoppingCondition", {}))
        stopping.pop("MaxWaitTimeInSeconds", None)
        wanted["StoppingCondition"] = stopping
    all_tags = {str(tag["Key"]): str(tag.get("Value", "")) for tag in tags if tag.get("Key")}
    lineage = Lineage(origin, str(description.get("TrainingJobName", "")), number)
    every = {**_copied_tags(all_tags), **lineage.tags(_MAX_TAGS - len(_copied_tags(all_tags)))}
    wanted["Tags"] = [{"Key": key, "Value": value} for key, value in every.items()]
    return wanted


def lost_fields(answer: Mapping[str, Any], description: Mapping[str, Any]) -> tuple[str, ...]:
    """The fields that SageMaker answered and a clone would not have.

    boto3 drops what its own model of SageMaker does not know, so `answer`, the response as it came, is compared with
    `description`, what boto3 made of it. A field that is in neither list above may belong to the request, too.
    """
    lost = [key for key in answer if key not in (*COPIED_FIELDS, *REPORTED_FIELDS) and not _is_empty(answer[key])]
    for key in COPIED_FIELDS:
        lost += _lost_parts(answer.get(key), description.get(key), key)
    return tuple(sorted(lost))


def _lost_parts(answered: Any, parsed: Any, path: str) -> list[str]:
    if _is_empty(answered):
        return []
    if isinstance(answered, Mapping) and isinstance(parsed, Mapping):
        return [
            lost
            for name, part in answered.items()
            if name not in _READ_ONLY.get(path, ())
            for lost in _lost_parts(part, parsed.get(name), f"{path}.{name}")
        ]
    if isinstance(answered, list) and isinstance(parsed, list) and len(answered) == len(parsed):
        pairs = enumerate(zip(answered, parsed, strict=True))
        return [lost for number, (one, other) in pairs for lost in _lost_parts(one, other, f"{path}[{number}]")]
    # Values are not compared: boto3 parses times.
    return [path] if parsed is None or isinstance(answered, (Mapping, list)) else []


def _is_empty(value: Any) -> bool:
    return value is None or value in ({}, [])


@dataclass(frozen=True)
class Lineage:
    """The lineage of a clone, from its tags, which anybody may write. For a job that is no clone: empty, and 0."""

    origin: str
    of: str
    number: int

    def tags(self, room: int) -> dict[str, str]:
        """One tag for each value, or one for all where there is no room: no tag of the original is dropped."""
        each = (self.origin, self.of, str(self.number))
        return (
            dict(zip(_LINEAGE_TAGS, each, strict=True))
            if room >= len(_LINEAGE_TAGS)
            else {ORIGIN: _SEPARATOR.join(each)}
        )


def parse_lineage(tags: Mapping[str, str]) -> Lineage:
    """The lineage in the tags of a training job. Malformed values are ignored."""
    origin, of, number = (tags.get(key, "") for key in _LINEAGE_TAGS)
    if origin.count(_SEPARATOR) == len(_LINEAGE_TAGS) - 1:
        origin, of, number = origin.split(_SEPARATOR)
    return Lineage(origin, of, int(number) if _DIGITS.fullmatch(number) else 0)


def has_tag_room(tags: Mapping[str, str]) -> bool:
    """Return whether a clone of a job with these tags has room for one more tag, for its lineage."""
    return len(_copied_tags(tags)) < _MAX_TAGS


def _copied_tags(tags: Mapping[str, str]) -> dict[str, str]:
    return {
        key: value for key, value in tags.items() if not key.lower().startswith("aws:") and key not in _LINEAGE_TAGS
    }


def without_metrics(request: Mapping[str, Any]) -> dict[str, Any]:
    """The request without metric definitions."""
    algorithm = {key: value for key, value in request["AlgorithmSpecification"].items() if key != "MetricDefinitions"}
    return {**request, "AlgorithmSpecification": algorithm}


def clone_name(of: str, created_at: datetime | None) -> str:
    """The name of the clone of this job: its suffix is a hash of the job's name and creation time.

    It depends on nothing else, such as the state of a store. So several stores that govern one account create one clone
    between them, whatever each of them observed.
    """
    found = _CLONE.fullmatch(of)
    number = int(found["number"]) + 1 if found else 1
    # With the creation time, since a name can be used again once its job is deleted.
    moment = "" if created_at is None else f"{created_at.timestamp():.0f}"
    end = f"-r{number}-{hashlib.sha256(f'{of}/{moment}'.encode()).hexdigest()[:6]}"
    return f"{base_name(of)[: _MAX_NAME - len(end)].rstrip('-')}{end}"


def base_name(name: str) -> str:
    """The common beginning of the names of a job and all its clones, before it is cut to the maximum length."""
    found = _CLONE.fullmatch(name)
    return found["begin"] if found else name


def _cleaned(key: str, value: Any) -> Any:
    refused = _READ_ONLY.get(key, ())
    if not isinstance(value, Mapping):
        return value
    return {
        name: part
        for name, part in value.items()
        if name not in refused and not (name in _KMS_KEYS and part in ("", None))
    }
