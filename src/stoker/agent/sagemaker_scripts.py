"""What a script written for SageMaker finds: the `/opt/ml` tree, the `SM_*` variables, and hosts called `algo-1`, ….

As the `sagemaker-training` toolkit has them (github.com/aws/sagemaker-training-toolkit, ENVIRONMENT_VARIABLES.md), so
that a script runs under it or without. The tree lies in the node's folder; only the training sees it at `/opt/ml`.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import struct
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stoker.agent import job_folders
from stoker.agent.confinement import open_plain, opened_folder
from stoker.agent.runtime import Command, Enclosure, Mount
from stoker.agent.training_environment import Place
from stoker.model import hyperparameters
from stoker.model.errors import SetupFailed
from stoker.model.hyperparameters import CHECKPOINTS, CODE, ML, MODEL, OUTPUT_DATA, OUTPUT_INTERMEDIATE
from stoker.model.node_config import NodePaths
from stoker.model.spec import Input, Spec, Submission
from stoker.processes import NotMounted
from stoker.secrets.masked_output import can_mask
from stoker.secrets.masker import Masker
from stoker.store.safe_extraction import Extraction

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
    ("TRAINING_JOB_NAME, SAGEMAKER_JOB_NAME", "the job's id"),
    ("CURRENT_HOST", "as SM_CURRENT_HOST"),
    ("SAGEMAKER_REGION", "AWS_REGION where that is set"),
)

_GROUP = "homogeneousCluster"
_CONFIG = f"{ML}/input/config"
_DATA = f"{ML}/input/data"
_HOSTS = "/etc/hosts"
_MODES = {"copy": "File", "mount": "FastFile", "stream": "Pipe"}
# Of the toolkit's own parameters, those that it tells nobody else.
_UNTOLD = frozenset(
    {
        *("sagemaker_program", "sagemaker_submit_directory", "sagemaker_container_log_level", "sagemaker_job_name"),
        *("sagemaker_region", "sagemaker_enable_cloudwatch_metrics", "sagemaker_s3_output"),
        *("default_user_module_name", "_tuning_objective_metric"),
    }
)
# Any of these makes the group one that a launcher works on.
_LAUNCHERS = tuple(
    f"sagemaker_{name}_enabled"
    for name in (
        *("mpi", "parameter_server", "distributed_dataparallel", "pytorch_ddp"),
        *("pytorch_xla_multi_worker", "multi_worker_mirrored_strategy", "torch_distributed"),
    )
)
# As much of a failure's text as SageMaker tells.
_MOST_REASON = 1024
# A secret must not be cut in two before it is masked.
_MOST_READ = 64 * 1024
_SIOCGIFADDR = 0x8915
_NEURON_LIMIT_S = 20.0


@dataclass(frozen=True)
class Machine:
    """What the toolkit would look up on the machine."""

    instance_type: str
    network_interface: str
    cpus: int
    gpus: int
    neurons: int


def look(place: Place, instance_type: str) -> Machine:
    """This machine, now."""
    return Machine(
        instance_type=instance_type,
        network_interface=interface_of(place.addresses[place.rank]),
        cpus=os.cpu_count() or 1,
        gpus=place.gpus,
        neurons=_count_neurons(),
    )


def instance_type(provider: str, machine: str) -> str:
    """As SageMaker calls a machine: what EC2 lends with `ml.` before it."""
    return f"ml.{machine}" if provider == "ec2" else "local" if provider == "local" else machine


def mounts(paths: NodePaths, spec: Spec, inputs: Mapping[str, str] | None = None) -> tuple[Mount, ...]:
    """What the training sees elsewhere. `inputs` are where those lie that are here already. Makes the places where
    they are to be seen; may be repeated."""
    if spec.environment.contract is None:
        return ()
    tree = job_folders.sources(paths)
    for target in (*tree, _CONFIG, _DATA, CHECKPOINTS, f"{ML}/output"):
        job_folders.outside(paths, target).mkdir(parents=True, exist_ok=True)
        # What is seen there may lie elsewhere; a place for it is needed all the same.
        (tree[ML] / target[len(ML) + 1 :]).mkdir(parents=True, exist_ok=True)
    if not _names(paths).exists():
        _write_names(paths, {})
    found = [Mount(source, target) for target, source in tree.items()]
    outputs = job_folders.outputs_inside(spec)
    if outputs is not None:
        kept = job_folders.artifacts(paths) / "outputs"
        kept.mkdir(exist_ok=True)
        if outputs.startswith(f"{ML}/"):
            job_folders.outside(paths, outputs).mkdir(parents=True, exist_ok=True)
        found.append(Mount(kept, outputs))
    here = {name: Path(where) for name, where in (inputs or {}).items() if "://" not in where}
    found += [_channel(paths, name, where) for name, where in here.items()]
    return (*found, Mount(_names(paths), _HOSTS))


def _channel(paths: NodePaths, name: str, source: Path) -> Mount:
    """An input where SageMaker has it: a folder, also for one file. No link, which `os.walk` would not go into."""
    target = f"{_DATA}/{name}" + (f"/{source.name}" if source.is_file() else "")
    place = job_folders.outside(paths, target)
    if source.is_file():
        place.parent.mkdir(exist_ok=True)
        place.touch()
    else:
        place.mkdir(exist_ok=True)
    return Mount(source.resolve(), target, read_only=True)


def enclose(command: Command, submission: Submission, place: Place, paths: NodePaths, machine: Machine) -> Command:
    """The command as a script of SageMaker's is run. Lays the tree that it sees; may be repeated."""
    spec = submission.spec
    seen = mounts(paths, spec, place.inputs)
    lay(paths, spec, place, machine, submission.job)
    env = {**command.env, **variables(submission, place, machine)}
    env["PYTHONPATH"] = os.pathsep.join(part for part in (CODE, env.get("PYTHONPATH", "")) if part)
    inside = job_folders.checkpoints_inside(spec)
    if inside is not None:
        env["STOKER_CHECKPOINT_DIR"] = inside
    outputs = job_folders.outputs_inside(spec)
    if outputs is not None:
        env["STOKER_OUTPUT_DIR"] = outputs
    return replace(command, env=env, cwd=Path(CODE), mounts=(*command.mounts, *seen))


def check(enclosure: Enclosure, paths: NodePaths, spec: Spec) -> None:
    """Whether this machine lets the training have its own `/opt/ml`, before anything long is begun.

    Raises SetupFailed. In a container there is no question.
    """
    if spec.environment.contract is None or spec.environment.container is not None:
        return
    if spec.resources.provider != "local":
        # A machine of the job's own has the folder. Else /opt would be covered for each command, and what a set-up
        # adds to it would be gone with the command.
        with suppress(OSError):
            Path(ML).mkdir(parents=True, exist_ok=True)
    try:
        enclosure.spawn(Command(("true",), os.environ, Path("/"), mounts=mounts(paths, spec)), paths.train_log).wait()
    except NotMounted as error:
        advice = "be root, allow user namespaces (user.max_user_namespaces, AppArmor), or set environment.container"
        raise SetupFailed(f"environment.contract: no {ML} here: {error.strerror}; {advice}", user=True) from error


def failure(paths: NodePaths, secrets: Mapping[str, str]) -> str:
    """What the training wrote about its failure, in one line and without secrets; empty where it wrote nothing."""
    try:
        # The training's own: it may have put a pipe there, or a link to what only an agent may read.
        with (
            opened_folder(job_folders.sources(paths)[ML], "output") as folder,
            os.fdopen(open_plain("failure", os.O_RDONLY, folder), "rb") as file,
        ):
            data = file.read(_MOST_READ)
    except OSError:
        return ""
    masker = Masker(os.fsencode(value) for value in secrets.values() if can_mask(value))
    text = (masker.feed(data) + masker.end()).decode(errors="replace")
    return " ".join(text[:_MOST_REASON].split())


# ── The tree ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def lay(paths: NodePaths, spec: Spec, place: Place, machine: Machine, job: str) -> None:
    """The files of `/opt/ml`, and the names of the hosts. What is there already is replaced."""
    own, framework = _parameters(spec, job)
    script = hyperparameters.entry_point(spec) is not None
    encoded = {name: hyperparameters.encode(value, script=script) for name, value in own.items()}
    encoded |= {name: hyperparameters.encode(value) for name, value in framework.items()}
    config = {
        "hyperparameters.json": encoded,
        "resourceconfig.json": _resource_config(place, machine),
        "inputdataconfig.json": _input_config(spec),
    }
    # Commands of the set-up ran before this, perhaps in a container: a link that they left here is not followed.
    with Extraction(job_folders.sources(paths)[ML]) as tree:
        for name, value in config.items():
            tree.write(f"{_CONFIG[len(ML) + 1 :]}/{name}", json.dumps(value).encode())
    _write_names(paths, dict(zip(_hosts(place), place.addresses, strict=True)))


def _names(paths: NodePaths) -> Path:
    return paths.root / "hosts"


def _write_names(paths: NodePaths, names: Mapping[str, str]) -> None:
    """Into the file that is there, if it is there: a container that was made earlier sees that one."""
    known = Path(_HOSTS)
    text = known.read_text(encoding="utf-8", errors="surrogateescape") if known.exists() else "127.0.0.1\tlocalhost\n"
    lines = [f"{address}\t{name}\n" for name, address in names.items()]
    _names(paths).write_text("".join([*lines, text]), encoding="utf-8", errors="surrogateescape")


# ── The variables ─────────────────────────────────────────────────────────────────────────────────────────────────────


def variables(submission: Submission, place: Place, machine: Machine) -> dict[str, str]:
    """Every variable of the contract."""
    known = _known(submission, place, machine)
    values: dict[str, Any] = {name: known[name] for name in _TOLD}
    values |= {
        "hps": known["hyperparameters"],
        "framework_params": known["additional_framework_parameters"],
        "channels": sorted(known["channel_input_dirs"]),
        "user_args": [word for flag in hyperparameters.flags(known["hyperparameters"]).values() for word in flag],
        "entry_point": known["user_entry_point"],
        "training_env": known,
    }
    values |= {f"channel_{name}": where for name, where in known["channel_input_dirs"].items()}
    values |= {f"hp_{name}": value for name, value in known["hyperparameters"].items()}
    told = {f"SM_{name.upper()}": hyperparameters.variable_text(value) for name, value in values.items()}
    return told | {
        "TRAINING_JOB_NAME": submission.job,
        "SAGEMAKER_JOB_NAME": submission.job,
        "CURRENT_HOST": known["current_host"],
        "SAGEMAKER_REGION": _variable(submission.spec, "AWS_REGION") or "",
    }


# Of what is known, what has a variable of its own by the same name.
_TOLD = (
    *("hosts", "current_host", "network_interface_name", "resource_config", "input_data_config", "log_level"),
    *("current_instance_type", "current_instance_group", "current_instance_group_hosts", "instance_groups"),
    *("instance_groups_dict", "distribution_instance_groups", "is_hetero", "num_cpus", "num_gpus", "num_neurons"),
    *("module_name", "module_dir", "user_entry_point", "framework_module"),
    *("input_dir", "input_config_dir", "output_dir", "output_data_dir", "output_intermediate_dir", "model_dir"),
)


def _known(submission: Submission, place: Place, machine: Machine) -> dict[str, Any]:
    """By the names that the toolkit's environment gives its properties."""
    spec = submission.spec
    own, framework = _parameters(spec, submission.job)
    resources = _resource_config(place, machine)
    hosts, here = resources["hosts"], resources["current_host"]
    launched = [_GROUP] if any(framework.get(name) for name in _LAUNCHERS) else []
    entry = framework["sagemaker_program"]
    master = "algo-1"
    return {
        "additional_framework_parameters": {k: v for k, v in framework.items() if k not in _UNTOLD},
        "channel_input_dirs": {
            name: where if "://" in where else f"{_DATA}/{name}" for name, where in place.inputs.items()
        },
        "current_host": here,
        "current_instance_group": _GROUP,
        "current_instance_group_hosts": hosts,
        "current_instance_type": machine.instance_type,
        "distribution_hosts": hosts if launched else [],
        "distribution_instance_groups": launched,
        "framework_module": _variable(spec, "SAGEMAKER_TRAINING_MODULE"),
        "hosts": hosts,
        "hyperparameters": own,
        "input_config_dir": _CONFIG,
        "input_data_config": _input_config(spec),
        "input_dir": f"{ML}/input",
        "instance_groups": [_GROUP],
        "instance_groups_dict": {_GROUP: resources["instance_groups"][0]},
        "is_hetero": False,
        "is_master": here == master,
        "is_modelparallel_enabled": None,
        "is_smddpmprun_installed": shutil.which("smddpmprun") is not None,
        "is_smddprun_installed": shutil.which("smddprun") is not None,
        "job_name": submission.job,
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


def _parameters(spec: Spec, job: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The script's own parameters, and those by which the toolkit finds the script."""
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


def _resource_config(place: Place, machine: Machine) -> dict[str, Any]:
    # As SageMaker sorts them, which is not by number.
    hosts = sorted(_hosts(place))
    group = {"instance_group_name": _GROUP, "instance_type": machine.instance_type, "hosts": hosts}
    return {
        "current_host": f"algo-{place.rank + 1}",
        "current_instance_type": machine.instance_type,
        "current_group_name": _GROUP,
        "hosts": hosts,
        "instance_groups": [group],
        "network_interface_name": machine.network_interface,
    }


def _input_config(spec: Spec) -> dict[str, dict[str, str]]:
    return {name: _input(source) for name, source in spec.inputs.items()}


def _input(source: Input) -> dict[str, str]:
    spread = "ShardedByS3Key" if getattr(source, "shard", False) else "FullyReplicated"
    return {"TrainingInputMode": _MODES[source.mode], "S3DistributionType": spread, "RecordWrapperType": "None"}


def _hosts(place: Place) -> list[str]:
    """In the order of ranks."""
    return [f"algo-{rank + 1}" for rank in range(len(place.addresses))]


def _variable(spec: Spec, name: str) -> str | None:
    environ: Mapping[str, str] = {**os.environ, **spec.env}
    return environ.get(name) or None


# ── The machine ───────────────────────────────────────────────────────────────────────────────────────────────────────


def interface_of(address: str) -> str:
    """The network interface that has this address; `eth0`, as on SageMaker, where none is known to."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # It has no address.
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return "eth0"


def _count_neurons() -> int:
    """Neuron cores, as the toolkit counts them."""
    program = shutil.which("neuron-ls")
    if program is None:
        return 0
    try:
        ran = subprocess.run([program, "-j"], capture_output=True, timeout=_NEURON_LIMIT_S, check=True)
        return sum(int(device.get("nc_count", 0)) for device in json.loads(ran.stdout))
    except (OSError, subprocess.SubprocessError, ValueError, AttributeError):
        return 0
