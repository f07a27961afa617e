"""What a machine of the Compute Engine for tests may do, hears of, and reaches: others, the store and the logs."""

from __future__ import annotations

import json
import textwrap
from concurrent.futures import ThreadPoolExecutor

import compute_client
import pytest
from compute_client import HELLO, HERE, HOME, UP, ZONE, Client, metadata, several, told

from tests.support.gce import PROJECT, GceCloud, node_account, why_no_gce
from tests.support.servers import isolated, pytest_isolated

# Fixtures that all tests of this Compute Engine share.
shared, cloud, gce = compute_client.shared, compute_client.cloud, compute_client.gce

if why_no_gce() is not None:
    pytest.skip(str(why_no_gce()), allow_module_level=True)

if not isolated():

    def test_in_isolation() -> None:
        pytest_isolated(__file__)


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
