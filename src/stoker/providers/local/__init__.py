"""This computer as a small cloud: nodes are real processes that outlive the terminal they were started from.

    <STOKER_HOME>/nodes/<store>/        one root for each store; STOKER_HOME is ~/.stoker by default
        lock                            held by whoever launches, so that capacity is never overshot
        wake                            grows by a byte when something happened on a node
        live/<instance>                 the nodes that are not known to be gone
        <instance>/                     one node: its supervisor is the machine, its agent runs on it

Imported by the node's supervisor, which must start fast: the rest is imported when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from stoker.providers.local.capabilities import CAPABILITIES
    from stoker.providers.local.machine import LocalMachine
    from stoker.providers.local.provider import LocalProvider
    from stoker.providers.registry import Context

__all__ = ["CAPABILITIES", "connect", "machine"]


def connect(context: Context) -> LocalProvider:
    """The provider for one store's nodes. Touches nothing."""
    from stoker.providers.local.provider import LocalProvider

    return LocalProvider(context)


def machine(node_dir: Path) -> LocalMachine:
    """The node as its agent sees it."""
    from stoker.providers.local.machine import LocalMachine

    return LocalMachine(node_dir)


def __getattr__(name: str) -> Any:
    if name == "CAPABILITIES":
        from stoker.providers.local.capabilities import CAPABILITIES

        return CAPABILITIES
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
