"""The Compute Engine for tests boots what it is asked to boot, and answers as Google's does. gce rests on this."""

from __future__ import annotations

import json
import os
import textwrap
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from stoker.testing.gce import (
    OTHER_PROJECT,
    PROJECT,
    GceCloud,
    MachineHandle,
    check_request,
    gce_cloud,
    node_account,
    why_no_gce,
)
from stoker.testing.servers import isolated, pytest_isolated

ZONE = "us-central1-a"
ALL = "https://www.googleapis.com/auth/cloud-platform"
HOME = f"/compute/v1/projects/{PROJECT}"
HERE = f"{HOME}/zones/{ZONE}"
UP = "the startup script has run"
HELLO = f"#!/bin/bash\necho {UP}\n"
BYE = "#!/bin/bash\necho the shutdown script has begun\n"
SPOT = {"provisioningModel": "SPOT", "instanceTerminationAction": "DELETE"}

if why_no_gce() is not None:
    pytest.skip(str(why_no_gce()), allow_module_level=True)

if not isolated():

    def test_in_isolation() -> None:
        pytest_isolated(__file__)


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


# ── what is asked ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({}, ""),
        ({"nmae": "x"}, "nmae: there is no such field"),
        ({"id": "4"}, "id: is output only"),
        ({"name": "Upper"}, "name: 'Upper' does not match"),
        ({"scheduling": {"maxRunDuration": {"seconds": 60}}}, "seconds: 60 is no string"),
        ({"scheduling": {"maxRunDuration": {"seconds": "1m"}}}, "seconds: '1m' is no int64"),
        ({"scheduling": {"provisioningModel": "CHEAP"}}, "'CHEAP' is none of"),
        ({"scheduling": {"preemptible": "true"}}, "'true' is no boolean"),
        ({"guestAccelerators": [{"acceleratorCount": True}]}, "acceleratorCount: True is no integer"),
        ({"guestAccelerators": {"acceleratorCount": 1}}, "is no list"),
        ({"metadata": {"items": [{"key": "a"}]}}, "metadata.items[0].value: is required"),
        ({"labels": {"a": None}}, "labels.a: None is no string"),
        ({"disks": [{"index": 0}]}, "disks[0].index: is output only"),
    ],
)
def test_bodies_are_held_against_googles_document(change: dict[str, Any], wrong: str) -> None:
    found = check_request("POST", f"{HERE}/instances?requestId=x", body={**one(), **change})
    assert ([wrong in each for each in found] == [True]) if wrong else found == []


def test_methods_and_parameters_are_held_against_it_too() -> None:
    assert check_request("DELETE", f"{HERE}/instances/4242424242424242424") == []
    assert "does not match" in check_request("DELETE", f"{HERE}/instances/Upper")[0]
    assert "no parameter" in check_request("GET", f"{HERE}/instances", {"fliter": "a=b"})[0]
    assert "no uint32" in check_request("GET", f"{HERE}/instances?maxResults=-1")[0]
    assert "is required" in check_request("POST", f"{HERE}/instances", body={})[0]
    assert "a body is missing" in check_request("POST", f"{HERE}/instances")[0]
    assert "there is no method" in check_request("PUT", f"{HERE}/instances")[0]
    assert check_request("POST", "/v2/entries:write", body={"entries": [{"textPayload": "x"}]}, service="logging") == []
    assert "is no google-datetime" in "".join(
        check_request("POST", "/v2/entries:write", body={"entries": [{"timestamp": "now"}]}, service="logging")
    )


def test_what_does_not_fit_is_refused_and_remembered(cloud: GceCloud, gce: Client) -> None:
    assert gce.refused("POST", f"{HERE}/instances", one(labels={"a": 1})) == (400, "invalid")
    assert gce.refused("GET", f"{HERE}/machines") == (404, "notFound")
    broken = cloud.broken(reset=True)
    assert "labels.a: 1 is no string" in broken[0]
    assert "/machines: there is no such method" in broken[1]


def test_what_cannot_be_is_refused_at_once(cloud: GceCloud, gce: Client) -> None:
    boot = {"boot": True, "initializeParams": {"sourceImage": "global/images/mine"}}
    gpus = [{"acceleratorType": f"zones/{ZONE}/acceleratorTypes/nvidia-l4", "acceleratorCount": 1}]
    wrong: list[dict[str, Any]] = [
        {"machineType": f"zones/{ZONE}/machineTypes/e9-medium"},
        {"machineType": "zones/us-central1-b/machineTypes/e2-medium"},
        {"machineType": "e2-medium"},
        {"disks": [boot]},
        {"disks": []},
        {"networkInterfaces": []},
        {"networkInterfaces": [{"network": "global/networks/mine"}]},
        {"guestAccelerators": gpus},
        {"machineType": f"zones/{ZONE}/machineTypes/g2-standard-4", "scheduling": {"onHostMaintenance": "MIGRATE"}},
        {"scheduling": {**SPOT, "automaticRestart": True}},
        {"scheduling": {"instanceTerminationAction": "DELETE"}},
        {"scheduling": {"maxRunDuration": {"seconds": "3600"}}},
        {"scheduling": {**SPOT, "preemptionNoticeDuration": {"seconds": "121"}}},
        {"scheduling": {"preemptionNoticeDuration": {"seconds": "120"}}},
        {"serviceAccounts": [{"email": f"nobody@{PROJECT}.iam.gserviceaccount.com", "scopes": [ALL]}]},
        {"resourcePolicies": [f"projects/{PROJECT}/regions/us-central1/resourcePolicies/none"]},
        {"labels": {"Upper": "x"}},
    ]
    for change in wrong:
        assert gce.refused("POST", f"{HERE}/instances", one(**change))[0] == 400, change
    assert gce.refused("POST", f"{HOME}/zones/mars-a/instances", one()) == (404, "notFound")
    assert gce.refused("GET", "/compute/v1/projects/nobodys/zones") == (404, "notFound")
    assert Client(cloud, "").refused("GET", HOME) == (401, "authError")
    assert Client(cloud, "guessed").refused("GET", HOME) == (401, "authError")
    assert not cloud.left()


# ── machines ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_machine_boots_runs_its_script_at_every_boot_and_stops_itself(cloud: GceCloud, gce: Client) -> None:
    begun = time.monotonic()
    cloud.faults.slow("instances.insert", slow_s=2.0, times=1)
    operation = gce.begin(
        "POST",
        f"{HERE}/instances",
        one(
            startup=f"#!/bin/bash\nwhoami\necho at=$GCE_METADATA_HOST\necho {UP}\n",
            labels={"stoker-job": "job-1"},
            tags={"items": ["stoker"]},
        ),
    )
    assert operation["status"] == "PENDING"
    assert gce.get(f"{HERE}/instances/one")["status"] == "PROVISIONING"
    done = gce.finish(operation)
    assert (done["progress"], done["operationType"]) == (100, "insert")
    number = done["targetId"]
    machine = cloud.machine(f"{ZONE}.{number}")
    machine.wait_console("startup-script exit status 0")
    # Two busy cores; alone it takes one second, and the operation its two.
    assert time.monotonic() - begun < 30
    assert "startup-script: root" in machine.console()
    assert "startup-script: at=127.0.0.1:" in machine.console()
    made = gce.get(f"{HERE}/instances/{number}")
    assert (made["name"], made["status"], machine.name) == ("one", "RUNNING", "one")
    assert made["networkInterfaces"][0]["networkIP"] == machine.address
    assert UP in gce.get(f"{HERE}/instances/one/serialPort")["contents"]

    assert metadata(machine, "instance/id") == number
    assert metadata(machine, "instance/name") == "one"
    assert metadata(machine, "instance/zone").endswith(f"/zones/{ZONE}")
    assert metadata(machine, "instance/hostname") == f"one.{ZONE}.c.{PROJECT}.internal"
    assert metadata(machine, "instance/network-interfaces/0/ip") == machine.address
    assert metadata(machine, "instance/preempted") == "FALSE"
    assert metadata(machine, "instance/service-accounts/default/email") == node_account()
    assert metadata(machine, "project/project-id") == PROJECT
    assert metadata(machine, "instance/attributes/").split() == ["startup-script", "shutdown-script"]
    whole = json.loads(metadata(machine, "instance/?recursive=true"))
    assert whole["scheduling"]["onHostMaintenance"] == "MIGRATE"
    assert whole["attributes"]["shutdown-script"] == BYE
    assert metadata(machine, "instance/attributes/none") == "404"
    assert told(machine, "instance/id", "without")[1] == "403"

    machine.run("systemctl", "reboot", check=False)
    machine.wait_until(lambda held: held.console().count("startup-script exit status 0") == 2, "to boot again")
    assert "the shutdown script has begun" in machine.console()
    assert machine.state() == "RUNNING"

    machine.run("systemctl", "poweroff", check=False)
    machine.wait_stopped()
    assert gce.events(machine) == ["compute.instances.guestTerminate"]
    assert cloud.left().instances == (machine.id,)
    assert cloud.left().disks == (f"{ZONE}/one",)
    assert gce.refused("DELETE", f"{HERE}/disks/one") == (400, "resourceInUseByAnotherResource")
    # The name is taken as long as it exists, then free; the number is nobody else's.
    assert gce.refused("POST", f"{HERE}/instances", one()) == (409, "alreadyExists")
    gce.do("DELETE", f"{HERE}/instances/{number}")
    assert not cloud.left()
    assert gce.refused("GET", f"{HERE}/instances/one") == (404, "notFound")
    assert gce.launch().id != machine.id
    assert gce.refused("GET", f"{HERE}/instances/{number}") == (404, "notFound")


@pytest.mark.parametrize("family", ["debian-11", "debian-13"])
def test_other_images(cloud: GceCloud, gce: Client, family: str) -> None:
    machine = gce.launch(family=family)
    machine.wait_console(UP)
    gce.do("DELETE", f"{HERE}/instances/one")
    assert "the shutdown script has begun" in machine.console()


def test_a_deletion_runs_the_shutdown_script_before_the_network_goes(cloud: GceCloud, gce: Client) -> None:
    host, port = cloud.store_endpoint.removeprefix("http://").split(":")
    reach = (
        f"python3 -c \"import socket; socket.create_connection(('{host}', {port}), 5); print('the store is there')\""
    )
    disk = properties()["disks"][0] | {"autoDelete": False}
    machine = gce.launch(shutdown=f"#!/bin/bash\n{reach}\nsleep 1\necho saved\n", disks=[disk])
    machine.wait_console(UP)
    operation = gce.begin("DELETE", f"{HERE}/instances/one")
    machine.wait_until(lambda held: held.state() == "STOPPING", "to be told to end")
    assert gce.finish(operation)["operationType"] == "delete"
    assert machine.state() == "terminated"
    assert "shutdown-script: the store is there" in machine.console()
    assert "shutdown-script: saved" in machine.console()
    # What is not deleted with its machine stays.
    assert cloud.left().disks == (f"{ZONE}/one",)
    gce.do("DELETE", f"{HERE}/disks/one")
    assert not cloud.left()


LONG_POLL = """\
#!/bin/bash
at=http://$GCE_METADATA_HOST/computeMetadata/v1/instance/preempted
python3 - $at <<'END' &
import sys, urllib.request as web
found = web.urlopen(web.Request(sys.argv[1] + "?wait_for_change=true", headers={"Metadata-Flavor": "Google"})).read()
open("/dev/console", "w").write("the long poll says %s\\n" % found.decode())
END
cat > /etc/systemd/system/work.service <<'END'
[Service]
ExecStart=/bin/sleep infinity
ExecStopPost=/bin/sh -c 'echo the service was stopped > /dev/console'
END
systemctl start work.service
echo listening
"""


def test_spot_machines_are_preempted_in_every_way(cloud: GceCloud, gce: Client) -> None:
    slow = "#!/bin/bash\necho the shutdown script has begun\nsleep 60\necho it was not in time\n"
    body = several(5, startup=LONG_POLL, shutdown=slow, scheduling=SPOT)
    done = gce.do("POST", f"{HOME}/regions/us-central1/instances/bulkInsert", body)
    assert "error" not in done, done
    found = {each["name"]: each["id"] for each in gce.get(f"{HERE}/instances")["items"]}
    usual, silent, unscripted, cut, simulated = (cloud.machine(f"{ZONE}.{found[f'm-{rank}']}") for rank in range(5))
    for machine in (usual, silent, unscripted, cut, simulated):
        machine.wait_console("startup-script: listening")
    # The listener needs a moment to be one: long polls are connections to the metadata server that stay.
    for machine in (usual, silent):
        machine.wait_until(lambda held: held.run("ss", "-Htn", "dport", "=", ":8169").count("ESTAB") >= 2, "to listen")

    usual.preempt(grace_s=4.0, notice_s=3.0)
    silent.preempt(grace_s=5.0, metadata_says=False)
    unscripted.preempt(grace_s=11.0, shutdown_script=False)
    cut.preempt(grace_s=1.0, button=False)
    assert gce.do("POST", f"{HERE}/instances/m-4/simulateMaintenanceEvent").get("error") is None
    usual.wait_console("the long poll says TRUE")
    for machine in (usual, silent, unscripted, cut):
        machine.wait_gone()
        assert gce.events(machine) == ["compute.instances.preempted"]
        assert "it was not in time" not in machine.console()
    assert "the shutdown script has begun" in usual.console()
    assert "the long poll" not in silent.console()
    assert "the shutdown script has begun" in silent.console()
    assert "the shutdown script has begun" not in unscripted.console()
    assert "the service was stopped" in unscripted.console()
    assert "Powering off" in unscripted.console()
    assert "the service was stopped" not in cut.console()
    simulated.wait_console("the shutdown script has begun")
    assert metadata(simulated, "instance/preempted") == "TRUE"
    assert gce.events(simulated) == ["compute.instances.preempted"]
    assert cloud.left().instances == (simulated.id,)


def test_a_notice_is_as_long_as_it_was_asked_for(cloud: GceCloud, gce: Client) -> None:
    machine = gce.launch(scheduling={**SPOT, "preemptionNoticeDuration": {"seconds": "4"}})
    machine.wait_console(UP)
    begun = time.monotonic()
    machine.preempt()
    assert metadata(machine, "instance/preempted") == "TRUE"
    machine.wait_console("the shutdown script has begun")
    assert time.monotonic() - begun > 3.5
    machine.wait_gone()


def test_other_ends(cloud: GceCloud, gce: Client) -> None:
    limited = {**SPOT, "maxRunDuration": {"seconds": "7200"}}
    timed = gce.launch("timed", scheduling=limited)
    stops = gce.launch("stops", scheduling={"provisioningModel": "SPOT"})
    killed = gce.launch("killed")
    for machine in (timed, stops, killed):
        machine.wait_console(UP)
    timed.maintenance()
    assert metadata(timed, "instance/maintenance-event") == "TERMINATE_ON_HOST_MAINTENANCE"
    assert metadata(timed, "instance/upcoming-maintenance?alt=json") == "503", "nothing was announced"
    timed.plan_maintenance("2030-05-01T12:00:00Z")
    planned = json.loads(metadata(timed, "instance/upcoming-maintenance?alt=json"))
    assert (planned["maintenance_status"], planned["window_start_time"]) == ("PENDING", "2030-05-01T12:00:00Z")
    timed.expire()
    stops.preempt()
    killed.kill()
    timed.wait_gone()
    assert gce.events(timed) == ["compute.instances.deferredDelete"]
    stops.wait_stopped()
    killed.wait_stopped()
    assert gce.events(killed) == ["compute.instances.hostError"]
    assert "the shutdown script" not in killed.console()
    assert set(cloud.left().instances) == {stops.id, killed.id}
    gce.do("DELETE", f"{HERE}/instances/stops")
    assert gce.do("POST", f"{HERE}/instances/killed/stop").get("error") is None
    with pytest.raises(LookupError):
        cloud.machine(f"{ZONE}.1").kill()


DELETE = """
    import sys, json, urllib.error, urllib.request as web
    at = dict(line.strip().split("=") for line in open("/etc/environment"))["GCE_METADATA_HOST"]
    url = "http://" + at + "/computeMetadata/v1/instance/service-accounts/default/token"
    token = json.load(web.urlopen(web.Request(url, headers={"Metadata-Flavor": "Google"})))["access_token"]
    request = web.Request(sys.argv[2], method=sys.argv[1], headers={"Authorization": "Bearer " + token})
    try:
        print(web.urlopen(request, timeout=10).status, end="")
    except urllib.error.HTTPError as error:
        print(error.code, json.load(error)["error"]["errors"][0]["reason"], end="")
"""


def test_a_machine_deletes_itself_and_nobody_else(cloud: GceCloud, gce: Client) -> None:
    ours, other = gce.launch("ours"), gce.launch("other", serviceAccounts=[])
    for machine in (ours, other):
        machine.wait_console(UP)
    number = ours.id.partition(".")[2]

    def ask(verb: str, path: str) -> str:
        return ours.run("python3", "-c", textwrap.dedent(DELETE), verb, f"{cloud.endpoint}{path}")

    assert metadata(other, "instance/service-accounts/default/token") == "404"
    assert ask("GET", f"{HERE}/instances/ours") == "200"
    assert ask("GET", f"{HERE}/instances") == "403 forbidden"
    assert ask("DELETE", f"{HERE}/instances/other") == "403 forbidden"
    cloud.faults.node_may_delete(False)
    assert ask("DELETE", f"{HERE}/instances/{number}") == "403 forbidden"
    cloud.faults.node_may_delete(True)
    assert ask("DELETE", f"{HERE}/instances/{number}") == "200"
    ours.wait_gone()
    assert cloud.left().instances == (other.id,)
    operations = gce.get(f"{HERE}/operations", filter=f'targetId = {number} AND operationType = "delete"')["items"]
    assert [each["user"] for each in operations] == [node_account()]


def test_scopes_limit_what_a_token_is_good_for(cloud: GceCloud, gce: Client) -> None:
    reading = "https://www.googleapis.com/auth/compute.readonly"
    machine = gce.launch(serviceAccounts=[{"email": node_account(), "scopes": [reading]}])
    machine.wait_console(UP)
    token = json.loads(metadata(machine, "instance/service-accounts/default/token"))["access_token"]
    asking = Client(cloud, token)
    assert asking.get(f"{HERE}/instances/one")["name"] == "one"
    assert asking.refused("DELETE", f"{HERE}/instances/one") == (403, "insufficientPermissions")


def test_metadata_changes_are_told_and_make_accounts(cloud: GceCloud, gce: Client) -> None:
    machine = gce.launch()
    machine.wait_console(UP)
    etag, _ = told(machine, "instance/attributes/?recursive=true")
    assert told(
        machine, f"instance/attributes/?recursive=true&wait_for_change=true&last_etag={etag}&timeout_sec=1"
    ) == (told(machine, "instance/attributes/?recursive=true"))
    held = gce.get(f"{HERE}/instances/one")["metadata"]
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIH test"
    items = [*held["items"], {"key": "ssh-keys", "value": f"tess:{key}"}]
    waiting = f"instance/attributes/?recursive=true&wait_for_change=true&last_etag={etag}&timeout_sec=60"
    with ThreadPoolExecutor(1) as beside:
        poll = beside.submit(told, machine, waiting)
        gce.do("POST", f"{HERE}/instances/one/setMetadata", {"fingerprint": held["fingerprint"], "items": items})
        assert json.loads(poll.result(timeout=60)[1])["ssh-keys"] == f"tess:{key}"
    stale = {"fingerprint": held["fingerprint"], "items": []}
    assert gce.refused("POST", f"{HERE}/instances/one/setMetadata", stale) == (412, "conditionNotMet")
    machine.wait_until(
        lambda here: key in here.run("cat", "/home/tess/.ssh/authorized_keys", check=False), "to have the key"
    )
    assert machine.run("systemctl", "is-active", "ssh.service") == "active\n"
    labels = {"labels": {"a": "b"}, "labelFingerprint": gce.get(f"{HERE}/instances/one")["labelFingerprint"]}
    gce.do("POST", f"{HERE}/instances/one/setLabels", labels)
    assert gce.names(f"{HERE}/instances", filter="labels.a=b") == ["one"]


def test_machines_reach_each_other_the_store_and_the_logs(cloud: GceCloud, gce: Client) -> None:
    gce.do("POST", f"{HOME}/regions/us-central1/instances/bulkInsert", several(2, startup=HELLO))
    found = {each["name"]: each["id"] for each in gce.get(f"{HERE}/instances")["items"]}
    a, b = (cloud.machine(f"{ZONE}.{found[name]}") for name in ("m-0", "m-1"))
    for machine in (a, b):
        machine.wait_console(UP)
    assert (
        b.run("python3", "-c", f"import socket; socket.create_connection(('{a.address}', 22), 5); print('ok')")
        == "ok\n"
    )
    token = json.loads(metadata(a, "instance/service-accounts/default/token"))["access_token"]
    bucket = cloud.new_bucket()
    put = (
        "import sys, urllib.request as w\n"
        "r = w.Request(sys.argv[1], b'hello', {'Authorization': 'Bearer ' + sys.argv[2]}, method='PUT')\n"
        "print(w.urlopen(r, timeout=10).status)"
    )
    where = f"{cloud.store_endpoint}/{bucket}/object"
    assert a.run("python3", "-c", put, where, token) == "200\n"
    assert "HTTP Error 40" in a.run("python3", "-c", put, where, "wrong", check=False)
    cloud.faults.shut_store("machines")
    assert "HTTP Error 500" in a.run("python3", "-c", put, where, token, check=False)
    cloud.faults.shut_store("nobody")
    b.connect(False)
    assert "ok" not in b.run("python3", "-c", put, where, token, check=False, limit_s=90)

    entry = {"textPayload": "epoch 1", "labels": {"node": "0"}, "severity": "INFO"}
    body = {
        "logName": f"projects/{PROJECT}/logs/stoker",
        "resource": {"type": "gce_instance", "labels": {"instance_id": found["m-0"], "zone": ZONE}},
        "labels": {"job": "job-1"},
        "entries": [entry],
    }
    assert Client(cloud, token).ask("POST", "/v2/entries:write", body) == (200, {})
    (kept,) = cloud.entries()
    assert kept["labels"] == {"job": "job-1", "node": "0"}
    assert kept["textPayload"] == "epoch 1"


# ── launches that fail, and launches that are repeated ────────────────────────────────────────────────────────────────


def test_a_request_id_is_good_for_one_request(cloud: GceCloud, gce: Client) -> None:
    request = str(uuid.uuid4())
    path = f"{HERE}/instances?requestId={request}"
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: gce.begin("POST", path, one()), range(4)))
    assert len({answer["id"] for answer in answers}) == 1
    assert answers[0]["clientOperationId"] == request
    assert len(cloud.left().instances) == 1
    assert gce.refused("POST", path, one("two")) == (400, "invalid")
    assert gce.refused("POST", f"{HERE}/instances?requestId={uuid.UUID(int=0)}", one("two")) == (400, "invalid")
    assert gce.refused("POST", f"{HERE}/instances?requestId=mine", one("two")) == (400, "invalid")
    # Also when it is long over and the machine is gone: nothing is made twice.
    gce.finish(answers[0])
    gce.do("DELETE", f"{HERE}/instances/one")
    assert gce.begin("POST", path, one())["id"] == answers[0]["id"]
    # A failure is remembered as well.
    cloud.faults.no_capacity(times=1)
    again = f"{HERE}/instances?requestId={uuid.uuid4()}"
    assert gce.do("POST", again, one("dry"))["error"] == gce.begin("POST", again, one("dry"))["error"]
    assert not cloud.left()


def codes(operation: Any) -> list[str]:
    return [each["code"] for each in operation.get("error", {}).get("errors", [])]


def test_a_dry_zone_is_told_when_the_operation_ends(cloud: GceCloud, gce: Client) -> None:
    cloud.faults.no_capacity(zone=ZONE, lifecycle="spot")
    cloud.faults.slow("instances.insert", slow_s=2.0, times=1)
    operation = gce.begin("POST", f"{HERE}/instances", one(scheduling=SPOT))
    assert gce.get(f"{HERE}/instances/one")["status"] == "PROVISIONING"
    done = gce.finish(operation)
    assert codes(done) == ["ZONE_RESOURCE_POOL_EXHAUSTED"]
    assert (done["httpErrorStatusCode"], done["status"]) == (503, "DONE")
    assert not cloud.left()
    assert gce.refused("GET", f"{HERE}/instances/one") == (404, "notFound")
    cloud.faults.clear()
    cloud.faults.no_capacity(machine="e2-medium", details=True, times=1)
    assert codes(gce.do("POST", f"{HERE}/instances", one())) == ["ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"]
    cloud.faults.refuse_launch(times=1)
    done = gce.do("POST", f"{HERE}/instances", one())
    assert (codes(done), done["httpErrorStatusCode"]) == (["QUOTA_EXCEEDED"], 403)
    cloud.faults.no_quota(times=1)
    assert gce.refused("POST", f"{HERE}/instances", one()) == (403, "quotaExceeded")
    assert not cloud.left()


def test_several_come_together_or_not_at_all(cloud: GceCloud, gce: Client) -> None:
    path = f"{HOME}/regions/us-central1/instances/bulkInsert"
    cloud.faults.no_capacity(zone=ZONE)
    others = {f"zones/us-central1-{letter}": {"preference": "DENY"} for letter in "bcf"}
    only = {"targetShape": "ANY_SINGLE_ZONE", "locations": others}
    done = gce.do("POST", path, several(2, locationPolicy=only))
    assert codes(done) == ["VM_MIN_COUNT_NOT_REACHED", "ZONE_RESOURCE_POOL_EXHAUSTED"]
    assert not cloud.left()
    # Some are there, but too few: those that came go again.
    cloud.faults.clear()
    cloud.faults.no_capacity(zone=ZONE, available=1)
    done = gce.do("POST", path, several(2, locationPolicy=only))
    assert codes(done) == ["VM_MIN_COUNT_NOT_REACHED"]
    group = done["operationGroupId"]
    children = gce.get(f"{HERE}/operations", filter=f'operationGroupId = "{group}"')["items"]
    assert sorted(map(codes, children)) == [[], ["ZONE_RESOURCE_POOL_EXHAUSTED"]]
    assert not cloud.left()
    # Another zone has enough.
    done = gce.do("POST", path, several(2))
    assert codes(done) == []
    status = done["instancesBulkInsertOperationMetadata"]["perLocationStatus"]
    assert status == {
        "zones/us-central1-b": {
            "status": "DONE",
            "targetVmCount": 2,
            "createdVmCount": 2,
            "failedToCreateVmCount": 0,
            "deletedVmCount": 0,
        }
    }
    everywhere = gce.get(f"{HOME}/aggregated/operations", filter=f'operationGroupId = "{done["operationGroupId"]}"')
    kinds = [each["operationType"] for scope in everywhere["items"].values() for each in scope.get("operations", [])]
    assert sorted(kinds) == ["bulkInsert", "insert", "insert"]
    assert gce.names(f"{HOME}/zones/us-central1-b/instances") == ["m-0", "m-1"]
    # Their names are taken there, so nothing is made.
    there = {"targetShape": "ANY_SINGLE_ZONE", "zones": [{"zone": "zones/us-central1-b"}]}
    assert codes(gce.do("POST", path, several(3, locationPolicy=there))) == ["RESOURCE_ALREADY_EXISTS"]
    # Fewer are enough.
    zonal = several(2, least=1)
    del zonal["locationPolicy"], zonal["perInstanceProperties"]
    zonal["namePattern"] = "n-##"
    assert codes(gce.do("POST", f"{HERE}/instances/bulkInsert", zonal)) == []
    assert gce.names(f"{HERE}/instances") == ["n-01"]
    assert len(cloud.left().instances) == 3


def test_bulk_requests_that_make_no_sense(cloud: GceCloud, gce: Client) -> None:
    path = f"{HOME}/regions/us-central1/instances/bulkInsert"
    for wrong in (
        several(0),
        several(2, least=3),
        {**several(2), "count": "3"},
        {**several(2), "namePattern": "a-#"},
        several(2, locationPolicy={"locations": {"zones/mars-a": {"preference": "DENY"}}}),
        {"count": "1", "namePattern": "a-#"},
    ):
        assert gce.refused("POST", path, wrong)[0] == 400, wrong


# ── lists ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("name=e2-medium", ["e2-medium"]),
        ('name = "e2-medium" OR name = "e2-small"', ["e2-medium", "e2-small"]),
        ("(name=e2-medium OR name=e2-small) AND memoryMb = 4096", ["e2-medium"]),
        # OR binds tighter than AND.
        ("memoryMb = 4096 AND name=e2-medium OR name=e2-small", ["e2-medium"]),
        ("(name:e2-) (guestCpus < 4) (NOT name=e2-micro)", ["e2-medium", "e2-small", "e2-standard-2"]),
        ("accelerators.guestAcceleratorType=nvidia-b200", []),
        ("accelerators:* AND name=g4*48", ["g4-standard-48"]),
        ('name eq "e2-(small|medium)"', ["e2-medium", "e2-small"]),
        ("(name eq e2-.*) (name ne .*-[0-9]+)", ["e2-medium", "e2-micro", "e2-small"]),
        ("isSharedCpu=true AND name!=e2-micro", ["e2-medium", "e2-small"]),
    ],
)
def test_filters(cloud: GceCloud, gce: Client, wanted: str, found: list[str]) -> None:
    assert gce.names(f"{HOME}/zones/us-central1-f/machineTypes", filter=wanted) == found


@pytest.mark.parametrize(
    "wrong",
    ["name", "nmae=x", "name=", "name ~ x", "(name=x", "name=x name eq y", "name eq a OR name eq b", "name eq ("],
)
def test_filters_that_are_not_understood(cloud: GceCloud, gce: Client, wrong: str) -> None:
    path = f"{HERE}/machineTypes?{urllib.parse.urlencode({'filter': wrong})}"
    assert gce.refused("GET", path) == (400, "invalid")


def test_lists_come_in_pages(cloud: GceCloud, gce: Client) -> None:
    whole = gce.names(f"{HERE}/machineTypes")
    assert "n1-standard-4" in whole
    assert "a4-highgpu-8g" not in whole
    pages, token = [], ""
    while not pages or token:
        page = gce.get(f"{HERE}/machineTypes", maxResults="20", **({"pageToken": token} if token else {}))
        pages.append([each["name"] for each in page["items"]])
        token = page.get("nextPageToken", "")
    assert [name for page in pages for name in page] == whole
    assert {len(page) for page in pages[:-1]} == {20}
    assert gce.refused("GET", f"{HERE}/machineTypes?pageToken=xyz") == (400, "invalid")
    everywhere = gce.get(f"{HOME}/aggregated/acceleratorTypes", filter="name=nvidia-b200")["items"]
    assert [each["name"] for each in everywhere["zones/us-central1-b"]["acceleratorTypes"]] == ["nvidia-b200"]
    assert everywhere[f"zones/{ZONE}"]["warning"]["code"] == "NO_RESULTS_ON_PAGE"


def test_what_was_always_there(cloud: GceCloud, gce: Client) -> None:
    cloud.set_quota("NVIDIA_L4_GPUS", 0.0, "us-central1")
    region = gce.get(f"{HOME}/regions/us-central1")
    assert {"metric": "NVIDIA_L4_GPUS", "limit": 0.0, "usage": 0.0} in region["quotas"]
    assert region["zones"][0].endswith(f"/{ZONE}")
    assert gce.names(f"{HOME}/zones", filter="status=UP")[0] == "europe-west4-a"
    assert gce.get(f"/compute/v1/projects/{OTHER_PROJECT}")["name"] == OTHER_PROJECT
    family = gce.get("/compute/v1/projects/debian-cloud/global/images/family/debian-12")
    assert gce.get(f"/compute/v1/projects/debian-cloud/global/images/{family['name']}") == family
    missing = "/compute/v1/projects/debian-cloud/global/images/family/debian-99"
    assert gce.refused("GET", missing) == (404, "notFound")
    assert gce.names(f"{HOME}/global/networks") == ["default"]
    assert gce.names(f"{HOME}/regions/us-central1/subnetworks") == ["default"]
    assert "default-allow-ssh" in gce.names(f"{HOME}/global/firewalls")


def test_policies_that_are_used_stay(cloud: GceCloud, gce: Client) -> None:
    path = f"{HOME}/regions/us-central1/resourcePolicies"
    body = {"name": "close", "description": "a claim's", "groupPlacementPolicy": {"collocation": "COLLOCATED"}}
    gce.do("POST", path, body)
    assert gce.refused("POST", path, body) == (409, "alreadyExists")
    assert gce.get(f"{path}/close")["status"] == "READY"
    link = gce.get(path, filter='name = "clo*"')["items"][0]["selfLink"]
    assert gce.refused("POST", f"{HERE}/instances", one(resourcePolicies=[link])) == (400, "invalid")
    gce.launch(resourcePolicies=[link], machineType=f"zones/{ZONE}/machineTypes/n2-standard-2")
    assert gce.refused("DELETE", f"{path}/close") == (400, "resourceInUseByAnotherResource")
    gce.do("DELETE", f"{HERE}/instances/one")
    gce.do("DELETE", f"{path}/close")
    assert not cloud.left()


# ── faults of the API ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_calls_fail_as_ordered(cloud: GceCloud, gce: Client) -> None:
    cloud.faults.throttle("projects.get", times=1)
    assert gce.refused("GET", HOME) == (429, "rateLimitExceeded")
    assert gce.get(HOME)["name"] == PROJECT
    number = cloud.faults.internal_error(for_s=30.0)
    assert gce.refused("GET", HOME) == (500, "backendError")
    cloud.faults.clear(number)

    cloud.faults.slow("instances.insert", slow_s=1.0, times=1)
    begun = time.monotonic()
    cloud.faults.lose_replies("instances.insert")
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        gce.ask("POST", f"{HERE}/instances", one())
    (instance,) = cloud.left().instances
    cloud.machine(instance).wait_running()
    assert time.monotonic() - begun > 1.0

    cloud.faults.unauthorized("instances.delete")
    assert gce.refused("DELETE", f"{HERE}/instances/one") == (403, "forbidden")
    asked = {"permissions": ["compute.instances.delete", "compute.instances.get"]}
    assert gce.ask("POST", f"{HERE}/instances/one/testIamPermissions", asked)[1] == {
        "permissions": ["compute.instances.get"]
    }
    everywhere = gce.ask("POST", f"/v1/projects/{PROJECT}:testIamPermissions", asked)
    assert everywhere == (200, {"permissions": ["compute.instances.get"]})
    cloud.faults.listing_lag(600.0)
    assert gce.names(f"{HERE}/instances") == []
    assert gce.get(f"{HERE}/instances/one")["name"] == "one"
    assert cloud.calls()["instances.insert"] == 1


def test_a_real_client_signs_in_with_the_service_account(cloud: GceCloud) -> None:
    google = pytest.importorskip("google.auth")
    from google.auth.transport.urllib3 import AuthorizedHttp

    credentials, project = google.default(scopes=[ALL])
    assert project == PROJECT
    answer = AuthorizedHttp(credentials).request("GET", f"{cloud.endpoint}{HOME}")
    assert json.loads(answer.data)["name"] == PROJECT
