"""A node with an engine, in which tests make containers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from agent_world import JOB, AgentWorld
from small_engine import SmallEngine

from stoker.agent.container.container import ContainerRuntime
from stoker.agent.container.host_devices import HostCapabilities
from stoker.agent.runtime import Command, RuntimeView
from stoker.model.resources import Gpus, Resources
from stoker.model.spec import Container as ContainerSpec
from stoker.model.spec import Environment, Spec
from stoker.model.submission import Submission

IMAGE: dict[str, Any] = {
    "Id": "sha256:1",
    "RepoDigests": ["repo/x@sha256:d1"],
    "Config": {
        "Env": ["A=image", "PATH=/image/bin:/usr/bin:/bin"],
        "Entrypoint": ["sh", "-c", 'echo by "$@"; exec "$@"', "e"],
    },
}
OTHER: dict[str, Any] = {**IMAGE, "Id": "sha256:2", "RepoDigests": ["repo/x@sha256:d2"]}
AROUND = HostCapabilities(uid=0, gid=0, gpus=0, toolkit=False, shm_bytes=0, selinux=False)


def timed(_name: str, _remedy: str) -> AbstractContextManager[None]:
    return nullcontext()


class Yard:
    """A node, an engine, and containers of the node."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = AgentWorld(root)
        self.engine = SmallEngine(root / "engine", monkeypatch)
        self.engine.has(**{"repo/x:1": IMAGE, "sha256:1": IMAGE, "repo/x@sha256:d1": IMAGE})
        self.world.submit("true")
        self.claim = self.world.claim()
        self.node = self.world.node(self.claim)
        self.node.paths.train_log.touch()
        self.node.paths.code.mkdir()
        self.around = AROUND
        self.made: list[ContainerRuntime] = []

    def make(self, *, gpus: int | None = None, **options: Any) -> ContainerRuntime:
        spec = ContainerSpec(**{"image": "repo/x:1"} | options)
        wanted = Resources(gpus=Gpus("", gpus) if gpus else None)
        whole = Spec(name="job", run=("true",), environment=Environment(container=spec), resources=wanted)
        made = ContainerRuntime(self.node, Submission(JOB, whole, "test"), lambda question: question(), lambda: None)
        made._host = self.around
        self.made.append(made)
        return made

    def entered(self, view: RuntimeView | None = None, **options: Any) -> ContainerRuntime:
        made = self.make(**options)
        made.open(timed)
        made.enter(view or RuntimeView())
        return made

    def run(self, container: ContainerRuntime, *words: str, **options: Any) -> Any:
        env = {"PATH": os.environ["PATH"]} | options.pop("env", {})
        command = Command(words, env, self.node.paths.code, options.pop("secrets", {}), **options)
        return container.spawn(command, self.node.paths.train_log)

    @property
    def said(self) -> str:
        return self.node.paths.train_log.read_text()


@pytest.fixture
def yard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Yard]:
    found = Yard(tmp_path, monkeypatch)
    yield found
    for container in found.made:
        container.close()
    found.engine.kill_all()
