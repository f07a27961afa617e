"""The server of a cloud: Compute Engine and Cloud Logging at one port, the store's door, and the machines.

Run by `gce_cloud`. Every request is held against Google's discovery documents first; those that do not fit are
answered with 400 and remembered.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from tests.support.gce import around, batch
from tests.support.gce.account import Account
from tests.support.gce.callers import Callers
from tests.support.gce.compute import Call, Compute
from tests.support.gce.discovery import Api, Method, api
from tests.support.gce.errors import Failure, Json, not_found
from tests.support.gce.faults import Faults, refusal
from tests.support.gce.fleet import Fleet
from tests.support.gce.groups import Groups
from tests.support.gce.instances import Instances
from tests.support.gce.launching import Launching
from tests.support.gce.links import Links
from tests.support.gce.operations import Numbers, Operations
from tests.support.gce.policies import Policies
from tests.support.gcs import GcsServer, gcs_server
from tests.support.loopback_server import CallRecord, LoopbackServer, ReplyLost
from tests.support.machines.cgroups import Cgroups
from tests.support.machines.network import Network
from tests.support.machines.serving import answer, make_work, run_server
from tests.support.machines.store_door import StoreDoor

# How long an operation takes at least, where nobody says otherwise.
_OPERATION_S = 0.2
_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"


class Gate(CallRecord):
    """Stands before the APIs: knows who asks, refuses what does not fit, counts calls and makes them fail."""

    def __init__(self, compute: Compute, callers: Callers, faults: Faults, base: str) -> None:
        super().__init__()
        self._compute = compute
        self._callers = callers
        self._faults = faults
        self._base = base
        self._entries: list[Json] = []

    def entries(self, reset: bool) -> list[Json]:
        """What was written to Cloud Logging."""
        with self._lock:
            found = list(self._entries)
            if reset:
                self._entries.clear()
            return found

    def serve(self, verb: str, target: str, authorization: str, body: bytes) -> Json:
        """The answer to one request. Raises Failure, and ReplyLost for a call that was carried out."""
        parts = urlsplit(target)
        if parts.path == "/token":
            return self._token(body)
        query = parse_qs(parts.query, keep_blank_values=True)
        found = _method(verb, parts.path)
        if found is None:
            self.remember(f"{verb} {target}: there is no such method")
            raise not_found(parts.path)
        spoken, method = found
        service, _, below = method.id.partition(".")
        operation = below if service == "compute" else f"{service}:{below}"
        self.count(operation)
        caller = self._callers.of(authorization)
        asked = self._checked(spoken, verb, target, query, body)
        fault = self._faults.meet(operation)
        if fault is not None and not fault.lose_reply:
            raise refusal(fault, operation)
        flat = {name: values[-1] for name, values in query.items()}
        link = f"{self._base}{parts.path}"
        if service != "compute" and not caller.scopes & {*method.about["scopes"]}:
            raise Failure(403, "insufficientPermissions", "Request had insufficient authentication scopes.")
        match service:
            case "compute":
                told = self._compute.answer(Call(method, flat, asked or {}, caller, link))
            case "logging":
                told = self._log(asked or {})
            case _:
                told = around.answer(method, asked or {}, self._faults)
        if fault is not None:
            raise ReplyLost
        return told

    def _token(self, body: bytes) -> Json:
        asked = {name: values[-1] for name, values in parse_qs(body.decode()).items()}
        if asked.get("grant_type") != _GRANT:
            raise Failure(400, "unsupported_grant_type", "Invalid grant_type")
        return self._callers.grant(asked.get("assertion", ""))

    def _checked(self, spoken: Api, verb: str, target: str, query: dict[str, list[str]], body: bytes) -> Json | None:
        try:
            asked = json.loads(body) if body.strip() else None
        except ValueError as error:
            self.remember(f"{verb} {target}: {error}")
            raise Failure(400, "parseError", f"Parse Error: {error}") from error
        wrong = spoken.check(verb, urlsplit(target).path, query, asked)
        if wrong:
            self.remember(f"{verb} {target}: {'; '.join(wrong)}")
            raise Failure(400, "invalid", "Invalid request: " + "; ".join(wrong))
        return asked if isinstance(asked, dict) else None

    def _log(self, body: Json) -> Json:
        common = {name: body[name] for name in ("logName", "resource", "labels") if name in body}
        with self._lock:
            for entry in body.get("entries") or []:
                labels = {**common.get("labels", {}), **entry.get("labels", {})}
                whole = {**common, **entry, "labels": labels}
                if not whole.get("logName") or not whole.get("resource"):
                    raise Failure(400, "badRequest", "Log entries need a log name and a resource.")
                self._entries.append(whole)
        return {}


def _method(verb: str, path: str) -> tuple[Api, Method] | None:
    """The API that has such a method, and the method."""
    known = {"/compute/": (("compute", "v1"),), "/v2/": (("logging", "v2"),), "/v1/": around.APIS}
    for prefix, apis in known.items():
        for name, version in apis if path.startswith(prefix) else ():
            spoken = api(name, version)
            if (method := spoken.find(verb, path)) is not None:
                return spoken, method
    return None


def make_handler(gate: Gate, account: Account) -> type[BaseHTTPRequestHandler]:
    """Speaks HTTP for the gate, and takes the test's own orders at /_control."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.path == "/_control":
                self._reply(200, answer(lambda order: account.obey(order, gate), body))
                return
            given = self.headers.get("Authorization", "")
            try:
                if self.path == batch.PATH and self.command == "POST":
                    kind = self.headers.get("Content-Type", "")
                    self._reply(200, *batch.answered(kind, given, body, self._serve)[::-1])
                    return
                status, told = self._serve(self.command, self.path, given, body)
                self._reply(status, json.dumps(told).encode())
            except Failure as failure:
                self._reply(failure.status, json.dumps(failure.body()).encode())
            except ReplyLost:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)

        def _serve(self, verb: str, target: str, authorization: str, body: bytes) -> tuple[int, Json]:
            try:
                return 200, gate.serve(verb, target, authorization, body)
            except Failure as failure:
                return failure.status, failure.body()

        do_GET = do_POST = do_DELETE = do_PUT = do_PATCH = do

        def _reply(self, status: int, body: bytes, kind: str = "application/json; charset=UTF-8") -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


def serve(owner: int, folder: Path, power_off_s: float) -> None:
    """Serve until standard input ends."""
    work = make_work(folder)
    consoles = folder / "consoles"
    consoles.mkdir()
    with ExitStack() as ending, ThreadPoolExecutor(max_workers=1) as beside:
        starting = beside.submit(ending.enter_context, gcs_server())
        network, cgroups = Network(), Cgroups(owner)
        ending.callback(cgroups.close)
        spoken = api("compute", "v1")
        numbers = Numbers()
        instances, operations, faults = Instances(numbers), Operations(numbers, _OPERATION_S), Faults()
        fleet = Fleet(instances, operations, network, cgroups, work, consoles, power_off_s)
        ending.callback(fleet.close)
        server = LoopbackServer((network.gateway, 0), BaseHTTPRequestHandler, bind_and_activate=True)
        origin = f"http://{network.gateway}:{server.server_port}"
        links = Links(f"{origin}/compute/v1")
        gcs: GcsServer = starting.result()
        door = StoreDoor(network.gateway, urlsplit(gcs.endpoint).port or 80)
        key_file = Path(gcs.env["GOOGLE_APPLICATION_CREDENTIALS"])
        callers = Callers(key_file, lambda token, life_s: gcs.allow(token, life_s))
        policies = Policies(numbers, links)
        launching = Launching(instances, operations, fleet, faults, links, policies.at, callers.token_for)
        groups = Groups(numbers, links, instances, operations, fleet, faults, policies.at, callers.token_for)
        compute = Compute(spoken, links, instances, operations, fleet, faults, policies, launching, groups)
        account = Account(compute, instances, operations, fleet, faults, policies, groups, door)
        gate = Gate(compute, callers, faults, origin)
        server.RequestHandlerClass = make_handler(gate, account)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()
        at = {
            "gateway": network.gateway,
            "port": server.server_port,
            "store": door.port,
            "gcs": gcs.endpoint,
            "control": f"{origin}/_control",
            **_credentials(folder, key_file, f"{origin}/token", callers.token_for_test()),
        }
        print(json.dumps(at), flush=True)
        sys.stdin.buffer.read()


def _credentials(folder: Path, key_file: Path, token_uri: str, token: str) -> dict[str, str]:
    """The test's service account as a file, and a token of it as another."""
    ours, token_file = folder / "service-account.json", folder / "token"
    ours.write_text(json.dumps({**json.loads(key_file.read_text()), "token_uri": token_uri}))
    token_file.write_text(token)
    return {"key_file": str(ours), "token_file": str(token_file), "token": token}


def main() -> None:
    """Serve the test that started this."""
    run_server(serve)


if __name__ == "__main__":
    main()
