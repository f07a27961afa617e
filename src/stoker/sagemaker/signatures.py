"""The parameters of SageMaker's constructors in their order, for calls that give them by position.

As of version 2.257.7 of the SageMaker Python SDK (October 2026): `sagemaker/estimator.py`, `pytorch/estimator.py`,
`tensorflow/estimator.py` and `huggingface/estimator.py`.
"""

from __future__ import annotations

# Of the constructor of all estimators, in the order of Estimator's.
_COMMON = """
role instance_count instance_type keep_alive_period_in_seconds volume_size volume_kms_key max_run input_mode output_path
output_kms_key base_job_name sagemaker_session hyperparameters tags subnets security_group_ids model_uri
model_channel_name metric_definitions encrypt_inter_container_traffic use_spot_instances max_wait checkpoint_s3_uri
checkpoint_local_path enable_network_isolation rules debugger_hook_config tensorboard_output_config
enable_sagemaker_metrics profiler_config disable_profiler environment max_retry_attempts source_dir git_config
container_log_level code_location entry_point dependencies instance_groups training_repository_access_mode
training_repository_credentials_provider_arn container_entry_point container_arguments disable_output_compression
enable_infra_check enable_remote_debug enable_session_tag_chaining training_plan instance_placement_config
"""

POSITIONAL: dict[str, tuple[str, ...]] = {
    "Estimator": ("image_uri", *_COMMON.split()),
    "PyTorch": (
        *("entry_point", "framework_version", "py_version", "source_dir", "hyperparameters", "image_uri"),
        *("distribution", "compiler_config", "training_recipe", "recipe_overrides"),
    ),
    "TensorFlow": (*("py_version", "framework_version", "model_dir", "image_uri", "distribution", "compiler_config"),),
    "HuggingFace": (
        *("py_version", "entry_point", "transformers_version", "tensorflow_version", "pytorch_version", "source_dir"),
        *("hyperparameters", "image_uri", "distribution", "compiler_config"),
    ),
}


def by_name(kind: str, values: tuple[object, ...], named: dict[str, object]) -> dict[str, object]:
    """All arguments of a constructor by their names. Raises TypeError for more values, or for one given twice."""
    names = POSITIONAL.get(kind, ())
    if len(values) > len(names):
        raise TypeError(f"{kind}: there are at most {len(names)} arguments without a name; {len(values)} are given")
    given = dict(zip(names, values, strict=False))
    twice = next((name for name in given if name in named), None)
    if twice is not None:
        raise TypeError(f"{kind}: {twice} is given twice, by position and by name")
    return given | named
