"""The stand-in for `sagemaker.train.configs` and `sagemaker.core.training.configs`: what a ModelTrainer is made of.

Fields as of sagemaker-core 2.27.0 (October 2026). A field that is not given is None here.
"""

from __future__ import annotations

from typing import Any

from stoker.sagemaker.config_class import config
from stoker.sagemaker.inputs import ShuffleConfig

# ── The code ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@config
class SourceCode:
    """A folder, and the script or command that is run in it."""

    source_dir: str | None = None
    requirements: str | None = None
    entry_script: str | None = None
    command: str | None = None
    args: list[str | int | float] | None = None
    ignore_patterns: list[str] | None = None


# ── The machines ──────────────────────────────────────────────────────────────────────────────────────────────────────


@config
class Compute:
    """The machines."""

    instance_type: str | None = None
    instance_count: int | None = None
    volume_size_in_gb: int | None = None
    volume_kms_key_id: str | None = None
    keep_alive_period_in_seconds: int | None = None
    instance_groups: Any = None
    training_plan_arn: str | None = None
    instance_placement_config: Any = None
    instance_preferences: Any = None
    selected_instance_type: str | None = None
    selected_instance_count: int | None = None
    enable_managed_spot_training: bool | None = None


@config
class HyperPodCompute:
    """A HyperPod cluster. A ModelTrainer refuses it."""

    cluster_name: str = ""
    instance_type: str | None = None
    namespace: str = "kubeflow"
    node_count: int = 1


@config
class Networking:
    """The network of the machines."""

    security_group_ids: list[str] | None = None
    subnets: list[str] | None = None
    enable_network_isolation: bool | None = None
    enable_inter_container_traffic_encryption: bool | None = None


@config
class TrainingImageConfig:
    """The way into a private registry."""

    training_repository_access_mode: str | None = None
    training_repository_auth_config: Any = None


@config
class StoppingCondition:
    """Limits on time, in seconds."""

    max_runtime_in_seconds: int | None = None
    max_wait_time_in_seconds: int | None = None
    max_pending_time_in_seconds: int | None = None


# ── Inputs and outputs ────────────────────────────────────────────────────────────────────────────────────────────────


@config
class S3DataSource:
    """A prefix in S3."""

    s3_data_type: str | None = None
    s3_uri: str | None = None
    s3_data_distribution_type: str | None = None
    attribute_names: list[str] | None = None
    instance_group_names: list[str] | None = None
    model_access_config: Any = None
    hub_access_config: Any = None


@config
class FileSystemDataSource:
    """A file system. It is refused."""

    file_system_id: str | None = None
    file_system_access_mode: str | None = None
    file_system_type: str | None = None
    directory_path: str | None = None


@config
class DataSource:
    """One source of a Channel."""

    s3_data_source: S3DataSource | None = None
    file_system_data_source: FileSystemDataSource | None = None
    dataset_source: Any = None


@config
class Channel:
    """An input, as CreateTrainingJob has it."""

    channel_name: str = ""
    data_source: DataSource | None = None
    content_type: str | None = None
    compression_type: str | None = None
    record_wrapper_type: str | None = None
    input_mode: str | None = None
    shuffle_config: ShuffleConfig | None = None


@config
class InputData:
    """An input: a URL, a folder of this computer, or a source."""

    channel_name: str = ""
    data_source: Any = None
    content_type: str | None = None


@config
class OutputDataConfig:
    """The place of the outputs."""

    s3_output_path: str | None = None
    kms_key_id: str | None = None
    compression_type: str | None = None


@config
class CheckpointConfig:
    """The place of the checkpoints: a URL, and the folder that the script saves to."""

    s3_uri: str | None = None
    local_path: str | None = "/opt/ml/checkpoints"


@config
class TensorBoardOutputConfig:
    """The place of TensorBoard's files."""

    s3_output_path: str | None = None
    local_path: str | None = "/opt/ml/output/tensorboard"


# ── The rest ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@config
class Tag:
    """A tag."""

    key: str = ""
    value: str = ""


@config
class MetricDefinition:
    """A metric, by a regular expression that finds it in the log."""

    name: str = ""
    regex: str = ""


@config
class RetryStrategy:
    """The number of retries after faults of SageMaker."""

    maximum_retry_attempts: int = 1


@config
class InfraCheckConfig:
    """SageMaker's check of its machines."""

    enable_infra_check: bool | None = None


@config
class RemoteDebugConfig:
    """Access to the containers."""

    enable_remote_debug: bool | None = None


@config
class SessionChainingConfig:
    """Tags of the session."""

    enable_session_tag_chaining: bool | None = None
