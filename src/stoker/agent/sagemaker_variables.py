"""The `SM_*` variables and the configuration that a script written for SageMaker expects.

They follow the `sagemaker-training` toolkit (github.com/aws/sagemaker-training-toolkit, ENVIRONMENT_VARIABLES.md), so
that a script runs with the toolkit or without it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from typing import Any

from stoker.agent.sagemaker_machine import ToolkitMachine
from stoker.agent.training_environment import TrainingLocation
from stoker.model import hyperparameters
from stoker.model.hyperparameters import CODE, ML, MODEL, OUTPUT_DATA, OUTPUT_INTERMEDIATE
from stoker.model.spec import Input, Spec
from stoker.model.submission import Submission

# The variables with their meaning, for `docs/environment.md`.
CONTRACT: tuple[tuple[str, str], ...] = (
    ("SM_MODEL_DIR", "`/opt/ml/model`: what is saved here is the job's output"),
    ("SM_OUTPUT_DATA_DIR", "`/opt/ml/output/data`: other files that are kept"),
    ("SM_OUTPUT_INTERMEDIATE_DIR", "`/opt/ml/output/intermediate`: kept as well"),
    ("SM_OUTPUT_DIR", "`/opt/ml/output`: the text of a file `failure` in it is the reason of a failed attempt"),
    ("SM_CHANNELS", "the names of the inputs, as JSON"),
    ("SM_CHANNEL_<NAME>", "folder of each input: `/opt/ml/input/data/<name>` (its URL, for `mode: stream`)"),
    ("SM_INPUT_DIR, SM_INPUT_CONFIG_DIR", "`/opt/ml/input`, and `config` in it with the three JSON files"),
    ("SM_INPUT_DATA_CONFIG", "how each input comes, as in `inputdataconfig.json`"),
    ("SM_HPS", "the parameters as JSON"),
    ("SM_HP_<NAME>", "each parameter: text as it is, anything else as JSON"),
    ("SM_USER_ARGS", "the parameters as arguments, as JSON"),
    ("SM_HOSTS, SM_CURRENT_HOST", "`algo-1`, …, one for each node, and which one this is; they have addresses"),
    ("SM_RESOURCE_CONFIG", "the hosts and this one, as in `resourceconfig.json`"),
    ("SM_CURRENT_INSTANCE_TYPE", "the machine type, with `ml.` before EC2's; `local` on this computer"),
    ("SM_CURRENT_INSTANCE_GROUP, SM_CURRENT_INSTANCE_GROUP_HOSTS", "`homogeneousCluster`, and its hosts: all"),
    ("SM_INSTANCE_GROUPS, SM_INSTANCE_GROUPS_DICT", "the same as a list and in full"),
    ("SM_DISTRIBUTION_INSTANCE_GROUPS, SM_IS_HETERO", "the group if a launcher was asked for; `false`"),
    ("SM_NETWORK_INTERFACE_NAME", "the interface that has this node's address"),
    ("SM_NUM_GPUS, SM_NUM_CPUS, SM_NUM_NEURONS", "what this machine has"),
    ("SM_MODULE_NAME, SM_USER_ENTRY_POINT, SM_ENTRY_POINT", "the script that `run` names, without `.py` and with it"),
    ("SM_MODULE_DIR", "`/opt/ml/code`: the code, and the working folder"),
    ("SM_LOG_LEVEL", "20, or the parameter `sagemaker_container_log_level`"),
    ("SM_FRAMEWORK_MODULE", "empty, or SAGEMAKER_TRAINING_MODULE"),
    ("SM_FRAMEWORK_PARAMS", "parameters that begin with `sagemaker_`, as JSON"),
    ("SM_TRAINING_ENV", "all of it, as JSON"),
    ("TRAINING_JOB_NAME, SAGEMAKER_JOB_NAME", "the job's id; with `provider: sagemaker` the training job's own name"),
    ("CURRENT_HOST", "as SM_CURRENT_HOST"),
    ("SAGEMAKER_REGION", "AWS_REGION where that is set"),
)

_GROUP = "homogeneousCluster"
CONFIG = f"{ML}/input/config"
DATA = f"{ML}/input/data"
_MODES = {"copy": "File", "mount": "FastFile", "stream": "Pipe"}
# Parameters of the toolkit that it does not show to scripts.
_INTERNAL = frozenset(
    {
        *("sagemaker_program", "sagemaker_submit_directory", "sagemaker_container_log_level", "sagemaker_job_name"),
        *("sagemaker_region", "sagemaker_enable_cloudwatch_metrics", "sagemaker_s3_output"),
        *("default_user_module_name", "_tuning_objective_metric"),
    }
)
# With any of these parameters, a launcher works on the group.
_LAUNCHERS = tuple(
    f"sagemaker_{name}_enabled"
    for name in (
        *("mpi", "parameter_server", "distributed_dataparallel", "pytorch_ddp"),
        *("pytorch_xla_multi_worker", "multi_worker_mirrored_strategy", "torch_distributed"),
    )
)


def variables(submission: Submission, location: TrainingLocation, machine: ToolkitMachine) -> dict[str, str]:
    """Return every variable of the contract."""
    properties = _properties(submission, location, machine)
    values: dict[str, Any] = {name: properties[name] for name in _SAME_NAME}
    values |= {
        "hps": properties["hyperparameters"],
        "framework_params": properties["additional_framework_parameters"],
        "channels": sorted(properties["channel_input_dirs"]),
        "user_args": [word for flag in hyperparameters.flags(properties["hyperparameters"]).values() for word in flag],
        "entry_point": properties["user_entry_point"],
        "training_env": properties,
    }
    values |= {f"channel_{name}": where for name, where in properties["channel_input_dirs"].items()}
    values |= {f"hp_{name}": value for name, value in properties["hyperparameters"].items()}
    named = {f"SM_{name.upper()}": hyperparameters.variable_text(value) for name, value in values.items()}
    return named | {
        "TRAINING_JOB_NAME": _job_name(submission, machine),
        "SAGEMAKER_JOB_NAME": _job_name(submission, machine),
        "CURRENT_HOST": properties["current_host"],
        "SAGEMAKER_REGION": _variable(submission.spec, "AWS_REGION") or "",
    }


# The properties that have a variable with their own name.
_SAME_NAME = (
    *("hosts", "current_host", "network_interface_name", "resource_config", "input_data_config", "log_level"),
    *("current_instance_type", "current_instance_group", "current_instance_group_hosts", "instance_groups"),
    *("instance_groups_dict", "distribution_instance_groups", "is_hetero", "num_cpus", "num_gpus", "num_neurons"),
    *("module_name", "module_dir", "user_entry_point", "framework_module"),
    *("input_dir", "input_config_dir", "output_dir", "output_data_dir", "output_intermediate_dir", "model_dir"),
)


def _properties(submission: Submission, location: TrainingLocation, machine: ToolkitMachine) -> dict[str, Any]:
    """Return the properties of the toolkit's environment, by their names there."""
    spec = submission.spec
    own, framework = split_parameters(spec, _job_name(submission, machine))
    resources = resource_config(location, machine)
    hosts, current = resources["hosts"], resources["current_host"]
    launched = [_GROUP] if any(framework.get(name) for name in _LAUNCHERS) else []
    entry = framework["sagemaker_program"]
    master = "algo-1"
    return {
        "additional_framework_parameters": {k: v for k, v in framework.items() if k not in _INTERNAL},
        "channel_input_dirs": {
            name: where if "://" in where else f"{DATA}/{name}" for name, where in location.inputs.items()
        },
        "current_host": current,
        "current_instance_group": _GROUP,
        "current_instance_group_hosts": hosts,
        "current_instance_type": machine.instance_type,
        "distribution_hosts": hosts if launched else [],
        "distribution_instance_groups": launched,
        "framework_module": _variable(spec, "SAGEMAKER_TRAINING_MODULE"),
        "hosts": hosts,
        "hyperparameters": own,
        "input_config_dir": CONFIG,
        "input_data_config": input_config(spec),
        "input_dir": f"{ML}/input",
        "instance_groups": [_GROUP],
        "instance_groups_dict": {_GROUP: resources["instance_groups"][0]},
        "is_hetero": False,
        "is_master": current == master,
        "is_modelparallel_enabled": None,
        "is_smddpmprun_installed": shutil.which("smddpmprun") is not None,
        "is_smddprun_installed": shutil.which("smddprun") is not None,
        "job_name": _job_name(submission, machine),
        "log_level": framework["sagemaker_container_log_level"],
        "master_hostname": master,
        "model_dir": MODEL,
        "module_dir": framework["sagemaker_submit_directory"],
        "module_name": entry.removesuffix(".py"),
        "network_interface_name": machine.network_interface,
        "num_cpus": machine.cpus,
        "num_gpus": machine.gpus,
        "num_neurons": machine.neurons,
        "output_data_dir": OUTPUT_DATA,
        "output_dir": f"{ML}/output",
        "output_intermediate_dir": OUTPUT_INTERMEDIATE,
        "resource_config": resources,
        "topology": [],
        "user_entry_point": entry,
    }


def _job_name(submission: Submission, machine: ToolkitMachine) -> str:
    return machine.training_job or submission.job


def split_parameters(spec: Spec, job: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the script's own parameters, and those by which the toolkit finds the script."""
    own, framework = hyperparameters.split(spec.params)
    found = {
        "sagemaker_program": hyperparameters.entry_point(spec) or "",
        "sagemaker_submit_directory": CODE,
        "sagemaker_container_log_level": 20,
        "sagemaker_job_name": job,
    }
    region = _variable(spec, "AWS_REGION")
    if region:
        found["sagemaker_region"] = region
    return own, {**found, **framework}


def resource_config(location: TrainingLocation, machine: ToolkitMachine) -> dict[str, Any]:
    # SageMaker sorts them as text, not by number.
    hosts = sorted(host_names(location))
    group = {"instance_group_name": _GROUP, "instance_type": machine.instance_type, "hosts": hosts}
    return {
        "current_host": f"algo-{location.rank + 1}",
        "current_instance_type": machine.instance_type,
        "current_group_name": _GROUP,
        "hosts": hosts,
        "instance_groups": [group],
        "network_interface_name": machine.network_interface,
    }


def input_config(spec: Spec) -> dict[str, dict[str, str]]:
    return {name: _input(source) for name, source in spec.inputs.items()}


def _input(source: Input) -> dict[str, str]:
    spread = "ShardedByS3Key" if getattr(source, "shard", False) else "FullyReplicated"
    return {"TrainingInputMode": _MODES[source.mode], "S3DistributionType": spread, "RecordWrapperType": "None"}


def host_names(location: TrainingLocation) -> list[str]:
    """Return the host names in the order of ranks."""
    return [f"algo-{rank + 1}" for rank in range(len(location.addresses))]


def _variable(spec: Spec, name: str) -> str | None:
    environ: Mapping[str, str] = {**os.environ, **spec.env}
    return environ.get(name) or None
