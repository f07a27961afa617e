"""Jobs in containers, for tests."""

from __future__ import annotations

from typing import Any

from harness import World

from tests.support.engines import IMAGE


def contained(world: World, **run: Any) -> dict[str, Any]:
    volumes = [f"{world.truth}:{world.truth}", *run.pop("volumes", ())]
    return {"container": {"image": IMAGE, "run": {"volumes": volumes, **run}}}
