"""The stand-in for `sagemaker.huggingface`."""

from __future__ import annotations

from typing import Any

from stoker.sagemaker.estimator import Framework


class HuggingFace(Framework):
    """An estimator for a script that uses Transformers, on PyTorch or TensorFlow."""

    framework = "pytorch"

    def __init__(self, *values: object, **arguments: Any) -> None:
        super().__init__(*values, **arguments)
        if "tensorflow_version" in self._given:
            self.framework = "tensorflow"
