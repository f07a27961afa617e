"""The parts shared by all ways to log in to a machine: the real `ssh`, temporary keys, and the agent's command
entry."""

from __future__ import annotations

import shlex
import shutil
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

from stoker.model.errors import UserError
from stoker.providers.base import ShellRequest
from stoker.store.home import home, make_home

PORT = 22
# Name of the private key that is made for one shell request, in the request's temporary folder.
TEMPORARY_KEY = "key"
# Install paths of the agent and its node folder: see `stoker.providers.boot.install`.
_PYTHON, _AGENT, _NODE = "/opt/stoker/bin/python", "/opt/stoker/agent", "/var/lib/stoker/node"
# Long enough for another continent. A port closed by a firewall never answers.
_PROBE_S = 4.0


class AccessUnavailable(Exception):
    """This way to the machine is not available; the message says why."""


@dataclass(frozen=True)
class SshTarget:
    """The destination and user of an ssh connection.

    `name` is the machine's own name, under which its host key is stored: addresses are reused, names of machines are
    not. `known` is the file of host keys, below Stoker's home.
    """

    name: str
    user: str
    where: str
    known: str


def port_answers(address: str) -> bool:
    """Return True if the ssh port of this address accepts connections from this computer."""
    try:
        with socket.create_connection((address, PORT), timeout=_PROBE_S):
            return True
    except OSError:
        return False


def make_key(folder: Path) -> Path:
    """Make a key for one shell request; its public half lies beside it. Raises UserError without OpenSSH."""
    program = find_program("ssh-keygen", "OpenSSH's client has it")
    key = folder / TEMPORARY_KEY
    key.unlink(missing_ok=True)
    subprocess.run([program, "-q", "-t", "ed25519", "-N", "", "-C", "stoker", "-f", str(key)], check=True)
    return key


def ssh_argv(target: SshTarget, shell_request: ShellRequest, options: list[str]) -> tuple[str, ...]:
    """The ssh command line, with the command in the training's environment."""
    program = find_program("ssh", "install OpenSSH's client (Debian: openssh-client)")
    make_home()
    trusted = [
        *("-o", "StrictHostKeyChecking=accept-new"),
        *("-o", f"UserKnownHostsFile={home() / target.known}"),
        *("-o", f"HostKeyAlias={target.name}"),
        *("-o", "ServerAliveInterval=30"),
        # Images have no passwords; a password prompt would only hide that the key is not accepted.
        *("-o", "PreferredAuthentications=publickey"),
        *("-o", "LogLevel=ERROR"),
    ]
    terminal = ["-t"] if shell_request.command and shell_request.terminal else []
    own = [program, *trusted, *options, *terminal, *shell_request.options, f"{target.user}@{target.where}"]
    return (*own, *([remote_command(target.user, shell_request.command)] if shell_request.command else []))


def remote_command(user: str, command: tuple[str, ...]) -> str:
    """The command that runs in the training's environment, which belongs to root. Quoted for any shell."""
    become = [] if user == "root" else ["sudo", "-n", "--"]
    return shlex.join([*become, _PYTHON, _AGENT, _NODE, "--", *command])


def own_identity(shell_request: ShellRequest) -> list[str]:
    """ssh's options for the user's own key. Raises UserError if the file does not exist."""
    path = Path(shell_request.identity or "").expanduser()
    if not path.is_file():
        raise UserError(f"--identity {shell_request.identity}: there is no such file")
    return ["-i", str(path), "-o", "IdentitiesOnly=yes"]


def find_program(name: str, hint: str, *, closed: bool = False) -> str:
    """The path of a program. Raises UserError, or AccessUnavailable (`closed`) if another way may be open."""
    found = shutil.which(name)
    if found is None:
        raise (AccessUnavailable if closed else UserError)(f"there is no {name} on this computer: {hint}")
    return found
