"""The stand-in for `sagemaker.huggingface`."""

from __future__ import annotations

from typing import Any

from stoker.sagemaker.estimator import Framework


class HuggingFace(Framework):
    """An estimator for a script that uses Transformers, on PyTorch or TensorFlow."""

    framework = "pytorch"

    def __init__(self, *, pytorch_version: str | None = None, tensorflow_version: str | None = None, **arguments: Any):
        super().__init__(framework_version=pytorch_version or tensorflow_version, **arguments)
        if tensorflow_version is not None:
            self.framework = "tensorflow"  # type: ignore[misc]
