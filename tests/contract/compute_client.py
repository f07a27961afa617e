"""A client of the Compute Engine for tests, the machines that it asks for, and what a machine is told."""

from __future__ import annotations

import json
import os
import textwrap
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.gce import PROJECT, GceCloud, MachineHandle, gce_cloud, node_account
from tests.support.servers import isolated

ZONE = "us-central1-a"
ALL = "https://www.googleapis.com/auth/cloud-platform"
HOME = f"/compute/v1/projects/{PROJECT}"
HERE = f"{HOME}/zones/{ZONE}"
UP = "the startup script has run"
HELLO = f"#!/bin/bash\necho {UP}\n"
BYE = "#!/bin/bash\necho the shutdown script has begun\n"
SPOT = {"provisioningModel": "SPOT", "instanceTerminationAction": "DELETE"}


@pytest.fixture(scope="module")
def shared() -> Iterator[GceCloud]:
    if not isolated():
        pytest.skip("runs in isolation, through the test above")
    with gce_cloud(power_off_s=20.0) as cloud:
        yield cloud


@pytest.fixture
def cloud(shared: GceCloud, monkeypatch: pytest.MonkeyPatch) -> Iterator[GceCloud]:
    for name in os.environ:
        if name.startswith(("GOOGLE_", "CLOUDSDK_", "GCE_")):
            monkeypatch.delenv(name)
    for name, value in shared.env.items():
        monkeypatch.setenv(name, value)
    yield shared
    broken = shared.broken()
    shared.clear()
    assert broken == []


class Client:
    """Asks the API, with the test's own token or another."""

    def __init__(self, cloud: GceCloud, token: str | None = None) -> None:
        self.cloud = cloud
        self._token = cloud.token if token is None else token

    def ask(self, verb: str, path: str, body: Any = None) -> tuple[int, Any]:
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.cloud.endpoint}{path}", data, headers, method=verb)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def get(self, path: str, **query: str) -> Any:
        status, told = self.ask("GET", f"{path}?{urllib.parse.urlencode(query)}")
        assert status == 200, told
        return told

    def refused(self, verb: str, path: str, body: Any = None) -> tuple[int, str]:
        """The status and the reason that a request was refused with."""
        status, told = self.ask(verb, path, body)
        assert "error" in told, told
        assert told["error"]["code"] == status
        return status, told["error"]["errors"][0]["reason"]

    def begin(self, verb: str, path: str, body: Any = None) -> Any:
        """The operation that a request begins."""
        status, told = self.ask(verb, path, body)
        assert status == 200, told
        assert told["kind"] == "compute#operation"
        return told

    def finish(self, operation: Any) -> Any:
        """The operation when it is done."""
        path = urllib.parse.urlsplit(operation["selfLink"]).path
        while operation["status"] != "DONE":
            operation = self.begin("POST", f"{path}/wait")
        return operation

    def do(self, verb: str, path: str, body: Any = None) -> Any:
        return self.finish(self.begin(verb, path, body))

    def names(self, path: str, **query: str) -> list[str]:
        return [each["name"] for each in self.get(path, **query).get("items", [])]

    def launch(self, name: str = "one", **more: Any) -> MachineHandle:
        made = self.do("POST", f"{HERE}/instances", one(name, **more))
        assert "error" not in made, made
        return self.cloud.machine(f"{ZONE}.{made['targetId']}")

    def events(self, machine: MachineHandle) -> list[str]:
        """What Compute Engine did by itself to a machine."""
        number = machine.id.partition(".")[2]
        told = self.get(f"{HERE}/operations", filter=f"targetId = {number}")
        return [each["operationType"] for each in told.get("items", []) if each["user"] == "system"]


@pytest.fixture
def gce(cloud: GceCloud) -> Client:
    return Client(cloud)


def properties(startup: str = HELLO, shutdown: str = BYE, family: str = "debian-12", **more: Any) -> dict[str, Any]:
    """A small machine, with more."""
    image = f"projects/debian-cloud/global/images/family/{family}"
    usual = {
        "machineType": f"zones/{ZONE}/machineTypes/e2-medium",
        "disks": [{"boot": True, "autoDelete": True, "initializeParams": {"sourceImage": image}}],
        "networkInterfaces": [{"network": "global/networks/default"}],
        "serviceAccounts": [{"email": node_account(), "scopes": [ALL]}],
        "metadata": {
            "items": [{"key": "startup-script", "value": startup}, {"key": "shutdown-script", "value": shutdown}]
        },
    }
    return {**usual, **more}


def one(name: str = "one", **more: Any) -> dict[str, Any]:
    return {"name": name, **properties(**more)}


def several(count: int, names: str = "m", least: int | None = None, **more: Any) -> dict[str, Any]:
    policy = more.pop("locationPolicy", {"targetShape": "ANY_SINGLE_ZONE"})
    return {
        "count": str(count),
        "minCount": str(count if least is None else least),
        "perInstanceProperties": {f"{names}-{rank}": {} for rank in range(count)},
        "instanceProperties": properties(machineType="e2-medium", **more),
        "locationPolicy": policy,
    }


METADATA = """
    import os, sys, urllib.error, urllib.request as web
    at = dict(line.strip().split("=") for line in open("/etc/environment"))["GCE_METADATA_HOST"]
    headers = {"Metadata-Flavor": "Google"} if len(sys.argv) < 3 else {}
    try:
        answer = web.urlopen(web.Request("http://" + at + "/computeMetadata/v1/" + sys.argv[1], headers=headers))
        print(answer.headers.get("ETag"), answer.read().decode(), end="")
    except urllib.error.HTTPError as error:
        print(None, error.code, end="")
"""


def told(machine: MachineHandle, path: str, *without_header: str) -> tuple[str, str]:
    """The ETag and the value of what a machine is told; the status where it is not."""
    etag, _, value = machine.run("python3", "-c", textwrap.dedent(METADATA), path, *without_header).partition(" ")
    return etag, value


def metadata(machine: MachineHandle, path: str) -> str:
    return told(machine, path)[1]
