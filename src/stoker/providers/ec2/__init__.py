"""Plain EC2 machines.

The node's side (`machine`) needs the standard library alone; boto3 is imported by whoever asks EC2 for something.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

# Before the function of that name: imported later, the module would take its place in this namespace.
from stoker.providers.ec2.machine import Ec2Machine

if TYPE_CHECKING:
    from pathlib import Path

    from stoker.providers.ec2.capabilities import CAPABILITIES
    from stoker.providers.ec2.provider import Ec2Provider
    from stoker.providers.registry import Context

__all__ = ["CAPABILITIES", "connect", "machine"]


def connect(context: Context) -> Ec2Provider:
    """The provider for one store's machines. Asks nobody yet."""
    from stoker.providers.ec2.provider import Ec2Provider

    return Ec2Provider(context)


def machine(node_dir: Path) -> Ec2Machine:
    """The node as its agent sees it."""
    return Ec2Machine(node_dir)


def __getattr__(name: str) -> Any:
    if name == "CAPABILITIES":
        from stoker.providers.ec2.capabilities import CAPABILITIES

        return CAPABILITIES
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
