"""The folders and files of SageMaker's contract below `/opt/ml`, and how SageMaker's own toolkit reads them."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sagemaker_places
from sagemaker_places import MACHINE, PARAMS, SPEC, place, submission

from stoker.agent import job_folders, sagemaker_machine, sagemaker_scripts, sagemaker_variables
from stoker.agent.runtime import BindMount, Command, HostRuntime
from stoker.agent.sagemaker_machine import ToolkitMachine
from stoker.jobfile.job import Job
from stoker.model.command_line import command_argv
from stoker.model.errors import SetupFailed, SpecError
from stoker.model.node_config import NodePaths
from stoker.model.resources import Resources
from stoker.model.spec import Checkpoints, Container, Environment, Spec
from stoker.processes import TRAINING, NotMounted, make_group
from stoker.store.safe_extraction import Extraction

paths = sagemaker_places.paths

TOOLKIT = Path(sys.prefix) / "sagemaker" / "bin" / "python"


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


def test_an_interface_without_an_address_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sagemaker_machine.socket, "if_nameindex", lambda: [(9, "bare0"), (1, "lo")])
    assert sagemaker_machine.interface_of("127.0.0.1") == "lo"


def test_a_file_in_the_place_of_a_folder_of_the_tree_is_told(paths: NodePaths) -> None:
    (paths.root / "ml").mkdir(parents=True)
    (paths.root / "ml/input").write_text("in the way")
    with pytest.raises(FileExistsError):
        sagemaker_scripts.mounts(paths, SPEC)


@pytest.mark.parametrize("number", [errno.EROFS, errno.EIO])
def test_a_tree_of_the_nodes_own_that_cannot_be_written_is_an_error(
    paths: NodePaths, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    sagemaker_scripts.mounts(paths, SPEC)
    monkeypatch.setattr(Extraction, "write", refuse)
    with pytest.raises(OSError, match=os.strerror(number)):
        sagemaker_scripts.write_tree(paths, SPEC, place(paths), MACHINE, "job-x7")
