"""The world of an end-to-end test, and the proof that nothing is left of it."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ec2_world import Ec2World
from gce_world import GceWorld
from harness import World, until
from sagemaker_world import SageMakerWorld

from tests.support.ec2 import Ec2Cloud
from tests.support.engines import Docker, docker
from tests.support.gce import GceCloud
from tests.support.sagemaker import sagemaker_cloud
from tests.support.servers import S3Server

# A background governor looks once more before it leaves; a supervisor tidies up after its agent.
_LEAVE_S = 60.0


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A home and a store of this test's own. Afterwards no process of it is left, and no cgroup."""
    made = World(tmp_path)
    monkeypatch.setenv("STOKER_HOME", str(made.home))
    monkeypatch.setenv("STOKER_STORE", made.url)
    # As activating the environment does: `python` and `torchrun` are the ones of whoever runs the tests.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(made.code)
    yield made
    made.end_started()
    deadline = time.monotonic() + _LEAVE_S
    while (left := made.processes()) and time.monotonic() < deadline:
        time.sleep(0.05)
    told = [(process.pid, _arguments(process.pid)) for process in left]
    # Whatever the verdict, the next test gets a machine without them.
    for process in made.processes():
        process.signal(signal.SIGKILL)
    assert not told, "processes are left"
    assert not made.cgroups(), "cgroups are left"


@pytest.fixture(scope="module")
def daemon() -> Iterator[Docker]:
    """Started by the tests of one file alone: each asks first whether there can be one (`why_no_docker`)."""
    with docker() as made:
        yield made


@pytest.fixture
def engine(daemon: Docker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Docker]:
    """The daemon, as whoever submits has it. Afterwards it has no container."""
    monkeypatch.setenv("DOCKER_HOST", daemon.host)
    yield daemon
    until(lambda: not daemon.containers(), "every container is gone", 30)


@pytest.fixture(scope="session")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the homes of all tests keep what they packed for machines: compressing an agent takes seconds of a core."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "packed"


@pytest.fixture
def ec2(cloud: Ec2Cloud, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ec2World]:
    """A bucket and a home of this test's own, on EC2. Afterwards nothing is left that is paid for."""
    made = Ec2World(tmp_path, cloud)
    made.share(packed)
    monkeypatch.setenv("STOKER_HOME", str(made.home))
    monkeypatch.setenv("STOKER_STORE", made.url)
    monkeypatch.chdir(made.code)
    yield made
    made.end_started()
    made.left_nothing()


@pytest.fixture
def gce(google_cloud: GceCloud, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GceWorld]:
    """A bucket and a home of this test's own, on Compute Engine. Afterwards nothing is left that is paid for."""
    made = GceWorld(tmp_path, google_cloud)
    made.share(packed)
    monkeypatch.setenv("STOKER_HOME", str(made.home))
    monkeypatch.setenv("STOKER_STORE", made.url)
    monkeypatch.chdir(made.code)
    yield made
    made.end_started()
    made.left_nothing()


@pytest.fixture
def training_jobs(
    s3: S3Server, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SageMakerWorld]:
    """A bucket and a home of this test's own, on a SageMaker whose training jobs really run. Afterwards none does."""
    for name in os.environ:
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    with sagemaker_cloud(s3) as cloud:
        for name, value in cloud.env.items():
            monkeypatch.setenv(name, value)
        made = SageMakerWorld(tmp_path, cloud, f"s3://{s3.new_bucket()}/team")
        made.share(packed)
        monkeypatch.setenv("STOKER_HOME", str(made.home))
        monkeypatch.setenv("STOKER_STORE", made.url)
        monkeypatch.chdir(made.code)
        yield made
        made.end_started()
        made.left_nothing()
        assert cloud.broken() == []


def _arguments(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return "ended"
