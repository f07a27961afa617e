"""The inputs of a training, in the forms of SageMaker's SDK."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.sagemaker.arguments import BadArgument
from stoker.sagemaker.config_class import config

# The name of a single input without a name.
_DEFAULT_CHANNEL = "training"
_MODES = {"File": "copy", "FastFile": "mount", "Pipe": "stream"}
# Types of an S3 source that need no special treatment.
_PLAIN = {None, "S3Prefix"}


class TrainingInput:
    """A channel from S3: the stand-in for `sagemaker.inputs.TrainingInput`, and for `s3_input` of version 1."""

    def __init__(
        self,
        s3_data: str,
        distribution: str | None = None,
        compression: str | None = None,
        content_type: str | None = None,
        record_wrapping: str | None = None,
        s3_data_type: str = "S3Prefix",
        instance_groups: Any = None,
        input_mode: str | None = None,
        attribute_names: Any = None,
        target_attribute_name: str | None = None,
        shuffle_config: Any = None,
        hub_access_config: Any = None,
        model_access_config: Any = None,
    ) -> None:
        source = {"S3DataType": s3_data_type, "S3Uri": s3_data, "S3DataDistributionType": distribution}
        more = {
            "CompressionType": compression,
            "ContentType": content_type,
            "RecordWrapperType": record_wrapping,
            "InputMode": input_mode,
            "InstanceGroupNames": instance_groups,
            "AttributeNames": attribute_names,
            "TargetAttributeName": target_attribute_name,
            "ShuffleConfig": shuffle_config,
            "HubAccessConfig": hub_access_config,
            "ModelAccessConfig": model_access_config,
        }
        given = {name: value for name, value in more.items() if value is not None}
        self.config: dict[str, Any] = {"DataSource": {"S3DataSource": source}, **given}


s3_input = TrainingInput


class FileSystemInput:
    """A channel from EFS or FSx: the stand-in for `sagemaker.inputs.FileSystemInput`. `fit` refuses it."""

    def __init__(
        self,
        file_system_id: str,
        file_system_type: str,
        directory_path: str,
        file_system_access_mode: str = "ro",
        content_type: str | None = None,
    ) -> None:
        source = {
            "FileSystemId": file_system_id,
            "FileSystemType": file_system_type,
            "DirectoryPath": directory_path,
            "FileSystemAccessMode": file_system_access_mode,
        }
        self.config: dict[str, Any] = {"DataSource": {"FileSystemDataSource": source}}
        if content_type is not None:
            self.config["ContentType"] = content_type


@config
class ShuffleConfig:
    """The seed by which SageMaker would shuffle a channel. It is not honoured."""

    seed: int


def channels(inputs: object, default_mode: str) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """The job's `inputs`, and a line for each setting that cannot be honoured. Raises BadArgument for other values."""
    if inputs is None:
        return {}, []
    named = inputs if isinstance(inputs, Mapping) else {_DEFAULT_CHANNEL: inputs}
    found: dict[str, dict[str, Any]] = {}
    warnings: list[str] = []
    for name, source in named.items():
        found[name], lines = _channel(name, source, default_mode)
        warnings += lines
    return found, warnings


def _channel(name: str, source: object, default_mode: str) -> tuple[dict[str, Any], list[str]]:
    given = getattr(source, "config", None)
    if isinstance(source, str):
        given = {"DataSource": {"S3DataSource": {"S3Uri": source}}}
    if not isinstance(given, Mapping):
        raise BadArgument(f"inputs.{name}: expected a URL or a TrainingInput, found {source!r}")
    s3 = given["DataSource"].get("S3DataSource")
    if s3 is None:
        raise BadArgument(f"inputs.{name}: file systems are not mounted; do that in stoker={{'setup': …}}, or use S3")
    if s3.get("S3DataType") not in _PLAIN:
        raise BadArgument(f"inputs.{name}: {s3['S3DataType']} is not read; give a prefix, or let the script read it")
    mode = given.get("InputMode") or default_mode
    if mode not in _MODES:
        raise BadArgument(f"inputs.{name}: input_mode is File, FastFile or Pipe; found {mode!r}")
    url = s3["S3Uri"]
    made: dict[str, Any] = {"from": url.removeprefix("file://"), "mode": _MODES[mode]}
    warnings = []
    if s3.get("S3DataDistributionType") == "ShardedByS3Key":
        if mode == "File":
            made["shard"] = True
        else:
            warnings.append(f"inputs.{name}: not honoured: ShardedByS3Key is for File; every node sees all of it")
    if mode == "Pipe":
        warnings.append(f"inputs.{name}: not honoured: Pipe makes no pipes; SM_CHANNEL_{name.upper()} is the URL")
    known = {"DataSource", "InputMode", "ContentType"}
    warnings += [
        f"inputs.{name}: not honoured: {key} {value!r}"
        for key, value in given.items()
        if key not in known and value is not None
    ]
    return made, warnings
