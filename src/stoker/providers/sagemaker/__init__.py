"""Training jobs of SageMaker: a claim is one training job, and its hosts are the nodes.

The node's side (`machine`) needs the standard library alone; boto3 is imported by the client when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

# Imported before the function `machine` is defined: a later import of the module would replace it in this namespace.
from stoker.providers.sagemaker.machine import SageMakerMachine

if TYPE_CHECKING:
    from pathlib import Path

    from stoker.providers.registry import Context
    from stoker.providers.sagemaker.capabilities import CAPABILITIES
    from stoker.providers.sagemaker.provider import SageMakerProvider

__all__ = ["CAPABILITIES", "connect", "machine"]


def connect(context: Context) -> SageMakerProvider:
    """The provider for one store's training jobs. Makes no call yet."""
    from stoker.providers.sagemaker.provider import SageMakerProvider

    return SageMakerProvider(context)


def machine(node_dir: Path) -> SageMakerMachine:
    """The node as its agent sees it."""
    return SageMakerMachine(node_dir)


def __getattr__(name: str) -> Any:
    if name == "CAPABILITIES":
        from stoker.providers.sagemaker.capabilities import CAPABILITIES

        return CAPABILITIES
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
