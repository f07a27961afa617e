"""The channels of a training job: the agents, and the inputs that SageMaker can bring as they are. Pure.

Inputs are channels for `contract: sagemaker`, if `resources.sagemaker.channels` allows it. Their files are what
SageMaker makes of them, as for any script of its own; the agent brings every other input. Checkpoints are Stoker's
commits in every case: `checkpoint_copy` is what people and the console see beside them.
"""

from __future__ import annotations

import re
from typing import Any

from stoker.model import keys
from stoker.model.errors import UserError
from stoker.model.hyperparameters import CHECKPOINTS
from stoker.model.resources import SagemakerResources
from stoker.model.spec import Checkpoints, Input, Spec
from stoker.providers import request_overrides
from stoker.providers.base import LaunchOrder
from stoker.providers.sagemaker import entry

# Limits of CreateTrainingJob.
_MOST_CHANNELS = 20
_NAME = re.compile(r"[A-Za-z0-9.\-_]{1,64}")
# Of agents, for each Python that an image may have.
_AGENTS = 2
_MODES = {"copy": "File", "mount": "FastFile"}


def check(spec: Spec, ours: SagemakerResources) -> None:
    """Raise UserError for an input that only a channel could bring and none can; and for a second checkpoint copy."""
    taken = of_inputs(spec, ours)
    for name, wanted in spec.inputs.items():
        if name.startswith(entry.channel("")):
            raise UserError(f"inputs.{name}: names that begin with {entry.channel('')} are Stoker's own; rename it")
        if wanted.mode != "mount" or name in taken:
            continue
        if spec.environment.contract is None or not ours.channels:
            problem = "SageMaker mounts inputs (FastFile) only as channels, with environment.contract: sagemaker"
        elif not wanted.source.startswith("s3://") and "://" in wanted.source:
            problem = f"SageMaker mounts what is in S3, and this is {wanted.source}"
        else:
            problem = f"a training job has {_MOST_CHANNELS - _AGENTS} channels for inputs, with plain names"
        raise UserError(f"inputs.{name}.mode: {problem}; use mode: copy")
    if _copied(spec, ours) and request_overrides.reaches(ours.overrides, "CheckpointConfig"):
        raise UserError(
            "resources.sagemaker.overrides.CheckpointConfig: SageMaker would put files beside what Stoker restores;"
            " leave it out, and use resume_from for checkpoints that are there"
        )


def of_inputs(spec: Spec, ours: SagemakerResources) -> dict[str, Input]:
    """Return the inputs that are channels. A path of the submitter's counts: it will be in the store."""
    if spec.environment.contract is None or not ours.channels:
        return {}
    fitting = [
        (name, wanted)
        for name, wanted in spec.inputs.items()
        if wanted.mode in _MODES and _NAME.fullmatch(name) and _is_in_s3(wanted.source)
    ]
    # Nothing but a channel mounts: these come first.
    fitting.sort(key=lambda each: each[1].mode != "mount")
    return dict(fitting[: _MOST_CHANNELS - _AGENTS])


def remarks(spec: Spec, ours: SagemakerResources) -> tuple[str, ...]:
    """A line for each channel that looks like a folder and is none: "SageMaker uses all objects that match the
    specified key name prefix" (S3DataSource), so that `data/train` brings `data/train-labels` too."""
    return tuple(
        f"inputs.{name}: SageMaker brings all objects whose names begin with {wanted.source}; end a folder with /"
        for name, wanted in of_inputs(spec, ours).items()
        if "://" in wanted.source and not re.search(r"/$|\.[^/]*$|^s3://[^/]*$", wanted.source)
    )


def buckets(spec: Spec, ours: SagemakerResources) -> dict[str, str]:
    """Return the bucket of each channel whose source is a URL, by the input's name."""
    found = of_inputs(spec, ours).items()
    return {name: wanted.source.split("/")[2] for name, wanted in found if "://" in wanted.source}


def build(order: LaunchOrder, ours: SagemakerResources) -> list[dict[str, Any]]:
    """Return InputDataConfig: one channel for each Python that the image may have, and those of inputs."""
    agents = [
        _channel(entry.channel(tag), _in_store(order, keys.bundle(name)), "FullyReplicated", "File")
        for tag, name in sorted(order.bundles.items())
    ]
    spec = order.spec
    inputs = [
        _channel(
            name,
            _source(order, wanted),
            "ShardedByS3Key" if wanted.shard and order.nodes > 1 else "FullyReplicated",
            _MODES[wanted.mode],
        )
        for name, wanted in sorted(of_inputs(spec, ours).items())
    ]
    return [*agents, *inputs]


def checkpoint_copy(order: LaunchOrder, ours: SagemakerResources, training_job: str) -> dict[str, str] | None:
    """Return CheckpointConfig: SageMaker's running copy of the checkpoint folder; None if there is none.

    Each training job has a folder of its own. SageMaker copies what it finds there into the container before the start:
    a folder of all attempts would bring back files that are in no commit, some of them half-written by the attempt
    before, and mix up the hosts.
    """
    if not _copied(order.spec, ours):
        return None
    uri = f"{_in_store(order, keys.sagemaker_output(order.job))}/{training_job}/checkpoints"
    return {"S3Uri": uri, "LocalPath": CHECKPOINTS}


def _copied(spec: Spec, ours: SagemakerResources) -> bool:
    """Return whether SageMaker copies the checkpoint folder: it can watch the one that it makes itself."""
    folder = spec.checkpoints.dir
    known = folder == Checkpoints().dir or folder == CHECKPOINTS or str(folder).startswith(f"{CHECKPOINTS}/")
    return spec.environment.contract is not None and ours.checkpoint_copy and isinstance(folder, str) and known


def _channel(name: str, uri: str, distribution: str, mode: str) -> dict[str, Any]:
    source = {"S3DataType": "S3Prefix", "S3Uri": uri, "S3DataDistributionType": distribution}
    return {"ChannelName": name, "DataSource": {"S3DataSource": source}, "InputMode": mode}


def _in_store(order: LaunchOrder, key: str) -> str:
    return f"{order.store.rstrip('/')}/{key}"


def _source(order: LaunchOrder, wanted: Input) -> str:
    """Return the URI of an input. SageMaker takes all objects whose names begin with it: a folder that Stoker uploaded
    ends with a slash, so that a later upload with a longer name is not part of it."""
    uploads = _in_store(order, keys.INPUTS)
    rest = wanted.source.removeprefix(uploads)
    uploaded_folder = wanted.source.startswith(uploads) and "/" not in rest
    return f"{wanted.source}/" if uploaded_folder else wanted.source


def _is_in_s3(source: str) -> bool:
    return source.startswith("s3://") or "://" not in source
