"""Calls that were written for SageMaker's SDK, versions 1 and 2: what job they become, and what is told."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields as dataclass_fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.jobfile import layer_of, resolve, shared_layers
from stoker.jobfile.job import Job
from stoker.model.command_line import command_argv
from stoker.model.errors import UserError
from stoker.model.spec import Spec
from stoker.providers import registry
from stoker.sagemaker import Estimator, PyTorch, TensorFlow, TrainingInput, s3_input
from stoker.sagemaker.arguments import ARGUMENTS, BadArgument
from stoker.sagemaker.code_folder import code_folder
from stoker.sagemaker.estimator import EstimatorBase

# The arguments of EstimatorBase, Estimator, Framework, PyTorch, TensorFlow, HuggingFace and SKLearn in the SDK 2.257,
# and in 1.72 where they were called otherwise.
VERSION_2 = """
role instance_count instance_type keep_alive_period_in_seconds volume_size volume_kms_key max_run input_mode output_path
output_kms_key base_job_name sagemaker_session tags subnets security_group_ids model_uri model_channel_name
metric_definitions encrypt_inter_container_traffic use_spot_instances max_wait checkpoint_s3_uri checkpoint_local_path
rules debugger_hook_config tensorboard_output_config enable_sagemaker_metrics enable_network_isolation profiler_config
disable_profiler environment max_retry_attempts source_dir git_config hyperparameters container_log_level code_location
entry_point dependencies instance_groups training_repository_access_mode
training_repository_credentials_provider_arn enable_infra_check container_entry_point container_arguments
disable_output_compression enable_remote_debug enable_session_tag_chaining training_plan instance_placement_config
image_uri framework_version py_version distribution compiler_config training_recipe recipe_overrides model_dir
transformers_version tensorflow_version pytorch_version image_uri_region
"""
VERSION_1 = """
train_instance_count train_instance_type train_volume_size train_volume_kms_key train_max_run train_use_spot_instances
train_max_wait image_name enable_cloudwatch_metrics training_steps evaluation_steps checkpoint_path requirements_file
script_mode distributions
"""
# An argument that the SDK takes and ignores, as it does every unknown one: programs name the job with it.
IGNORED = "job_name"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("STOKER_STORE", (tmp_path / "store").as_uri())
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text("print('hello')\n")
    (tmp_path / "src" / "other.py").write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def spec_of(estimator: EstimatorBase, inputs: object = None, job_name: str | None = None) -> Spec:
    """As a job file it is one that parses."""
    return Job(**estimator.job(inputs, job_name)).spec()


def told(estimator: EstimatorBase, inputs: object = None, provider: str = "ec2") -> list[str]:
    return list(estimator._translate(inputs, None, provider).warnings)


def pytorch(**arguments: Any) -> PyTorch:
    usual = {"instance_type": "ml.p4d.24xlarge", "framework_version": "2.5", "py_version": "py311"}
    return PyTorch(**{"entry_point": "train.py", "source_dir": "src", **usual, **arguments})


# ── Names ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_argument_of_both_versions_is_known() -> None:
    assert {argument.name for argument in ARGUMENTS} | {
        argument.old for argument in ARGUMENTS if argument.old is not None
    } == {*VERSION_2.split(), *VERSION_1.split(), IGNORED}
    assert len({argument.name for argument in ARGUMENTS}) == len(ARGUMENTS)


@pytest.mark.parametrize("name", [argument.name for argument in ARGUMENTS if argument.fate == "named"])
def test_what_cannot_be_honoured_is_named_in_one_line(name: str) -> None:
    given = {name: "x"}
    lines = [line for line in told(pytorch(**given)) if line.startswith(f"{name}: not honoured: ")]
    assert len(lines) == 1
    assert "\n" not in lines[0]
    assert not any(line.startswith(f"{name}:") for line in told(pytorch(**{name: None})))
    assert not any(line.startswith(f"{name}:") for line in told(pytorch(**{name: False})))


@pytest.mark.parametrize("name", [argument.name for argument in ARGUMENTS if argument.fate == "refused"])
def test_what_would_be_another_job_is_refused(name: str) -> None:
    with pytest.raises(BadArgument, match=f"^{name}: "):
        pytorch(**{name: {"a": 1}})


# What each argument that is honoured makes of a job, as far as one value can show it.
HONOURED: dict[str, tuple[Any, str]] = {
    "entry_point": ("other.py", "run"),
    "hyperparameters": ({"lr": 0.1}, "params"),
    "environment": ({"A": "b"}, "env"),
    "container_log_level": (10, "params"),
    "distribution": ({"torch_distributed": {"enabled": True}}, "run"),
    "requirements_file": ("needed.txt", "environment"),
    "transformers_version": ("4.49", "environment"),
    "instance_type": ("ml.g5.xlarge", "resources"),
    "instance_count": (2, "nodes"),
    "volume_size": (100, "resources"),
    "image_uri": ("repository/image:1", "environment"),
    "framework_version": ("2.6", "environment"),
    "py_version": ("py312", "environment"),
    "container_entry_point": (["run"], "run"),
    "container_arguments": (["--a"], "run"),
    "subnets": (["subnet-1"], "resources"),
    "security_group_ids": (["sg-1"], "resources"),
    "sagemaker_session": (SimpleNamespace(boto_region_name="eu-west-1"), "resources"),
    "model_uri": ("s3://b/model", "inputs"),
    "max_run": (60, "limits"),
    "use_spot_instances": (True, "resources"),
    "checkpoint_s3_uri": ("s3://b/saved", "checkpoints"),
    "checkpoint_local_path": ("/opt/ml/saves", "checkpoints"),
    "base_job_name": ("My_Job", "name"),
    "job_name": ("demo", "name"),
    "metric_definitions": ([{"Name": "loss", "Regex": "loss=(.*)"}], "metrics"),
    "tags": ([{"Key": "a", "Value": "b"}], "tags"),
}
# These show elsewhere: in what is packed, in another class, beside another argument, or in nothing at all.
ELSEWHERE = {
    *("source_dir", "dependencies", "model_dir", "pytorch_version", "tensorflow_version", "input_mode"),
    *("model_channel_name", "output_path", "max_wait"),
    *("disable_output_compression", "disable_profiler", "script_mode"),
}


def test_every_honoured_argument_is_shown_somewhere() -> None:
    assert {argument.name for argument in ARGUMENTS if argument.fate == "honoured"} == {*HONOURED, *ELSEWHERE}


@pytest.mark.parametrize("name", HONOURED)
def test_what_is_honoured_changes_the_job(name: str) -> None:
    value, field = HONOURED[name]
    before, after = pytorch().job(), pytorch(**{name: value}).job()
    changed = {each for each in {*before, *after} if before.get(each) != after.get(each)}
    assert field in changed
    old = {argument.name: argument.old for argument in ARGUMENTS}[name]
    if old is not None:
        given = {old: value} if name != "instance_type" else {"instance_type": None, old: value}
        assert pytorch(**given).job() == after, "the old name says the same"


def test_a_name_that_no_version_had() -> None:
    with pytest.raises(TypeError, match=r"PyTorch: there is no argument 'instance_typ'; did you mean instance_type\?"):
        pytorch(instance_typ="x")
    with pytest.raises(TypeError, match="train_max_run and max_run have different values"):
        pytorch(max_run=1, train_max_run=2)


# ── Jobs ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_call_of_version_2(place: Path) -> None:
    estimator = PyTorch(
        entry_point="train.py",
        source_dir="src",
        role="arn:aws:iam::1:role/x",
        framework_version="2.5",
        py_version="py311",
        instance_count=2,
        instance_type="ml.p4d.24xlarge",
        use_spot_instances=True,
        max_run=3600,
        max_wait=7200,
        hyperparameters={"epochs": 3, "layers": [1, 2], "flag": True, "text": '{"lr": [1]}', "odd": "json:1"},
        metric_definitions=[{"Name": "train:loss", "Regex": "loss=([0-9.]+)"}],
        tags=[{"Key": "team", "Value": "vision"}],
        distribution={"torch_distributed": {"enabled": True}},
        base_job_name="resnet_50",
    )
    spec = spec_of(estimator, {"train": "s3://b/t", "val": TrainingInput("s3://b/v", input_mode="FastFile")})
    assert spec.name == "resnet-50"
    assert spec.run == ("torchrun", "train.py")
    assert command_argv(spec)[2:] == (
        *("--epochs", "3", "--flag", "True", "--layers", "[1, 2]"),
        *("--odd", "json:1", "--text", '{"lr": [1]}'),
    )
    assert spec.nodes == 2
    resources = spec.resources
    assert (resources.machine, resources.spot) == (("p4d.24xlarge",), "only")
    assert spec.environment.contract == "sagemaker"
    assert spec.environment.container is not None
    assert spec.environment.container.image == "dlc/pytorch:2.5-py311"
    assert {name: (one.source, one.mode) for name, one in spec.inputs.items()} == {
        "train": ("s3://b/t", "copy"),
        "val": ("s3://b/v", "mount"),
    }
    assert (spec.limits.max_runtime_s, spec.limits.max_wait_s) == (3600, 3600)
    assert spec.metrics == {"train:loss": "loss=([0-9.]+)"}
    assert spec.tags == {"team": "vision"}
    assert spec.checkpoints.dir == "/opt/ml/checkpoints"
    assert [line.partition(":")[0] for line in told(estimator)] == ["role"]


@pytest.mark.parametrize("provider", ["ec2", "gce", "local"])
def test_every_provider_honours_what_a_call_becomes(provider: str) -> None:
    estimator = pytorch(
        use_spot_instances=True,
        volume_size=100,
        image_uri="image",
        subnets=["subnet-1"],
        checkpoint_local_path="/opt/ml/checkpoints",
        metric_definitions=[{"Name": "loss", "Regex": "loss=(.*)"}],
    )
    inputs = {
        "a": "s3://b/a",
        "b": TrainingInput("s3://b/b", input_mode="FastFile", distribution="ShardedByS3Key"),
        "c": TrainingInput("s3://b/c", input_mode="Pipe"),
    }
    fields = estimator._translate(inputs, None, provider).fields
    layers = [layer_of(fields, "a call"), layer_of({"resources": {"provider": provider}}, "stoker")]
    spec = resolve(layers, registry.capabilities).spec
    assert spec.environment.contract == "sagemaker"


def test_a_call_of_version_1() -> None:
    estimator = TensorFlow(
        entry_point="train.py",
        source_dir="src",
        role="x",
        train_instance_type="ml.m5.xlarge",
        train_instance_count=1,
        train_use_spot_instances=True,
        train_max_run=600,
        train_max_wait=600,
        train_volume_size=50,
        framework_version="2.18",
        py_version="py310",
        script_mode=True,
        distributions={"parameter_server": {"enabled": False}},
    )
    spec = spec_of(estimator, s3_input("s3://b/t", distribution="ShardedByS3Key"))
    assert spec.run == ("python", "train.py")
    assert command_argv(spec)[2:] == ("--model_dir", "/opt/ml/model")
    assert spec.environment.container is not None
    assert spec.environment.container.image == "dlc/tensorflow:2.18-py310-cpu", "a machine without GPUs"
    assert spec.resources.disk_bytes == 50 * 1000**3
    assert spec.limits.max_wait_s == 600, "nothing left is no reason not to start"
    assert spec.inputs["training"].shard


def test_an_image_runs_its_own_program() -> None:
    estimator = Estimator(
        "1.dkr.ecr.us-east-1.amazonaws.com/own:1", "role", 1, "ml.g5.xlarge", hyperparameters={"a": 1}
    )
    estimator.set_hyperparameters(b=2)
    spec = spec_of(estimator)
    assert command_argv(spec) == ("train",), "hyperparameters are in hyperparameters.json"
    assert spec.params == {"a": 1, "b": 2} == estimator.hyperparameters()
    assert spec.environment.container is not None
    assert spec.environment.container.entrypoint
    own = Estimator("i", instance_type="local", container_entry_point=["a"], container_arguments=["b"])
    assert spec_of(own).run == ("a", "b")
    with pytest.raises(BadArgument, match="image_uri: an Estimator needs an image"):
        Estimator(role="x")


def test_scripts_that_are_no_python(place: Path) -> None:
    for name, run in (("run.sh", ("bash", "run.sh")), ("program", ("./program",))):
        (place / "src" / name).write_text("")
        spec = spec_of(pytorch(entry_point=name, hyperparameters={"lr": 1}))
        assert spec.run == run
        assert command_argv(spec) == (*run, "--lr", "1")
    with pytest.raises(BadArgument, match="distribution: torchrun runs Python scripts"):
        spec_of(pytorch(entry_point="run.sh", distribution={"pytorchddp": {"enabled": True}}))
    with pytest.raises(BadArgument, match="entry_point: name the script"):
        PyTorch(instance_type="local")


@pytest.mark.parametrize(
    "distribution",
    [{"mpi": {"enabled": True}}, {"smdistributed": {"dataparallel": {"enabled": True}}}],
)
def test_launchers_that_are_not_there(distribution: dict[str, Any]) -> None:
    with pytest.raises(BadArgument, match=r"^distribution: \w+ is not launched; "):
        spec_of(pytorch(distribution=distribution))


def test_tensorflow_gets_a_model_dir_unless_it_wants_none() -> None:
    usual = {"entry_point": "train.py", "source_dir": "src", "instance_type": "local"}
    assert spec_of(TensorFlow(**usual)).params == {"model_dir": "/opt/ml/model"}
    assert spec_of(TensorFlow(**usual, model_dir="s3://b/m")).params == {"model_dir": "s3://b/m"}
    assert spec_of(TensorFlow(**usual, model_dir=False)).params == {}


# ── Where ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_without_a_machine_somebody_else_has_to_say_where(monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = pytorch(instance_type=None)
    for call in (nowhere.fit, nowhere.job):
        with pytest.raises(BadArgument, match=r"^instance_type: is missing; name a machine such as 'ml.g5.xlarge', or"):
            call()
    said = pytorch(instance_type=None, stoker={"resources": {"provider": "ec2", "gpus": "A100:8"}})
    assert said._provider(shared_layers(_store())) == "ec2"


def test_a_store_that_machines_cannot_reach_is_named_as_the_call_names_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"^stoker=\{'store': …\}: machines on ec2 cannot reach file://"):
        pytorch().fit()
    monkeypatch.delenv("STOKER_STORE")
    with pytest.raises(
        UserError, match=r"^no store is named; set STOKER_STORE, or give stoker=\{'store': …\}, as s3://"
    ):
        pytorch().fit()
    assert not (tmp_path / "store").exists()


def test_where_it_runs_is_said_by_the_usual_layers(place: Path) -> None:
    assert pytorch()._provider(shared_layers(_store())) == "ec2", "SageMaker's machines are EC2's"
    assert pytorch(instance_type="local")._provider(shared_layers(_store())) == "local"
    (place / "config" / "stoker").mkdir(parents=True)
    (place / "config" / "stoker" / "config.yaml").write_text("resources: {provider: gce}\n")
    assert pytorch()._provider(shared_layers(_store())) == "gce"
    assert pytorch(instance_type="local_gpu")._provider(shared_layers(_store())) == "local"
    assert pytorch(stoker={"resources": {"provider": "local"}})._provider(shared_layers(_store())) == "local"


def _store() -> Any:
    from stoker.client import open_any

    return open_any()


def test_what_only_ec2_has_is_told_elsewhere() -> None:
    estimator = pytorch(subnets=["a", "b"], security_group_ids=["c"], volume_size=10)
    on_ec2 = estimator._translate(None, None, "ec2")
    assert on_ec2.fields["resources"]["ec2"] == {"subnet": ["a", "b"], "security_groups": ["c"]}
    assert on_ec2.warnings == ()
    on_gce = estimator._translate(None, None, "gce")
    assert on_gce.fields["resources"] == {"disk": "10GB"}
    assert "container" not in on_gce.fields["environment"]
    names = ["instance_type", "subnets", "security_group_ids", "framework_version"]
    assert [line.partition(":")[0] for line in on_gce.warnings] == names
    here = estimator._translate(None, None, "local")
    assert "resources" not in here.fields
    assert [line.partition(":")[0] for line in here.warnings] == [
        *("instance_type", "volume_size", "subnets", "security_group_ids", "framework_version")
    ]


def test_an_image_must_be_named_somehow() -> None:
    with pytest.raises(BadArgument, match=r"framework_version: framework_version='1\.4' and py_version='py2' name no"):
        pytorch(framework_version="1.4", py_version="py2").job()
    assert "container" not in pytorch(py_version="py3", instance_type="local").job()["environment"]


def test_the_store(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    estimator = pytorch(output_path="s3://bucket/out")
    assert estimator._store_url() is None, "STOKER_STORE names one"
    assert next(estimator._place_warnings(_store())).startswith("output_path: not honoured: outputs are in the store")
    monkeypatch.delenv("STOKER_STORE")
    assert estimator._store_url() == "s3://bucket/out"
    assert pytorch(output_path="s3://b", stoker={"store": "s3://other"})._store_url() == "s3://other"
    assert pytorch(output_path="file://here")._store_url() is None


def test_max_wait() -> None:
    with pytest.raises(BadArgument, match="max_wait: 5 s is less than max_run"):
        spec_of(pytorch(max_run=10, max_wait=5, use_spot_instances=True))
    assert any(line.startswith("max_wait: not honoured: it is for spot") for line in told(pytorch(max_wait=10)))
    assert spec_of(pytorch()).limits.max_runtime_s == 86400, "as on SageMaker, where none is given"


# ── Inputs ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_inputs(place: Path) -> None:
    estimator = pytorch(input_mode="Pipe", model_uri="s3://b/m", model_channel_name="start")
    inputs = {"a": "s3://b/a", "b": TrainingInput("s3://b/b", input_mode="File"), "c": f"file://{place}"}
    found = estimator.job(inputs)["inputs"]
    assert found == {
        "a": {"from": "s3://b/a", "mode": "stream"},
        "b": {"from": "s3://b/b", "mode": "copy"},
        "c": {"from": str(place), "mode": "stream"},
        "start": {"from": "s3://b/m", "mode": "copy"},
    }
    lines = told(estimator, inputs)
    assert "inputs.a: not honoured: Pipe makes no pipes; SM_CHANNEL_A is the URL" in lines
    spread = TrainingInput("s3://b/x", distribution="ShardedByS3Key", input_mode="FastFile")
    assert "shard" not in pytorch().job(spread)["inputs"]["training"]
    (line,) = told(pytorch(), spread)
    assert line == "inputs.training: not honoured: ShardedByS3Key is for File; every node sees all of it"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (7, "inputs.x: expected a URL or a TrainingInput, found 7"),
        (SimpleNamespace(config={"DataSource": {"FileSystemDataSource": {}}}), "inputs.x: file systems are not"),
        (TrainingInput("s3://b/x", s3_data_type="ManifestFile"), "inputs.x: ManifestFile is not read"),
        (TrainingInput("s3://b/x", input_mode="Other"), "inputs.x: input_mode is File, FastFile or Pipe"),
    ],
)
def test_inputs_that_are_none(source: Any, message: str) -> None:
    with pytest.raises(BadArgument, match=re.escape(message)):
        pytorch().job({"x": source})


def test_what_is_lost_of_an_input_is_told() -> None:
    lines = told(
        pytorch(), TrainingInput("s3://b/x", compression="Gzip", record_wrapping="RecordIO", content_type="csv")
    )
    assert lines == [
        "inputs.training: not honoured: CompressionType 'Gzip'",
        "inputs.training: not honoured: RecordWrapperType 'RecordIO'",
    ]


def test_the_sdks_own_inputs_are_taken() -> None:
    """They have a `config`, too."""
    theirs = SimpleNamespace(config={"DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": "s3://b/x"}}})
    assert pytorch().job(theirs)["inputs"] == {"training": {"from": "s3://b/x", "mode": "copy"}}


# ── Code ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def packed(estimator: EstimatorBase) -> set[str]:
    with code_folder(estimator._given) as folder:
        return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_only_the_script_is_packed_where_no_folder_is_named(place: Path) -> None:
    estimator = PyTorch(entry_point="src/train.py", instance_type="local")
    assert packed(estimator) == {"train.py"}
    assert estimator.job()["run"] == ["python", "train.py"]


def test_dependencies_lie_beside_the_script(place: Path) -> None:
    (place / "library" / "deep").mkdir(parents=True)
    (place / "library" / "deep" / "one.py").write_text("")
    (place / "extra.py").write_text("")
    expected = {"train.py", "other.py", "library/deep/one.py", "extra.py"}
    assert packed(pytorch(dependencies=["library", "extra.py"])) == expected
    assert packed(PyTorch("src/train.py", dependencies=["library"])) == {"train.py", "library/deep/one.py"}
    assert {path.name for path in (place / "src").iterdir()} == {"train.py", "other.py"}, "the folder is not touched"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"source_dir": "none"}, "source_dir: there is no folder"),
        ({"source_dir": "s3://b/code.tar.gz"}, "source_dir: s3://b/code.tar.gz is not fetched"),
        ({"entry_point": "none.py"}, "entry_point: there is no none.py in"),
        ({"entry_point": "none.py", "source_dir": None}, "entry_point: there is no file none.py"),
        ({"dependencies": ["none"]}, "dependencies: there is no none"),
    ],
)
def test_code_that_is_not_there(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(BadArgument, match=re.escape(message)):
        packed(pytorch(**arguments))


# ── The rest ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_before_a_fit_there_is_no_job() -> None:
    estimator = pytorch()
    assert estimator.latest_training_job is None
    with pytest.raises(ValueError, match="there is no training job yet"):
        estimator.logs()


def test_a_mistake_is_a_user_error_and_a_value_error() -> None:
    assert issubclass(BadArgument, UserError)
    assert issubclass(BadArgument, ValueError)


def test_neither_the_sdk_nor_boto3_is_imported() -> None:
    code = "import sys, stoker.sagemaker; print({'boto3', 'sagemaker', 'click', 'yaml'} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "set()\n"


def test_every_field_that_is_made_is_one_of_the_job_file() -> None:
    made = set(pytorch(hyperparameters={"a": 1}, tags={"a": "b"}, environment={"A": "b"}).job({"x": "s3://b/x"}))
    assert made <= {field.name for field in dataclass_fields(Job)}
