"""The provider for plain EC2 machines.

The node's side (`machine`) needs the standard library alone; boto3 is imported when a request is sent to AWS.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

# Before the function `machine`: imported later, the module would replace the function in this namespace.
from stoker.providers.ec2.machine import Ec2Machine

if TYPE_CHECKING:
    from pathlib import Path

    from stoker.providers.ec2.capabilities import CAPABILITIES
    from stoker.providers.ec2.provider import Ec2Provider
    from stoker.providers.registry import Context

__all__ = ["CAPABILITIES", "connect", "machine"]


def connect(context: Context) -> Ec2Provider:
    """Return the provider for one store's machines. Sends no request yet."""
    from stoker.providers.ec2.provider import Ec2Provider

    return Ec2Provider(context)


def machine(node_dir: Path) -> Ec2Machine:
    """Return the node as its agent sees it."""
    return Ec2Machine(node_dir)


def __getattr__(name: str) -> Any:
    if name == "CAPABILITIES":
        from stoker.providers.ec2.capabilities import CAPABILITIES

        return CAPABILITIES
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
