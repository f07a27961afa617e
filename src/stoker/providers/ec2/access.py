"""Ways onto an EC2 machine, for `stoker ssh` and `stoker exec`: a key pair, EC2 Instance Connect, SSM.

All of them end in the real `ssh` where they can, since that forwards ports and passes on exit statuses; what differs is
who lends the key, and whether the connection goes to an open port or through SSM.
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
from stoker.providers.base import Visit, Way
from stoker.providers.ec2.client import Clients
from stoker.providers.ec2.errors import calling
from stoker.providers.ssh_access import (
    LENT,
    PORT,
    Door,
    NoWay,
    find_program,
    make_key,
    own_identity,
    port_answers,
    ssh_argv,
)

VIAS = ("key", "connect", "ssm")
_KNOWN = "ec2_known_hosts"
_DEFAULT_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")
# By a word in the image's alias or name, the first that matches.
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
_ANYBODY = "ec2-user"


@dataclass(frozen=True)
class Target:
    """A machine as somebody who wants to go there sees it."""

    instance: str
    region: str
    user: str
    addresses: tuple[str, ...]
    key: str | None


@contextmanager
def way(
    clients: Clients,
    instance: str,
    visit: Visit,
    spec: Spec,
    region: str | None,
    *,
    answers: Callable[[str], bool] | None = None,
) -> Iterator[Way]:
    """The first way that is open. Raises UserError with the reasons where none is."""
    if visit.via is not None and visit.via not in VIAS:
        raise UserError(f"--via {visit.via}: there are {', '.join(VIAS)}")
    target = find_target(clients, instance, visit, spec, region)
    with tempfile.TemporaryDirectory(prefix="stoker-ssh-") as folder:
        yield _first_open(clients, target, visit, Path(folder), answers or port_answers)


def _first_open(clients: Clients, target: Target, visit: Visit, folder: Path, answers: Callable[[str], bool]) -> Way:
    def at_port(lend: Callable[[], list[str]]) -> tuple[str, ...]:
        where = next((address for address in target.addresses if answers(address)), None)
        if where is None:
            raise NoWay(f"port {PORT} of {' and '.join(target.addresses) or 'it'} does not answer from here")
        return ssh_argv(_door(target, where), visit, lend())

    def by_key() -> list[str]:
        return _key_options(target, visit)

    def by_connect() -> list[str]:
        return _lend_key(clients, target, folder)

    def by_either() -> list[str]:
        try:
            return by_key()
        except NoWay:
            return by_connect()

    def by_ssm() -> tuple[str, ...]:
        proxy = _ssm_proxy(target)
        # Who insists on it for a shell has been refused elsewhere, maybe for want of what a lent key needs as well.
        lends = by_key if visit.via == "ssm" and not visit.command and not visit.options else by_either
        try:
            return ssh_argv(_door(target, target.instance), visit, [*lends(), "-o", f"ProxyCommand={proxy}"])
        except NoWay as why:
            if visit.command or visit.options:
                raise NoWay(
                    f"a session has no exit status and forwards nothing, and for ssh there is no key: {why}"
                ) from why
            return _session(target)

    found: dict[str, Callable[[], tuple[str, ...]]] = {
        "key": lambda: at_port(by_key),
        "connect": lambda: at_port(by_connect),
        "ssm": by_ssm,
    }
    closed = []
    for name in VIAS if visit.via is None else (visit.via,):
        try:
            argv = found[name]()
            return Way(name, argv, hint=_hint(name, visit, lent=(folder / LENT).exists()))
        except NoWay as why:
            closed.append(f"{name}: {why}")
    raise UserError(f"no way to {target.instance}: {'; '.join(closed)}")


def _hint(name: str, visit: Visit, *, lent: bool) -> str:
    """What to do next where ssh itself fails. It has said why; that a key was lent in vain it cannot say."""
    others = ", ".join(other for other in VIAS if other != name)
    hint = f"255 is ssh's own failure, by way of {name}; --via may be {others}"
    if not lent:
        return hint
    shell = "" if visit.command or visit.options else ", or try --via ssm"
    lacks = "its image may lack ec2-instance-connect, as Debian's do"
    return f"{hint}. Permission denied? {lacks}: set resources.ec2.key, which counts at the next launch{shell}"


# ── The machine ───────────────────────────────────────────────────────────────────────────────────────────────────────


def find_target(clients: Clients, instance: str, visit: Visit, spec: Spec, region: str | None) -> Target:
    """Where the machine is and who logs in there. Raises UserError when it does not run."""
    ec2 = clients.get("ec2", region)
    answer = calling(instance, lambda: ec2.describe_instances(InstanceIds=[instance]))
    found: list[Mapping[str, Any]] = [each for group in answer["Reservations"] for each in group["Instances"]]
    if not found or found[0]["State"]["Name"] != "running":
        state = found[0]["State"]["Name"] if found else "gone"
        raise UserError(f"{instance} is {state}; a machine can be visited while it runs")
    machine = found[0]
    addresses = [machine.get("PublicIpAddress"), machine.get("PrivateIpAddress")]
    return Target(
        instance=instance,
        region=str(ec2.meta.region_name),
        user=visit.user or user_of(spec.resources.image) or _user_by_name(ec2, machine["ImageId"]),
        addresses=tuple(dict.fromkeys(address for address in addresses if address)),
        key=machine.get("KeyName"),
    )


def user_of(image: str | None) -> str | None:
    """Who logs in, by the image that the job asked for; None where only its name can tell."""
    if image is None:
        return "ubuntu"  # What a job gets that names none: see `images.DEFAULT`.
    family, slash, _ = image.partition("/")
    known = family in ("dlami", "ubuntu", "debian") and (slash or family == "dlami")
    return _user_in(family) if known else None


def _user_by_name(ec2: Any, image: str) -> str:
    try:
        answer = calling(image, lambda: ec2.describe_images(ImageIds=[image]))
    except ProviderError:
        return _ANYBODY  # A guess; --user says better.
    names = [f"{each.get('Name', '')} {each.get('Description', '')}" for each in answer["Images"]]
    return _user_in(" ".join(names)) or _ANYBODY


def _user_in(text: str) -> str | None:
    return next((user for word, user in _USERS if word in text.lower()), None)


def _door(target: Target, where: str) -> Door:
    return Door(target.instance, target.user, where, _KNOWN)


# ── Keys ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _key_options(target: Target, visit: Visit) -> list[str]:
    """The key that the machine was launched with, or the one that the person names."""
    if visit.identity is not None:
        return own_identity(visit)
    folder = Path.home() / ".ssh"
    if target.key is not None:
        for name in (target.key, f"{target.key}.pem"):
            if (folder / name).is_file():
                return ["-i", str(folder / name)]
    if target.key is None and visit.via != "key":
        raise NoWay("it was launched without a key pair; set resources.ec2.key, or give --identity")
    if not os.environ.get("SSH_AUTH_SOCK") and not any((folder / name).is_file() for name in _DEFAULT_KEYS):
        raise NoWay(f"your key {target.key or ''} is neither in {folder} nor in an agent; give --identity")
    return []


def _lend_key(clients: Clients, target: Target, folder: Path) -> list[str]:
    """A fresh key, which EC2 Instance Connect lends to the machine for a minute."""
    key = make_key(folder)
    public = key.with_suffix(".pub").read_text()
    client = clients.get("ec2-instance-connect", target.region)
    try:
        calling(
            "EC2 Instance Connect",
            lambda: client.send_ssh_public_key(
                InstanceId=target.instance, InstanceOSUser=target.user, SSHPublicKey=public
            ),
        )
    except ProviderError as error:
        key.unlink()
        raise NoWay(str(error)) from error
    return ["-i", str(key), "-o", "IdentitiesOnly=yes"]


# ── Programs ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _ssm_proxy(target: Target) -> str:
    program = _aws()
    return shlex.join(
        [
            *(program, "ssm", "start-session", "--region", target.region, "--target", target.instance),
            *("--document-name", "AWS-StartSSHSession", "--parameters", f"portNumber={PORT}"),
        ]
    )


def _session(target: Target) -> tuple[str, ...]:
    return (_aws(), "ssm", "start-session", "--region", target.region, "--target", target.instance)


def _aws() -> str:
    program = find_program("aws", "it needs AWS's command line", closed=True)
    find_program("session-manager-plugin", "it needs AWS's Session Manager plugin", closed=True)
    return program
