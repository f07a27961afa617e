"""Stands in for `sagemaker.pytorch`."""

from __future__ import annotations

from stoker.sagemaker.estimator import Framework


class PyTorch(Framework):
    """A script for PyTorch."""

    framework = "pytorch"
