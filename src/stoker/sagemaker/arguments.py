"""Every argument of SageMaker's estimators, in versions 2 and 1 of its SDK, and its meaning in Stoker.

`docs/sagemaker-scripts.md` has this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal

from stoker.model.errors import UserError


class BadArgument(UserError, ValueError):
    """An argument that cannot be honoured, and without which the job would be another one."""


# Honoured: it becomes part of the job. Named: it has no effect, and a line says so. Refused: it is an error, because
# the job would not be the requested one.
Fate = Literal["honoured", "named", "refused"]


@dataclass(frozen=True)
class Argument:
    """One argument. `means` says what it becomes, or why it has no effect, as the rest of a sentence."""

    name: str
    fate: Fate
    means: str
    # The argument's name in version 1 of the SDK.
    old: str | None = None


def _honoured(name: str, means: str, old: str | None = None) -> Argument:
    return Argument(name, "honoured", means, old)


def _named(name: str, means: str, old: str | None = None) -> Argument:
    return Argument(name, "named", means, old)


def _refused(name: str, means: str, old: str | None = None) -> Argument:
    return Argument(name, "refused", means, old)


_DEBUGGER = "there is no SageMaker Debugger; `stoker exec` and `stoker ssh` look into a running machine"
_PROFILER = "there is no SageMaker Profiler; utilisation is in `stoker show`"
_REPOSITORY = "a private registry is `stoker={'environment': {'container': {'secret': …}}}`"

ARGUMENTS = (
    # The script
    _honoured("entry_point", "the script: `run: python ENTRY_POINT`"),
    _honoured("source_dir", "`code`; without it only the script is packed, as on SageMaker"),
    _honoured("dependencies", "folders and files that are packed beside the script"),
    _honoured("hyperparameters", "`params`: arguments, `SM_HP_*` and `hyperparameters.json`"),
    _honoured("environment", "`env`"),
    _honoured("container_log_level", "`SM_LOG_LEVEL`"),
    _honoured("distribution", "`torch_distributed` and `pytorchddp` run the script with torchrun", "distributions"),
    _honoured("model_dir", "TensorFlow's `--model_dir`; `/opt/ml/model` where none is given, False for none"),
    _honoured("requirements_file", "`environment.requirements`"),
    _refused("git_config", "the code is packed from this computer; clone the repository, and give its folder"),
    _named("code_location", "the code goes to the store"),
    # The machines
    _honoured("instance_type", "`resources.machine` without `ml.`; `local` is this computer", "train_instance_type"),
    _honoured("instance_count", "`nodes`", "train_instance_count"),
    _honoured("volume_size", "`resources.disk`, in GB", "train_volume_size"),
    _honoured("image_uri", "`environment.container`", "image_name"),
    _honoured("framework_version", "on EC2 the Deep Learning Container `dlc/pytorch:VERSION-PYTHON`"),
    _honoured("py_version", "the same"),
    _honoured("container_entry_point", "the command in the container"),
    _honoured("container_arguments", "its arguments"),
    _honoured("subnets", "`resources.ec2.subnet`"),
    _honoured("security_group_ids", "`resources.ec2.security_groups`"),
    _honoured("sagemaker_session", "its region, as `resources.region`; nothing else of it is used"),
    _refused("instance_groups", "all nodes are alike; give instance_type and instance_count"),
    _named("role", "machines have the instance profile `resources.ec2.profile`, or what the cloud gives them"),
    _named("volume_kms_key", "disks are encrypted as the account says by default", "train_volume_kms_key"),
    _named("enable_network_isolation", "a subnet without a way out does that"),
    _named("encrypt_inter_container_traffic", "the script decides how nodes communicate"),
    _named(
        "keep_alive_period_in_seconds", "a machine goes when the job ends; `retry.hold_on_failure` keeps a failed one"
    ),
    _named("training_plan", "a reservation is `resources.ec2.reservation`"),
    _named("instance_placement_config", "a placement group is `resources.ec2.placement_group`"),
    _named("training_repository_access_mode", _REPOSITORY),
    _named("training_repository_credentials_provider_arn", _REPOSITORY),
    _named("enable_infra_check", "a machine that does not come up is replaced"),
    _named("enable_remote_debug", "`stoker ssh` needs no permission"),
    _named("enable_session_tag_chaining", "there is no session of a role"),
    _honoured(
        "transformers_version",
        "on EC2 with GPUs Hugging Face's container, `dlc/huggingface-pytorch:VERSION-transformersVERSION-PYTHON`",
    ),
    _honoured("pytorch_version", "as `framework_version`"),
    _honoured("tensorflow_version", "as `framework_version`"),
    # Inputs and outputs
    _honoured("input_mode", "`mode` of each input: File is copy, FastFile is mount, Pipe is stream"),
    _honoured("model_uri", "an input"),
    _honoured("model_channel_name", "its name"),
    _honoured("output_path", "the store, where neither `stoker={'store': …}` nor STOKER_STORE names one"),
    _honoured("disable_output_compression", "outputs are plain files in any case"),
    _named("output_kms_key", "the bucket's own encryption is used"),
    # Limits and retries
    _honoured("max_run", "`limits.max_runtime`", "train_max_run"),
    _honoured("use_spot_instances", "`resources.spot: true`", "train_use_spot_instances"),
    _honoured("max_wait", "`limits.max_wait`, less max_run", "train_max_wait"),
    _honoured("checkpoint_s3_uri", "`checkpoints.copy_to`; the job goes on from what is there"),
    _honoured("checkpoint_local_path", "`checkpoints.dir`; `/opt/ml/checkpoints` where none is given"),
    _named("max_retry_attempts", "failures that are not the script's are always retried; `retry` has the rest"),
    # Names, tags and metrics
    _honoured("job_name", "the beginning of the job's name, where `fit` names none; the SDK ignores it"),
    _honoured("base_job_name", "the same, where no job_name is given"),
    _honoured("metric_definitions", "`metrics`"),
    _honoured("tags", "`tags`"),
    _named("enable_sagemaker_metrics", "metrics are in the store: `stoker show`, `stoker compare`"),
    _named("enable_cloudwatch_metrics", "the log goes to CloudWatch with `logs.cloudwatch`"),
    _named("rules", _DEBUGGER),
    _named("debugger_hook_config", _DEBUGGER),
    _named("tensorboard_output_config", "write to `SM_OUTPUT_DATA_DIR`, which is kept while the training runs"),
    _named("profiler_config", _PROFILER),
    _honoured("disable_profiler", "there is none"),
    # Arguments of some versions only
    _honoured("script_mode", "it is the only mode"),
    _refused("training_steps", "Stoker only runs the script; pass it as a hyperparameter"),
    _refused("evaluation_steps", "Stoker only runs the script; pass it as a hyperparameter"),
    _named("checkpoint_path", "TensorFlow's `/opt/ml/checkpoints` goes to the store"),
    _refused("compiler_config", "there is no SageMaker Training Compiler; use the framework's own"),
    _refused("training_recipe", "recipes are SageMaker HyperPod's; give an entry_point"),
    _refused("recipe_overrides", "recipes are SageMaker HyperPod's; give an entry_point"),
    _named("image_uri_region", "`stoker={'resources': {'region': …}}` says where"),
)

_BY_NAME = {argument.name: argument for argument in ARGUMENTS}
_NEW_NAMES = {argument.old: argument.name for argument in ARGUMENTS if argument.old is not None}


def newer_name(name: str) -> str | None:
    """The newer name of an argument of any version; None for other names."""
    newer = _NEW_NAMES.get(name, name)
    return newer if newer in _BY_NAME else None


def accept(given: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """The given arguments by their newer names. None counts as not given; so does False where it has no effect.

    Raises TypeError for an argument that no version had, BadArgument for one that is refused.
    """
    accepted: dict[str, Any] = {}
    for name, value in given.items():
        newer = _NEW_NAMES.get(name, name)
        argument = _BY_NAME.get(newer)
        if argument is None:
            near = get_close_matches(name, [*_BY_NAME, *_NEW_NAMES], n=1)
            raise TypeError(f"{kind}: there is no argument {name!r}{f'; did you mean {near[0]}?' if near else ''}")
        if newer in accepted and value is not None and accepted[newer] is not None and accepted[newer] != value:
            raise TypeError(f"{kind}: {name} and {newer} have different values; keep one of them")
        if value is None or (value is False and argument.fate != "honoured"):
            continue
        if argument.fate == "refused":
            raise BadArgument(f"{name}: {argument.means}")
        accepted[newer] = value
    return accepted


def unhonoured(accepted: Mapping[str, Any]) -> list[str]:
    """A line for each argument that cannot be honoured."""
    return [
        f"{argument.name}: not honoured: {argument.means}"
        for argument in ARGUMENTS
        if argument.fate == "named" and argument.name in accepted
    ]
