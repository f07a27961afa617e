"""The Compute Engine for tests boots what it is asked to boot, and ends it as Google's does. gce rests on this."""

from __future__ import annotations

import json
import time

import compute_client
import pytest
from compute_client import BYE, HERE, HOME, SPOT, UP, ZONE, Client, metadata, one, properties, several, told

from tests.support.gce import PROJECT, GceCloud, node_account, why_no_gce
from tests.support.servers import isolated, pytest_isolated

# Fixtures that all tests of this Compute Engine share.
shared, cloud, gce = compute_client.shared, compute_client.cloud, compute_client.gce

if why_no_gce() is not None:
    pytest.skip(str(why_no_gce()), allow_module_level=True)

if not isolated():

    def test_in_isolation() -> None:
        pytest_isolated(__file__)


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
