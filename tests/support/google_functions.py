"""The part of Google Cloud that a deployed governor is made of, on loopback, for tests: functions, topics, schedules,
accounts and policies. Every request must be one that Google's own discovery documents know.

Things exist, change and go; a message that is published is kept, and does what a test says.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from stoker.providers import registry
from tests.support.gce.discovery import api

_VERSIONS = {
    "cloudfunctions": "v2",
    "run": "v2",
    "pubsub": "v1",
    "cloudscheduler": "v1",
    "iam": "v1",
    "cloudresourcemanager": "v1",
    "storage": "v1",
    "secretmanager": "v1",
    "monitoring": "v3",
}
Json = dict[str, Any]


class Refused(Exception):
    """An answer that is no success."""

    def __init__(self, status: int, word: str, message: str = "") -> None:
        super().__init__(message or word)
        self.status, self.word = status, word


@dataclass
class GoogleProject:
    """What there is, by its path behind the version. `roles` and `buckets` were there before."""

    things: dict[str, Json] = field(default_factory=dict)
    policies: dict[str, Json] = field(default_factory=dict)
    messages: list[tuple[str, Any]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    # Answers to give instead, by the beginning of `METHOD path`: each once.
    trouble: dict[str, Refused] = field(default_factory=dict)
    # Locations that are not there.
    nowhere: tuple[str, ...] = ()
    # How often a binding for a new account is refused, as long as it is not known everywhere.
    unknown_accounts: int = 0
    # How many messages wait that were never delivered, as Monitoring counts them.
    undelivered: int = 0
    # What comes of a message.
    pushed: Callable[[], None] = lambda: None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, service: str, method: str, target: str, body: Any) -> Json:
        parts = urlsplit(target)
        wrong = api(service, _VERSIONS[service]).check(method, parts.path, parse_qs(parts.query), body)
        if wrong:
            raise Refused(400, "INVALID_ARGUMENT", f"{method} {target}: {'; '.join(wrong)}")
        with self.lock:
            self.asked.append(f"{method} {parts.path}")
            for start in list(self.trouble):
                if f"{method} {parts.path}".startswith(start):
                    raise self.trouble.pop(start)
            self._check_location(service, parts.path)
            where = parts.path.removeprefix("/storage").removeprefix("/v1/").removeprefix("/v2/").removeprefix("/v3/")
            if service == "storage":
                return self._policy(where.removesuffix("/iam"), body if method == "PUT" else None)
            if ":" in where.rpartition("/")[2]:
                what, _, verb = where.rpartition(":")
                return self._verb(service, what, verb, body)
            return self._thing(service, method, where, parse_qs(parts.query), body)

    def _check_location(self, service: str, path: str) -> None:
        """What is not there is not `not found`."""
        location = path.partition("/locations/")[2].partition("/")[0]
        if location not in self.nowhere:
            return
        if service == "cloudscheduler":
            raise Refused(400, "INVALID_ARGUMENT", f"Location '{location}' is not a valid location.")
        raise Refused(403, "PERMISSION_DENIED", f"Permission denied on 'locations/{location}' (or it may not exist).")

    # ── Things ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _thing(self, service: str, method: str, where: str, query: dict[str, list[str]], body: Any) -> Json:
        if method == "GET" and service == "monitoring" and where.count("/") == 2:
            return self._labelled(where, query)
        if method == "GET":
            return self._found(where)
        if method == "DELETE":
            self._found(where)
            del self.things[where]
            self.policies.pop(where, None)
            if service == "cloudfunctions":
                service_of_run = where.replace("/functions/", "/services/")
                self.things.pop(service_of_run, None)
                self.policies.pop(service_of_run, None)
                return {"name": f"{where.partition('/functions/')[0]}/operations/delete", "done": True}
            return {}
        if method == "PATCH":
            self._found(where)
            told = body.get("subscription", body) if service == "pubsub" else body
            self.things[where] |= {key: value for key, value in told.items() if key != "name"}
            return self._made(service, where)
        name, told = self._named(service, where, query, body)
        if name in self.things:
            raise Refused(409, "ALREADY_EXISTS", f"{name} is there already")
        if service == "pubsub" and "topic" in told:
            self._found(told["topic"])
        self.things[name] = {**told, "name": name}
        if service == "cloudscheduler":
            self.things[name]["state"] = "ENABLED"
        return self._made(service, name)

    def _made(self, service: str, name: str) -> Json:
        if service == "cloudfunctions":
            # A function is a service of Cloud Run's by the same name.
            self.things[name.replace("/functions/", "/services/")] = {}
            address = f"https://{name.rpartition('/')[2]}-uc.a.run.app"
            self.things[name].setdefault("serviceConfig", {})["uri"] = address
            operation = f"{name.partition('/functions/')[0]}/operations/make"
            self.things[operation] = {"name": operation, "done": True}
            return {"name": operation, "done": False}
        return self.things[name]

    def _named(self, service: str, where: str, query: dict[str, list[str]], body: Any) -> tuple[str, Json]:
        if service == "cloudfunctions":
            return f"{where}/{query['functionId'][0]}", body
        if service == "cloudscheduler":
            return str(body["name"]), body
        if service == "monitoring":
            # Numbers of its own: the same policy can be made twice.
            number = len(self.asked)
            return f"{where}/{number}", body
        if service == "iam":
            project = where.split("/")[1]
            return f"{where}/{body['accountId']}@{project}.iam.gserviceaccount.com", body.get("serviceAccount", {})
        return where, body

    def _labelled(self, where: str, query: dict[str, list[str]]) -> Json:
        """A list of what carries the label that is asked for. A page holds two."""
        if where.endswith("/timeSeries"):
            point = {"value": {"int64Value": str(self.undelivered)}}
            return {"timeSeries": [{"points": [point]}]} if self.undelivered else {}
        label = query["filter"][0].removeprefix('user_labels.stoker="').removesuffix('"')
        found = [
            thing
            for name, thing in sorted(self.things.items())
            if name.startswith(f"{where}/") and thing.get("userLabels", {}).get("stoker") == label
        ]
        start = int(query.get("pageToken", ["0"])[0])
        more = {"nextPageToken": str(start + 2)} if len(found) > start + 2 else {}
        return {where.rpartition("/")[2]: found[start : start + 2], **more}

    def _found(self, where: str) -> Json:
        if where not in self.things:
            raise Refused(404, "NOT_FOUND", f"{where} was not found")
        return self.things[where]

    # ── Verbs ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _verb(self, service: str, where: str, verb: str, body: Any) -> Json:
        if verb in ("getIamPolicy", "setIamPolicy"):
            if service != "cloudresourcemanager":
                self._found(where)
            return self._policy(where, body["policy"] if verb == "setIamPolicy" else None)
        found = self._found(where)
        if verb in ("pause", "resume"):
            wanted, before = ("PAUSED", "ENABLED") if verb == "pause" else ("ENABLED", "PAUSED")
            if found["state"] != before:
                raise Refused(400, "FAILED_PRECONDITION", f"the job is {found['state']}")
            found["state"] = wanted
            return found
        if verb == "publish":
            self.messages += [(where, json.loads(base64.b64decode(each["data"]))) for each in body["messages"]]
            self.pushed()
            return {"messageIds": [str(len(self.messages))]}
        raise Refused(501, "UNIMPLEMENTED", verb)

    def _policy(self, where: str, put: Json | None) -> Json:
        held = self.policies.setdefault(where, {"bindings": [], "etag": "0000"})
        if put is None:
            return json.loads(json.dumps(held))  # type: ignore[no-any-return]
        if put.get("etag") != held["etag"]:
            raise Refused(409, "ABORTED", "there was another change meanwhile")
        if self.unknown_accounts:
            self.unknown_accounts -= 1
            raise Refused(400, "INVALID_ARGUMENT", "Service account does not exist.")
        if put.get("version") != 3 and any("condition" in each for each in put.get("bindings", ())):
            raise Refused(400, "INVALID_ARGUMENT", "conditions are of version 3")
        self.policies[where] = {**put, "etag": f"{int(held['etag']) + 1:04d}"}
        return self.policies[where]


@contextmanager
def google_project(project: str) -> Iterator[GoogleProject]:
    """A project in which `stoker iam gce` was run. `env` leads clients there."""
    made = GoogleProject()
    grants = registry.iam("gce").grants("gs://any").grants
    roles = {name: role for each in grants for name, role in each.policy["roles"].items()}
    for role in ("stokerGovernor", "stokerRemover", "stokerNode", "stokerPerson"):
        made.things[f"projects/{project}/roles/{role}"] = {"name": role, **roles.get(role, {})}
    node = f"projects/{project}/serviceAccounts/stoker-node@{project}.iam.gserviceaccount.com"
    made.things[node] = {"name": node}
    made.things[f"projects/{project}"] = {"projectId": project, "projectNumber": "123456789012"}

    servers = [ThreadingHTTPServer(("127.0.0.1", 0), _handler(made, service)) for service in _VERSIONS]
    for service, server in zip(_VERSIONS, servers, strict=True):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        variable = f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{service.upper()}"
        made.env[variable] = f"http://127.0.0.1:{server.server_port}/"
    try:
        yield made
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


def _handler(project: GoogleProject, service: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _do(self) -> None:
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            try:
                status, told = 200, project.answer(service, self.command, self.path, json.loads(data) if data else None)
            except Refused as error:
                status = error.status
                told = {"error": {"code": status, "status": error.word, "message": str(error)}}
            answer = json.dumps(told).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _do

        def log_message(self, *_: object) -> None: ...

    return Handler
