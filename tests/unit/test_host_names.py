"""What the training finds under the names of its nodes, and what its own machine is called."""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from agent_world import AgentWorld
from noticing_machine import Here

from stoker.agent import host_names, hosts_file
from stoker.agent.node import AgentNode
from stoker.agent.rendezvous import RendezvousResult
from stoker.agent.runtime import Command, HostRuntime
from stoker.agent.setup import SetupResult, make_command, make_location
from stoker.core.node_names import node_names
from stoker.model.spec import Container, Environment, Spec
from stoker.model.submission import Submission
from stoker.processes import TRAINING, NotMounted, make_group

SPEC = Spec(name="job", run="true")
TWO = ("127.0.0.7", "127.0.0.8")
# As the program does that is copied everywhere.
ASK = """
import json, os, socket
nodes = os.environ["NODES"].split()
print(json.dumps({
    "name": socket.gethostname(),
    "index": nodes.index(socket.gethostname()) if socket.gethostname() in nodes else None,
    "found": [sorted({one[4][0] for one in socket.getaddrinfo(node, 80)}) for node in nodes],
}))
"""


class Kept(Here):
    """A machine that others use, too."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.environments = folder


class Shut(HostRuntime):
    """A machine that gives nobody a view of their own."""

    def spawn(self, command: Command, log: Path) -> object:  # type: ignore[override]
        if command.mounts or command.hostname:
            raise NotMounted(1, "a user namespace: not allowed")
        return super().spawn(command, log)


@pytest.fixture
def world(tmp_path: Path) -> AgentWorld:
    found = AgentWorld(tmp_path)
    found.submit("true")
    return found


@pytest.fixture
def machine_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What stands for the machine's own `/etc/hosts`. Mounts still go to the real one."""
    found = tmp_path / "etc-hosts"
    found.write_text("127.0.0.1 localhost\n127.0.1.1 vm-1\n")
    monkeypatch.setattr(hosts_file, "Path", lambda text: found if text == "/etc/hosts" else Path(text))
    return found


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[HostRuntime]:
    made = HostRuntime(make_group(TRAINING, f"names-{os.getpid()}", sessions=tmp_path / "sessions"))
    yield made
    made.close()


def node_of(world: AgentWorld, machine: Here, rank: int = 0, nodes: int = 2) -> AgentNode:
    node = world.node(world.claim(nodes=nodes), rank, machine=machine)
    node.paths.code.mkdir()
    return node


def given(node: AgentNode, runtime: HostRuntime, hosts: tuple[str, ...], spec: Spec = SPEC) -> Command:
    """The command of the training, once the nodes know what each calls itself."""
    submission, result = Submission("job-x7", spec, "me"), SetupResult({}, {}, base={"PATH": os.environ["PATH"]})
    location = make_location(node, submission, result, RendezvousResult(TWO[: len(hosts)], 1, None, hosts), 1)
    command = make_command(node, submission, result, location, (sys.executable, "-c", ASK))
    return host_names.give_names(node, runtime, spec, location, command)


def ran(runtime: HostRuntime, command: Command, log: Path) -> dict[str, object]:
    assert runtime.spawn(command, log).wait() == 0, log.read_text()
    found: dict[str, object] = json.loads(log.read_text().splitlines()[-1])
    return found


@pytest.mark.parametrize("rank", [0, 1])
def test_nodes_that_share_a_computer_have_names_of_their_own(
    world: AgentWorld, runtime: HostRuntime, rank: int, tmp_path: Path
) -> None:
    before = Path("/etc/hosts").read_text()
    node = node_of(world, Kept(tmp_path / "environments"), rank)
    own = host_names.claim_host(node, runtime, SPEC)
    assert own == socket.gethostname()
    seen = ran(runtime, given(node, runtime, (own, own)), tmp_path / "log")
    assert seen == {"name": f"node-{rank}", "index": rank, "found": [["127.0.0.7"], ["127.0.0.8"]]}
    # The computer itself is what it was.
    assert socket.gethostname() == own and Path("/etc/hosts").read_text() == before


def test_a_computer_that_gives_no_names_says_so_and_nodes_go_by_their_addresses(
    world: AgentWorld, tmp_path: Path
) -> None:
    shut = Shut(make_group(TRAINING, f"shut-{os.getpid()}", sessions=tmp_path / "sessions"))
    node = node_of(world, Kept(tmp_path / "environments"))
    assert host_names.claim_host(node, shut, SPEC) == ""
    (line,) = node.paths.train_log.read_text().splitlines()
    assert "a user namespace: not allowed" in line and "NODE_RANK" in line
    command = given(node, shut, ("", ""))
    assert command.env["NODES"] == "127.0.0.7 127.0.0.8" and not (command.mounts or command.hostname)
    shut.close()


def test_a_machine_of_the_jobs_own_gets_the_names_into_its_own_file(
    world: AgentWorld, runtime: HostRuntime, machine_hosts: Path
) -> None:
    node = node_of(world, Here())
    runtime_name = runtime.hostname
    assert host_names.claim_host(node, runtime, SPEC) == runtime_name
    for other in ("vm-2", "vm-3"):
        command = given(node, runtime, (runtime_name, other))
        assert command.env["NODES"] == f"{runtime_name} {other}"
        # The training sees the machine as it is: what it mounts is seen by all.
        assert not (command.mounts or command.hostname)
    added = [line.split("\t")[:2] for line in machine_hosts.read_text().splitlines() if "Stoker" in line]
    assert added == [["127.0.0.7", runtime_name], ["127.0.0.8", "vm-3"]]


def test_two_machines_of_one_name_are_called_otherwise(
    world: AgentWorld, runtime: HostRuntime, machine_hosts: Path, tmp_path: Path
) -> None:
    node = node_of(world, Here(), rank=1)
    own = runtime.hostname
    command = given(node, runtime, (own, own))
    assert (command.env["NODES"], command.hostname) == ("node-0 node-1", "node-1")
    # Whatever else is found where the names stand, this is what the script does.
    shown = replace(
        command, argv=(sys.executable, "-c", "import json, socket; print(json.dumps({'name': socket.gethostname()}))")
    )
    assert ran(runtime, shown, tmp_path / "log") == {"name": "node-1"}


def test_a_machine_of_another_ones_name_that_keeps_it_says_what_a_script_sees(
    world: AgentWorld, machine_hosts: Path, tmp_path: Path
) -> None:
    shut = Shut(make_group(TRAINING, f"shut-{os.getpid()}", sessions=tmp_path / "sessions"))
    node = node_of(world, Here(), rank=1)
    command = given(node, shut, (shut.hostname, shut.hostname))
    assert (command.env["NODES"], command.hostname) == ("node-0 node-1", "")
    (line,) = node.paths.train_log.read_text().splitlines()
    assert shut.hostname in line and "not allowed" in line and "node-1" in line and "NODE_RANK" in line
    shut.close()


@pytest.mark.parametrize("shut", [False, True])
def test_where_the_machines_own_file_cannot_be_changed_the_training_sees_another(
    world: AgentWorld, runtime: HostRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shut: bool
) -> None:
    def refuse(_names: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(hosts_file, "add_to_machine", refuse)
    node, own = node_of(world, Here()), runtime.hostname
    if shut:
        closed = Shut(make_group(TRAINING, f"shut-{os.getpid()}", sessions=tmp_path / "shut"))
        command = given(node, closed, (own, "vm-2"))
        assert command.env["NODES"] == f"{own} vm-2" and not command.mounts
        (line,) = node.paths.train_log.read_text().splitlines()
        assert "/etc/hosts cannot be changed (Read-only file system)" in line
        closed.close()
    else:
        seen = ran(runtime, given(node, runtime, (own, "vm-2")), tmp_path / "log")
        assert seen == {"name": own, "index": 0, "found": [["127.0.0.7"], ["127.0.0.8"]]}


@pytest.mark.parametrize("kept", [True, False])
def test_a_node_alone_changes_nothing(
    world: AgentWorld, runtime: HostRuntime, machine_hosts: Path, tmp_path: Path, kept: bool
) -> None:
    before = machine_hosts.read_text()
    node = node_of(world, Kept(tmp_path / "environments") if kept else Here(), nodes=1)
    own = host_names.claim_host(node, runtime, SPEC)
    command = given(node, runtime, (own,))
    assert command.env["NODES"] == own == socket.gethostname()
    assert not (command.mounts or command.hostname) and machine_hosts.read_text() == before


# ── Containers ────────────────────────────────────────────────────────────────────────────────────────────────────────


def in_container(**run: object) -> Spec:
    return replace(SPEC, environment=Environment(container=Container("x", run=run)))


def test_a_containers_file_has_the_names_and_the_hosts_that_the_user_adds(
    world: AgentWorld, runtime: HostRuntime, machine_hosts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Kept(tmp_path / "environments")
    monkeypatch.setattr(machine, "address", lambda: "10.0.0.7")
    node = node_of(world, machine)
    spec = in_container(extra_hosts={"db": "10.0.0.9", "six": "fd00::9", "outer": "host-gateway", "none": "here"})
    (mount,) = host_names.mounts(node, spec)
    assert mount.target == "/etc/hosts"
    # The set-up, too, reaches the hosts that the user adds, such as an index of packages.
    added = "10.0.0.9\tdb\nfd00::9\tsix\n10.0.0.7\touter\n"
    assert mount.source.read_text() == machine_hosts.read_text() + added
    assert host_names.mounts(node, in_container())[0].source.read_text() == machine_hosts.read_text() + added
    seen = mount.source.stat()
    command = given(node, runtime, (runtime.hostname, "vm-1"), spec)
    # The name was given when the container was made.
    assert not (command.mounts or command.hostname) and mount.source.stat().st_ino == seen.st_ino
    assert mount.source.stat().st_mode & 0o777 == 0o644
    assert mount.source.read_text().splitlines() == [
        "127.0.0.1 localhost",
        f"127.0.0.7\t{runtime.hostname}",
        "127.0.0.8\tvm-1",
        "10.0.0.9\tdb",
        "fd00::9\tsix",
        "127.0.0.7\touter",
    ]


def test_a_container_of_another_ones_name_says_what_a_script_sees(
    world: AgentWorld, runtime: HostRuntime, machine_hosts: Path
) -> None:
    node = node_of(world, Here(), rank=1)
    command = given(node, runtime, (runtime.hostname,) * 2, in_container())
    assert (command.env["NODES"], command.hostname) == ("node-0 node-1", "")
    (line,) = node.paths.train_log.read_text().splitlines()
    assert "its container has a name already" in line and "NODE_RANK" in line


@pytest.mark.parametrize(
    "run",
    [
        {"volumes": ["/mine:/etc/hosts:ro"]},
        {"volume": {"/mine": "/etc/hosts"}},
        {"mount": "type=bind,source=/mine,target=/etc/hosts"},
    ],
)
def test_a_file_of_the_users_own_is_not_covered(world: AgentWorld, run: dict[str, object]) -> None:
    node = node_of(world, Here())
    assert host_names.mounts(node, in_container(**run)) == ()
    assert len(host_names.mounts(node, in_container())) == 1
    assert host_names.mounts(node, SPEC) == ()
    assert host_names.mounts(replace(node, config=replace(node.config, nodes=1)), in_container()) == ()


def test_what_a_container_is_called(world: AgentWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(node_of(world, Here(), rank=1).config, provider="gce")
    monkeypatch.setattr(socket, "gethostname", lambda: "vm-2")
    assert host_names.container_hostname(config) == "vm-2"
    assert host_names.container_hostname(replace(config, provider="local")) == "node-1"
    assert host_names.container_hostname(replace(config, nodes=1)) == ""
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost.localdomain")
    assert host_names.container_hostname(config) == "node-1"
    assert node_names(("vm-1", "node-1"), TWO) == ("vm-1", "node-1")


def test_a_script_of_sagemakers_has_the_names_in_a_file_of_its_own(
    world: AgentWorld, runtime: HostRuntime, machine_hosts: Path
) -> None:
    before = machine_hosts.read_text()
    node, spec = node_of(world, Here()), replace(SPEC, environment=Environment(contract="sagemaker"))
    submission, result = Submission("job-x7", spec, "me"), SetupResult({}, {}, base={})
    hosts = (runtime.hostname, "vm-2")
    location = make_location(node, submission, result, RendezvousResult(TWO, 1, None, hosts), 1)
    command = Command(("true",), {}, node.paths.code)
    assert host_names.give_names(node, runtime, spec, location, command) == command
    assert machine_hosts.read_text() == before
    assert not (node.paths.root / "hosts").exists()


def test_a_machine_without_a_file_of_hosts_knows_itself(world: AgentWorld, machine_hosts: Path) -> None:
    machine_hosts.unlink()
    node = node_of(world, Here())
    hosts_file.write(node.paths, SPEC, {"vm-2": "10.0.0.2"}, "10.0.0.1")
    first, *others = (node.paths.root / "hosts").read_text().splitlines()
    assert first.split() == ["127.0.0.1", "localhost"]
    assert [line.split()[:2] for line in others] == [["10.0.0.2", "vm-2"]]
