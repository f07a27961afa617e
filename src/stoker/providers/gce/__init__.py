"""Plain Compute Engine machines.

The node's side (`machine`) needs the standard library alone; httpx and google-auth are imported by whoever asks Google
for something.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

# Before the function of that name: imported later, the module would take its place in this namespace.
from stoker.providers.gce.machine import GceMachine

if TYPE_CHECKING:
    from pathlib import Path

    from stoker.providers.gce.capabilities import CAPABILITIES
    from stoker.providers.gce.provider import GceProvider
    from stoker.providers.registry import Context

__all__ = ["CAPABILITIES", "connect", "machine"]


def connect(context: Context) -> GceProvider:
    """The provider for one store's machines. Asks nobody yet."""
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
