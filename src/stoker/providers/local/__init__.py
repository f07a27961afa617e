"""This computer as a small cloud: nodes are real processes that outlive the terminal they were started from.

    <STOKER_HOME>/nodes/<store>/        one root for each store; STOKER_HOME is ~/.stoker by default
        lock                            held by a launcher, so that capacity is never exceeded
        wake                            grows by a byte at each event on a node
        live/<instance>                 the nodes that are not known to be gone
        <instance>/                     one node: its supervisor is the machine, its agent runs on it

The node's supervisor, which must start fast, imports this package: everything else is imported on use.
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
    """Return the provider for one store's nodes. Has no effects."""
    from stoker.providers.local.provider import LocalProvider

    return LocalProvider(context)


def machine(node_dir: Path) -> LocalMachine:
    """Return the node as its agent sees it."""
    from stoker.providers.local.machine import LocalMachine

    return LocalMachine(node_dir)


def __getattr__(name: str) -> Any:
    if name == "CAPABILITIES":
        from stoker.providers.local.capabilities import CAPABILITIES

        return CAPABILITIES
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
