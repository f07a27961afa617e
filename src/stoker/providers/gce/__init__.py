"""Plain Compute Engine machines.

The node's side (`machine`) needs the standard library alone; httpx and google-auth are imported by the client when it
is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

# Imported before the function `machine` is defined: a later import of the module would replace it in this namespace.
from stoker.providers.gce.machine import GceMachine

if TYPE_CHECKING:
    from pathlib import Path

    from stoker.providers.gce.capabilities import CAPABILITIES
    from stoker.providers.gce.provider import GceProvider
    from stoker.providers.registry import Context

__all__ = ["CAPABILITIES", "connect", "machine"]


def connect(context: Context) -> GceProvider:
    """The provider for one store's machines. Makes no call yet."""
    from stoker.providers.gce.provider import GceProvider

    return GceProvider(context)


def machine(node_dir: Path) -> GceMachine:
    """The node as its agent sees it."""
    return GceMachine(node_dir)


def __getattr__(name: str) -> Any:
    if name == "CAPABILITIES":
        from stoker.providers.gce.capabilities import CAPABILITIES

        return CAPABILITIES
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
