"""A machine that boots an image which mounts its instance store: the node's folders are there, after a reboot too."""

from __future__ import annotations

import pytest
from ec2_world import Ec2World

from tests.support.machines import why_no_machines
from tests.support.servers import isolated, pytest_isolated

if why_no_machines() is not None:
    pytest.skip(str(why_no_machines()), allow_module_level=True)

TRAIN = """\
import os, time
from pathlib import Path
print("trains in", os.getcwd(), flush=True)
while not Path("/run/save").exists():
    time.sleep(0.1)
Path("checkpoints").mkdir(exist_ok=True)
Path("checkpoints/state").write_text("saved just before the reboot")
os.sync()
Path("/run/saved").touch()
time.sleep(3600)
"""
RESOURCES = {"machine": ["c6id.xlarge"], "image": "nvme-12-amd64-*", "disk": "200GB"}
STORE = "/var/instance-store/stoker"

if isolated():

    def test_the_nodes_folders_are_on_the_disks_that_the_image_mounts(ec2: Ec2World) -> None:
        ec2.write(TRAIN)
        with ec2.governed():
            job = ec2.submit(resources=RESOURCES)
            ec2.until(job, lambda: any(line.startswith("trains in") for line in ec2.lines(job)), "it trains")
            machine = ec2.machine(job)
            assert "stoker: /var/lib/stoker is on local disks (/opt/dlami/nvme, which" in machine.console()
            assert "trains in /var/lib/stoker/node/code" in ec2.lines(job)
            assert machine.run("stat", "-c", "%a %U", "/var/lib/stoker/node").split() == ["700", "root"]
            assert "node.json" in machine.run("ls", f"{STORE}/node")
            # Saved, and not yet sent: only the disk has it when the machine goes down, without a word to its services.
            machine.run(
                "sh", "-c", "systemctl kill --kill-whom=main -s STOP stoker-agent && touch /run/save && "
                "until [ -e /run/saved ]; do sleep 0.1; done"
            )  # fmt: skip
            machine.run("systemctl", "reboot", "--force", "--force", check=False)
            # The agent found its node on the disks, with the file. A file of the last minute before a crash of its
            # machine counts only if its format shows that all of it is there.
            found = "[stoker] nothing was saved: what was written to checkpoints/ was not whole in time"
            ec2.until(job, lambda: found in ec2.lines(job), "its agent looks for what can be saved")
            ec2.cli("stop", job)
            assert ec2.ended(job).phase == "stopped", ec2.story(job)
        machine.wait_gone()

else:

    def test_the_instance_store_in_a_network_of_its_own() -> None:
        pytest_isolated(__file__)
