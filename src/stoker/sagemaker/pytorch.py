"""The stand-in for `sagemaker.pytorch`."""

from __future__ import annotations

from stoker.sagemaker.estimator import Framework


class PyTorch(Framework):
    """An estimator for a PyTorch script."""

    framework = "pytorch"
