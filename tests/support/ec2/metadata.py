"""The metadata service of one machine, inside its own network namespace.

Answers as IMDSv2 does: a token is asked for with PUT and needed for every GET, unless the instance was launched with
tokens optional. cloud-init asks without one, for it does not take this for EC2 itself, and is let through.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Union

from tests.support.machines.images import METADATA_PORT
from tests.support.machines.network import Namespace

Tree = dict[str, Union[str, "Tree"]]

_TOKEN_LIFE_S = range(1, 21601)

# The one key is listed under this name and asked for as "0".
_KEY = "0=key"


def stamp(when: datetime) -> str:
    """A time as EC2 writes it."""
    return when.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True)
class Facts:
    """What a machine is told about itself. `role` is empty where no instance profile was given."""

    instance: str
    ami: str
    machine_type: str
    launch_index: int
    address: str
    region: str
    zone: str
    lifecycle: str
    account: str
    role: str
    user_data: bytes
    public_key: str
    tokens_required: bool
    tags_readable: bool


@dataclass
class Notices:
    """What EC2 says to a machine while it runs. Written by the cloud, read at every request."""

    instance_action: dict[str, str] | None = None
    rebalance_at: str = ""
    maintenance: list[dict[str, str]] = field(default_factory=list)


class MetadataService:
    """Serves until `close`. `tags` is asked at every request, for tags change while machines run."""

    def __init__(self, namespace: Namespace, facts: Facts, tags: Callable[[], dict[str, str]]) -> None:
        self.notices = Notices()
        self._facts = facts
        self._tags = tags
        self._tokens: dict[str, float] = {}
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                service.put(self)

            def do_GET(self) -> None:
                service.get(self)

            def log_message(self, *_: object) -> None:
                pass

        self._server = namespace.inside(lambda: ThreadingHTTPServer(("127.0.0.1", METADATA_PORT), Handler))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def put(self, request: BaseHTTPRequestHandler) -> None:
        """A token, as long-lived as asked."""
        asked = request.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
        if request.path != "/latest/api/token":
            return _reply(request, 404)
        if not asked.isdigit() or int(asked) not in _TOKEN_LIFE_S:
            return _reply(request, 400)
        token = secrets.token_urlsafe(40)
        self._tokens[token] = time.monotonic() + int(asked)
        return _reply(request, 200, token.encode(), ttl=asked)

    def get(self, request: BaseHTTPRequestHandler) -> None:
        """One leaf, or the names in a folder."""
        version, _, path = request.path.partition("?")[0].strip("/").partition("/")
        if version not in ("latest", "") and not version[:4].isdigit():
            return _reply(request, 404)
        token = request.headers.get("X-aws-ec2-metadata-token")
        if token is not None:
            known = self._tokens.get(token, 0.0) > time.monotonic()
        else:
            # cloud-init is the one that asks under dated versions.
            known = version != "latest" or not self._facts.tokens_required
        if not known:
            return _reply(request, 401)
        if path == "user-data":
            found = self._facts.user_data
            return _reply(request, 200, found) if found else _reply(request, 404)
        found_text = _look(self._tree(), path)
        return _reply(request, 404) if found_text is None else _reply(request, 200, found_text.encode())

    def _tree(self) -> Tree:
        facts = self._facts
        host = f"ip-{facts.address.replace('.', '-')}.ec2.internal"
        about: Tree = {
            "ami-id": facts.ami,
            "ami-launch-index": str(facts.launch_index),
            "hostname": host,
            "instance-id": facts.instance,
            "instance-life-cycle": facts.lifecycle,
            "instance-type": facts.machine_type,
            "local-hostname": host,
            "local-ipv4": facts.address,
            "placement": {"availability-zone": facts.zone, "region": facts.region},
            "services": {"domain": "amazonaws.com", "partition": "aws"},
        }
        if facts.public_key:
            about["public-keys"] = {_KEY: {"openssh-key": facts.public_key}}
        if facts.role:
            about["iam"] = {
                "info": json.dumps({"Code": "Success", "InstanceProfileArn": _arn(facts, "instance-profile")}),
                "security-credentials": {facts.role: _credentials(facts)},
            }
        if facts.tags_readable and (tags := self._tags()):
            about["tags"] = {"instance": dict(tags)}
        self._add_notices(about)
        return {"meta-data": about, "dynamic": {"instance-identity": {"document": _document(facts)}}}

    def _add_notices(self, about: Tree) -> None:
        events: Tree = {"maintenance": {"scheduled": json.dumps(self.notices.maintenance), "history": "[]"}}
        if self.notices.rebalance_at:
            events["recommendations"] = {"rebalance": json.dumps({"noticeTime": self.notices.rebalance_at})}
        about["events"] = events
        if (action := self.notices.instance_action) is not None:
            spot: Tree = {"instance-action": json.dumps(action)}
            if action["action"] == "terminate":
                spot["termination-time"] = action["time"]
            about["spot"] = spot


def _look(tree: Tree, path: str) -> str | None:
    found: str | Tree = tree
    for name in path.strip("/").split("/") if path.strip("/") else ():
        if not isinstance(found, dict) or (name not in found and name != "0"):
            return None
        below = found.get(_KEY if name == "0" else name)
        if below is None:
            return None
        found = below
    if isinstance(found, str):
        return found
    return "\n".join(f"{name}/" if isinstance(below, dict) and name != _KEY else name for name, below in found.items())


def _arn(facts: Facts, kind: str) -> str:
    return f"arn:aws:iam::{facts.account}:{kind}/{facts.role}"


def _credentials(facts: Facts) -> str:
    now = datetime.now(timezone.utc)
    return json.dumps(
        {
            "Code": "Success",
            "Type": "AWS-HMAC",
            "LastUpdated": stamp(now),
            "AccessKeyId": f"ASIA{facts.instance[-12:].upper()}TEST",
            "SecretAccessKey": "test",
            "Token": f"session-of-{facts.instance}",
            "Expiration": stamp(now + timedelta(hours=6)),
        }
    )


def _document(facts: Facts) -> str:
    return json.dumps(
        {
            "accountId": facts.account,
            "architecture": "x86_64",
            "availabilityZone": facts.zone,
            "imageId": facts.ami,
            "instanceId": facts.instance,
            "instanceType": facts.machine_type,
            "privateIp": facts.address,
            "region": facts.region,
            "version": "2017-09-30",
        }
    )


def _reply(request: BaseHTTPRequestHandler, status: int, body: bytes = b"", *, ttl: str = "") -> None:
    request.send_response(status)
    request.send_header("Content-Type", "text/plain")
    request.send_header("Content-Length", str(len(body)))
    if ttl:
        request.send_header("X-aws-ec2-metadata-token-ttl-seconds", ttl)
    request.end_headers()
    request.wfile.write(body)
