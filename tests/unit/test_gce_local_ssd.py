"""Local SSD disks that a machine type of Compute Engine brings hold the node's folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from test_gce_bootstrap import Machine, machine

__all__ = ["machine"]

pytestmark = pytest.mark.slow


def with_local_ssd(machine: Machine, count: int) -> list[Path]:
    """Local SSD disks, as files that a file system can be made on; only `mount` and `mdadm` are replaced.

    "google-local-nvme-ssd-0": https://cloud.google.com/compute/docs/disks/format-mount-local-ssd
    """
    links = machine.root / "dev/disk/by-id"
    links.mkdir(parents=True)
    (machine.root / "etc").mkdir(exist_ok=True)
    disks = []
    for number in range(count):
        disk = machine.root / f"dev/localssd0n{number + 1}"
        with disk.open("wb") as file:
            file.truncate(64 << 20)
        (links / f"google-local-nvme-ssd-{number}").symlink_to(disk)
        (links / f"google-local-nvme-ssd-{number}-part1").symlink_to(disk)
        disks.append(disk)
    # The boot disk is there, too, and must stay what it is.
    (links / "google-persistent-disk-0").symlink_to("/dev/null")
    for name in ("mount", "mdadm"):
        machine.stub(name, f'#!/bin/sh\necho "{name} $*" >>"{machine.root}/disk-calls"\n')
    return disks


def disk_calls(machine: Machine) -> list[str]:
    path = machine.root / "disk-calls"
    return path.read_text().splitlines() if path.exists() else []


def test_a_local_disk_holds_the_nodes_folder(machine: Machine) -> None:
    (disk,) = with_local_ssd(machine, 1)
    ran = machine.boot()
    assert ran.returncode == 0, ran.stdout
    node = machine.root / "var/lib/stoker/node"
    assert disk_calls(machine) == [f"mount -o noatime {disk} {node}"]
    # ext4's magic number: https://www.kernel.org/doc/html/latest/filesystems/ext4/super.html
    with disk.open("rb") as file:
        file.seek(1024 + 0x38)
        assert file.read(2) == b"\x53\xef"
    assert (machine.root / "etc/fstab").read_text().startswith(f"{disk} {node} ext4 defaults,noatime,nofail")
    assert f"{node} is on 1 local disk" in ran.stdout and (node / "node.json").exists()


def test_several_local_disks_are_one(machine: Machine) -> None:
    disks = with_local_ssd(machine, 3)
    # The array is made by mdadm alone: what is replaced here makes none.
    machine.stub("mkfs.ext4", f'#!/bin/sh\necho "mkfs.ext4 $*" >>"{machine.root}/disk-calls"\n')
    assert machine.boot().returncode == 0
    made, formatted, mounted = disk_calls(machine)
    names = " ".join(map(str, disks))
    assert made == f"mdadm --create /dev/md/stoker --run --force --level=0 --raid-devices=3 {names}"
    assert formatted.endswith(" /dev/md/stoker") and " /dev/md/stoker " in mounted


@pytest.mark.parametrize("broken", ["mount", "mkfs.ext4"])
def test_a_disk_that_cannot_be_used_ends_no_boot(machine: Machine, broken: str) -> None:
    with_local_ssd(machine, 1)
    machine.stub(broken, "#!/bin/sh\necho no such thing\nexit 32\n")
    ran = machine.boot()
    assert ran.returncode == 0 and "local disks are not used" in ran.stdout and "no such thing" in ran.stdout
    assert (machine.root / "var/lib/stoker/node/node.json").exists()
    assert not (machine.root / "opt/stoker/boot/disks").exists()


def test_without_local_disks_nothing_is_touched(machine: Machine) -> None:
    assert machine.boot().returncode == 0
    assert not (machine.root / "etc/fstab").exists() and not (machine.root / "opt/stoker/boot/disks").exists()


def test_a_machine_that_lost_its_disks_never_trains_again(machine: Machine) -> None:
    """Booted once more, on another host: its folder is empty, and what it saved there is gone."""
    with_local_ssd(machine, 1)
    assert machine.boot().returncode == 0
    shutil.rmtree(machine.root / "var/lib/stoker/node")
    (machine.root / "calls").unlink()
    machine.boot()
    assert machine.is_off and machine.is_deleted
    assert not (machine.root / "var/lib/stoker/node/node.json").exists()
