"""The server of a cloud: EC2 and the other APIs at one port, S3's door, and the machines. Run by `ec2_cloud`."""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.ec2.faults import Failure, Faults, failure
from tests.support.ec2.fleet import Fleet
from tests.support.ec2.images import IMAGES, RECORDS
from tests.support.ec2.spot import SpotPrices
from tests.support.loopback_server import CallRecord
from tests.support.machines.cgroups import Cgroups
from tests.support.machines.network import Network
from tests.support.machines.serving import answer, make_work, run_server
from tests.support.machines.store_door import StoreDoor
from tests.support.servers import s3_server

Environ = dict[str, Any]
Start = Callable[..., Any]
App = Callable[[Environ, Start], Iterable[bytes]]


class Gate(CallRecord):
    """Stands before moto: counts calls, makes them fail, and takes the test's own orders at /_control."""

    def __init__(self, inner: App, faults: Faults, control: Callable[[dict[str, Any]], Any]) -> None:
        super().__init__()
        self._inner = inner
        self._faults = faults
        self._control = control

    def __call__(self, environ: Environ, start: Start) -> Iterable[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        if environ["PATH_INFO"] == "/_control":
            return self._order(body, start)
        environ["wsgi.input"] = BytesIO(body)
        operation, json_spoken = _operation(environ, body)
        # A dry run is a call, and makes nothing.
        self.count(f"{operation} (dry)" if b"DryRun=true" in body else operation)
        fault = self._faults.meet(operation)
        if fault is not None and not fault.lose_reply:
            return _fail(failure(fault), json_spoken, start)
        if fault is not None:
            for _ in self._inner(environ, lambda *_: None):
                pass
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            raise ConnectionAbortedError("the reply was lost")
        return self._inner(environ, start)

    def _order(self, body: bytes, start: Start) -> Iterable[bytes]:
        start("200 OK", [("Content-Type", "application/json")])
        return [answer(self._control, body)]


def _operation(environ: Environ, body: bytes) -> tuple[str, bool]:
    """What is asked for ("RunInstances", "ssm:GetParameter"), and whether JSON is spoken."""
    scope = environ.get("HTTP_AUTHORIZATION", "").partition("Credential=")[2].split(",")[0].split("/")
    service = scope[3] if len(scope) > 3 else "unsigned"
    target = environ.get("HTTP_X_AMZ_TARGET", "").rpartition(".")[2]
    if target:
        return f"{service}:{target}", True
    if b"Action=" in body:
        action = parse_qs(body.decode()).get("Action", [""])[0]
        return (action if service == "ec2" else f"{service}:{action}"), False
    return f"{service}:{environ['REQUEST_METHOD']} {environ['PATH_INFO']}", True


def _fail(error: Failure, json_spoken: bool, start: Start) -> Iterable[bytes]:
    from tests.support.ec2.repairs import error_body

    kind = "application/x-amz-json-1.1" if json_spoken else "text/xml;charset=UTF-8"
    told = json.dumps({"__type": error.code, "message": error.message}) if json_spoken else error_body(error)
    start(f"{error.status} Failed", [("Content-Type", kind)])
    return [told.encode()]


def _prepare(folder: Path) -> Path:
    """A place for machines' disks, gone with this process; what must be known before moto is imported."""
    work = make_work(folder)
    amis = folder / "amis.json"
    found = [
        {
            **_ami(image.ami, image.name, image.owner),
            "description": f"Debian {image.tree.suite}",
            "creation_date": "2025-06-01T00:00:00.000Z",
        }
        for image in IMAGES
    ]
    found += [
        {
            **_ami(each.ami, each.name, each.owner),
            "architecture": each.architecture,
            "state": each.state,
            "creation_date": each.created,
        }
        for each in RECORDS
    ]
    amis.write_text(json.dumps(found))
    os.environ.update(
        MOTO_AMIS_PATH=str(amis),
        MOTO_ENABLE_AMI_VALIDATION="true",
        MOTO_EC2_ENABLE_INSTANCE_TYPE_VALIDATION="true",
    )
    return work


def _ami(ami: str, name: str, owner: str) -> dict[str, Any]:
    return {
        "ami_id": ami,
        "name": name,
        "owner_id": owner,
        "public": True,
        "state": "available",
        "image_type": "machine",
        "image_location": f"{owner}/{name}",
        "architecture": "x86_64",
        "virtualization_type": "hvm",
        "hypervisor": "xen",
        "root_device_name": "/dev/xvda",
        "root_device_type": "ebs",
        "sriov": "simple",
    }


def serve(owner: int, folder: Path, power_off_s: float) -> None:
    """Serve until standard input ends."""
    work = _prepare(folder)
    consoles = folder / "consoles"
    consoles.mkdir()
    with ExitStack() as ending, ThreadPoolExecutor(max_workers=1) as beside:
        # It takes as long to start as all the rest.
        starting = beside.submit(ending.enter_context, s3_server())
        network, cgroups = Network(), Cgroups(owner)
        ending.callback(cgroups.close)
        fleet = Fleet(network, cgroups, work, consoles, power_off_s)
        ending.callback(fleet.close)
        # From here on moto reads its settings.
        from werkzeug.serving import make_server

        from tests.support.ec2.account import Account, moto_app, quiet_handler

        s3 = starting.result()
        door = StoreDoor(network.gateway, urlsplit(s3.endpoint).port or 80)
        account = Account(fleet, Faults(), SpotPrices(), door)
        gate = Gate(moto_app(), account.faults, lambda order: account.obey(order, gate.take_calls))
        server = make_server(network.gateway, 0, gate, threaded=True, request_handler=quiet_handler())
        threading.Thread(target=server.serve_forever, daemon=True).start()
        at = {"gateway": network.gateway, "ec2": server.server_port, "s3": door.port, "s3_itself": s3.endpoint}
        control = f"http://{network.gateway}:{server.server_port}/_control"
        print(json.dumps({**at, "control": control}), flush=True)
        sys.stdin.buffer.read()


def main() -> None:
    """Serve the test that started this."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    run_server(serve)


if __name__ == "__main__":
    main()
