"""A machine as far as inputs are concerned."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.agent.inputs import cache
from stoker.agent.inputs.service import Inputs
from stoker.model.node_config import NodeConfig, NodePaths
from stoker.model.spec import Input
from stoker.store.base import open_store


class Machine:
    """A node as far as inputs are concerned, and what it said."""

    def __init__(self, root: Path, name: str = "node", rank: int = 0, nodes: int = 1) -> None:
        self.said: list[str] = []
        paths = NodePaths(root / name)
        paths.root.mkdir(parents=True, exist_ok=True)
        config = NodeConfig("", "local", "job", 1, rank, nodes, name)
        self.kept = root / "home" / "inputs"
        store = open_store(str(root / "store"))
        self.node: Any = SimpleNamespace(
            paths=paths, config=config, inputs=self.kept, say=self.said.append, store=store, machine=None
        )
        self.check: Callable[[], None] = lambda: None
        self._held: list[cache.CacheEntry] = []

    def bring(self, **inputs: Input | str) -> dict[str, Path]:
        wanted = {name: Input(one) if isinstance(one, str) else one for name, one in inputs.items()}
        own, held = cache.CacheEntry.acquire, self._held

        def take(kept: cache.CacheEntry, *arguments: Any) -> bool:
            whole = own(kept, *arguments)
            held.append(kept)
            return whole

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cache.CacheEntry, "acquire", take)
            where = Inputs(self.node, lambda: self.check()).provide(wanted)
        return {name: Path(path) for name, path in where.items()}

    def end(self) -> None:
        """As the end of its process does."""
        for kept in self._held:
            kept.release()


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
