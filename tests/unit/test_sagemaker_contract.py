"""Every variable, file and argument that a script of SageMaker's reads, and what its own toolkit makes of them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.agent import job_folders, sagemaker_machine, sagemaker_scripts, sagemaker_variables
from stoker.agent.runtime import BindMount, Command, HostRuntime
from stoker.agent.sagemaker_machine import ToolkitMachine
from stoker.agent.training_environment import TrainingLocation
from stoker.jobfile.job import Job
from stoker.model.command_line import command_argv
from stoker.model.errors import SetupFailed, SpecError
from stoker.model.node_config import NodePaths
from stoker.model.resources import Resources
from stoker.model.spec import Checkpoints, Container, Environment, Input, Spec
from stoker.model.submission import Submission
from stoker.processes import TRAINING, NotMounted, make_group

TOOLKIT = Path(sys.prefix) / "sagemaker" / "bin" / "python"
MACHINE = ToolkitMachine("ml.p4d.24xlarge", "ens5", cpus=96, gpus=8, neurons=0)
PARAMS = {
    "epochs": 3,
    "lr": 3e-4,
    "batch-size": 64,
    "name": "a b",
    "cuda": True,
    "bf16": False,
    "nothing": None,
    "k": 5,
    "layers": "json:[1, 2]",
    "betas": 'json:{"b": 2, "a": 1}',
    "text": "[not json",
    "config": '{"b": 2}',
}
SPEC = Spec(
    name="job",
    run="python train.py",
    params=PARAMS,
    inputs={"train": Input("s3://b/t"), "val-set": Input("s3://b/v", "mount"), "piped": Input("s3://b/p", "stream")},
    environment=Environment(contract="sagemaker"),
)


def submission(spec: Spec = SPEC) -> Submission:
    return Submission(job="job-x7", spec=spec, submitter="me@here")


def place(paths: NodePaths, *, rank: int = 0, nodes: int = 1, inputs: dict[str, str] | None = None) -> TrainingLocation:
    return TrainingLocation(
        attempt=1,
        rank=rank,
        names=tuple(f"vm-{n + 1}" for n in range(nodes)),
        addresses=tuple(f"10.0.0.{n + 1}" for n in range(nodes)),
        port=1,
        gpus=8,
        code=paths.code,
        checkpoints=paths.root / "checkpoints",
        channel=paths.channel,
        notice=paths.notice,
        inputs=inputs if inputs is not None else {"train": str(paths.inputs / "train")},
        outputs=paths.root / "artifacts",
        lib=paths.lib,
        environ={},
    )


@pytest.fixture
def paths(tmp_path: Path) -> NodePaths:
    found = NodePaths(tmp_path)
    found.code.mkdir()
    (found.inputs / "train").mkdir(parents=True)
    (found.inputs / "train" / "one").write_text("first")
    found.train_log.touch()
    return found


# ── Variables ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_variable(paths: NodePaths) -> None:
    inputs = {"train": "/somewhere", "val-set": "/elsewhere", "piped": "s3://b/p"}
    told = sagemaker_variables.variables(submission(), place(paths, rank=1, nodes=2, inputs=inputs), MACHINE)
    whole = json.loads(told.pop("SM_TRAINING_ENV"))
    resources = {
        "current_group_name": "homogeneousCluster",
        "current_host": "algo-2",
        "current_instance_type": "ml.p4d.24xlarge",
        "hosts": ["algo-1", "algo-2"],
        "instance_groups": [
            {
                "hosts": ["algo-1", "algo-2"],
                "instance_group_name": "homogeneousCluster",
                "instance_type": "ml.p4d.24xlarge",
            }
        ],
        "network_interface_name": "ens5",
    }
    assert json.loads(told.pop("SM_RESOURCE_CONFIG")) == resources
    channels = {
        name: {"TrainingInputMode": mode, "S3DistributionType": "FullyReplicated", "RecordWrapperType": "None"}
        for name, mode in (("train", "File"), ("val-set", "FastFile"), ("piped", "Pipe"))
    }
    assert json.loads(told.pop("SM_INPUT_DATA_CONFIG")) == channels
    assert told == {
        "CURRENT_HOST": "algo-2",
        "SAGEMAKER_JOB_NAME": "job-x7",
        "SAGEMAKER_REGION": os.environ.get("AWS_REGION", ""),
        "SM_CHANNELS": '["piped","train","val-set"]',
        "SM_CHANNEL_PIPED": "s3://b/p",
        "SM_CHANNEL_TRAIN": "/opt/ml/input/data/train",
        "SM_CHANNEL_VAL-SET": "/opt/ml/input/data/val-set",
        "SM_CURRENT_HOST": "algo-2",
        "SM_CURRENT_INSTANCE_GROUP": "homogeneousCluster",
        "SM_CURRENT_INSTANCE_GROUP_HOSTS": '["algo-1","algo-2"]',
        "SM_CURRENT_INSTANCE_TYPE": "ml.p4d.24xlarge",
        "SM_DISTRIBUTION_INSTANCE_GROUPS": "[]",
        "SM_ENTRY_POINT": "train.py",
        "SM_FRAMEWORK_MODULE": "",
        "SM_FRAMEWORK_PARAMS": "{}",
        "SM_HOSTS": '["algo-1","algo-2"]',
        "SM_HPS": '{"batch-size":64,"betas":{"a":1,"b":2},"bf16":false,"config":"{\\"b\\": 2}","cuda":true,'
        '"epochs":3,"k":5,'
        '"layers":[1,2],"lr":0.0003,"name":"a b","nothing":null,"text":"[not json"}',
        "SM_HP_BATCH-SIZE": "64",
        "SM_HP_BETAS": '{"a":1,"b":2}',
        "SM_HP_BF16": "false",
        "SM_HP_CONFIG": '{"b": 2}',
        "SM_HP_CUDA": "true",
        "SM_HP_EPOCHS": "3",
        "SM_HP_K": "5",
        "SM_HP_LAYERS": "[1,2]",
        "SM_HP_LR": "0.0003",
        "SM_HP_NAME": "a b",
        "SM_HP_NOTHING": "",
        "SM_HP_TEXT": "[not json",
        "SM_INPUT_CONFIG_DIR": "/opt/ml/input/config",
        "SM_INPUT_DIR": "/opt/ml/input",
        "SM_INSTANCE_GROUPS": '["homogeneousCluster"]',
        "SM_INSTANCE_GROUPS_DICT": json.dumps(
            {"homogeneousCluster": resources["instance_groups"][0]}, sort_keys=True, separators=(",", ":")
        ),
        "SM_IS_HETERO": "false",
        "SM_LOG_LEVEL": "20",
        "SM_MODEL_DIR": "/opt/ml/model",
        "SM_MODULE_DIR": "/opt/ml/code",
        "SM_MODULE_NAME": "train",
        "SM_NETWORK_INTERFACE_NAME": "ens5",
        "SM_NUM_CPUS": "96",
        "SM_NUM_GPUS": "8",
        "SM_NUM_NEURONS": "0",
        "SM_OUTPUT_DATA_DIR": "/opt/ml/output/data",
        "SM_OUTPUT_DIR": "/opt/ml/output",
        "SM_OUTPUT_INTERMEDIATE_DIR": "/opt/ml/output/intermediate",
        "SM_USER_ARGS": '["--batch-size","64","--betas","a=1,b=2","--bf16","False","--config","{\\"b\\": 2}",'
        '"--cuda","True","--epochs","3",'
        '"-k","5","--layers","[1, 2]","--lr","0.0003","--name","a b","--nothing","","--text","[not json"]',
        "SM_USER_ENTRY_POINT": "train.py",
        "TRAINING_JOB_NAME": "job-x7",
    }
    # Each of these is also a variable of its own, which was compared above.
    for name in [name for name in whole if name != "framework_module" and f"SM_{name.upper()}" in told]:
        own = told[f"SM_{name.upper()}"]
        assert whole.pop(name) == (own if own.startswith("/") or not own else _parsed(own)), name
    assert whole == {
        "additional_framework_parameters": {},
        "channel_input_dirs": {
            "piped": "s3://b/p",
            "train": "/opt/ml/input/data/train",
            "val-set": "/opt/ml/input/data/val-set",
        },
        "distribution_hosts": [],
        "framework_module": None,
        "hyperparameters": json.loads(told["SM_HPS"]),
        "input_data_config": channels,
        "is_master": False,
        "is_modelparallel_enabled": None,
        "is_smddpmprun_installed": False,
        "is_smddprun_installed": False,
        "job_name": "job-x7",
        "master_hostname": "algo-1",
        "resource_config": resources,
        "topology": [],
    }


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def test_the_table_of_variables_is_whole(paths: NodePaths) -> None:
    """`docs/environment.md` is made of it."""
    told = sagemaker_variables.variables(submission(), place(paths), MACHINE)
    named = {name for names, _ in sagemaker_variables.CONTRACT for name in names.split(", ")}
    for name in told:
        general = re.sub(r"^(SM_HP|SM_CHANNEL)_.*", r"\1_<NAME>", name)
        assert general in named, name
    fixed = {name for name in named if "<" not in name}
    assert fixed <= set(told)


def test_hosts_are_sorted_as_sagemaker_sorts_them(paths: NodePaths) -> None:
    told = sagemaker_variables.variables(submission(), place(paths, rank=9, nodes=11), MACHINE)
    assert told["SM_CURRENT_HOST"] == "algo-10"
    assert json.loads(told["SM_HOSTS"])[:4] == ["algo-1", "algo-10", "algo-11", "algo-2"]


@pytest.mark.parametrize(
    ("run", "entry"),
    [
        ("python train.py", "train.py"),
        ("pip install x\ntorchrun --nproc-per-node 2 src/train.py --config a.py", "src/train.py"),
        (("python", "a folder/train.py"), ""),
        ("./run.sh", "run.sh"),
        ("python -m package.train", "package.train"),
        ("python -m torch.distributed.run train.py", "train.py"),
        ("train", ""),
    ],
)
def test_the_script_that_a_command_runs(paths: NodePaths, run: Any, entry: str) -> None:
    told = sagemaker_variables.variables(submission(replace(SPEC, run=run)), place(paths), MACHINE)
    assert told["SM_USER_ENTRY_POINT"] == entry
    assert told["SM_MODULE_NAME"] == entry.removesuffix(".py")


def test_parameters_of_the_toolkits_own(paths: NodePaths) -> None:
    params = {
        "sagemaker_program": "other.py",
        "sagemaker_container_log_level": 10,
        "sagemaker_torch_distributed_enabled": True,
        "lr": 1,
    }
    spec = replace(SPEC, params=params)
    told = sagemaker_variables.variables(submission(spec), place(paths), MACHINE)
    assert told["SM_USER_ENTRY_POINT"] == "other.py"
    assert told["SM_LOG_LEVEL"] == "10"
    assert told["SM_FRAMEWORK_PARAMS"] == '{"sagemaker_torch_distributed_enabled":true}'
    assert told["SM_DISTRIBUTION_INSTANCE_GROUPS"] == '["homogeneousCluster"]'
    assert told["SM_HPS"] == '{"lr":1}'
    assert command_argv(replace(spec, run=("python", "train.py"))) == ("python", "train.py", "--lr", "1")


@pytest.mark.parametrize(
    "launcher",
    [
        *("mpi", "parameter_server", "distributed_dataparallel", "pytorch_ddp"),
        *("pytorch_xla_multi_worker", "multi_worker_mirrored_strategy", "torch_distributed"),
    ],
)
def test_a_launcher_that_was_asked_for_has_all_hosts(paths: NodePaths, launcher: str) -> None:
    where = place(paths, nodes=2)
    for asked, groups, hosts in ((True, ["homogeneousCluster"], ["algo-1", "algo-2"]), (False, [], [])):
        spec = replace(SPEC, params={f"sagemaker_{launcher}_enabled": asked})
        told = sagemaker_variables.variables(submission(spec), where, MACHINE)
        whole = json.loads(told["SM_TRAINING_ENV"])
        assert json.loads(told["SM_DISTRIBUTION_INSTANCE_GROUPS"]) == whole["distribution_instance_groups"] == groups
        assert whole["distribution_hosts"] == hosts


def test_parameters_that_the_toolkit_keeps_to_itself(paths: NodePaths) -> None:
    private = ("program", "submit_directory", "container_log_level", "job_name", "region")
    private = (*private, "enable_cloudwatch_metrics", "s3_output")
    params = {f"sagemaker_{name}": "x" for name in private} | {"sagemaker_other": "y"}
    told = sagemaker_variables.variables(submission(replace(SPEC, params=params)), place(paths), MACHINE)
    assert json.loads(told["SM_FRAMEWORK_PARAMS"]) == {"sagemaker_other": "y"}


def test_the_region_is_the_jobs_own_before_the_machines(paths: NodePaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    monkeypatch.setenv("SAGEMAKER_TRAINING_MODULE", "of.the.image")
    told = sagemaker_variables.variables(submission(), place(paths), MACHINE)
    assert (told["SAGEMAKER_REGION"], told["SM_FRAMEWORK_MODULE"]) == ("eu-west-1", "of.the.image")
    own = replace(SPEC, env={"AWS_REGION": "us-east-2"})
    assert sagemaker_variables.variables(submission(own), place(paths), MACHINE)["SAGEMAKER_REGION"] == "us-east-2"
    sagemaker_scripts.write_tree(paths, own, place(paths), MACHINE, "job-x7")
    found = json.loads((paths.root / "ml/input/config/hyperparameters.json").read_text())
    assert found["sagemaker_region"] == '"us-east-2"'


def test_launchers_that_an_image_brings_are_told(
    paths: NodePaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "programs"))
    (tmp_path / "programs").mkdir()

    def told() -> list[bool]:
        whole = json.loads(sagemaker_variables.variables(submission(), place(paths), MACHINE)["SM_TRAINING_ENV"])
        return [whole["is_smddprun_installed"], whole["is_smddpmprun_installed"]]

    assert told() == [False, False]
    for name, expected in (("smddprun", [True, False]), ("smddpmprun", [True, True])):
        (tmp_path / "programs" / name).touch(0o755)
        assert told() == expected


# ── Arguments ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_arguments_are_sagemakers(paths: NodePaths) -> None:
    spec = replace(SPEC, params={"lr": 3e-4, "b": 1, "flag": True, "off": False, "none": None}, run=("python", "t.py"))
    words = ("-b", "1", "--flag", "True", "--lr", "0.0003", "--none", "", "--off", "False")
    assert command_argv(spec) == ("python", "t.py", *words)
    assert command_argv(replace(spec, environment=Environment()))[2:] == ("--lr", "0.0003", "--b", "1", "--flag")


def test_a_placed_parameter_is_not_appended() -> None:
    spec = replace(SPEC, params={"lr": 1, "b": 2}, run=("python", "t.py", "--rate={lr}"))
    assert command_argv(spec) == ("python", "t.py", "--rate=1", "-b", "2")


def test_a_command_that_names_no_script_gets_none() -> None:
    """As SageMaker runs an image's own program: `train`, and nothing more."""
    assert command_argv(replace(SPEC, run=("train",))) == ("train",)


# ── The tree ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_tree(paths: NodePaths) -> None:
    single = paths.root / "single.csv"
    single.write_text("1,2")
    inputs = {"train": str(paths.inputs / "train"), "val-set": str(single), "piped": "s3://b/p"}
    for _ in range(2):  # May be repeated.
        command = Command(("true",), {"PYTHONPATH": "/lib"}, paths.code)
        enclosed = sagemaker_scripts.apply_contract(
            command, submission(), place(paths, nodes=2, inputs=inputs), paths, MACHINE
        )
    tree = paths.root / "ml"
    hps = json.loads((tree / "input/config/hyperparameters.json").read_text())
    assert all(isinstance(value, str) for value in hps.values())
    decoded = {name: json.loads(value) for name, value in hps.items()}
    assert decoded == {
        **PARAMS,
        "layers": [1, 2],
        "betas": {"a": 1, "b": 2},
        "sagemaker_program": "train.py",
        "sagemaker_submit_directory": "/opt/ml/code",
        "sagemaker_container_log_level": 20,
        "sagemaker_job_name": "job-x7",
        **({"sagemaker_region": os.environ["AWS_REGION"]} if os.environ.get("AWS_REGION") else {}),
    }
    assert json.loads((tree / "input/config/resourceconfig.json").read_text())["hosts"] == ["algo-1", "algo-2"]
    assert set(json.loads((tree / "input/config/inputdataconfig.json").read_text())) == set(inputs)
    data = "/opt/ml/input/data"
    assert [mount for mount in enclosed.mounts if mount.target.startswith(data)] == [
        BindMount(paths.inputs / "train", f"{data}/train", read_only=True),
        BindMount(single, f"{data}/val-set/single.csv", read_only=True),
    ]
    assert (tree / "input/data/train").is_dir() and (tree / "input/data/val-set/single.csv").exists()
    assert not (tree / "input/data/piped").exists()
    assert enclosed.cwd == Path("/opt/ml/code")
    assert enclosed.env["PYTHONPATH"] == "/opt/ml/code:/lib"
    assert enclosed.env["STOKER_CHECKPOINT_DIR"] == "/opt/ml/checkpoints"
    assert {"/opt/ml", "/opt/ml/code"} <= {mount.target for mount in enclosed.mounts}
    names = (paths.root / "hosts").read_text()
    assert "10.0.0.1\tvm-1\n10.0.0.2\tvm-2\n10.0.0.1\talgo-1\n10.0.0.2\talgo-2\n" in names
    assert Path("/etc/hosts").read_text() in names


@pytest.mark.parametrize(
    ("folder", "inside", "outside"),
    [
        ("checkpoints", "/opt/ml/checkpoints", "ml/checkpoints"),
        ("/opt/ml/checkpoints", "/opt/ml/checkpoints", "ml/checkpoints"),
        ("/opt/ml/local/saves", "/opt/ml/local/saves", "ml/local/saves"),
        ("saves", "/opt/ml/code/saves", "code/saves"),
        ("/scratch/saves", None, "/scratch/saves"),
    ],
)
def test_where_checkpoints_are(paths: NodePaths, folder: str, inside: str | None, outside: str) -> None:
    spec = replace(SPEC, checkpoints=Checkpoints(dir=folder))
    assert job_folders.checkpoints_inside(spec) == inside
    assert job_folders.checkpoint_folder(paths, spec) == paths.root / outside
    plain = replace(spec, environment=Environment())
    assert job_folders.checkpoint_folder(paths, plain) == paths.code / folder
    assert job_folders.checkpoints_inside(plain) is None


def test_the_outputs_are_the_contracts(paths: NodePaths) -> None:
    assert job_folders.output_folder(paths, SPEC) == paths.root / "artifacts"
    assert job_folders.outside(paths, "/opt/ml/model/a") == paths.root / "artifacts/model/a"
    assert job_folders.outside(paths, "/opt/ml/output/data") == paths.root / "artifacts/data"
    assert job_folders.outside(paths, "/opt/ml/output/failure") == paths.root / "ml/output/failure"
    assert job_folders.output_folder(paths, replace(SPEC, environment=Environment())) == paths.code / "outputs"


@pytest.mark.parametrize("folder", ["/opt/ml/model", "/opt/ml/output/data/saves", "/opt/ml", "/opt/ml/input"])
def test_checkpoints_where_something_else_belongs(folder: str) -> None:
    job = Job(run="python t.py", environment={"contract": "sagemaker"}, checkpoints={"dir": folder})
    with pytest.raises(SpecError, match=r"checkpoints\.dir: /opt/ml/\w+ is not for checkpoints; save to /opt/ml/check"):
        job.spec()


def test_a_folder_of_outputs_besides(paths: NodePaths) -> None:
    for outputs, inside in (("figures", "/opt/ml/code/figures"), ("/data/figures", "/data/figures")):
        spec = replace(SPEC, outputs=outputs)
        command = sagemaker_scripts.apply_contract(
            Command(("x",), {}, paths.code), submission(spec), place(paths), paths, MACHINE
        )
        assert BindMount(paths.root / "artifacts" / "outputs", inside) in command.mounts
        assert command.env["STOKER_OUTPUT_DIR"] == inside
    assert (paths.code / "figures").is_dir()
    assert job_folders.outputs_inside(replace(SPEC, outputs="/opt/ml/model")) is None
    assert job_folders.outputs_inside(replace(SPEC, outputs="figures", environment=Environment())) is None


def test_what_a_failure_says(paths: NodePaths) -> None:
    assert sagemaker_scripts.read_failure(paths, {}) == ""
    path = paths.root / "ml" / "output" / "failure"
    path.parent.mkdir(parents=True)
    path.write_text("ValueError:\n  not a number\n\tof hunter22-secret " + "x" * 5000)
    said = sagemaker_scripts.read_failure(paths, {"TOKEN": "hunter22-secret"})
    assert said.startswith("ValueError: not a number of *** xxx")
    assert len(said) <= 1024
    # A secret is masked before the text is cut, also where it lies across the cut.
    path.write_text("x" * 1020 + "hunter22-secret")
    assert sagemaker_scripts.read_failure(paths, {"TOKEN": "hunter22-secret"}) == "x" * 1020 + "***"
    path.unlink()
    path.mkdir()
    assert sagemaker_scripts.read_failure(paths, {}) == ""
    path.rmdir()
    os.mkfifo(path)
    assert sagemaker_scripts.read_failure(paths, {}) == "", "nobody waits for whoever writes to a pipe"
    path.unlink()
    path.symlink_to("/etc/hostname")
    assert sagemaker_scripts.read_failure(paths, {}) == "", "an agent may read more than the training"


def test_an_images_own_program_finds_parameters_as_the_sdk_sends_them(paths: NodePaths) -> None:
    spec = replace(SPEC, run=("train",), params={"optimizer": "adam", "flag": True, "layers": "json:[1, 2]", "n": None})
    sagemaker_scripts.apply_contract(Command(("true",), {}, paths.code), submission(spec), place(paths), paths, MACHINE)
    found = json.loads((paths.root / "ml/input/config/hyperparameters.json").read_text())
    own = {name: value for name, value in found.items() if not name.startswith("sagemaker_")}
    assert own == {"optimizer": "adam", "flag": "True", "layers": "[1, 2]", "n": "None"}
    assert found["sagemaker_submit_directory"] == '"/opt/ml/code"'


def test_the_interface_that_has_an_address() -> None:
    assert sagemaker_machine.interface_of("127.0.0.1") == "lo"
    assert sagemaker_machine.interface_of("192.0.2.1") == "eth0"


@pytest.mark.parametrize(("provider", "expected"), [("ec2", "ml.g5.xlarge"), ("gce", "g5.xlarge"), ("local", "local")])
def test_the_type_of_a_machine(provider: str, expected: str) -> None:
    assert sagemaker_machine.instance_type(provider, "g5.xlarge") == expected


@pytest.mark.parametrize(
    ("script", "neurons"),
    [
        ("""echo '[{"nc_count": 2}, {"nc_count": 4}, {}]'""", 6),
        ("echo no JSON", 0),
        ("echo '[1]'", 0),
        ("""echo '[{"nc_count": 2}]'; exit 1""", 0),
        (None, 0),
    ],
)
def test_what_this_machine_has(
    paths: NodePaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, neurons: int
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    if script is not None:
        # As `neuron-ls -j` answers; without the option it prints a table.
        (programs / "neuron-ls").write_text(f'#!/bin/sh\n[ "$1" = -j ] || exit 2\n{script}\n')
        (programs / "neuron-ls").chmod(0o755)
    here = replace(place(paths, rank=1, nodes=2), addresses=("10.0.0.1", "127.0.0.1"))
    found = sagemaker_machine.probe_machine(here, "ml.trn1.2xlarge")
    assert found == ToolkitMachine("ml.trn1.2xlarge", "lo", cpus=os.cpu_count() or 1, gpus=8, neurons=neurons)


class _Refuses:
    def spawn(self, command: Command, log: Path) -> Any:
        raise NotMounted(1, "a user namespace: not allowed")


def test_where_there_can_be_no_tree_one_line_says_so(paths: NodePaths) -> None:
    with pytest.raises(SetupFailed) as failed:
        sagemaker_scripts.check_mounts(_Refuses(), paths, SPEC)  # type: ignore[arg-type]
    assert failed.value.user
    assert str(failed.value).startswith("environment.contract: no /opt/ml here: a user namespace: not allowed; be root")
    for other in (Environment(), Environment(contract="sagemaker", container=Container("x"))):
        sagemaker_scripts.check_mounts(_Refuses(), paths, replace(SPEC, environment=other))  # type: ignore[arg-type]


class _Spawns:
    """Answers that a command ran."""

    def __init__(self) -> None:
        self.ran: list[Command] = []

    def spawn(self, command: Command, log: Path) -> Any:
        self.ran.append(command)
        return self

    def wait(self) -> int:
        return 0


@pytest.mark.parametrize(("provider", "made"), [("ec2", True), ("local", False)])
def test_a_machine_of_the_jobs_own_has_the_folder_before_anything_runs(
    paths: NodePaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, provider: str, made: bool
) -> None:
    spawns = _Spawns()
    ml = tmp_path / "opt" / "ml"
    monkeypatch.setattr(sagemaker_scripts, "Path", lambda text: ml if text == "/opt/ml" else Path(text))
    for _ in range(2):  # May be repeated.
        sagemaker_scripts.check_mounts(spawns, paths, replace(SPEC, resources=Resources(provider=provider)))  # type: ignore[arg-type]
        assert ml.exists() is made
    command = spawns.ran[0]
    assert command.argv == ("true",)
    assert {"/opt/ml", "/etc/hosts"} <= {mount.target for mount in command.mounts}


# ── SageMaker's own toolkit ───────────────────────────────────────────────────────────────────────────────────────────

_TELL = """
import json, os, sys
from sagemaker_training import environment
env = environment.Environment()
json.dump({"variables": env.to_env_vars(), "arguments": env.to_cmd_args()}, sys.stdout)
"""
# Of the toolkit's own sight of the machine.
_LOOKED_UP = {"SM_NUM_CPUS", "SM_NUM_GPUS", "SM_NUM_NEURONS"}


@pytest.mark.skipif(not (TOOLKIT.parents[1] / ".installed").exists(), reason="SageMaker's toolkit is not installed")
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("launcher", [{}, {"sagemaker_torch_distributed_enabled": True}])
def test_the_toolkit_reads_the_tree_as_the_variables_tell_it(
    paths: NodePaths, rank: int, launcher: dict[str, Any]
) -> None:
    inputs = {"train": str(paths.inputs / "train"), "val-set": str(paths.inputs / "train")}
    named = {name: SPEC.inputs[name] for name in inputs}
    spec = replace(SPEC, params={**PARAMS, **launcher}, inputs=named)
    where = place(paths, rank=rank, nodes=2, inputs=inputs)
    bare = Command((str(TOOLKIT), "-c", _TELL), {"PATH": os.environ["PATH"]}, paths.code)
    command = sagemaker_scripts.apply_contract(bare, submission(spec), where, paths, MACHINE)
    # It has to find out by itself.
    kept = {name: value for name, value in command.env.items() if not name.startswith("SM_")}
    host = HostRuntime(make_group(TRAINING, f"toolkit-{os.getpid()}", sessions=paths.root / "sessions"))
    try:
        output = paths.root / "out"
        assert host.spawn(replace(command, env=kept), output).wait() == 0, output.read_text()
    finally:
        host.close()
    found = json.loads(output.read_text().splitlines()[-1])
    ours = sagemaker_variables.variables(submission(spec), where, MACHINE)
    theirs = found["variables"]
    assert _comparable(theirs) == {name: value for name, value in _comparable(ours).items() if name in theirs}
    assert set(ours) - set(theirs) == {
        *("SM_ENTRY_POINT", "TRAINING_JOB_NAME", "CURRENT_HOST", "SAGEMAKER_JOB_NAME", "SAGEMAKER_REGION")
    }
    run = replace(spec, run=("python", "train.py"))
    assert ["python", "train.py", *found["arguments"]] == list(command_argv(run))


def _comparable(variables: dict[str, str]) -> dict[str, Any]:
    """Without what each looks up on its machine."""
    found: dict[str, Any] = {name: value for name, value in variables.items() if name not in _LOOKED_UP}
    whole = json.loads(found["SM_TRAINING_ENV"])
    found["SM_TRAINING_ENV"] = {name: value for name, value in whole.items() if not name.startswith("num_")}
    return found


def test_shells_pass_on_names_that_are_no_identifiers() -> None:
    """`SM_HP_BATCH-SIZE` has to come through `run`'s bash."""
    env = {"PATH": os.environ["PATH"], "SM_HP_BATCH-SIZE": "64"}
    text = "python3 -c 'import os; print(os.environ[\"SM_HP_BATCH-SIZE\"])'"
    argv = command_argv(Spec(name="a", run=text))
    assert subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout == "64\n"


def test_the_places_of_the_tree_are_made_again_and_again(tmp_path: Path) -> None:
    paths = NodePaths(tmp_path)
    spec = replace(SPEC, outputs="/opt/ml/deep/results")
    for _ in range(2):
        found = sagemaker_scripts.mounts(paths, spec)
        kept = next(mount for mount in found if mount.target == "/opt/ml/deep/results")
        assert kept.source == job_folders.artifacts(paths) / "outputs" and kept.source.is_dir()
        assert job_folders.outside(paths, "/opt/ml/deep").is_dir()
        names = next(mount for mount in found if mount.target == "/etc/hosts").source
        assert names.read_text().startswith("127.0.0.1")
    names.write_text("10.0.0.1 algo-1\n")
    sagemaker_scripts.mounts(paths, spec)
    assert names.read_text() == "10.0.0.1 algo-1\n", "who the hosts are is not forgotten"
