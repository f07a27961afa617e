"""What SageMaker refuses in a training job although its model allows it."""

from __future__ import annotations

from tests.support.sagemaker.faults import Failure, invalid
from tests.support.sagemaker.jobs import BUILT_IN, Json

_LONGEST_S = 28 * 86400


def refusal(asked: Json) -> Failure | None:
    """Why CreateTrainingJob refuses this; None: it does not."""
    own = None if asked.get("ServerlessJobConfig") else _about_algorithm(asked) or _about_resources(asked)
    told = own or _about_time(asked) or _about_names(asked)
    return None if told is None else invalid(told)


def _about_algorithm(asked: Json) -> str | None:
    algorithm = asked.get("AlgorithmSpecification")
    if algorithm is None:
        return "AlgorithmSpecification is required for training jobs that are not serverless."
    if bool(algorithm.get("TrainingImage")) == bool(algorithm.get("AlgorithmName")):
        return "You must provide exactly one of TrainingImage and AlgorithmName in AlgorithmSpecification."
    if algorithm.get("ContainerArguments") and algorithm.get("AlgorithmName"):
        return "ContainerArguments is supported only with TrainingImage."
    if algorithm.get("MetricDefinitions") and BUILT_IN.search(algorithm.get("TrainingImage", "")):
        return (
            "You can't override the metric definitions for Amazon SageMaker algorithms. Please retry the request"
            " without specifying metric definitions."
        )
    return None


def _about_resources(asked: Json) -> str | None:
    resources = asked.get("ResourceConfig")
    if resources is None:
        return "ResourceConfig is required for training jobs that are not serverless."
    single = "InstanceType" in resources or "InstanceCount" in resources
    groups, preferred = resources.get("InstanceGroups"), resources.get("InstancePreferences")
    if [single, bool(groups), bool(preferred)].count(True) != 1:
        return (
            "You must provide either InstanceType and InstanceCount, or InstanceGroups, or InstancePreferences,"
            " in ResourceConfig."
        )
    if preferred and asked.get("EnableManagedSpotTraining"):
        return "InstancePreferences is not supported with managed spot training."
    if single and (not resources.get("InstanceType") or not resources.get("InstanceCount")):
        return "InstanceType and a positive InstanceCount are required in ResourceConfig."
    if not resources.get("VolumeSizeInGB"):
        return "VolumeSizeInGB must be at least 1 in ResourceConfig."
    if resources.get("KeepAlivePeriodInSeconds") and asked.get("EnableManagedSpotTraining"):
        return "KeepAlivePeriodInSeconds is not supported with managed spot training."
    if resources.get("KeepAlivePeriodInSeconds") and groups:
        return "KeepAlivePeriodInSeconds is not supported with heterogeneous clusters."
    return None


def _about_time(asked: Json) -> str | None:
    bounds = asked.get("StoppingCondition") or {}
    longest_s, wait_s = bounds.get("MaxRuntimeInSeconds", 86400), bounds.get("MaxWaitTimeInSeconds")
    if longest_s > _LONGEST_S:
        return f"MaxRuntimeInSeconds must be at most {_LONGEST_S}."
    if asked.get("EnableManagedSpotTraining"):
        if wait_s is None or wait_s < longest_s:
            return (
                "Invalid MaxWaitTimeInSeconds. It must be present and be greater than or equal to MaxRuntimeInSeconds"
            )
    elif wait_s is not None:
        return (
            "MaxWaitTimeInSeconds above 0 is not supported when EnableManagedSpotTraining is not set to true. Please"
            " try again after enabling managed spot training or setting MaxWaitTimeInSeconds to 0"
        )
    return None


def _about_names(asked: Json) -> str | None:
    channels = [each["ChannelName"] for each in asked.get("InputDataConfig") or []]
    if len(set(channels)) != len(channels):
        return "Channel names must be unique in InputDataConfig."
    return about_tags(asked.get("Tags") or [])


def about_tags(tags: list[Json]) -> str | None:
    keys = [each["Key"] for each in tags]
    if len(set(keys)) != len(keys):
        return "Duplicate tag keys are not allowed."
    if any(key.lower().startswith("aws:") for key in keys):
        return "Tag keys that begin with aws: are reserved."
    return None
