"""Stands in for `sagemaker.tensorflow`."""

from __future__ import annotations

from stoker.sagemaker.estimator import Framework


class TensorFlow(Framework):
    """A script for TensorFlow. As on SageMaker it gets `--model_dir`, unless that is False."""

    framework = "tensorflow"
