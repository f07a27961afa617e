"""Requests to SageMaker: built as data, purely.

A claim is one training job with as many hosts as the job has nodes: they come all or not at all. Its container runs
Stoker's own agent, so that the rest (code, inputs, checkpoints, logs, metrics, exits) is the same as on other clouds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from stoker.cloudapi.aws.logs import is_group
from stoker.model import dlc_images, hyperparameters, keys
from stoker.model.command_line import param_texts
from stoker.model.errors import UserError
from stoker.model.resources import SagemakerResources
from stoker.model.spec import Spec
from stoker.providers import request_overrides
from stoker.providers.base import LaunchOrder, Request
from stoker.providers.ec2 import overrides as aws_overrides
from stoker.providers.ec2 import places
from stoker.providers.machine_types import disk_size
from stoker.providers.sagemaker import catalog, channels, entry, names, tags
from stoker.providers.sagemaker.capabilities import CAPABILITIES
from stoker.providers.volume_sizes import VolumeSizes

# The name of the role that `stoker iam sagemaker` describes.
DEFAULT_ROLE = "stoker-training"
# A placeholder that the launch replaces with the account's number: see `SageMakerProvider.launch`.
ACCOUNT = "(this account)"
# For jobs that name no container: AWS's own, with and without GPUs.
DEFAULT_IMAGE = "dlc/pytorch:2.5-py311"
_DEFAULT_DISK_GB = 50
# "SageMaker doesn't provision Amazon EBS General Purpose SSD (gp2) storage" on types with own disks alone
# (ResourceConfig, VolumeSizeInGB), and gp2 has 1 to 16,384 GiB (EbsBlockDevice, VolumeSize).
_SIZES = VolumeSizes("SageMaker", {"gp2": (1, 16_384)})
# SageMaker's longest run time of a training job; and that of an account whose quota was not raised.
_LONGEST_S = 28 * 86400
USUAL_S = 5 * 86400
# Added to `max_runtime`, as governors do.
_LIFE_MARGIN_S = 3600
_LONGEST_KEEP_ALIVE_S = 6 * 3600
# SageMaker's limits. Metrics and parameters beyond them are stored by Stoker alone.
_MOST_METRICS, _REGEX_LENGTH = 40, 500
_MOST_PARAMS, _PARAM_LENGTH = 100, 2500
_ROLE = re.compile(r"[\w+=,.@/-]{1,576}")

# Fields that no override may change: the training job would lose its owner, be launched twice, or outlive its claim.
_PROTECTED = (
    "TrainingJobName",
    "AlgorithmSpecification.AlgorithmName",
    "AlgorithmSpecification.ContainerArguments",
    "AlgorithmSpecification.ContainerEntrypoint",
    "AlgorithmSpecification.TrainingImage",
    "EnableManagedSpotTraining",
    # With network isolation the agent could not reach the store.
    "EnableNetworkIsolation",
    "ResourceConfig.InstanceCount",
    "ResourceConfig.InstanceGroups",
    "ResourceConfig.InstanceType",
    # Stoker decides about further attempts.
    "RetryStrategy",
    "StoppingCondition",
)
_IDENTITIES = {"Tags": "Key", "InputDataConfig": "ChannelName", "MetricDefinitions": "Name"}


def build(order: LaunchOrder) -> tuple[Request, ...]:
    """The one request for a claim. Pure: the same order gives the same request."""
    ours = order.spec.resources.sagemaker or SagemakerResources()
    params = request_overrides.merge_overrides(_params(order, ours), ours.overrides, _IDENTITIES)
    return (Request("sagemaker", "CreateTrainingJob", params, order.offering.region),)


def check(spec: Spec) -> None:
    """Raise UserError for what SageMaker would refuse, or what would remove a training job from Stoker's control."""
    tags.check(spec.written_tags)
    region = spec.resources.only_region
    if region:
        places.check(region)
    group = spec.logs.cloudwatch
    if group is not None and not is_group(group):
        raise UserError(f"logs.cloudwatch: {group!r} is no name of a log group; it takes letters, digits and _ - / . #")
    ours = spec.resources.sagemaker or SagemakerResources()
    role = ours.role
    if role is not None and not role.startswith("arn:") and not _ROLE.fullmatch(role):
        raise UserError(f"resources.sagemaker.role: {role!r} is no role; give its name or its ARN")
    if bool(ours.subnets) != bool(ours.security_groups):
        missing = "security_groups" if ours.subnets else "subnets"
        raise UserError(f"resources.sagemaker.{missing}: SageMaker takes subnets and security groups together")
    if spec.resources.disk_bytes is not None:
        _SIZES.check("resources.disk", "gp2", disk_size(spec.resources.disk_bytes))
    _check_python(spec)
    channels.check(spec, ours)
    _check_keep_alive(spec, ours)
    _check_key(spec, ours)
    for name in _PROTECTED:
        if request_overrides.reaches(ours.overrides, name):
            raise UserError(f"resources.sagemaker.overrides.{name}: is Stoker's own; leave it out")
    aws_overrides.check(ours.overrides, "resources.sagemaker.overrides", "sagemaker", "CreateTrainingJob")
    named = [str(each.get("Key", "")) for each in ours.overrides.get("Tags") or () if isinstance(each, Mapping)]
    for key in named:
        if key.startswith("stoker:"):
            raise UserError(f"resources.sagemaker.overrides.Tags: {key} is Stoker's own; leave it out")


def _check_python(spec: Spec) -> None:
    """Raise UserError for an image that is known to have no Python for the agent, which runs inside it."""
    container = spec.environment.container
    python = dlc_images.python_of(container.image) if container is not None else None
    if container is not None and python is not None and python < dlc_images.OLDEST_AGENT_PYTHON:
        need = ".".join(map(str, dlc_images.OLDEST_AGENT_PYTHON))
        raise UserError(
            f"environment.container.image: {container.image} has Python {python[0]}.{python[1]}, and on SageMaker "
            f"Stoker's agent runs inside the image and needs {need}; choose a newer image, or resources.provider: ec2, "
            "where the agent runs beside it"
        )


def check_image(spec: Spec, region: str | None) -> None:
    """Raise UserError for an alias of an image that is not known in the region: SageMaker pulls from no other."""
    container = spec.environment.container
    problem = dlc_images.region_problem(container.image if container else DEFAULT_IMAGE, region) if region else None
    if problem is not None:
        raise UserError(f"environment.container.image: {problem}")


def _check_keep_alive(spec: Spec, ours: SagemakerResources) -> None:
    if ours.keep_alive_s is None:
        return
    if spec.resources.spot != "never":
        raise UserError("resources.sagemaker.keep_alive: SageMaker keeps no spot machines; set resources.spot to false")
    if ours.keep_alive_s > _LONGEST_KEEP_ALIVE_S:
        raise UserError(
            f"resources.sagemaker.keep_alive: SageMaker keeps machines {_LONGEST_KEEP_ALIVE_S // 3600}h at most"
        )


def _check_key(spec: Spec, ours: SagemakerResources) -> None:
    """Raise UserError for an alias of a key where a disk needs it: SageMaker takes aliases for outputs alone."""
    key, named = ours.kms_key or "", spec.resources.machine
    only_local = bool(named) and all(catalog.local_gb(name) is not None for name in named)
    if (key.startswith("alias/") or ":alias/" in key) and not only_local:
        raise UserError(
            f"resources.sagemaker.kms_key: {key} is an alias, which SageMaker does not take for disks; give the"
            " key's id or ARN"
        )


# ── The training job ──────────────────────────────────────────────────────────────────────────────────────────────────


def _params(order: LaunchOrder, ours: SagemakerResources) -> dict[str, Any]:
    spec = order.spec
    name = names.training_job(order.store, order.job, order.claim, order.nodes)
    entry_point, arguments = entry.entry_point(order, name)
    algorithm: dict[str, Any] = {
        "TrainingImage": image(order),
        "TrainingInputMode": "File",
        "ContainerEntrypoint": entry_point,
        "ContainerArguments": arguments,
    }
    if metrics := _metrics(spec):
        algorithm["MetricDefinitions"] = metrics
    output = {"S3OutputPath": f"{order.store.rstrip('/')}/{keys.sagemaker_output(order.job)}"}
    params: dict[str, Any] = {
        "TrainingJobName": name,
        "AlgorithmSpecification": algorithm,
        "RoleArn": _role(ours.role or DEFAULT_ROLE, order.offering.region),
        "OutputDataConfig": output | ({"KmsKeyId": ours.kms_key} if ours.kms_key else {}),
        "ResourceConfig": _machines(order, ours),
        "StoppingCondition": _bounds(order),
        "Tags": tags.to_aws(tags.of_order(order)),
    }
    if brought := channels.build(order, ours):
        params["InputDataConfig"] = brought
    if copy := channels.checkpoint_copy(order, ours, name):
        params["CheckpointConfig"] = copy
    if order.offering.spot:
        params["EnableManagedSpotTraining"] = True
    if ours.subnets:
        params["VpcConfig"] = {"Subnets": list(ours.subnets), "SecurityGroupIds": list(ours.security_groups)}
    if ours.encrypt_traffic:
        params["EnableInterContainerTrafficEncryption"] = True
    if params_ := _hyperparameters(spec):
        params["HyperParameters"] = params_
    return params


def image(order: LaunchOrder) -> str:
    """The image of the container, with an alias resolved for the region."""
    container = order.spec.environment.container
    wanted = container.image if container else DEFAULT_IMAGE + ("" if order.offering.gpus else "-cpu")
    return dlc_images.resolve(wanted, order.offering.region)


def _role(role: str, region: str | None) -> str:
    if role.startswith("arn:"):
        return role
    place = str(region)
    partition = "aws-cn" if place.startswith("cn-") else "aws-us-gov" if place.startswith("us-gov-") else "aws"
    return f"arn:{partition}:iam::{ACCOUNT}:role/{role}"


def _machines(order: LaunchOrder, ours: SagemakerResources) -> dict[str, Any]:
    size = order.spec.resources.disk_bytes
    found: dict[str, Any] = {
        "InstanceType": order.offering.machine,
        "InstanceCount": order.nodes,
        "VolumeSizeInGB": _DEFAULT_DISK_GB if size is None else disk_size(size),
    }
    # Local disks are always encrypted, and SageMaker refuses a key for them.
    if ours.kms_key and catalog.local_gb(order.offering.machine) is None:
        found["VolumeKmsKeyId"] = ours.kms_key
    if ours.keep_alive_s is not None and not order.offering.spot:
        found["KeepAlivePeriodInSeconds"] = math.ceil(ours.keep_alive_s)
    return found


def life_s(spec: Spec) -> int:
    """The run time to request for a training job of this spec, before the policy's limits apply."""
    most_s = spec.limits.max_runtime_s
    return USUAL_S if most_s is None else min(_LONGEST_S, math.ceil(most_s + _LIFE_MARGIN_S))


def _bounds(order: LaunchOrder) -> dict[str, int]:
    """The stopping condition, which SageMaker enforces. With spot, the longest wait for machines is added."""
    life_s = USUAL_S if order.max_life_s is None else min(_LONGEST_S, max(1, math.ceil(order.max_life_s)))
    if not order.offering.spot:
        return {"MaxRuntimeInSeconds": life_s}
    longest = order.spec.limits.max_wait_s
    wait_s = CAPABILITIES.boot_timeout_s if longest is None else longest
    return {"MaxRuntimeInSeconds": life_s, "MaxWaitTimeInSeconds": life_s + math.ceil(min(wait_s, _LONGEST_S))}


def _metrics(spec: Spec) -> list[dict[str, str]]:
    fitting = [(name, regex) for name, regex in spec.metrics.items() if len(regex) <= _REGEX_LENGTH]
    return [{"Name": name, "Regex": regex} for name, regex in fitting[:_MOST_METRICS]]


def _hyperparameters(spec: Spec) -> dict[str, str]:
    """Hyperparameters for display on the console, for a script of SageMaker's in its own form.

    The command gets its parameters from the agent, which needs no limits.
    """
    texts = param_texts(spec)
    if spec.environment.contract is not None:
        own, framework = hyperparameters.split(spec.params)
        script = hyperparameters.entry_point(spec) is not None
        texts = {name: hyperparameters.encode(value, script=script) for name, value in own.items()}
        texts |= {name: hyperparameters.encode(value) for name, value in framework.items()}
    texts = {name: text for name, text in texts.items() if len(text) <= _PARAM_LENGTH and "\n" not in text}
    return texts if len(texts) <= _MOST_PARAMS else {}
