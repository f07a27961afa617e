"""The metadata server of one machine, inside its own network namespace.

Answers as Google's does: nothing without the `Metadata-Flavor` header, folders as lists or as JSON, an ETag for each
answer, and long polls that answer when what was asked for changes.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Union
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.machines.images import METADATA_PORT
from tests.support.machines.network import Namespace

Tree = dict[str, Union[str, list[str], "Tree"]]

_ROOT = "/computeMetadata/v1"
_FLAVOR = "Google"


@dataclass(frozen=True)
class Facts:
    """What a machine is told about itself. `account` is empty where it was given none."""

    number: str
    name: str
    project: str
    project_number: str
    zone: str
    machine_type: str
    image: str
    description: str
    hostname: str
    address: str
    has_public_address: bool
    tags: tuple[str, ...]
    account: str
    scopes: tuple[str, ...]
    automatic_restart: bool
    on_host_maintenance: str
    preemptible: bool
    termination_action: str


@dataclass
class Notices:
    """What Compute Engine says to a machine while it runs."""

    preempted: bool = False
    maintenance_event: str = "NONE"
    # What `upcoming-maintenance` tells; nothing was announced so far where it is empty.
    upcoming: dict[str, object] = field(default_factory=dict)
    # Attributes that are kept from it.
    withheld: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Attributes:
    """The metadata that people gave the machine, and its project."""

    instance: dict[str, str]
    project: dict[str, str]


class MetadataService:
    """Serves until `close`. Whoever changes what it tells calls `tell`."""

    def __init__(
        self,
        namespace: Namespace,
        facts: Facts,
        attributes: Callable[[], Attributes],
        token: Callable[[], dict[str, object]],
    ) -> None:
        self.notices = Notices()
        self._facts = facts
        self._attributes = attributes
        self._token = token
        self._changed = threading.Condition()
        self._closed = False
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                try:
                    service.get(self)
                except (BrokenPipeError, ConnectionResetError):
                    pass  # whoever asked has gone

            def log_message(self, *_: object) -> None:
                pass

        self._server = namespace.inside(lambda: ThreadingHTTPServer(("127.0.0.1", METADATA_PORT), Handler))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()

    def tell(self, change: Callable[[Notices], None] = lambda _: None) -> None:
        """Change the notices, and wake whoever waits for that."""
        with self._changed:
            change(self.notices)
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._server.shutdown()
        self._server.server_close()

    def get(self, request: BaseHTTPRequestHandler) -> None:
        """One value, or a folder."""
        parts = urlsplit(request.path)
        query = {name: values[-1] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        # Anybody may ask at the door whether this is a metadata server: its answer has the header too.
        if parts.path in ("", "/"):
            return _reply(request, 200, b"computeMetadata/\n")
        if request.headers.get("Metadata-Flavor") != _FLAVOR:
            return _reply(request, 403, b"Missing Metadata-Flavor:Google header.\n")
        if request.headers.get("X-Forwarded-For"):
            return _reply(request, 403)
        if parts.path != _ROOT and not parts.path.startswith(f"{_ROOT}/"):
            return _reply(request, 404)
        path = [unquote(part) for part in parts.path.removeprefix(_ROOT).split("/") if part]
        if path[-1:] == ["token"] and path[:2] == ["instance", "service-accounts"]:
            return self._give_token(request, path)
        if path == ["instance", "upcoming-maintenance"]:
            return self._tell_upcoming(request)
        recursive = query.get("recursive", "").lower() == "true"
        if query.get("wait_for_change", "").lower() == "true" and not self._wait(path, recursive, query):
            return _reply(request, 503)
        return self._answer(request, path, parts.path, recursive, query.get("alt", ""))

    def _answer(self, request: BaseHTTPRequestHandler, path: list[str], asked: str, recursive: bool, alt: str) -> None:
        found = _look(self._tree(), path)
        if found is None:
            return _reply(request, 404)
        folder = isinstance(found, dict)
        if folder and not asked.endswith("/") and not recursive:
            return _reply(request, 301, location=f"http://{request.headers.get('Host', '')}{asked}/")
        body = _rendered(found, recursive, path).encode()
        kind = "application/json" if (folder and recursive) or alt == "json" else "application/text"
        return _reply(request, 200, body, etag=_etag(body), kind=kind)

    def _wait(self, path: list[str], recursive: bool, query: dict[str, str]) -> bool:
        """Return when what stands there is not what it was, or when the time is over; False where it closes."""

        def current() -> str:
            found = _look(self._tree(), path)
            return "" if found is None else _etag(_rendered(found, recursive, path).encode())

        limit = query.get("timeout_sec", "")
        give_up = time.monotonic() + (float(limit) if limit.isdigit() else 3600.0)
        with self._changed:
            known = query.get("last_etag") or current()
            while not self._closed and current() == known and time.monotonic() < give_up:
                self._changed.wait(timeout=min(5.0, max(0.0, give_up - time.monotonic())))
            return not self._closed

    def _give_token(self, request: BaseHTTPRequestHandler, path: list[str]) -> None:
        if not self._facts.account or path[2] not in ("default", self._facts.account):
            return _reply(request, 404)
        body = json.dumps(self._token()).encode()
        return _reply(request, 200, body, etag=_etag(body), kind="application/json")

    def _tell_upcoming(self, request: BaseHTTPRequestHandler) -> None:
        # Nothing announced is an error there, whatever its page says.
        nothing = {"error": "no notifications have been received yet, try again later"}
        body = json.dumps(self.notices.upcoming or nothing).encode()
        return _reply(request, 200 if self.notices.upcoming else 503, body, etag=_etag(body), kind="application/json")

    def _tree(self) -> Tree:
        facts, attributes = self._facts, self._attributes()
        own = {name: value for name, value in attributes.instance.items() if name not in self.notices.withheld}
        place = f"projects/{facts.project_number}"
        card: Tree = {"ip": facts.address, "network": f"{place}/networks/default", "mac": "42:01:0a:80:00:02"}
        if facts.has_public_address:
            # The only address there is; whoever may reach the machine reaches it there.
            card["access-configs"] = {"0": {"external-ip": facts.address, "type": "ONE_TO_ONE_NAT"}}
        instance: Tree = {
            "attributes": dict(own),
            "cpu-platform": "Intel Haswell",
            "description": facts.description,
            "hostname": facts.hostname,
            "id": facts.number,
            "image": facts.image,
            "machine-type": f"{place}/machineTypes/{facts.machine_type}",
            "maintenance-event": self.notices.maintenance_event,
            "name": facts.name,
            "network-interfaces": {"0": card},
            "preempted": "TRUE" if self.notices.preempted else "FALSE",
            "scheduling": {
                "automatic-restart": "TRUE" if facts.automatic_restart else "FALSE",
                "on-host-maintenance": facts.on_host_maintenance,
                "preemptible": "TRUE" if facts.preemptible else "FALSE",
                "instance-termination-action": facts.termination_action,
            },
            "service-accounts": _accounts(facts),
            "tags": list(facts.tags),
            "zone": f"{place}/zones/{facts.zone}",
        }
        project: Tree = {
            "attributes": dict(attributes.project),
            "numeric-project-id": facts.project_number,
            "project-id": facts.project,
        }
        return {"instance": instance, "project": project, "universe": {"universe-domain": "googleapis.com"}}


def _accounts(facts: Facts) -> Tree:
    if not facts.account:
        return {}
    about: Tree = {"aliases": ["default"], "email": facts.account, "scopes": list(facts.scopes)}
    return {"default": about, facts.account: dict(about)}


def _look(tree: Tree, path: list[str]) -> str | list[str] | Tree | None:
    found: str | list[str] | Tree | None = tree
    for name in path:
        if not isinstance(found, dict):
            return None
        found = found.get(name)
    return found


def _rendered(found: str | list[str] | Tree, recursive: bool, path: list[str]) -> str:
    if isinstance(found, str):
        return found
    if isinstance(found, list):
        return "".join(f"{each}\n" for each in found)
    if recursive:
        return json.dumps(_json(found, tuple(path)))
    # Tokens are no part of a tree, for each asking makes one.
    return "".join(f"{name}/\n" if isinstance(below, dict) else f"{name}\n" for name, below in found.items())


def _json(found: str | list[str] | Tree, path: tuple[str, ...]) -> object:
    """A folder as JSON: names in the other spelling, but for those that people chose; numbered folders as lists."""
    if not isinstance(found, dict):
        return int(found) if path[-1:] in (("id",), ("numeric-project-id",)) and isinstance(found, str) else found
    if found and all(name.isdigit() for name in found):
        return [_json(below, (*path, name)) for name, below in found.items()]
    chosen = path[-1:] in (("attributes",), ("service-accounts",))
    return {name if chosen else _camel(name): _json(below, (*path, name)) for name, below in found.items()}


def _camel(name: str) -> str:
    return re.sub(r"-([a-z])", lambda found: found[1].upper(), name)


def _etag(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:16]


def _reply(
    request: BaseHTTPRequestHandler,
    status: int,
    body: bytes = b"",
    *,
    etag: str = "",
    kind: str = "application/text",
    location: str = "",
) -> None:
    request.send_response(status)
    request.send_header("Metadata-Flavor", _FLAVOR)
    request.send_header("Server", "Metadata Server for VM")
    request.send_header("Content-Type", kind)
    request.send_header("Content-Length", str(len(body)))
    if etag:
        request.send_header("ETag", etag)
    if location:
        request.send_header("Location", location)
    request.end_headers()
    request.wfile.write(body)
