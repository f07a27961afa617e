"""Ways onto an EC2 machine: which one is taken, and the program that it comes to."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from stoker.agent import exec_command as visiting
from stoker.model.errors import AuthDenied, UserError
from stoker.model.resources import Resources
from stoker.model.spec import Spec
from stoker.providers.base import ShellRequest
from stoker.providers.ec2 import ssh_login

MACHINE = "i-0123456789abcdef0"


class Ec2:
    """One machine, as EC2 describes it."""

    def __init__(self, **about: Any) -> None:
        self.about = {
            "InstanceId": MACHINE,
            "ImageId": "ami-1",
            "State": {"Name": "running"},
            "PrivateIpAddress": "10.0.0.5",
            "PublicIpAddress": "54.0.0.5",
        } | about
        self.image = "ubuntu/images/hvm-ssd-gp3/ubuntu-noble-24.04-amd64-server-20260101"

    class meta:
        region_name = "us-east-1"

    def describe_instances(self, InstanceIds: list[str]) -> Any:
        return {"Reservations": [{"Instances": [self.about]}]}

    def describe_images(self, ImageIds: list[str]) -> Any:
        return {"Images": [{"Name": self.image}]}


class Connect:
    """EC2 Instance Connect, which keeps what it was lent."""

    def __init__(self, refuses: bool = False) -> None:
        self.lent: list[dict[str, str]] = []
        self.refuses = refuses

    def send_ssh_public_key(self, **lent: str) -> Any:
        if self.refuses:
            raise AuthDenied("EC2 Instance Connect: not yours (AccessDeniedException)")
        self.lent.append(lent)
        return {"Success": True}


class Clients:
    def __init__(self, ec2: Ec2 | None = None, connect: Connect | None = None) -> None:
        self.ec2 = ec2 or Ec2()
        self.connect = connect or Connect()

    def get(self, service: str, region: str | None) -> Any:
        return {"ec2": self.ec2, "ec2-instance-connect": self.connect}[service]


@pytest.fixture(autouse=True)
def computer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, and programs that are there by name alone; all but ssh-keygen, which is the real one."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "stoker"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("ssh", "aws", "session-manager-plugin"):
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    (tmp_path / ".ssh").mkdir()
    return tmp_path


def spec(image: str | None = None) -> Spec:
    return Spec(name="j", run="true", resources=Resources(provider="ec2", image=image))


def way(
    clients: Clients, visit: ShellRequest | None = None, *, image: str | None = "debian/12", answers: bool = True
) -> tuple[str, list[str]]:
    with ssh_login.shell_command(
        clients,  # type: ignore[arg-type]
        MACHINE,
        visit or ShellRequest(),
        spec(image),
        "us-east-1",
        answers=lambda _: answers,
    ) as found:
        return found.name, list(found.argv)


def hint(clients: Clients, visit: ShellRequest, *, answers: bool = True) -> str:
    """What is said when ssh itself fails."""
    with ssh_login.shell_command(
        clients,  # type: ignore[arg-type]
        MACHINE,
        visit,
        spec("debian/12"),
        "us-east-1",
        answers=lambda _: answers,
    ) as found:
        return found.hint


def own_key(home: Path, name: str = "mine.pem") -> str:
    (home / ".ssh" / name).write_text("secret")
    return str(home / ".ssh" / name)


def test_a_key_pair_comes_first(computer: Path) -> None:
    key = own_key(computer)
    name, argv = way(Clients(Ec2(KeyName="mine")))
    assert name == "key"
    assert argv[-1] == "admin@54.0.0.5" and argv[argv.index("-i") + 1] == key
    assert f"HostKeyAlias={MACHINE}" in argv


def test_without_a_public_address_the_private_one_is_tried(computer: Path) -> None:
    own_key(computer)
    machine = Ec2(KeyName="mine")
    del machine.about["PublicIpAddress"]
    assert way(Clients(machine))[1][-1] == "admin@10.0.0.5"


def test_without_a_key_one_is_lent_and_gone_afterwards() -> None:
    clients = Clients()
    name, argv = way(clients)
    assert name == "connect"
    (lent,) = clients.connect.lent
    assert lent["InstanceOSUser"] == "admin" and lent["SSHPublicKey"].startswith("ssh-ed25519 ")
    key = Path(argv[argv.index("-i") + 1])
    assert not key.exists() and not key.parent.exists()
    assert "IdentitiesOnly=yes" in argv


def test_without_an_open_port_ssh_goes_through_ssm() -> None:
    name, argv = way(Clients(), ShellRequest(command=("true",)), answers=False)
    assert name == "ssm"
    (proxy,) = [word for word in argv if word.startswith("ProxyCommand=")]
    words = shlex.split(proxy.removeprefix("ProxyCommand="))
    assert Path(words[0]).name == "aws" and words[words.index("--target") + 1] == MACHINE
    assert f"admin@{MACHINE}" in argv


def test_without_any_key_there_is_a_plain_session_for_a_shell_alone() -> None:
    clients = Clients(connect=Connect(refuses=True))
    name, argv = way(clients, answers=False)
    assert name == "ssm" and argv[1:3] == ["ssm", "start-session"] and argv[-1] == MACHINE
    for visit in (ShellRequest(command=("true",)), ShellRequest(options=("-L", "1:localhost:1"))):
        with pytest.raises(UserError, match="no exit status") as told:
            way(clients, visit, answers=False)
        assert "key: port 22 of 54.0.0.5 and 10.0.0.5 does not answer" in str(told.value)


def test_the_person_may_insist(computer: Path) -> None:
    own_key(computer)
    assert way(Clients(Ec2(KeyName="mine")), ShellRequest(via="connect"))[0] == "connect"
    assert way(Clients(Ec2(KeyName="mine")), ShellRequest(via="ssm"))[0] == "ssm"
    with pytest.raises(UserError, match=r"--via pigeon: there are key, connect, ssm"):
        way(Clients(), ShellRequest(via="pigeon"))
    with pytest.raises(UserError, match=r"no way to .*: key: .*neither in .* nor in an agent"):
        way(Clients(), ShellRequest(via="key"))


def test_a_key_lent_in_vain_says_what_to_do_next(computer: Path) -> None:
    shell, command = ShellRequest(), ShellRequest(command=("true",))
    for visit, answers in ((shell, True), (command, True), (command, False)):
        told = hint(Clients(), visit, answers=answers)
        assert "Permission denied? its image may lack ec2-instance-connect" in told
        assert "set resources.ec2.key" in told and ("or try --via ssm" in told) == (visit is shell)
    # There it needs no key at all: the way out is no dead end.
    name, argv = way(Clients(), ShellRequest(via="ssm"))
    assert name == "ssm" and argv[1:3] == ["ssm", "start-session"] and argv[-1] == MACHINE
    # Nothing was lent.
    assert "ec2-instance-connect" not in hint(Clients(connect=Connect(refuses=True)), shell, answers=False)
    own_key(computer)
    assert "ec2-instance-connect" not in hint(Clients(Ec2(KeyName="mine")), shell)


def test_an_identity_is_used_as_it_is(computer: Path) -> None:
    key = own_key(computer, "other")
    name, argv = way(Clients(), ShellRequest(identity=key, user="jane"))
    assert name == "key" and argv[argv.index("-i") + 1] == key and argv[-1] == "jane@54.0.0.5"
    with pytest.raises(UserError, match="--identity"):
        way(Clients(), ShellRequest(identity=str(computer / "none")))


def test_options_of_ssh_come_before_the_machine() -> None:
    argv = way(Clients(), ShellRequest(options=("-L", "6006:localhost:6006", "-N")))[1]
    assert argv[-4:] == ["-L", "6006:localhost:6006", "-N", "admin@54.0.0.5"]


def test_a_command_is_one_word_for_whatever_shell(computer: Path) -> None:
    argv = way(Clients(), ShellRequest(command=("sh", "-c", "echo $HOME 'a  b'; exit 3"), terminal=True))[1]
    assert "-t" in argv
    assert shlex.split(argv[-1])[-3:] == ["sh", "-c", "echo $HOME 'a  b'; exit 3"]
    assert argv[-1].startswith("sudo -n -- ")
    as_root = way(Clients(), ShellRequest(command=("true",), user="root"))[1]
    assert not as_root[-1].startswith("sudo") and "-t" not in as_root


@pytest.mark.parametrize(
    ("image", "name", "user"),
    [
        (None, "", "ubuntu"),
        ("dlami/pytorch", "", "ubuntu"),
        ("ubuntu/24.04", "", "ubuntu"),
        ("debian/13", "", "admin"),
        ("ami-1", "al2023-ami-2023.9-kernel-6.1-x86_64", "ec2-user"),
        ("ami-1", "Deep Learning OSS Nvidia Driver AMI GPU PyTorch 2.9 (Ubuntu 24.04)", "ubuntu"),
        ("ami-1", "Deep Learning Base AMI (Amazon Linux 2023)", "ec2-user"),
        ("our-image-*", "debian-12-amd64", "admin"),
        ("ami-1", "nobody knows", "ec2-user"),
    ],
)
def test_who_logs_in(image: str | None, name: str, user: str) -> None:
    machine = Ec2()
    machine.image = name
    assert way(Clients(machine), image=image)[1][-1] == f"{user}@54.0.0.5"


@pytest.mark.parametrize("state", ["pending", "shutting-down", "terminated"])
def test_only_what_runs_can_be_visited(state: str) -> None:
    with pytest.raises(UserError, match=f"is {state}"):
        way(Clients(Ec2(State={"Name": state})))


def test_a_program_that_is_missing_is_one_clear_line(computer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_key(computer)
    (computer / "bin" / "session-manager-plugin").unlink()
    with pytest.raises(UserError, match="there is no session-manager-plugin on this computer"):
        way(Clients(), ShellRequest(via="ssm"))
    monkeypatch.setenv("PATH", str(computer))
    with pytest.raises(UserError, match="there is no ssh on this computer: install OpenSSH's client"):
        way(Clients(Ec2(KeyName="mine")))


def test_a_visitor_is_not_taken_for_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "vt100")
    monkeypatch.setenv("EDITOR", "ed")
    seen = visiting.shell_environ({"A": "1", "TERM": "dumb", "STOKER_TRAINING": "x", "STOKER_NODE": "y"})
    assert seen.pop("TERM") == "vt100"
    assert seen["A"] == "1" and not {"STOKER_TRAINING", "STOKER_NODE", "EDITOR"} & set(seen)
