"""Translate the fields of a ModelTrainer into the arguments of an estimator."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from stoker.sagemaker.arguments import BadArgument
from stoker.sagemaker.train.configs import Channel, FileSystemDataSource, HyperPodCompute, S3DataSource
from stoker.sagemaker.train.distributed import MPI, Torchrun

# The SDK's default for `ignore_patterns`.
IGNORED = (".env", ".git", "__pycache__", ".DS_Store", ".cache", ".ipynb_checkpoints")
# The SDK's defaults, where `compute` and `stopping_condition` are not given.
_MACHINE = "ml.m5.xlarge"
_MAX_RUNTIME_S = 3600

# The names of arguments of estimators, as a ModelTrainer has them.
RENAMED = {
    "instance_type": "compute.instance_type",
    "instance_count": "compute.instance_count",
    "instance_groups": "compute.instance_groups",
    "volume_size": "compute.volume_size_in_gb",
    "volume_kms_key": "compute.volume_kms_key_id",
    "keep_alive_period_in_seconds": "compute.keep_alive_period_in_seconds",
    "training_plan": "compute.training_plan_arn",
    "instance_placement_config": "compute.instance_placement_config",
    "use_spot_instances": "compute.enable_managed_spot_training",
    "subnets": "networking.subnets",
    "security_group_ids": "networking.security_group_ids",
    "enable_network_isolation": "networking.enable_network_isolation",
    "encrypt_inter_container_traffic": "networking.enable_inter_container_traffic_encryption",
    "max_run": "stopping_condition.max_runtime_in_seconds",
    "max_wait": "stopping_condition.max_wait_time_in_seconds",
    "entry_point": "source_code.entry_script",
    "source_dir": "source_code.source_dir",
    "requirements_file": "source_code.requirements",
    "image_uri": "training_image",
    "input_mode": "training_input_mode",
    "output_path": "output_data_config.s3_output_path",
    "output_kms_key": "output_data_config.kms_key_id",
    "checkpoint_s3_uri": "checkpoint_config.s3_uri",
    "checkpoint_local_path": "checkpoint_config.local_path",
    "distribution": "distributed",
    "training_repository_access_mode": "training_image_config",
}


def estimator_arguments(fields: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of an estimator. Raises BadArgument for what would be another job."""
    _refuse(fields)
    source, image_config = fields["source_code"], fields["training_image_config"]
    output, checkpoints = fields["output_data_config"], fields["checkpoint_config"]
    found = {
        "role": fields["role"],
        "sagemaker_session": fields["sagemaker_session"],
        "base_job_name": fields["base_job_name"],
        "code_location": fields["input_s3_key_prefix"],
        "image_uri": fields["training_image"],
        "input_mode": fields["training_input_mode"],
        "environment": _environment(fields),
        "hyperparameters": _hyperparameters(fields["hyperparameters"]),
        "tags": [_tag(one) for one in fields["tags"] or ()] or None,
        "entry_point": _of(source, "entry_script") if _of(source, "command") is None else None,
        "source_dir": _of(source, "source_dir"),
        "requirements_file": _of(source, "requirements"),
        "output_path": _of(output, "s3_output_path"),
        "output_kms_key": _of(output, "kms_key_id"),
        "checkpoint_s3_uri": _of(checkpoints, "s3_uri"),
        "checkpoint_local_path": _of(checkpoints, "local_path"),
        "training_repository_access_mode": _of(image_config, "training_repository_access_mode"),
    }
    more = {**_machines(fields, overrides), **_network(fields["networking"]), **_limits(fields["stopping_condition"])}
    return {name: value for name, value in {**found, **more}.items() if value is not None}


def command(source: Any, distributed: Any, hyperparameters: Any) -> list[str] | None:
    """The command of the job; None for the image's own program. Raises BadArgument where it is not clear.

    As in the SDK, hyperparameters are arguments of an entry script, as `--name VALUE` in the order in which they were
    written, and none of a `command`. A shell around it keeps Stoker from adding them in the older SDK's form.
    """
    if source is None:
        return None
    script, line, added = _of(source, "entry_script"), _of(source, "command"), [str(one) for one in source.args or ()]
    if line is not None:
        return ["bash", "-c", f'{line} "$@"' if added else line, "stoker", *added] if added else ["bash", "-c", line]
    if script is None:
        raise BadArgument("source_code: name an entry_script or a command")
    if source.source_dir is None:
        raise BadArgument("source_code.source_dir: is missing; an entry_script lies in it")
    if not script.endswith((".py", ".sh")):
        raise BadArgument(f"source_code.entry_script: {script} is neither a .py nor a .sh script; give a command")
    launcher = "bash" if script.endswith(".sh") else "torchrun" if distributed is not None else "python"
    if distributed is not None and launcher == "bash":
        raise BadArgument(f"distributed: torchrun runs Python scripts; {script} is none")
    # A list is JSON text, and so are true and false.
    for name, value in (_hyperparameters(hyperparameters) or {}).items():
        added += [f"--{name}", value if isinstance(value, str) else json.dumps(value)]
    return ["bash", "-c", f'exec {launcher} "{script}" "$@"', "stoker", *added]


def inputs(configured: Sequence[Any] | None, given: Sequence[Any] | None) -> dict[str, Any]:
    """The inputs by channel; those of the call replace those of the trainer. Raises BadArgument for no input."""
    found: dict[str, Any] = {}
    for one in (*(configured or ()), *(given or ())):
        name = getattr(one, "channel_name", None)
        if not name:
            raise BadArgument(f"input_data_config: expected InputData or a Channel with a channel_name, found {one!r}")
        found[name] = _channel(one) if isinstance(one, Channel) else _source(name, one.data_source)
    return found


# ── Parts ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _refuse(fields: Mapping[str, Any]) -> None:
    distributed, compute = fields["distributed"], fields["compute"]
    if isinstance(distributed, MPI):
        raise BadArgument("distributed: MPI is not launched; start it from a command, or use Torchrun")
    if distributed is not None and not isinstance(distributed, Torchrun):
        raise BadArgument(f"distributed: expected Torchrun, found {type(distributed).__name__}")
    if _of(distributed, "smp") is not None:
        raise BadArgument("distributed.smp: there is no SageMaker model parallelism; use the framework's own")
    if isinstance(compute, HyperPodCompute):
        raise BadArgument("compute: there is no HyperPod; give Compute(instance_type=…, instance_count=…)")
    if _of(compute, "instance_preferences"):
        raise BadArgument("compute.instance_preferences: give one instance_type, or a list in stoker={'resources': …}")
    reasons = {
        "algorithm_name": "algorithms of the marketplace are SageMaker's own; give training_image and source_code",
        "model_package_config": "model packages are SageMaker's own; the model's files are in the job's outputs",
    }
    for name, why in reasons.items():
        if fields[name] is not None:
            raise BadArgument(f"{name}: {why}")


def _machines(fields: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    compute = fields["compute"]
    machine = _of(compute, "instance_type")
    if machine is None and not overrides.get("resources"):
        machine = _MACHINE
    return {
        "instance_type": "local" if fields["is_local"] else machine,
        "instance_count": _of(compute, "instance_count"),
        "instance_groups": _of(compute, "instance_groups"),
        "volume_size": _of(compute, "volume_size_in_gb"),
        "volume_kms_key": _of(compute, "volume_kms_key_id"),
        "keep_alive_period_in_seconds": _of(compute, "keep_alive_period_in_seconds"),
        "training_plan": _of(compute, "training_plan_arn"),
        "instance_placement_config": _of(compute, "instance_placement_config"),
        "use_spot_instances": _of(compute, "enable_managed_spot_training"),
    }


def _network(networking: Any) -> dict[str, Any]:
    return {
        "subnets": _of(networking, "subnets"),
        "security_group_ids": _of(networking, "security_group_ids"),
        "enable_network_isolation": _of(networking, "enable_network_isolation"),
        "encrypt_inter_container_traffic": _of(networking, "enable_inter_container_traffic_encryption"),
    }


def _limits(stopping: Any) -> dict[str, Any]:
    if _of(stopping, "max_pending_time_in_seconds") is not None:
        name = "stopping_condition.max_pending_time_in_seconds"
        raise BadArgument(f"{name}: is for training plans; stoker={{'limits': {{'max_wait': …}}}} bounds the wait")
    return {
        "max_run": _of(stopping, "max_runtime_in_seconds") or _MAX_RUNTIME_S,
        "max_wait": _of(stopping, "max_wait_time_in_seconds"),
    }


def _environment(fields: Mapping[str, Any]) -> dict[str, str] | None:
    processes = _of(fields["distributed"], "process_count_per_node")
    own = {"PET_NPROC_PER_NODE": str(processes)} if processes else {}
    return {**own, **(fields["environment"] or {})} or None


def _hyperparameters(given: Any) -> dict[str, Any] | None:
    """The hyperparameters, also from a JSON or YAML file."""
    if not isinstance(given, str):
        return dict(given) if given else None
    path = Path(given).expanduser()
    if not path.is_file():
        raise BadArgument(f"hyperparameters: there is no file {path}")
    import yaml

    try:
        # JSON is YAML, too.
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadArgument(f"hyperparameters: {path} is neither JSON nor YAML: {error}".splitlines()[0]) from None
    if not isinstance(found, dict):
        raise BadArgument(f"hyperparameters: {path} holds no names and values")
    return {str(name): value for name, value in found.items()}


def _tag(one: Any) -> dict[str, str]:
    if isinstance(one, Mapping):
        lower = {str(name).lower(): str(value) for name, value in one.items()}
        return {"Key": lower.get("key", ""), "Value": lower.get("value", "")}
    return {"Key": one.key, "Value": one.value}


def _source(name: str, source: Any) -> Any:
    if isinstance(source, str):
        return source
    if isinstance(source, S3DataSource):
        return SimpleNamespace(config={"DataSource": {"S3DataSource": _s3(source)}})
    if isinstance(source, FileSystemDataSource):
        return SimpleNamespace(config={"DataSource": {"FileSystemDataSource": {}}})
    raise BadArgument(f"inputs.{name}: expected a URL, a folder or an S3DataSource, found {source!r}")


def _channel(channel: Channel) -> Any:
    source = channel.data_source
    s3 = _of(source, "s3_data_source")
    config: dict[str, Any] = {
        "DataSource": {"S3DataSource": _s3(s3)} if s3 is not None else {"FileSystemDataSource": {}},
        "ContentType": channel.content_type,
        "CompressionType": channel.compression_type,
        "RecordWrapperType": channel.record_wrapper_type,
        "InputMode": channel.input_mode,
        "ShuffleConfig": channel.shuffle_config,
    }
    return SimpleNamespace(config={name: value for name, value in config.items() if value is not None})


def _s3(source: S3DataSource) -> dict[str, Any]:
    return {
        "S3DataType": source.s3_data_type,
        "S3Uri": source.s3_uri,
        "S3DataDistributionType": source.s3_data_distribution_type,
    }


def _of(config: Any, name: str) -> Any:
    return getattr(config, name, None)
