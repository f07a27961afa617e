"""Every variable and argument that a script of SageMaker's reads."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sagemaker_places
from sagemaker_places import MACHINE, SPEC, place, submission

from stoker.agent import sagemaker_scripts, sagemaker_variables
from stoker.model.command_line import command_argv
from stoker.model.node_config import NodePaths
from stoker.model.spec import Environment

paths = sagemaker_places.paths


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
