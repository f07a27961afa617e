"""SSH access to a Compute Engine machine, for `stoker ssh` and `stoker exec`: by its port, or by a tunnel (IAP).

Both run the real `ssh`. The key is the person's own where one is named; otherwise a temporary key is added to the
machine's metadata for minutes. Where OS Login is on, keys in the metadata have no effect, and `gcloud compute ssh` is
used instead.
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
from stoker.providers.base import ShellCommand, ShellRequest
from stoker.providers.gce import operations
from stoker.providers.gce.client import Api
from stoker.providers.ssh_access import (
    PORT,
    AccessUnavailable,
    SshTarget,
    find_program,
    make_key,
    own_identity,
    port_answers,
    remote_command,
    ssh_argv,
)

VIAS = ("key", "iap")
_KNOWN = "gce_known_hosts"
# The user of temporary keys. Google's agent on the machine creates the user, with the right to use sudo.
_GUEST = "stoker"
_KEYS = "ssh-keys"
_OS_LOGIN = "enable-oslogin"
# Long enough for clocks that differ. An open connection survives the expiry of its key.
_KEY_LIFETIME = timedelta(minutes=10)
_CHANGED_S = 30.0
# Another change of the metadata at the same moment makes the write fail; it is then read and written again.
_TRIES = 5
# Google's agent on the machine installs a new key within seconds, but not at once.
_KEY_WAIT_S = 30.0
_KEY_POLL_S = 1.5
# https://cloud.google.com/iap/docs/using-tcp-forwarding
_TUNNELS, _TUNNEL_ROLE = "35.235.240.0/20", "roles/iap.tunnelResourceAccessor"
_ON = ("true", "y", "yes", "1")


@dataclass(frozen=True)
class GceTarget:
    """A machine to connect to."""

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
def shell_command(
    api: Api,
    path: str,
    shell_request: ShellRequest,
    spec: Spec,  # noqa: ARG001 - the user is created for the connection, independent of the image
    *,
    answers: Callable[[str], bool] | None = None,
    accepts_key: Callable[[tuple[str, ...]], bool] | None = None,
) -> Iterator[ShellCommand]:
    """Open the first way to the machine at `path` that works. Raises UserError with the reasons where none does.

    A temporary key is removed at the end, also after an error; it would expire by itself.
    """
    if shell_request.via is not None and shell_request.via not in VIAS:
        raise UserError(f"--via {shell_request.via}: there are {', '.join(VIAS)}")
    target = find_target(api, path)
    with tempfile.TemporaryDirectory(prefix="stoker-ssh-") as folder:
        connection = _Connection(
            api, target, shell_request, Path(folder), answers or port_answers, accepts_key or _accepts_key
        )
        try:
            yield connection.first_open()
        finally:
            connection.close()


class _Connection:
    """One connection: chooses the way and the key, and removes a temporary key at the end."""

    def __init__(
        self,
        api: Api,
        target: GceTarget,
        shell_request: ShellRequest,
        folder: Path,
        answers: Callable[[str], bool],
        accepts_key: Callable[[tuple[str, ...]], bool],
    ) -> None:
        self._api = api
        self._target = target
        self._shell_request = shell_request
        self._folder = folder
        self._answers = answers
        self._accepts_key = accepts_key
        self._temporary_key = ""

    def first_open(self) -> ShellCommand:
        found = {"key": self._by_port, "iap": self._by_tunnel}
        closed = []
        for name in VIAS if self._shell_request.via is None else (self._shell_request.via,):
            try:
                return ShellCommand(name, found[name](), hint=self._hint(name))
            except AccessUnavailable as why:
                closed.append(f"{name}: {why}")
        raise UserError(f"no way to {self._target.id}: {'; '.join(closed)}")

    def _by_port(self) -> tuple[str, ...]:
        target = self._target
        where = next((address for address in target.addresses if self._answers(address)), None)
        if where is None:
            raise AccessUnavailable(
                f"port {PORT} of {' and '.join(target.addresses) or 'it'} does not answer from here"
            )
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
        # ssh expands `%` in it.
        return self._ssh(target.id, ["-o", f"ProxyCommand={proxy.replace('%', '%%')}"], tunnel=True)

    def _ssh(self, where: str, options: list[str], *, tunnel: bool = False) -> tuple[str, ...]:
        shell_request, target = self._shell_request, self._target
        if shell_request.identity is not None:
            ssh_target = SshTarget(target.id, shell_request.user or getpass.getuser(), where, _KNOWN)
            return ssh_argv(ssh_target, shell_request, [*own_identity(shell_request), *options])
        if os_login(self._api, target):
            return _through_gcloud(target, shell_request, tunnel)
        ssh_target = SshTarget(target.id, shell_request.user or _GUEST, where, _KNOWN)
        key = self._add_temporary_key(ssh_target.user)
        options = ["-i", str(key), "-o", "IdentitiesOnly=yes", *options]
        self._wait_for_key(
            ssh_argv(ssh_target, ShellRequest(), ["-o", "BatchMode=yes", "-o", "ConnectTimeout=10", *options])
        )
        return ssh_argv(ssh_target, shell_request, options)

    def _add_temporary_key(self, user: str) -> Path:
        if self._temporary_key:
            remove_key(self._api, self._target.path, self._temporary_key)
            self._temporary_key = ""
        key = make_key(self._folder)
        public = " ".join(key.with_suffix(".pub").read_text().split()[:2])
        line = key_line(user, public, datetime.now(timezone.utc) + _KEY_LIFETIME)
        try:
            add_key(self._api, self._target.path, line)
        except (AuthDenied, InvalidRequest) as error:
            raise AccessUnavailable(
                f"no temporary key can be added: {error}; give your own with --identity and --user"
            ) from error
        self._temporary_key = line
        return key

    def _wait_for_key(self, argv: tuple[str, ...]) -> None:
        """Wait until the machine accepts the key. After the time limit, ssh itself reports what is wrong."""
        until_s = time.monotonic() + _KEY_WAIT_S
        while not self._accepts_key((*argv, "true")) and time.monotonic() < until_s:
            time.sleep(_KEY_POLL_S)

    def close(self) -> None:
        if self._temporary_key:
            # The machine may be gone by now; the key expires by itself.
            with suppress(ProviderError):
                remove_key(self._api, self._target.path, self._temporary_key)

    def _hint(self, name: str) -> str:
        """Advice for a failure of ssh itself: ssh prints its own reason, but knows no requirements of Google's."""
        others = ", ".join(other for other in VIAS if other != name)
        hint = f"255 is ssh's own failure, by way of {name}; --via may be {others}"
        if name == "iap":
            return f"{hint}. The firewall has to let {_TUNNELS} in to port 22, and {_TUNNEL_ROLE} you"
        if self._temporary_key:
            return f"{hint}. Permission denied? Its image may lack Google's guest agent: give --identity and --user"
        return hint


# ── The machine ───────────────────────────────────────────────────────────────────────────────────────────────────────


def find_target(api: Api, path: str) -> GceTarget:
    """Look up the machine. Raises UserError when it does not run."""
    parts = path.strip("/").split("/")
    project, zone = parts[parts.index("projects") + 1], parts[parts.index("zones") + 1]
    try:
        found = api.get(path)
    except NotFound:
        found = {"status": "gone"}
    if found["status"] != "RUNNING":
        raise UserError(f"{zone}.{parts[-1]} is {found['status'].lower()}; a machine can be reached while it runs")
    addresses: list[str] = []
    for card in found.get("networkInterfaces") or ():
        addresses += [each["natIP"] for each in card.get("accessConfigs") or () if each.get("natIP")]
    addresses += [card["networkIP"] for card in found.get("networkInterfaces") or () if card.get("networkIP")]
    return GceTarget(
        path=path,
        project=project,
        zone=zone,
        name=found["name"],
        number=str(found["id"]),
        addresses=tuple(dict.fromkeys(addresses)),
        metadata=_items(found.get("metadata") or {}),
    )


def os_login(api: Api, target: GceTarget) -> bool:
    """Return whether OS Login is on. The machine's own setting has precedence over the project's."""
    setting = target.metadata.get(_OS_LOGIN)
    if setting is None:
        with suppress(AuthDenied):
            project = api.get(f"/compute/v1/projects/{target.project}")
            setting = _items(project.get("commonInstanceMetadata") or {}).get(_OS_LOGIN)
    return (setting or "").lower() in _ON


def _items(metadata: Mapping[str, Any]) -> dict[str, str]:
    return {item["key"]: item.get("value", "") for item in metadata.get("items") or ()}


# ── Keys ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def key_line(user: str, public: str, until: datetime) -> str:
    """A key in the format of Google's agent, with its expiry. The console does not show keys whose JSON has spaces."""
    expiry = {"userName": user, "expireOn": until.strftime("%Y-%m-%dT%H:%M:%S+0000")}
    return f"{user}:{public} google-ssh {json.dumps(expiry, separators=(',', ':'))}"


def add_key(api: Api, path: str, line: str) -> None:
    """Add one key to the machine's metadata. Raises AuthDenied and InvalidRequest where that is not allowed."""
    _change(api, path, lambda lines: [*lines, line])


def remove_key(api: Api, path: str, line: str) -> None:
    """Remove this key from the machine's metadata, and no other."""
    _change(api, path, lambda lines: [each for each in lines if each != line])


def _change(api: Api, path: str, change: Callable[[list[str]], list[str]]) -> None:
    """Change the keys in a machine's metadata.

    Metadata can only be written as a whole. The fingerprint makes the write fail where it has changed since the read.
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
            operations.wait_until_done(api, operation, "ssh-keys", _CHANGED_S)
        except Transient as error:
            if "conditionNotMet" not in str(error):
                raise
            # 412: the metadata has changed since the read.
            if not left:
                raise InvalidRequest(str(error)) from error
            continue
        return


def _accepts_key(argv: tuple[str, ...]) -> bool:
    """Return whether the machine accepts the key."""
    ran = subprocess.run(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
    )
    return ran.returncode == 0


# ── Programs ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _through_gcloud(target: GceTarget, shell_request: ShellRequest, tunnel: bool) -> tuple[str, ...]:
    """The command where OS Login is on: only gcloud knows the person's user name. Its status is that of its ssh."""
    program = _gcloud(" to log in where OS Login is on")
    who = f"{shell_request.user}@{target.name}" if shell_request.user else target.name
    words = [program, "compute", "ssh", who, "--project", target.project, "--zone", target.zone]
    if tunnel:
        words.append("--tunnel-through-iap")
    if shell_request.command:
        words += ["--command", remote_command(shell_request.user or "", shell_request.command)]
    terminal = ["-t"] if shell_request.command and shell_request.terminal else []
    return (*words, *(["--", *terminal, *shell_request.options] if terminal or shell_request.options else []))


def _gcloud(what: str = "") -> str:
    return find_program("gcloud", f"it needs Google's command line{what}", closed=True)
