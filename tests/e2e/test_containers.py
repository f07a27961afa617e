"""Jobs in containers, by a real docker: what is seen inside, how it ends, and that nothing is left."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import World, chain, until

from stoker.testing.engines import IMAGE, Docker, docker, why_no_docker

pytestmark = pytest.mark.skipif(why_no_docker() is not None, reason=why_no_docker() or "")


@pytest.fixture(scope="module")
def daemon() -> Iterator[Docker]:
    with docker() as made:
        yield made


@pytest.fixture
def engine(daemon: Docker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Docker]:
    """The daemon, as whoever submits has it. Afterwards it has no container."""
    monkeypatch.setenv("DOCKER_HOST", daemon.host)
    yield daemon
    until(lambda: not daemon.containers(), "every container is gone", 30)


def contained(world: World, **run: Any) -> dict[str, Any]:
    volumes = [f"{world.truth}:{world.truth}", *run.pop("volumes", ())]
    return {"container": {"image": IMAGE, "run": {"volumes": volumes, **run}}}


def test_the_training_is_inside_with_everything_it_was_promised(world: World, engine: Docker) -> None:
    world.write(
        """
import json, os, sys
from pathlib import Path
from stoker import train
with train.checkpoint("one", step=1) as folder:
    (folder / "state").write_text("saved")
Path(os.environ["STOKER_OUTPUT_DIR"], "result").write_text("made inside")
Path(os.environ["TRUTH"], "seen").write_text(json.dumps({
    "environ": dict(os.environ), "cwd": os.getcwd(), "python": sys.executable,
    "data": Path(os.environ["STOKER_INPUT_DATA"], "x").read_text(),
    "root": os.listdir("/"), "argv": sys.argv[1:], "init": Path("/proc/1/comm").read_text().strip(),
}))
"""
    )
    data = world.root / "data"
    data.mkdir()
    (data / "x").write_text("an input")
    ended = world.run(
        params={"lr": 0.5}, outputs="artifacts", inputs={"data": str(data)}, environment=contained(world)
    )
    assert ended.outcome == "succeeded", world.story(ended.id)
    seen = json.loads((world.truth / "seen").read_text())
    environ = seen["environ"]
    assert seen["python"].startswith("/usr/") and seen["init"] == "docker-init"
    assert environ["FROM_IMAGE"] == "yes" and environ["PATH"].startswith("/usr/local/sbin")
    assert "FROM_ENTRY" not in environ
    assert seen["cwd"].endswith("/code") and environ["STOKER_JOB"] == ended.id
    assert environ["PYTHONPATH"].split(":")[0] == "/from/image"
    assert seen["data"] == "an input" and seen["argv"] == ["--lr", "0.5"]
    assert not {"STOKER_HOME", "STOKER_STORE", "VIRTUAL_ENV", "DOCKER_HOST"} & set(environ)
    assert (world.root / "store").exists()
    assert ended.last_checkpoint is not None
