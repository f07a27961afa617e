"""Ways onto a Compute Engine machine, for `stoker ssh` and `stoker exec`: its port, or a tunnel of Google's (IAP).

Either ends in the real `ssh`. The key is the person's own where one is named; else a fresh one is lent to the machine
through its metadata, for minutes. Where OS Login is on that opens nothing, and `gcloud compute ssh` knows the way.
"""

from __future__ import annotations

import getpass
import json
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from stoker.model.errors import AuthDenied, InvalidRequest, NotFound, ProviderError, Transient, UserError
from stoker.model.spec import Spec
from stoker.providers.base import Visit, Way
from stoker.providers.gce import operations
from stoker.providers.gce.client import Api
from stoker.providers.ssh_access import (
    PORT,
    Door,
    NoWay,
    find_program,
    make_key,
    own_identity,
    port_answers,
    remote_command,
    ssh_argv,
)

VIAS = ("key", "iap")
_KNOWN = "gce_known_hosts"
# Whose key is lent; Google's agent on the machine makes such a user, who may use sudo.
_GUEST = "stoker"
_KEYS = "ssh-keys"
_OS_LOGIN = "enable-oslogin"
# Long enough for clocks that differ; a connection that stands does not end with its key.
_LENT_FOR = timedelta(minutes=10)
_CHANGED_S = 30.0
# Somebody else may change the metadata at the same moment: it is read again, and tried again.
_TRIES = 5
# The machine's agent sees a new key within seconds, but not at once.
_KNOCKS_S = 30.0
_KNOCK_EVERY_S = 1.5
# https://cloud.google.com/iap/docs/using-tcp-forwarding
_TUNNELS, _TUNNEL_ROLE = "35.235.240.0/20", "roles/iap.tunnelResourceAccessor"
_ON = ("true", "y", "yes", "1")


@dataclass(frozen=True)
class Target:
    """A machine as somebody who wants to go there sees it."""

    path: str
    project: str
    zone: str
    name: str
    number: str
    addresses: tuple[str, ...]
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return f"{self.zone}.{self.number}"


@contextmanager
def way(
    api: Api,
    path: str,
    visit: Visit,
    spec: Spec,  # noqa: ARG001 - the user who logs in is made for the visit, whatever the image
    *,
    answers: Callable[[str], bool] | None = None,
    knock: Callable[[tuple[str, ...]], bool] | None = None,
) -> Iterator[Way]:
    """The first way that is open to the machine at `path`. Raises UserError with the reasons where none is.

    What is lent is taken back at the end, also where that ends badly; it would expire by itself.
    """
    if visit.via is not None and visit.via not in VIAS:
        raise UserError(f"--via {visit.via}: there are {', '.join(VIAS)}")
    target = find_target(api, path)
    with tempfile.TemporaryDirectory(prefix="stoker-ssh-") as folder:
        visitor = _Visitor(api, target, visit, Path(folder), answers or port_answers, knock or _knock)
        try:
            yield visitor.first_open()
        finally:
            visitor.leave()


class _Visitor:
    """One visit: which way, and with which key."""

    def __init__(
        self,
        api: Api,
        target: Target,
        visit: Visit,
        folder: Path,
        answers: Callable[[str], bool],
        knock: Callable[[tuple[str, ...]], bool],
    ) -> None:
        self._api = api
        self._target = target
        self._visit = visit
        self._folder = folder
        self._answers = answers
        self._knock = knock
        self._lent = ""

    def first_open(self) -> Way:
        found = {"key": self._by_port, "iap": self._by_tunnel}
        closed = []
        for name in VIAS if self._visit.via is None else (self._visit.via,):
            try:
                return Way(name, found[name](), hint=self._hint(name))
            except NoWay as why:
                closed.append(f"{name}: {why}")
        raise UserError(f"no way to {self._target.id}: {'; '.join(closed)}")

    def _by_port(self) -> tuple[str, ...]:
        target = self._target
        where = next((address for address in target.addresses if self._answers(address)), None)
        if where is None:
            raise NoWay(f"port {PORT} of {' and '.join(target.addresses) or 'it'} does not answer from here")
        return self._ssh(where, [])

    def _by_tunnel(self) -> tuple[str, ...]:
        program = _gcloud()
        target = self._target
        proxy = shlex.join(
            [
                *(program, "compute", "start-iap-tunnel", target.name, str(PORT), "--listen-on-stdin"),
                *("--project", target.project, "--zone", target.zone, "--verbosity", "error"),
            ]
        )
        # ssh reads signs of its own in it.
        return self._ssh(target.id, ["-o", f"ProxyCommand={proxy.replace('%', '%%')}"], tunnel=True)

    def _ssh(self, where: str, options: list[str], *, tunnel: bool = False) -> tuple[str, ...]:
        visit, target = self._visit, self._target
        if visit.identity is not None:
            door = Door(target.id, visit.user or getpass.getuser(), where, _KNOWN)
            return ssh_argv(door, visit, [*own_identity(visit), *options])
        if os_login(self._api, target):
            return _through_gcloud(target, visit, tunnel)
        door = Door(target.id, visit.user or _GUEST, where, _KNOWN)
        key = self._lend(door.user)
        options = ["-i", str(key), "-o", "IdentitiesOnly=yes", *options]
        self._wait_for_key(ssh_argv(door, Visit(), ["-o", "BatchMode=yes", "-o", "ConnectTimeout=10", *options]))
        return ssh_argv(door, visit, options)

    def _lend(self, user: str) -> Path:
        if self._lent:
            take_back(self._api, self._target.path, self._lent)
            self._lent = ""
        key = make_key(self._folder)
        public = " ".join(key.with_suffix(".pub").read_text().split()[:2])
        line = lent_line(user, public, datetime.now(timezone.utc) + _LENT_FOR)
        try:
            lend(self._api, self._target.path, line)
        except (AuthDenied, InvalidRequest) as error:
            raise NoWay(f"no key can be lent: {error}; give your own with --identity and --user") from error
        self._lent = line
        return key

    def _wait_for_key(self, argv: tuple[str, ...]) -> None:
        """Until the machine knows the key, or long enough: then ssh itself says what is wrong."""
        until_s = time.monotonic() + _KNOCKS_S
        while not self._knock((*argv, "true")) and time.monotonic() < until_s:
            time.sleep(_KNOCK_EVERY_S)

    def leave(self) -> None:
        if self._lent:
            # The machine may be gone by now; the key ends by itself.
            with suppress(ProviderError):
                take_back(self._api, self._target.path, self._lent)

    def _hint(self, name: str) -> str:
        """What to do next where ssh itself fails. It has said why; what Google wants it cannot say."""
        others = ", ".join(other for other in VIAS if other != name)
        hint = f"255 is ssh's own failure, by way of {name}; --via may be {others}"
        if name == "iap":
            return f"{hint}. The firewall has to let {_TUNNELS} in to port 22, and {_TUNNEL_ROLE} you"
        if self._lent:
            return f"{hint}. Permission denied? Its image may lack Google's guest agent: give --identity and --user"
        return hint


# ── The machine ───────────────────────────────────────────────────────────────────────────────────────────────────────


def find_target(api: Api, path: str) -> Target:
    """Where the machine is. Raises UserError when it does not run."""
    parts = path.strip("/").split("/")
    project, zone = parts[parts.index("projects") + 1], parts[parts.index("zones") + 1]
    try:
        found = api.get(path)
    except NotFound:
        found = {"status": "gone"}
    if found["status"] != "RUNNING":
        raise UserError(f"{zone}.{parts[-1]} is {found['status'].lower()}; a machine can be visited while it runs")
    addresses: list[str] = []
    for card in found.get("networkInterfaces") or ():
        addresses += [each["natIP"] for each in card.get("accessConfigs") or () if each.get("natIP")]
    addresses += [card["networkIP"] for card in found.get("networkInterfaces") or () if card.get("networkIP")]
    return Target(
        path=path,
        project=project,
        zone=zone,
        name=found["name"],
        number=str(found["id"]),
        addresses=tuple(dict.fromkeys(addresses)),
        metadata=_items(found.get("metadata") or {}),
    )


def os_login(api: Api, target: Target) -> bool:
    """Whether people log in by their accounts alone. The machine's own word counts before the project's."""
    told = target.metadata.get(_OS_LOGIN)
    if told is None:
        with suppress(AuthDenied):
            project = api.get(f"/compute/v1/projects/{target.project}")
            told = _items(project.get("commonInstanceMetadata") or {}).get(_OS_LOGIN)
    return (told or "").lower() in _ON


def _items(metadata: Mapping[str, Any]) -> dict[str, str]:
    return {item["key"]: item.get("value", "") for item in metadata.get("items") or ()}


# ── Keys ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def lent_line(user: str, public: str, until: datetime) -> str:
    """A key as Google's agent reads it, with its end. No white space inside: the console would not show it."""
    end = {"userName": user, "expireOn": until.strftime("%Y-%m-%dT%H:%M:%S+0000")}
    return f"{user}:{public} google-ssh {json.dumps(end, separators=(',', ':'))}"


def lend(api: Api, path: str, line: str) -> None:
    """Add one key to a machine's. Raises AuthDenied and InvalidRequest where that may not be."""
    _change(api, path, lambda lines: [*lines, line])


def take_back(api: Api, path: str, line: str) -> None:
    """Remove one key, and no other."""
    _change(api, path, lambda lines: [each for each in lines if each != line])


def _change(api: Api, path: str, change: Callable[[list[str]], list[str]]) -> None:
    """Write a machine's metadata as they are, but for its keys.

    They are written whole, and only on top of what was read: the fingerprint sees to that.
    """
    for left in reversed(range(_TRIES)):
        metadata = api.get(path).get("metadata") or {}
        items = [dict(item) for item in metadata.get("items") or () if item["key"] != _KEYS]
        before = [line for line in _items(metadata).get(_KEYS, "").splitlines() if line.strip()]
        after = change(before)
        if after == before:
            return
        if after:
            items.append({"key": _KEYS, "value": "\n".join(after)})
        body = {"fingerprint": metadata.get("fingerprint", ""), "items": items}
        try:
            operation = api.send("POST", f"{path}/setMetadata", body, what="ssh-keys")
            operations.finished(api, operation, "ssh-keys", _CHANGED_S)
        except Transient as error:
            if "conditionNotMet" not in str(error):
                raise
            # 412: somebody was faster.
            if not left:
                raise InvalidRequest(str(error)) from error
            continue
        return


def _knock(argv: tuple[str, ...]) -> bool:
    """Whether the machine lets us in."""
    ran = subprocess.run(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
    )
    return ran.returncode == 0


# ── Programs ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _through_gcloud(target: Target, visit: Visit, tunnel: bool) -> tuple[str, ...]:
    """Where OS Login is on, only gcloud knows who the person is there. It ends as its ssh does."""
    program = _gcloud(" to log in where OS Login is on")
    who = f"{visit.user}@{target.name}" if visit.user else target.name
    words = [program, "compute", "ssh", who, "--project", target.project, "--zone", target.zone]
    if tunnel:
        words.append("--tunnel-through-iap")
    if visit.command:
        words += ["--command", remote_command(visit.user or "", visit.command)]
    terminal = ["-t"] if visit.command and visit.terminal else []
    return (*words, *(["--", *terminal, *visit.options] if terminal or visit.options else []))


def _gcloud(what: str = "") -> str:
    return find_program("gcloud", f"it needs Google's command line{what}", closed=True)
