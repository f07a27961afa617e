"""What all ways onto a machine share: the real `ssh`, a key for one visit, and the agent's door behind it."""

from __future__ import annotations

import shlex
import shutil
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

from stoker.model.errors import UserError
from stoker.providers.base import Visit
from stoker.store.home import home, make_home

PORT = 22
# A fresh private key, in the folder of one visit.
LENT = "key"
# Where the boot put the agent and its node: see `stoker.providers.boot.install`.
_PYTHON, _AGENT, _NODE = "/opt/stoker/bin/python", "/opt/stoker/agent", "/var/lib/stoker/node"
# Long enough for another continent; a port that is closed to us never answers.
_PROBE_S = 4.0


class NoWay(Exception):
    """This way is closed; the message says why."""


@dataclass(frozen=True)
class Door:
    """Where ssh goes, and as whom. `name` is the machine's own: addresses and names come and go, host keys stay by it.

    `known` is the file of host keys, below Stoker's home.
    """

    name: str
    user: str
    where: str
    known: str


def port_answers(address: str) -> bool:
    """Whether somebody listens for ssh there, as seen from here."""
    try:
        with socket.create_connection((address, PORT), timeout=_PROBE_S):
            return True
    except OSError:
        return False


def make_key(folder: Path) -> Path:
    """A fresh key for one visit; its public half lies beside it. Raises UserError without OpenSSH."""
    program = find_program("ssh-keygen", "OpenSSH's client has it")
    key = folder / LENT
    key.unlink(missing_ok=True)
    subprocess.run([program, "-q", "-t", "ed25519", "-N", "", "-C", "stoker", "-f", str(key)], check=True)
    return key


def ssh_argv(door: Door, visit: Visit, options: list[str]) -> tuple[str, ...]:
    """The real ssh, with the command as the training sees it."""
    program = find_program("ssh", "install OpenSSH's client (Debian: openssh-client)")
    make_home()
    trusted = [
        *("-o", "StrictHostKeyChecking=accept-new"),
        *("-o", f"UserKnownHostsFile={home() / door.known}"),
        *("-o", f"HostKeyAlias={door.name}"),
        *("-o", "ServerAliveInterval=30"),
        # Images have no passwords; asking for one would only hide that the key is not known there.
        *("-o", "PreferredAuthentications=publickey"),
        *("-o", "LogLevel=ERROR"),
    ]
    terminal = ["-t"] if visit.command and visit.terminal else []
    own = [program, *trusted, *options, *terminal, *visit.options, f"{door.user}@{door.where}"]
    return (*own, *([remote_command(door.user, visit.command)] if visit.command else []))


def remote_command(user: str, command: tuple[str, ...]) -> str:
    """The command as the training sees it, which belongs to root. One word for each, whatever shell reads it."""
    become = [] if user == "root" else ["sudo", "-n", "--"]
    return shlex.join([*become, _PYTHON, _AGENT, _NODE, "--", *command])


def own_identity(visit: Visit) -> list[str]:
    """ssh's options for the key that the person names. Raises UserError where it is not there."""
    path = Path(visit.identity or "").expanduser()
    if not path.is_file():
        raise UserError(f"--identity {visit.identity}: there is no such file")
    return ["-i", str(path), "-o", "IdentitiesOnly=yes"]


def find_program(name: str, hint: str, *, closed: bool = False) -> str:
    """Where a program is. Raises UserError, or NoWay where another way may be open."""
    found = shutil.which(name)
    if found is None:
        raise (NoWay if closed else UserError)(f"there is no {name} on this computer: {hint}")
    return found
