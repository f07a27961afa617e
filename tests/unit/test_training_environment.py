"""The environment that the training is started with, and the library that it may import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from stoker.agent.training_environment import CONTRACT, TrainingLocation, training_environment, write_library
from stoker.model.node_config import NodePaths
from stoker.model.spec import Environment, Spec
from stoker.model.submission import Submission

SPEC = Spec(
    name="job", run="python train.py", params={"lr": 0.1, "name": "größe"}, secrets={"A": "env:A", "B": "env:B"}
)


def environment(spec: Spec = SPEC, base: dict[str, str] | None = None, **changes: object) -> dict[str, str]:
    paths = NodePaths(Path("/node"))
    place = TrainingLocation(
        attempt=3,
        rank=1,
        names=("vm-1", "vm-2"),
        addresses=("10.0.0.1", "10.0.0.2"),
        port=29400,
        gpus=8,
        code=paths.code,
        checkpoints=Path("/node/code/checkpoints"),
        channel=paths.channel,
        notice=paths.notice,
        inputs={"val-set": "/node/inputs/val-set"},
        outputs=Path("/node/code/outputs"),
        lib=paths.lib,
        environ={},
    )
    return training_environment(base or {}, Submission("job-x7", spec, "me@here"), replace(place, **changes))  # type: ignore[arg-type]


def test_a_process_for_each_accelerator_of_any_maker() -> None:
    assert environment(gpus=0, processes=32)["PET_NPROC_PER_NODE"] == "32"
    assert environment(gpus=8, processes=2)["PET_NPROC_PER_NODE"] == "8"
    assert "PET_NPROC_PER_NODE" not in environment(gpus=0)


def test_every_variable_of_the_contract() -> None:
    assert environment() == {
        "STOKER_JOB": "job-x7",
        "STOKER_ATTEMPT": "3",
        "STOKER_CHECKPOINT_DIR": "/node/code/checkpoints",
        "STOKER_OUTPUT_DIR": "/node/code/outputs",
        "STOKER_INPUT_VAL_SET": "/node/inputs/val-set",
        "STOKER_PARAMS": '{"lr": 0.1, "name": "größe"}',
        "STOKER_NOTICE_FILE": "/node/channel/notice.json",
        "STOKER_SECRETS": "A,B",
        "STOKER_CHANNEL": "/node/channel",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29400",
        "NUM_NODES": "2",
        "NODE_RANK": "1",
        "NODES": "vm-1 vm-2",
        "PET_NNODES": "2",
        "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": "10.0.0.1",
        "PET_MASTER_PORT": "29400",
        "PET_NPROC_PER_NODE": "8",
        "WANDB_RUN_ID": "job-x7",
        "WANDB_RESUME": "allow",
        "MLFLOW_RUN_NAME": "job-x7",
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": "/node/lib",
    }


def test_the_table_of_variables_is_whole() -> None:
    """`docs/environment.md` is made of it."""
    named = {name for names, _ in CONTRACT for name in names.split(", ")}
    told = set(environment()) - {"PYTHONPATH"}
    general = {"PET_*" if name.startswith("PET_") else name for name in told}
    assert {"STOKER_INPUT_<NAME>" if name.startswith("STOKER_INPUT_") else name for name in general} == named


def test_what_a_job_does_not_have_is_not_told() -> None:
    found = environment(replace(SPEC, secrets={}), gpus=0, inputs={})
    assert not {"STOKER_SECRETS", "PET_NPROC_PER_NODE"} & set(found)
    assert not [name for name in found if name.startswith("STOKER_INPUT_")]


def test_the_jobs_own_variables_win_over_everything_but_the_contract() -> None:
    own = {"PET_NPROC_PER_NODE": "2", "WANDB_RESUME": "never", "WANDB_RUN_ID": "mine", "MLFLOW_RUN_NAME": "mine"}
    own |= {"PYTHONUNBUFFERED": "0", "PYTHONPATH": "/src", "STOKER_JOB": "other", "BOTH": "job"}
    found = environment(replace(SPEC, env=own), {"BOTH": "machine", "ONE": "machine"}, environ={"BOTH": "environment"})
    kept = {name: value for name, value in own.items() if name not in ("STOKER_JOB", "PYTHONPATH")}
    assert {name: found[name] for name in kept} == kept
    assert found["STOKER_JOB"] == "job-x7"
    assert found["PYTHONPATH"] == f"/src{os.pathsep}/node/lib"
    assert found["ONE"] == "machine"


def test_what_is_set_where_it_runs_is_not_replaced_by_defaults() -> None:
    base = {"WANDB_RUN_ID": "a", "WANDB_RESUME": "must", "MLFLOW_RUN_NAME": "b", "PYTHONUNBUFFERED": ""}
    found = environment(base=base)
    assert {name: found[name] for name in base} == base


@pytest.mark.parametrize("name", ["STOKER_AGENT_X", "STOKER_STORE", "STOKER_HOME", "STOKER_NODE", "STOKER_TRAINING"])
def test_what_is_the_agents_own_is_not_passed_on(name: str) -> None:
    assert name not in environment(base={name: "private"})


def test_a_python_that_is_named_by_its_path_is_the_first_on_the_path() -> None:
    by_path = replace(SPEC, environment=Environment(python="/opt/env/bin/python"))
    assert environment(by_path, {"PATH": "/usr/bin"})["PATH"] == f"/opt/env/bin{os.pathsep}/usr/bin"
    assert environment(by_path)["PATH"] == f"/opt/env/bin{os.pathsep}{os.defpath}"
    by_version = replace(SPEC, environment=Environment(python="3.12"))
    assert environment(by_version, {"PATH": "/usr/bin"})["PATH"] == "/usr/bin"
    # An environment that was made for the training comes before it.
    assert environment(by_path, environ={"PATH": "/made/bin"})["PATH"] == "/made/bin"


def test_a_script_imports_the_library_and_what_else_is_installed_of_stoker(tmp_path: Path) -> None:
    lib = write_library(tmp_path / "lib")
    assert lib == tmp_path / "lib"
    # May be repeated: an agent that comes back does the same.
    write_library(lib)
    installed = tmp_path / "installed" / "stoker"
    installed.mkdir(parents=True)
    (installed / "__init__.py").touch()
    (installed / "extra.py").write_text("name = 'extra'\n")
    script = "import json, stoker.train, stoker.extra; print(json.dumps([stoker.train.__file__, stoker.extra.name]))"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(lib), str(installed.parent)))}
    ran = subprocess.run([sys.executable, "-S", "-c", script], env=env, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == [str(lib / "stoker" / "train.py"), "extra"]


def test_a_python_without_stoker_can_save_and_gets_the_nearest_keyword_for_a_wrong_one(tmp_path: Path) -> None:
    lib = write_library(tmp_path / "lib")
    script = """
import os
from stoker import train
with train.checkpoint("step-1", step=1) as folder:
    (folder / "weights").write_text("1")
print(train.latest().name)
try:
    train.checkpoint("step-2", stepp=2)
except TypeError as error:
    print(error)
"""
    env = {"PYTHONPATH": str(lib), "STOKER_CHECKPOINT_DIR": str(tmp_path / "saves"), "PATH": os.defpath}
    ran = subprocess.run([sys.executable, "-S", "-c", script], env=env, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    saved, message = ran.stdout.splitlines()
    assert saved == "step-1" and "stepp" in message and "step" in message.replace("stepp", "")
