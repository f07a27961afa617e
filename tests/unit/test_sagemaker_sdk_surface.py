"""What programs for SageMaker's SDK read, assign and call beside `fit`; and its helpers around the estimators."""

from __future__ import annotations

import copy
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from stoker import sagemaker
from stoker.sagemaker import Estimator, FileSystemInput, HuggingFace, PyTorch, Session, TensorFlow
from stoker.sagemaker.arguments import ARGUMENTS, BadArgument
from stoker.sagemaker.attributes import REFUSED
from stoker.sagemaker.debugger import DebuggerHookConfig, ProfilerRule, Rule, TensorBoardOutputConfig, rule_configs
from stoker.sagemaker.inputs import ShuffleConfig, TrainingInput

# Of EstimatorBase and its subclasses in the SDK 2.257.7: every public method and property.
METHODS = """
training_image_uri hyperparameters enable_network_isolation prepare_workflow_for_training
latest_job_debugger_artifacts_path latest_job_tensorboard_artifacts_path latest_job_profiler_artifacts_path fit
compile_model attach logs deploy register model_data create_model transformer training_job_analytics get_vpc_config
enable_default_profiling disable_profiling update_profiler get_remote_debug_config get_session_chaining_config
enable_remote_debug disable_remote_debug get_app_url set_hyperparameters
"""
# And every public attribute that its constructors assign and that is no argument of theirs.
ATTRIBUTES = """
code_uri code_channel_name latest_training_job jobs deploy_instance_type debugger_rule_configs collection_configs
profiler_rule_configs profiler_rules debugger_rules uploaded_code
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("STOKER_STORE", (tmp_path / "store").as_uri())
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "train.py").write_text("print('hello')\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def pytorch(**arguments: Any) -> PyTorch:
    usual = {"entry_point": "train.py", "instance_type": "ml.g5.xlarge", "instance_count": 1}
    return PyTorch(**{**usual, "framework_version": "2.5", "py_version": "py311", **arguments})


# ── Attributes ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_call_with_a_job_name() -> None:
    """https://towardsdatascience.com/using-server-less-functions-to-govern-and-monitor-cloud-based-training-experiments"""
    tags = [
        {"Key": "username", "Value": "johndoe"},
        {"Key": "model_name", "Value": "mnist"},
        {"Key": "training_phase", "Value": "finetune"},
        {"Key": "description", "Value": "fine tune final linear layer"},
    ]
    estimator = PyTorch(
        entry_point="train.py",
        framework_version="2.1.0",
        role="<arn role>",
        py_version="py310",
        job_name="demo",
        instance_type="ml.g5.xlarge",
        instance_count=1,
        tags=tags,
    )
    job = estimator.job()
    assert job["name"] == "demo"
    assert job["tags"]["description"] == "fine tune final linear layer"
    assert estimator.job(job_name="other")["name"] == "other", "the name that fit is given comes first"
    assert pytorch(base_job_name="base").job()["name"] == "base"


def test_every_argument_is_an_attribute_in_both_spellings() -> None:
    estimator = pytorch(checkpoint_s3_uri="s3://b/c", output_path="s3://b/o", use_spot_instances=True, tags={"a": "b"})
    assert estimator.checkpoint_s3_uri == "s3://b/c"
    assert estimator.output_path == "s3://b/o"
    assert (estimator.instance_type, estimator.train_instance_type) == ("ml.g5.xlarge", "ml.g5.xlarge")
    assert (estimator.instance_count, estimator.train_instance_count) == (1, 1)
    assert estimator.train_use_spot_instances is True
    assert estimator.tags == {"a": "b"}
    methods = {"hyperparameters", "enable_network_isolation", "enable_remote_debug"}
    for argument in ARGUMENTS:
        for name in {argument.name, argument.old or argument.name} - methods:
            getattr(estimator, name)


def test_what_was_not_given_has_the_sdks_default(place: Path) -> None:
    estimator = pytorch()
    assert estimator.checkpoint_s3_uri is None
    assert (estimator.volume_size, estimator.max_run, estimator.input_mode) == (30, 86400, "File")
    assert (estimator.use_spot_instances, estimator.model_channel_name) == (False, "model")
    assert estimator.output_path == (place / "store").as_uri(), "outputs go to the store"
    estimator.dependencies.append("x")
    assert pytorch().dependencies == []
    for name in ATTRIBUTES.split():
        assert getattr(estimator, name) in (None, [], "code"), name


def test_what_is_assigned_counts_as_given() -> None:
    estimator = pytorch(max_run=60)
    estimator.instance_type = "ml.p4d.24xlarge"
    estimator.train_instance_count = 2
    estimator.max_run = None
    job = estimator.job()
    assert job["resources"]["machine"] == "p4d.24xlarge"
    assert job["nodes"] == 2
    assert job["limits"]["max_runtime"] == 86400
    with pytest.raises(BadArgument, match=r"^instance_groups: all nodes are alike"):
        estimator.instance_groups = [1]


def test_an_unknown_attribute_gets_one_line() -> None:
    with pytest.raises(AttributeError, match=r"^PyTorch: there is no attribute 'instance_typ'"):
        _ = pytorch().instance_typ
    assert not hasattr(pytorch(), "_is_compiled_model")
    assert copy.deepcopy(pytorch()).instance_type == "ml.g5.xlarge"


def test_every_method_works_or_is_refused_by_name() -> None:
    estimator = pytorch(subnets=["s"], security_group_ids=["g"], enable_remote_debug=True)
    refused = {*REFUSED, "deploy", "disable_remote_debug", "training_job_analytics"}
    works = {*METHODS.split()} - refused
    assert works == {
        *("training_image_uri", "hyperparameters", "enable_network_isolation", "fit", "attach", "logs", "model_data"),
        *("get_vpc_config", "disable_profiling", "get_remote_debug_config", "get_session_chaining_config"),
        *("enable_remote_debug", "set_hyperparameters"),
    }
    for name in works - {"model_data"}:
        assert callable(getattr(estimator, name))
    for name in REFUSED:
        assert hasattr(estimator, name), "asking whether it is there is no error"
        with pytest.raises(NotImplementedError, match=rf"^PyTorch\.{name}: [^\n]+$"):
            getattr(estimator, name)(anything=1)
    with pytest.raises(NotImplementedError, match=r"^training_job_analytics: "):
        _ = estimator.training_job_analytics
    assert estimator.get_vpc_config() == {"Subnets": ["s"], "SecurityGroupIds": ["g"]}
    assert estimator.get_remote_debug_config() == {"EnableRemoteDebug": True}
    assert estimator.get_session_chaining_config() is None
    assert estimator.enable_network_isolation() is False
    image = estimator.training_image_uri("eu-west-1")
    assert image == "763104351884.dkr.ecr.eu-west-1.amazonaws.com/pytorch-training:2.5-gpu-py311"
    assert pytorch(instance_type="local").training_image_uri() is None


# ── Arguments by position ─────────────────────────────────────────────────────────────────────────────────────────────


def test_arguments_by_position_are_in_the_sdks_order() -> None:
    """Of 2.257.7: PyTorch(entry_point, framework_version, py_version, source_dir, hyperparameters, image_uri, …),
    TensorFlow(py_version, framework_version, model_dir, …), HuggingFace(py_version, entry_point, …)."""
    first = PyTorch("train.py", "2.5", "py311", ".", {"lr": 1}, "image:1", instance_type="local")
    assert (first.framework_version, first.py_version, first.source_dir, first.image_uri) == (
        *("2.5", "py311", ".", "image:1"),
    )
    assert first.hyperparameters() == {"lr": 1}
    second = TensorFlow("py310", "2.18", "/opt/ml/model", entry_point="train.py")
    assert (second.py_version, second.framework_version, second.model_dir) == ("py310", "2.18", "/opt/ml/model")
    third = HuggingFace("py311", "train.py", "4.49", None, "2.5")
    assert (third.py_version, third.transformers_version, third.pytorch_version) == ("py311", "4.49", "2.5")
    fourth = Estimator("image", "role", 2, "ml.g5.xlarge", None, 100)
    assert (fourth.instance_count, fourth.volume_size) == (2, 100)


def test_arguments_by_position_that_are_wrong_get_one_line() -> None:
    with pytest.raises(TypeError, match=r"^PyTorch: entry_point is given twice, by position and by name$"):
        PyTorch("train.py", entry_point="other.py")
    with pytest.raises(TypeError, match=r"^TensorFlow: there are at most 6 arguments without a name; 7 are given$"):
        TensorFlow(*range(7))


def test_a_class_of_ones_own_has_the_order_of_its_base() -> None:
    class Mine(PyTorch):
        pass

    assert Mine("train.py", "2.5").framework_version == "2.5"


# ── Around the estimators ─────────────────────────────────────────────────────────────────────────────────────────────


def test_helpers_that_programs_call_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """`import sagemaker` becomes `from stoker import sagemaker`, and the names below it stay."""
    from stoker.sagemaker.session import s3_input

    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    session = sagemaker.Session()
    assert session.boto_region_name == "eu-west-1"
    assert sagemaker.get_execution_role(sagemaker_session=session) is None
    with pytest.raises(BadArgument, match=r"^default_bucket: no bucket is named; set STOKER_STORE to one"):
        session.default_bucket()
    assert Session(default_bucket="mine").default_bucket() == "mine"
    monkeypatch.setenv("STOKER_STORE", "s3://bucket/stoker")
    assert session.default_bucket() == "bucket"
    assert s3_input("s3://b/x").config["DataSource"]["S3DataSource"]["S3Uri"] == "s3://b/x"
    with pytest.raises(AttributeError, match=r"^Session: there is no 'list_s3_files'"):
        _ = session.list_s3_files
    with pytest.raises(BadArgument, match=r"^upload_data: there is no file or folder"):
        session.upload_data("nowhere")


def test_debugger_objects_are_taken_and_named() -> None:
    profiler = ProfilerRule.sagemaker(rule_configs.ProfilerReport())
    estimator = pytorch(
        tensorboard_output_config=TensorBoardOutputConfig("s3://b/tb"),
        rules=[Rule.sagemaker(rule_configs.loss_not_decreasing()), profiler],
        debugger_hook_config=DebuggerHookConfig(s3_output_path="s3://b/d"),
    )
    lines = [line.partition(":")[0] for line in estimator._translate(None, None, "ec2").warnings]
    assert lines == ["rules", "debugger_hook_config", "tensorboard_output_config"]


def test_both_versions_of_the_sdk_have_one_shuffle_config() -> None:
    from stoker.sagemaker.train import configs

    assert configs.ShuffleConfig is ShuffleConfig and ShuffleConfig(7) == ShuffleConfig(seed=7)
    with pytest.raises(TypeError, match=r"^ShuffleConfig: there is no argument 'sed'; did you mean seed\?"):
        ShuffleConfig(sed=7)  # type: ignore[call-arg]
    estimator = pytorch()
    data = TrainingInput("s3://b/d", shuffle_config=ShuffleConfig(7))
    assert any("ShuffleConfig" in line for line in estimator._translate({"data": data}, None, "ec2").warnings)


def test_file_systems_are_refused_by_name() -> None:
    with pytest.raises(BadArgument, match=r"^inputs\.data: file systems are not mounted"):
        pytorch().job({"data": FileSystemInput("fs-1", "EFS", "/data")})


def test_a_job_may_be_attached_to(place: Path) -> None:
    from stoker.model.errors import UserError

    with pytest.raises(UserError, match="nowhere"):
        PyTorch.attach("nowhere")


def test_the_table_of_positions_names_known_arguments() -> None:
    """The table has only arguments that the estimators know; none is twice."""
    from stoker.sagemaker.signatures import POSITIONAL

    known = {argument.name for argument in ARGUMENTS}
    for kind, names in POSITIONAL.items():
        assert set(names) <= known, kind
        assert len(set(names)) == len(names), kind
    assert json.dumps(sorted(POSITIONAL)) == '["Estimator", "HuggingFace", "PyTorch", "TensorFlow"]'
    assert "sagemaker" not in sys.modules


@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [
        ("tags", ["team"], "tags: 'team' is no tag; write {'Key': NAME, 'Value': VALUE}"),
        ("tags", [{"key": "team"}], "tags: {'key': 'team'} is no tag; write "),
        ("hyperparameters", "epochs", "hyperparameters: 'epochs' is no mapping; write {'NAME': VALUE}"),
    ],
)
def test_values_of_another_kind_get_one_line(argument: str, value: Any, message: str) -> None:
    with pytest.raises(BadArgument, match=re.escape(message)):
        PyTorch("train.py", "2.5", "py311", instance_type="local", **{argument: value}).job()
