"""Nodes on this computer for tests, with a stand-in for the agent, and what becomes of them."""

from __future__ import annotations

import shlex
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stoker.model.offerings import Instance
from stoker.model.resources import LocalResources, Resources
from stoker.model.spec import Spec
from stoker.processes import Process
from stoker.processes.cgroup import make as make_cgroup
from stoker.providers.base import LaunchOrder
from stoker.providers.local import offers
from stoker.providers.local.folder import NodeFolder
from stoker.providers.local.provider import LocalProvider
from stoker.providers.registry import Context

# Stands in for the agent. `brood` has children of every kind that is hard to find; each writes down its pid.
AGENT = """
import json, os, subprocess, sys, time
mode, node = sys.argv[1], sys.argv[2]

def note(name):
    path = os.path.join(node, name + ".pid")
    with open(path + ".part", "w") as file:
        file.write(str(os.getpid()))
    os.rename(path + ".part", path)

def daemon(name, env):
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    os.execve(sys.executable, [sys.executable, __file__, "child:" + name, node], env)

if mode.startswith("child:"):
    note(mode.partition(":")[2])
    time.sleep(3600)
boots = os.path.join(node, "boots")
with open(boots, "a") as file:
    file.write(f"{os.getpid()}\\n")
first = len(open(boots).read().split()) == 1
os.makedirs(os.path.join(node, "code", "deep"), exist_ok=True)
if mode == "crash":
    sys.exit(1)
if mode == "brood-once" and not first:
    import glob
    left = []
    for path in glob.glob(os.path.join(node, "*.pid")):
        try:
            text = open("/proc/" + open(path).read() + "/stat").read()
        except FileNotFoundError:
            continue
        if text.rpartition(")")[2].split()[0] not in "ZX":
            left.append(path)
    with open(os.path.join(node, "left.json"), "w") as file:
        json.dump(left, file)
    sys.exit(0)
if mode == "done":
    sys.exit(0)
if mode in ("brood", "brood-once", "brood-scrubbed"):
    subprocess.Popen([sys.executable, __file__, "child:session", node], start_new_session=True)
    daemon("daemon", dict(os.environ))
    if mode == "brood-scrubbed":
        daemon("scrubbed", {})
note("agent")
time.sleep(3600)
"""


STORE = "file:///somewhere"


PATIENCE_S = 60.0


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"waited {PATIENCE_S:g} s for {what}"
        time.sleep(0.01)


def has_cgroups() -> bool:
    folder = make_cgroup(f"stoker-probe-{uuid.uuid4().hex}")
    if folder is not None:
        Path(folder).rmdir()
    return folder is not None


def make_order(
    *, store: str, claim: int = 1, nodes: int = 1, spot: bool = False, local: LocalResources | None = None
) -> LaunchOrder:
    resources = Resources(local=local)
    (offering,) = [offering for offering in offers.offerings(resources) if offering.spot == spot]
    spec = Spec(name="job", run="true", nodes=nodes, resources=resources)
    return LaunchOrder(
        job="job-1",
        name="job",
        claim=claim,
        nodes=nodes,
        attempt=1,
        store=store,
        spec=spec,
        submitter="me",
        offering=offering,
    )


@pytest.fixture(params=["cgroup", "marks"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways of holding a node's processes together."""
    way = str(request.param)
    if way == "cgroup" and not has_cgroups():
        pytest.skip("no cgroup can be made here")
    monkeypatch.setenv("STOKER_NO_CGROUP", "1" if way == "marks" else "0")
    return way


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def acting(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Chooses what the agents of nodes launched from now on do."""
    script = tmp_path / "agent.py"
    script.write_text(AGENT)

    def act(mode: str) -> None:
        monkeypatch.setenv("STOKER_AGENT_COMMAND", shlex.join([sys.executable, str(script), mode]))

    act("stay")
    return act


@pytest.fixture
def provider(way: str, acting: Callable[[str], None]) -> Iterator[LocalProvider]:
    provider = LocalProvider(Context(STORE))
    yield provider
    for instance in provider.list_instances():
        until(lambda i=instance: provider.terminate(i.id) == "gone", "the node to be gone")  # type: ignore[misc]


def launch(provider: LocalProvider, order: LaunchOrder | None = None) -> tuple[Instance, ...]:
    return provider.launch(provider.build(order or make_order(store=STORE)))


def folder_of(provider: LocalProvider, instance: Instance) -> NodeFolder:
    return NodeFolder(provider.root / instance.id)


def process_of(node: NodeFolder, name: str) -> Process:
    """The process that wrote down its pid under this name."""
    path = node.path / f"{name}.pid"
    until(path.exists, f"{name} to be there")
    process = Process.of(int(path.read_text()))
    assert process is not None
    return process


def supervisor_of(node: NodeFolder) -> Process:
    until(lambda: node.read_state() is not None, "the supervisor to be there")
    state = node.read_state()
    assert state is not None
    return state.process


def until_gone(provider: LocalProvider, instance: Instance) -> None:
    until(lambda: provider.state([instance.id])[instance.id] == "gone", f"{instance.id} to be gone")


def reason_of(node: NodeFolder) -> str:
    state = node.read_state()
    assert state is not None
    assert state.phase == "gone"
    return state.reason


def run_python(code: str, **names: object) -> subprocess.Popen[bytes]:
    """Another process, in which `provider` and `order` are there."""
    prelude = f"""
        import os, signal, sys, time
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        import local_nodes as here
        from stoker.providers.local import nodes
        provider = here.LocalProvider(here.Context(here.STORE))
    """
    values = "\n".join(f"{name} = {value!r}" for name, value in names.items())
    text = textwrap.dedent(prelude) + values + "\n" + textwrap.dedent(code)
    return subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE)
