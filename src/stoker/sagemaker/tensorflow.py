"""The stand-in for `sagemaker.tensorflow`."""

from __future__ import annotations

from stoker.sagemaker.estimator import Framework


class TensorFlow(Framework):
    """An estimator for a TensorFlow script. As on SageMaker the script gets `--model_dir`, unless that is False."""

    framework = "tensorflow"
