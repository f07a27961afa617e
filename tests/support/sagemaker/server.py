"""SageMaker on the wire: JSON 1.1 on loopback, each request held against botocore's model."""

from __future__ import annotations

import json
import socket
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler

from tests.support.loopback_server import CallRecord, LoopbackServer, ReplyLost
from tests.support.sagemaker import shapes
from tests.support.sagemaker.account import Account
from tests.support.sagemaker.faults import Failure, Faults, invalid
from tests.support.sagemaker.jobs import Json

REGION = "us-east-1"
_SPOKEN = "application/x-amz-json-1.1"
# Where containers find the credentials of their role.
CREDENTIALS = "/v2/credentials/role"


class Gate(CallRecord):
    """Stands before the account: refuses what does not fit, counts calls and makes them fail."""

    def __init__(self, account: Account, faults: Faults) -> None:
        super().__init__()
        self._account = account
        self._faults = faults

    def serve(self, target: str, authorization: str, body: bytes) -> Json:
        """The answer to one request. Raises Failure, and ReplyLost for a call that was carried out."""
        service, _, operation = target.partition(".")
        scope = authorization.partition("Credential=")[2].split(",")[0].split("/")
        if len(scope) < 4 or scope[3] != "sagemaker":
            raise Failure("MissingAuthenticationTokenException", "Missing Authentication Token", 403)
        if service != "SageMaker" or not shapes.knows(operation):
            raise Failure("UnknownOperationException", "", 404)
        self.count(operation)
        asked = self._checked(operation, body)
        resources = asked.get("ResourceConfig") or {}
        machine, count = resources.get("InstanceType", ""), resources.get("InstanceCount", 1)
        fault = self._faults.meet(operation, machine, bool(asked.get("EnableManagedSpotTraining")))
        if fault is not None and not fault.lose_reply:
            raise fault.failure(machine, count)
        told = self._account.answer(operation, scope[2], asked)
        if fault is not None:
            raise ReplyLost
        return told

    def _checked(self, operation: str, body: bytes) -> Json:
        try:
            asked = json.loads(body or b"{}")
        except ValueError as error:
            raise Failure("SerializationException", str(error)) from error
        wrong = shapes.check(operation, asked)
        if wrong:
            self.remember(f"{operation}: {'; '.join(wrong)}")
            raise invalid(f"{len(wrong)} validation error{'s'[: len(wrong) > 1]} detected: {'; '.join(wrong)}")
        found: Json = asked
        return found


def make_handler(gate: Gate) -> type[BaseHTTPRequestHandler]:
    """Speaks HTTP for the gate."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            try:
                told = gate.serve(self.headers.get("X-Amz-Target", ""), self.headers.get("Authorization", ""), body)
                self._reply(200, told)
            except Failure as failure:
                self._reply(failure.status, {"__type": failure.code, "message": failure.message})
            except ReplyLost:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)

        def do_GET(self) -> None:
            if self.path != CREDENTIALS or self.headers.get("Authorization") != "test":
                self._reply(404, {})
                return
            ends = datetime.now(timezone.utc) + timedelta(hours=6)
            self._reply(
                200,
                {
                    "RoleArn": "arn:aws:iam::123456789012:role/trainer",
                    "AccessKeyId": "test",
                    "SecretAccessKey": "test",
                    "Token": "test",
                    "Expiration": ends.strftime("%Y-%m-%dT%H:%M:%SZ"),
                },
            )

        def _reply(self, status: int, told: Json) -> None:
            body = json.dumps(told, default=_wire).encode()
            self.send_response(status)
            self.send_header("Content-Type", _SPOKEN)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


class Server(LoopbackServer):
    """On a free port of loopback."""

    def __init__(self, gate: Gate) -> None:
        super().__init__(("127.0.0.1", 0), make_handler(gate))


def _wire(value: object) -> float:
    if isinstance(value, datetime):
        return value.timestamp()
    raise TypeError(f"{value!r} is not for the wire")
