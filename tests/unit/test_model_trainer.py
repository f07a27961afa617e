"""Calls that were written for version 3 of SageMaker's SDK: what job they become, and what is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stoker.jobfile import Job
from stoker.model.command_line import command_argv
from stoker.model.spec import Spec
from stoker.sagemaker.arguments import BadArgument
from stoker.sagemaker.code_folder import code_folder
from stoker.sagemaker.train import Mode, ModelTrainer
from stoker.sagemaker.train.configs import (
    Channel,
    CheckpointConfig,
    Compute,
    DataSource,
    FileSystemDataSource,
    HyperPodCompute,
    InputData,
    MetricDefinition,
    Networking,
    OutputDataConfig,
    RetryStrategy,
    S3DataSource,
    SourceCode,
    StoppingCondition,
    Tag,
)
from stoker.sagemaker.train.distributed import MPI, SMP, Torchrun
from stoker.sagemaker.train.model_trainer import FIELDS

# The fields of ModelTrainer in sagemaker-train 1.27.0, and those of the configurations in sagemaker-core 2.27.0.
TRAINER = """
training_mode sagemaker_session role base_job_name input_s3_key_prefix source_code distributed compute networking
stopping_condition training_image training_image_config algorithm_name output_data_config input_data_config
checkpoint_config training_input_mode environment hyperparameters tags local_container_root model_package_config
"""
CONFIGS = {
    SourceCode: "source_dir requirements entry_script command args ignore_patterns",
    Compute: """instance_type instance_count volume_size_in_gb volume_kms_key_id keep_alive_period_in_seconds
        instance_groups training_plan_arn instance_placement_config instance_preferences selected_instance_type
        selected_instance_count enable_managed_spot_training""",
    Networking: """security_group_ids subnets enable_network_isolation enable_inter_container_traffic_encryption""",
    StoppingCondition: "max_runtime_in_seconds max_wait_time_in_seconds max_pending_time_in_seconds",
    CheckpointConfig: "s3_uri local_path",
    OutputDataConfig: "s3_output_path kms_key_id compression_type",
    InputData: "channel_name data_source content_type",
    Torchrun: "process_count_per_node smp",
    MPI: "process_count_per_node mpi_additional_options",
}
IMAGE = "123456789012.dkr.ecr.us-west-2.amazonaws.com/my-training-image"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("STOKER_STORE", (tmp_path / "store").as_uri())
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "train.py").write_text("print('hello')\n")
    (tmp_path / "source" / "run.sh").write_text("true\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def trainer(**given: Any) -> ModelTrainer:
    usual = {"training_image": IMAGE, "source_code": SourceCode(source_dir="source", entry_script="train.py")}
    return ModelTrainer(**{**usual, **given})


def spec_of(made: ModelTrainer, *inputs: Any) -> Spec:
    return Job(**made.job(list(inputs))).spec()


def told(made: ModelTrainer) -> list[str]:
    estimator = made._estimator()
    return [estimator._shown(line) for line in estimator._translate(None, None, "ec2").warnings]


def test_the_fields_are_the_sdks() -> None:
    assert list(FIELDS) == TRAINER.split()
    for kind, names in CONFIGS.items():
        assert list(kind.__dataclass_fields__) == names.split(), kind.__name__  # type: ignore[attr-defined]


def test_late_releases_of_version_2_have_it_elsewhere() -> None:
    """`from sagemaker.modules.train import ModelTrainer` of 2.257.7."""
    from stoker.sagemaker.modules.configs import SourceCode as SourceCodeOfModules
    from stoker.sagemaker.modules.distributed import Torchrun as TorchrunOfModules
    from stoker.sagemaker.modules.train import ModelTrainer as TrainerOfModules

    assert (TrainerOfModules, SourceCodeOfModules, TorchrunOfModules) == (ModelTrainer, SourceCode, Torchrun)


def test_the_sdks_own_example() -> None:
    """The docstring of ModelTrainer in sagemaker-train 1.27.0."""
    ignore_patterns = [".env", ".git", "__pycache__", ".DS_Store", "data"]
    source_code = SourceCode(source_dir="source", entry_script="train.py", ignore_patterns=ignore_patterns)
    model_trainer = ModelTrainer(training_image=IMAGE, source_code=source_code)
    train_data = InputData(channel_name="train", data_source="s3://bucket/train")
    spec = spec_of(model_trainer, train_data)
    assert spec.run == ("bash", "-c", 'exec python "train.py" "$@"', "stoker")
    assert (spec.nodes, spec.resources.machine) == (1, ("m5.xlarge",)), "the SDK's defaults"
    assert spec.limits.max_runtime_s == 3600, "the SDK's default"
    assert spec.inputs["train"].source == "s3://bucket/train"
    assert spec.environment.container is not None
    assert (spec.environment.container.image, spec.environment.container.entrypoint) == (IMAGE, False)
    assert spec.environment.contract == "sagemaker"


def test_a_call_with_everything_that_is_honoured(place: Path) -> None:
    made = trainer(
        compute=Compute(
            instance_type="ml.g5.xlarge", instance_count=2, volume_size_in_gb=100, enable_managed_spot_training=True
        ),
        networking=Networking(subnets=["subnet-1"], security_group_ids=["sg-1"]),
        stopping_condition=StoppingCondition(max_runtime_in_seconds=600, max_wait_time_in_seconds=900),
        checkpoint_config=CheckpointConfig(s3_uri="s3://b/saved", local_path="/opt/ml/saves"),
        hyperparameters={"epochs": 3, "lr": 0.1, "flag": True, "layers": [1, 2], "name": "a b"},
        environment={"A": "b"},
        base_job_name="demo",
        tags=[Tag(key="team", value="vision"), {"key": "a", "value": "b"}],
        distributed=Torchrun(process_count_per_node=2),
    )
    made.with_metric_definitions([MetricDefinition(name="loss", regex="loss=(.*)")])
    spec = spec_of(made)
    assert command_argv(spec) == (
        *("bash", "-c", 'exec torchrun "train.py" "$@"', "stoker"),
        *("--epochs", "3", "--lr", "0.1", "--flag", "true", "--layers", "[1, 2]", "--name", "a b"),
    )
    assert spec.params["sagemaker_program"] == "train.py"
    assert (spec.nodes, spec.resources.machine, spec.resources.spot) == (2, ("g5.xlarge",), "only")
    assert spec.resources.disk_bytes == 100 * 1000**3
    assert spec.resources.ec2 is not None
    assert spec.resources.ec2.security_groups == ("sg-1",)
    assert (spec.limits.max_runtime_s, spec.limits.max_wait_s) == (600, 300)
    assert (spec.checkpoints.dir, spec.checkpoints.copy_to) == ("/opt/ml/saves", "s3://b/saved")
    assert spec.env == {"A": "b", "PET_NPROC_PER_NODE": "2"}
    assert (spec.name, spec.tags) == ("demo", {"team": "vision", "a": "b"})
    assert spec.metrics == {"loss": "loss=(.*)"}
    assert told(made) == []


def test_a_command_gets_its_own_arguments_and_no_hyperparameters() -> None:
    """`args` are passed; "hyperparameters … are not passed as command-line arguments when 'command' is used"."""
    plain = trainer(
        source_code=SourceCode(source_dir="source", command="python train.py --x"), hyperparameters={"a": 1}
    )
    spec = spec_of(plain)
    assert command_argv(spec) == ("bash", "-c", "python train.py --x")
    assert spec.params == {"a": 1}, "they are in SM_HPS"
    added = trainer(source_code=SourceCode(source_dir="source", command="python train.py", args=["--n", 1, "a b"]))
    assert command_argv(spec_of(added)) == ("bash", "-c", 'python train.py "$@"', "stoker", "--n", "1", "a b")
    shell = trainer(source_code=SourceCode(source_dir="source", entry_script="run.sh"))
    assert command_argv(spec_of(shell))[2] == 'exec bash "run.sh" "$@"'
    assert command_argv(spec_of(trainer(source_code=None))) == ("train",), "the image's own program"


def test_hyperparameters_may_be_in_a_file(place: Path) -> None:
    (place / "some.json").write_text(json.dumps({"epochs": 3}))
    (place / "some.yaml").write_text("epochs: 3\n")
    (place / "list.yaml").write_text("- 3\n")
    for name in ("some.json", "some.yaml"):
        assert spec_of(trainer(hyperparameters=name)).params["epochs"] == 3
    with pytest.raises(BadArgument, match=r"^hyperparameters: there is no file none\.json$"):
        trainer(hyperparameters="none.json")
    with pytest.raises(BadArgument, match=r"^hyperparameters: list\.yaml holds no names and values$"):
        trainer(hyperparameters="list.yaml")


def test_inputs(place: Path) -> None:
    (place / "data").mkdir()
    s3 = S3DataSource(s3_data_type="S3Prefix", s3_uri="s3://b/v", s3_data_distribution_type="ShardedByS3Key")
    made = trainer(
        input_data_config=[InputData(channel_name="a", data_source="s3://b/old"), InputData("b", str(place / "data"))]
    )
    job = made.job(
        [
            InputData(channel_name="a", data_source="s3://b/new"),
            InputData(channel_name="c", data_source=s3),
            Channel(channel_name="d", data_source=DataSource(s3_data_source=s3), input_mode="FastFile"),
        ]
    )
    assert job["inputs"] == {
        "a": {"from": "s3://b/new", "mode": "copy"},
        "b": {"from": str(place / "data"), "mode": "copy"},
        "c": {"from": "s3://b/v", "mode": "copy", "shard": True},
        "d": {"from": "s3://b/v", "mode": "mount"},
    }
    with pytest.raises(BadArgument, match=r"^inputs\.x: file systems are not mounted"):
        made.job([InputData(channel_name="x", data_source=FileSystemDataSource(file_system_id="fs-1"))])
    with pytest.raises(BadArgument, match=r"^input_data_config: expected InputData or a Channel with a channel_name"):
        made.job(["s3://b/x"])


def test_files_with_ignored_names_are_not_packed(place: Path) -> None:
    (place / "source" / ".env").write_text("SECRET=1")
    (place / "source" / "notes.tmp").write_text("x")
    for patterns, packed in (
        (None, {"train.py", "run.sh", "notes.tmp"}),
        (["*.tmp"], {"train.py", "run.sh", ".env"}),
    ):
        made = trainer(source_code=SourceCode(source_dir="source", entry_script="train.py", ignore_patterns=patterns))
        estimator = made._estimator()
        with code_folder(estimator._given, estimator._ignore) as folder:
            assert {path.name for path in folder.rglob("*")} == packed
    assert (place / "source" / ".env").exists()


def test_a_container_on_this_computer() -> None:
    made = trainer(training_mode=Mode.LOCAL_CONTAINER, compute=Compute(instance_type="ml.g5.xlarge"))
    assert made.job()["resources"] == {"provider": "local"}


def test_what_cannot_be_honoured_is_named_as_the_sdk_names_it() -> None:
    made = trainer(
        role="arn:x",
        compute=Compute(instance_type="ml.g5.xlarge", volume_kms_key_id="k", keep_alive_period_in_seconds=60),
        networking=Networking(enable_network_isolation=True),
        output_data_config=OutputDataConfig(kms_key_id="k"),
    ).with_retry_strategy(RetryStrategy(maximum_retry_attempts=3))
    assert {line.partition(":")[0] for line in told(made)} == {
        *("role", "compute.volume_kms_key_id", "compute.keep_alive_period_in_seconds"),
        *("networking.enable_network_isolation", "output_data_config.kms_key_id", "max_retry_attempts"),
    }


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"distributed": MPI()}, r"^distributed: MPI is not launched; "),
        ({"distributed": Torchrun(smp=SMP())}, r"^distributed\.smp: there is no SageMaker model parallelism"),
        ({"compute": HyperPodCompute(cluster_name="c")}, r"^compute: there is no HyperPod; "),
        ({"compute": Compute(instance_preferences=[1])}, r"^compute\.instance_preferences: give one instance_type"),
        ({"algorithm_name": "a"}, r"^algorithm_name: algorithms of the marketplace are SageMaker's own"),
        ({"source_code": SourceCode(source_dir="source")}, r"^source_code: name an entry_script or a command$"),
        ({"source_code": SourceCode(entry_script="train.py")}, r"^source_code\.source_dir: is missing; "),
        ({"source_code": SourceCode(source_dir="source", entry_script="a.r")}, r"^source_code\.entry_script: a\.r is"),
        ({"stopping_condition": StoppingCondition(max_pending_time_in_seconds=1)}, r"^stopping_condition\.max_pending"),
    ],
)
def test_what_would_be_another_job_is_refused_when_it_is_made(given: dict[str, Any], message: str) -> None:
    with pytest.raises(BadArgument, match=message):
        trainer(**given)


def test_mistakes_that_show_at_submission_have_the_names_of_the_sdk(place: Path) -> None:
    made = trainer(
        source_code=SourceCode(source_dir="nowhere", entry_script="train.py"),
        stoker={"resources": {"provider": "local"}},
    )
    with pytest.raises(BadArgument, match=r"^source_code\.source_dir: there is no folder"):
        made.train(dry_run=True)
    assert not (place / "store").exists()


def test_unknown_names_get_one_line() -> None:
    with pytest.raises(TypeError, match=r"^ModelTrainer: there is no argument 'training_imag'; did you mean"):
        ModelTrainer(training_imag="x")
    with pytest.raises(
        TypeError, match=r"^Compute: there is no argument 'instance_typ'; did you mean instance_type\?$"
    ):
        Compute(instance_typ="x")  # type: ignore[call-arg]
    made = trainer()
    with pytest.raises(TypeError, match=r"^ModelTrainer: there is no argument 'computer'; did you mean compute\?$"):
        made.computer = 1
    made.compute = Compute(instance_type="ml.p4d.24xlarge")
    assert spec_of(made).resources.machine == ("p4d.24xlarge",)
    with pytest.raises(NotImplementedError, match=r"^ModelTrainer\.from_recipe: recipes are SageMaker's own"):
        made.from_recipe("x")
    with pytest.raises(AttributeError, match=r"^ModelTrainer: there is no attribute 'output'"):
        _ = made.output
    with pytest.raises(ValueError, match="there is no training job yet"):
        _ = made.output_data
