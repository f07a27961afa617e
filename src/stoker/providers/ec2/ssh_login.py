"""Log in to an EC2 machine, for `stoker ssh` and `stoker exec`: by key pair, EC2 Instance Connect or SSM.

All methods end in the real `ssh` if possible, because it forwards ports and returns exit statuses. They differ in the
source of the key, and in the connection: to an open port, or through SSM.
"""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.model.errors import ProviderError, UserError
from stoker.model.spec import Spec
from stoker.providers.base import ShellCommand, ShellRequest
from stoker.providers.ec2.client import Clients
from stoker.providers.ec2.errors import call_aws
from stoker.providers.ssh_access import (
    PORT,
    TEMPORARY_KEY,
    AccessUnavailable,
    SshTarget,
    find_program,
    make_key,
    own_identity,
    port_answers,
    ssh_argv,
)

VIAS = ("key", "connect", "ssm")
_KNOWN = "ec2_known_hosts"
_DEFAULT_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")
# The login user by a word in the image's alias or name; the first match counts.
_USERS = (
    ("ubuntu", "ubuntu"),
    ("debian", "admin"),
    ("al2023", "ec2-user"),
    ("amzn", "ec2-user"),
    ("amazon linux", "ec2-user"),
    ("dlami", "ubuntu"),
    ("rocky", "rocky"),
    ("centos", "centos"),
    ("fedora", "fedora"),
)
_DEFAULT_USER = "ec2-user"


@dataclass(frozen=True)
class Ec2Target:
    """A machine and the facts that a login needs."""

    instance: str
    region: str
    user: str
    addresses: tuple[str, ...]
    key: str | None


@contextmanager
def shell_command(
    clients: Clients,
    instance: str,
    shell_request: ShellRequest,
    spec: Spec,
    region: str | None,
    *,
    answers: Callable[[str], bool] | None = None,
) -> Iterator[ShellCommand]:
    """Find the first available method. Raises UserError with the reasons if there is none."""
    if shell_request.via is not None and shell_request.via not in VIAS:
        raise UserError(f"--via {shell_request.via}: there are {', '.join(VIAS)}")
    target = find_target(clients, instance, shell_request, spec, region)
    with tempfile.TemporaryDirectory(prefix="stoker-ssh-") as folder:
        yield _first_open(clients, target, shell_request, Path(folder), answers or port_answers)


def _first_open(
    clients: Clients, target: Ec2Target, shell_request: ShellRequest, folder: Path, answers: Callable[[str], bool]
) -> ShellCommand:
    def at_port(key: Callable[[], list[str]]) -> tuple[str, ...]:
        where = next((address for address in target.addresses if answers(address)), None)
        if where is None:
            raise AccessUnavailable(
                f"port {PORT} of {' and '.join(target.addresses) or 'it'} does not answer from here"
            )
        return ssh_argv(_ssh_target(target, where), shell_request, key())

    def by_key() -> list[str]:
        return _key_options(target, shell_request)

    def by_connect() -> list[str]:
        return _send_temporary_key(clients, target, folder)

    def by_either() -> list[str]:
        try:
            return by_key()
        except AccessUnavailable:
            return by_connect()

    def by_ssm() -> tuple[str, ...]:
        proxy = _ssm_proxy(target)
        # A user who requires SSM for a shell was probably refused elsewhere, maybe because the machine lacks what a
        # temporary key needs: use only a key pair then.
        key_options = (
            by_key
            if shell_request.via == "ssm" and not shell_request.command and not shell_request.options
            else by_either
        )
        try:
            return ssh_argv(
                _ssh_target(target, target.instance), shell_request, [*key_options(), "-o", f"ProxyCommand={proxy}"]
            )
        except AccessUnavailable as why:
            if shell_request.command or shell_request.options:
                raise AccessUnavailable(
                    f"a session has no exit status and forwards no ports, and ssh has no key: {why}"
                ) from why
            return _session(target)

    found: dict[str, Callable[[], tuple[str, ...]]] = {
        "key": lambda: at_port(by_key),
        "connect": lambda: at_port(by_connect),
        "ssm": by_ssm,
    }
    closed = []
    for name in VIAS if shell_request.via is None else (shell_request.via,):
        try:
            argv = found[name]()
            return ShellCommand(
                name, argv, hint=_hint(name, shell_request, temporary_key=(folder / TEMPORARY_KEY).exists())
            )
        except AccessUnavailable as why:
            closed.append(f"{name}: {why}")
    raise UserError(f"no way to {target.instance}: {'; '.join(closed)}")


def _hint(name: str, shell_request: ShellRequest, *, temporary_key: bool) -> str:
    """The next step if ssh itself fails. ssh prints the reason, but cannot say that a temporary key was ignored."""
    others = ", ".join(other for other in VIAS if other != name)
    hint = f"255 is ssh's own failure, by way of {name}; --via may be {others}"
    if not temporary_key:
        return hint
    shell = "" if shell_request.command or shell_request.options else ", or try --via ssm"
    lacks = "its image may lack ec2-instance-connect, as Debian's do"
    return f"{hint}. Permission denied? {lacks}: set resources.ec2.key, which counts at the next launch{shell}"


# ── The machine ───────────────────────────────────────────────────────────────────────────────────────────────────────


def find_target(
    clients: Clients, instance: str, shell_request: ShellRequest, spec: Spec, region: str | None
) -> Ec2Target:
    """Find the machine's addresses and login user. Raises UserError if it does not run."""
    ec2 = clients.get("ec2", region)
    answer = call_aws(instance, lambda: ec2.describe_instances(InstanceIds=[instance]))
    found: list[Mapping[str, Any]] = [each for group in answer["Reservations"] for each in group["Instances"]]
    if not found or found[0]["State"]["Name"] != "running":
        state = found[0]["State"]["Name"] if found else "gone"
        raise UserError(f"{instance} is {state}; only a running machine can be reached")
    machine = found[0]
    addresses = [machine.get("PublicIpAddress"), machine.get("PrivateIpAddress")]
    return Ec2Target(
        instance=instance,
        region=str(ec2.meta.region_name),
        user=shell_request.user or user_of(spec.resources.image) or _user_by_name(ec2, machine["ImageId"]),
        addresses=tuple(dict.fromkeys(address for address in addresses if address)),
        key=machine.get("KeyName"),
    )


def user_of(image: str | None) -> str | None:
    """The login user for the image that the job names; None if only the image's own name can tell."""
    if image is None:
        return "ubuntu"  # The default images are Ubuntu: see `images.DEFAULT`.
    family, slash, _ = image.partition("/")
    known = family in ("dlami", "ubuntu", "debian") and (slash or family == "dlami")
    return _user_in(family) if known else None


def _user_by_name(ec2: Any, image: str) -> str:
    try:
        answer = call_aws(image, lambda: ec2.describe_images(ImageIds=[image]))
    except ProviderError:
        return _DEFAULT_USER  # A guess; --user overrides it.
    names = [f"{each.get('Name', '')} {each.get('Description', '')}" for each in answer["Images"]]
    return _user_in(" ".join(names)) or _DEFAULT_USER


def _user_in(text: str) -> str | None:
    return next((user for word, user in _USERS if word in text.lower()), None)


def _ssh_target(target: Ec2Target, where: str) -> SshTarget:
    return SshTarget(target.instance, target.user, where, _KNOWN)


# ── Keys ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _key_options(target: Ec2Target, shell_request: ShellRequest) -> list[str]:
    """ssh's options for the machine's key pair, or for the key that the user names."""
    if shell_request.identity is not None:
        return own_identity(shell_request)
    folder = Path.home() / ".ssh"
    if target.key is not None:
        for name in (target.key, f"{target.key}.pem"):
            if (folder / name).is_file():
                return ["-i", str(folder / name)]
    if target.key is None and shell_request.via != "key":
        raise AccessUnavailable("it was launched without a key pair; set resources.ec2.key, or give --identity")
    if not os.environ.get("SSH_AUTH_SOCK") and not any((folder / name).is_file() for name in _DEFAULT_KEYS):
        raise AccessUnavailable(f"your key {target.key or ''} is neither in {folder} nor in an agent; give --identity")
    return []


def _send_temporary_key(clients: Clients, target: Ec2Target, folder: Path) -> list[str]:
    """Make a key and let EC2 Instance Connect install it on the machine for a minute."""
    key = make_key(folder)
    public = key.with_suffix(".pub").read_text()
    client = clients.get("ec2-instance-connect", target.region)
    try:
        call_aws(
            "EC2 Instance Connect",
            lambda: client.send_ssh_public_key(
                InstanceId=target.instance, InstanceOSUser=target.user, SSHPublicKey=public
            ),
        )
    except ProviderError as error:
        key.unlink()
        raise AccessUnavailable(str(error)) from error
    return ["-i", str(key), "-o", "IdentitiesOnly=yes"]


# ── Programs ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _ssm_proxy(target: Ec2Target) -> str:
    program = _aws()
    return shlex.join(
        [
            *(program, "ssm", "start-session", "--region", target.region, "--target", target.instance),
            *("--document-name", "AWS-StartSSHSession", "--parameters", f"portNumber={PORT}"),
        ]
    )


def _session(target: Ec2Target) -> tuple[str, ...]:
    return (_aws(), "ssm", "start-session", "--region", target.region, "--target", target.instance)


def _aws() -> str:
    program = find_program("aws", "it needs AWS's command line", closed=True)
    find_program("session-manager-plugin", "it needs AWS's Session Manager plugin", closed=True)
    return program
