"""Local SSD disks that a machine type of Compute Engine brings hold the node's folders."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from own_disks import disk_calls, ext4_uuid, replace_mounting
from test_gce_bootstrap import NAMES, PROJECT, Machine, machine
from test_gce_startup import order

from stoker.model.resources import GceResources
from stoker.providers.boot.install_paths import InstallPaths
from stoker.providers.boot.local_disks import hold_folders
from stoker.providers.gce import startup

__all__ = ["machine"]

pytestmark = pytest.mark.slow


def with_local_ssd(machine: Machine, count: int, size: int = 1 << 60) -> list[Path]:
    """Local SSD disks of this size, as files that a file system can be made on; only `mount` and `mdadm` are replaced.

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
        # In sectors of 512 bytes: https://docs.kernel.org/admin-guide/abi-stable.html#abi-sys-block-disk-size
        sectors = machine.root / "sys/class/block" / disk.name / "size"
        sectors.parent.mkdir(parents=True)
        sectors.write_text(f"{size // 512}\n")
        (links / f"google-local-nvme-ssd-{number}").symlink_to(disk)
        (links / f"google-local-nvme-ssd-{number}-part1").symlink_to(disk)
        disks.append(disk)
    # The boot disk is there, too, and must stay what it is.
    (links / "google-persistent-disk-0").symlink_to("/dev/null")
    replace_mounting(machine, "mount", "mdadm")
    return disks


def test_a_local_disk_holds_the_nodes_folders(machine: Machine) -> None:
    (disk,) = with_local_ssd(machine, 1)
    ran = machine.boot()
    assert ran.returncode == 0, ran.stdout
    folders = machine.root / "var/lib/stoker"
    assert disk_calls(machine) == [f"mount -o noatime {disk} {folders}"]
    # "this may be used with UUID= as a more robust way to name devices that works even if disks are added and
    # removed. See fstab(5)": https://manpages.debian.org/bookworm/mount/fstab.5.en.html
    name = ext4_uuid(disk)
    assert (machine.root / "etc/fstab").read_text().startswith(f"UUID={name} {folders} ext4 defaults,noatime,nofail")
    assert f"{folders} is on 1 local disk" in ran.stdout and (folders / "node/node.json").exists()


def test_several_local_disks_are_one(machine: Machine) -> None:
    disks = with_local_ssd(machine, 3)
    # The array is made by mdadm alone: what is replaced here makes none.
    replace_mounting(machine, "mkfs.ext4")
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


def uses_no_disk(machine: Machine) -> bool:
    assert (machine.root / "var/lib/stoker/node/node.json").exists()
    return not disk_calls(machine) and not (machine.root / "opt/stoker/boot/disks").exists()


@pytest.mark.parametrize("count", [1, 3])
def test_disks_with_less_room_than_the_boot_disk_are_not_used(machine: Machine, count: int) -> None:
    """`resources.disk: 1TB` on a2-ultragpu-1g, which brings 375 GB."""
    free = shutil.disk_usage(machine.root).free
    disks = with_local_ssd(machine, count, size=free // (count + 1))
    ran = machine.boot()
    assert ran.returncode == 0 and uses_no_disk(machine)
    assert "local disks are not used: the boot disk has more room" in ran.stdout
    assert all(not any(disk.read_bytes()) for disk in disks)


def test_several_disks_are_measured_together(machine: Machine) -> None:
    with_local_ssd(machine, 3, size=shutil.disk_usage(machine.root).free // 2)
    machine.stub("mkfs.ext4", "#!/bin/sh\n")
    assert "is on 3 local disks" in machine.boot().stdout


def only_has(monkeypatch: pytest.MonkeyPatch, machine: Machine, *programs: str) -> None:
    """An image with these programs beside those for file systems, which are the machine's stand-ins."""
    (machine.root / "opt/stoker/boot").mkdir(parents=True)
    monkeypatch.setattr(shutil, "which", lambda name: name if name in programs else None)
    monkeypatch.setenv("STOKER_BOOT_ROOT", str(machine.root))
    monkeypatch.setenv("PATH", f"{machine.root / 'stubs'}:{os.environ['PATH']}")


def test_without_mdadm_lvm_makes_one_of_several(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """ "vgcreate creates a new VG on block devices. If the devices were not previously initialized as PVs with
    pvcreate, vgcreate will inititialize them" (vgcreate(8)); "-i|--stripes" and "100%FREE" are of lvcreate(8)."""
    disks = with_local_ssd(machine, 3, size=shutil.disk_usage(machine.root).free // 2)
    replace_mounting(machine, "vgcreate", "lvcreate", "mkfs.ext4")
    only_has(monkeypatch, machine, "lvcreate")
    said = hold_folders(InstallPaths(), [*map(str, disks)])
    group, volume, formatted, mounted = disk_calls(machine)
    assert group == f"vgcreate --yes stoker {' '.join(map(str, disks))}"
    assert volume == "lvcreate --yes --name node --stripes 3 --extents 100%FREE stoker"
    assert formatted.endswith(" /dev/stoker/node") and " /dev/stoker/node " in mounted
    assert said.endswith("is on 3 local disks (/dev/stoker/node)")


def test_without_both_one_disk_alone_counts_and_the_boot_says_so(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The largest part of such a machine's room cannot be used, which the plan cannot know."""
    disks = with_local_ssd(machine, 3, size=shutil.disk_usage(machine.root).free // 2)
    only_has(monkeypatch, machine)
    why = "; one of 3 counts: the image has neither mdadm nor LVM to make one of them"
    said = hold_folders(InstallPaths(), [*map(str, disks)])
    assert said == f"local disks are not used: the boot disk has more room{why}"
    said = hold_folders(InstallPaths(), [*map(str, disks)], asked_bytes=1 << 20)
    assert said == f"{machine.root / 'var/lib/stoker'} is on 1 local disk ({disks[0]}){why}"


@pytest.mark.parametrize("exit_code", [0, 1])
def test_where_there_is_selinux_the_folders_get_their_label(machine: Machine, exit_code: int) -> None:
    """A new file system has none, and confined programs may not read what is `unlabeled_t`."""
    (disk,) = with_local_ssd(machine, 1)
    machine.stub("restorecon", f'#!/bin/sh\necho "restorecon $*" >>"{machine.root}/disk-calls"\nexit {exit_code}\n')
    ran = machine.boot()
    folders = machine.root / "var/lib/stoker"
    assert ran.returncode == 0 and f"{folders} is on 1 local disk" in ran.stdout
    assert disk_calls(machine) == [f"mount -o noatime {disk} {folders}", f"restorecon {folders}"]


def test_a_disk_that_holds_something_is_left_alone(machine: Machine) -> None:
    """The image, or its administrator, has use for it."""
    (disk,) = with_local_ssd(machine, 1)
    subprocess.run(["mkfs.ext4", "-q", "-F", disk], check=True)
    before = disk.read_bytes()
    ran = machine.boot()
    assert ran.returncode == 0 and uses_no_disk(machine) and disk.read_bytes() == before
    assert "local disks" not in ran.stdout


def test_a_job_that_writes_its_disks_keeps_them(machine: Machine) -> None:
    scratch = {"disks": [{"type": "SCRATCH", "autoDelete": True, "interface": "NVME"}]}

    def told(overrides: dict[str, Any]) -> dict[str, Any]:
        asked = order()
        resources = replace(asked.spec.resources, gce=GceResources(overrides=overrides))
        more = startup.boot(replace(asked, spec=replace(asked.spec, resources=resources))).more
        return {**more, "names": NAMES, "project": PROJECT}

    with_local_ssd(machine, 1)
    assert machine.boot(more=told(scratch)).returncode == 0 and uses_no_disk(machine)
    shutil.rmtree(machine.root / "var/lib/stoker/node")
    assert "is on 1 local disk" in machine.boot(more=told({"minCpuPlatform": "x"})).stdout


def test_without_local_disks_nothing_is_touched(machine: Machine) -> None:
    assert machine.boot().returncode == 0
    assert not (machine.root / "etc/fstab").exists() and not (machine.root / "opt/stoker/boot/disks").exists()


def test_without_its_line_in_fstab_a_disk_is_not_used(machine: Machine) -> None:
    """No later boot would find it."""
    with_local_ssd(machine, 1)
    (machine.root / "etc/fstab").mkdir()
    ran = machine.boot()
    assert ran.returncode == 0 and "local disks are not used" in ran.stdout
    assert (machine.root / "var/lib/stoker/node/node.json").exists()
    assert not (machine.root / "opt/stoker/boot/disks").exists()


def test_disks_that_come_late_after_a_reboot_are_waited_for(machine: Machine) -> None:
    with_local_ssd(machine, 1)
    assert machine.boot().returncode == 0
    folders, calls = machine.root / "var/lib/stoker", machine.root / "disk-calls"
    folders.rename(machine.root / "on-disk")
    folders.mkdir()
    calls.unlink()
    (machine.root / "calls").unlink()
    # The third attempt finds the disk.
    machine.stub(
        "mount",
        f'#!/bin/sh\necho "mount $*" >>"{calls}"\n[ "$(wc -l <"{calls}")" -ge 3 ] || exit 32\n'
        f'cp -r "{machine.root}/on-disk/." "$1"\n',
    )
    machine.stub("sleep", "#!/bin/sh\n")
    assert machine.boot().returncode == 0
    assert disk_calls(machine) == [f"mount {folders}"] * 3
    assert machine.calls == ["systemctl start stoker-agent.service"] and not machine.is_deleted


def test_a_machine_that_lost_its_disks_never_trains_again(machine: Machine) -> None:
    """Booted once more, on another host: its folder is empty, and what it saved there is gone."""
    with_local_ssd(machine, 1)
    assert machine.boot().returncode == 0
    shutil.rmtree(machine.root / "var/lib/stoker/node")
    (machine.root / "calls").unlink()
    machine.stub("mount", "#!/bin/sh\nexit 32\n")
    machine.stub("sleep", "#!/bin/sh\n")
    machine.boot()
    assert machine.is_off and machine.is_deleted
    assert not (machine.root / "var/lib/stoker/node/node.json").exists()
