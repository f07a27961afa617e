"""The instance store of an EC2 machine holds the node's folders: raw NVMe devices, or what the image made of them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from own_disks import disk_calls, ext4_uuid, replace_mounting
from test_ec2_userdata import Machine, machine

from stoker.providers.boot import local_disks
from stoker.providers.boot.install_paths import InstallPaths
from stoker.providers.boot.local_disks import place_folders

__all__ = ["machine"]

pytestmark = pytest.mark.slow

# "EBS uses single-root I/O virtualization […] Model Number: Amazon Elastic Block Store", and for the others "Amazon EC2
# NVMe Instance Storage": https://docs.aws.amazon.com/ebs/latest/userguide/identify-nvme-ebs-device.html
# The kernel pads the model to the 40 characters that NVMe has for it.
STORE, EBS = "Amazon EC2 NVMe Instance Storage", "Amazon Elastic Block Store"


def a_disk(root: Path, name: str, model: str = STORE, size: int = 1 << 60) -> Path:
    """An NVMe device as sysfs and /dev show it, as a file that a file system can be made on."""
    disk, block = root / "dev" / name, root / "sys/class/block" / name
    disk.parent.mkdir(exist_ok=True)
    with disk.open("wb") as file:
        file.truncate(64 << 20)
    (block / "device").mkdir(parents=True)
    (block / "holders").mkdir()
    (block / "device/model").write_text(f"{model:40}\n")
    # In sectors of 512 bytes: https://docs.kernel.org/admin-guide/abi-stable.html#abi-sys-block-disk-size
    (block / "size").write_text(f"{size // 512}\n")
    return disk


def with_instance_store(machine: Machine, count: int, size: int = 1 << 60) -> list[Path]:
    """A machine with its root volume first, as kernels mostly number them; only `mount` and `mdadm` are replaced."""
    (machine.root / "etc").mkdir(exist_ok=True)
    a_disk(machine.root, "nvme0n1", EBS)
    replace_mounting(machine, "mount", "mdadm")
    return [a_disk(machine.root, f"nvme{number}n1", size=size) for number in range(1, count + 1)]


def uses_no_disk(machine: Machine) -> bool:
    assert (machine.root / "var/lib/stoker/node/node.json").exists()
    return not disk_calls(machine) and not (machine.root / "opt/stoker/boot/disks").exists()


def test_one_disk_holds_the_nodes_folders(machine: Machine) -> None:
    (disk,) = with_instance_store(machine, 1)
    ran = machine.boot()
    assert ran.returncode == 0, ran.stdout
    folders = machine.root / "var/lib/stoker"
    assert disk_calls(machine) == [f"mount -o noatime {disk} {folders}"]
    name = ext4_uuid(disk)
    (line,) = (machine.root / "etc/fstab").read_text().splitlines()
    assert line.startswith(f"UUID={name} {folders} ext4 defaults,noatime,nofail,x-systemd.before=stoker-agent.service")
    assert f"stoker: {folders} is on 1 local disk" in ran.stdout and (folders / "node/node.json").exists()
    assert not any((machine.root / "dev/nvme0n1").read_bytes()), "the root volume was touched"


def test_eight_disks_are_one(machine: Machine) -> None:
    """p5.48xlarge. Numbers of devices have two digits where there are many network volumes."""
    disks = [*with_instance_store(machine, 7), a_disk(machine.root, "nvme10n1")]
    # The array is made by mdadm alone: what is replaced here makes none.
    replace_mounting(machine, "mkfs.ext4")
    assert machine.boot().returncode == 0
    made, formatted, mounted = disk_calls(machine)
    names = " ".join(map(str, disks))
    assert made == f"mdadm --create /dev/md/stoker --run --force --level=0 --raid-devices=8 {names}"
    assert formatted.endswith(" /dev/md/stoker") and " /dev/md/stoker " in mounted


@pytest.mark.parametrize("broken", ["mount", "mkfs.ext4", "mdadm"])
def test_a_disk_that_cannot_be_used_ends_no_boot(machine: Machine, broken: str) -> None:
    with_instance_store(machine, 2)
    machine.stub("mkfs.ext4", "#!/bin/sh\n")
    machine.stub(broken, "#!/bin/sh\necho no such thing\nexit 32\n")
    ran = machine.boot()
    assert ran.returncode == 0, ran.stdout
    (line,) = [line for line in ran.stdout.splitlines() if "local disks" in line]
    assert line.startswith("stoker: local disks are not used: ") and line.endswith("no such thing")
    assert (machine.root / "var/lib/stoker/node/node.json").exists()
    assert not (machine.root / "opt/stoker/boot/disks").exists()


def formatted(machine: Machine, disk: Path) -> None:
    subprocess.run(["mkfs.ext4", "-q", "-F", disk], check=True)


def partitioned(machine: Machine, disk: Path) -> None:
    (machine.root / f"sys/class/block/{disk.name}/{disk.name}p1").mkdir()
    (machine.root / f"sys/class/block/{disk.name}/{disk.name}p1/partition").write_text("1\n")


def held(machine: Machine, disk: Path) -> None:
    """Without a signature on the disk: dm-crypt in its plain mode leaves none."""
    (machine.root / f"sys/class/block/{disk.name}/holders/dm-0").mkdir()


@pytest.mark.parametrize("taken", [formatted, partitioned, held])
def test_a_disk_that_holds_something_is_left_alone(machine: Machine, taken: object) -> None:
    (disk,) = with_instance_store(machine, 1)
    assert callable(taken)
    taken(machine, disk)
    before = disk.read_bytes()
    ran = machine.boot()
    assert ran.returncode == 0 and uses_no_disk(machine) and disk.read_bytes() == before
    assert "stoker: local disks are not used: they hold something already" in ran.stdout


def test_volumes_and_paths_are_no_instance_store(machine: Machine) -> None:
    """A second volume of EBS that is blank, a path of a device with several, and a partition."""
    with_instance_store(machine, 0)
    disks = [a_disk(machine.root, "nvme1n1", EBS), *(a_disk(machine.root, f"nvme2{end}") for end in ("c0n1", "n1p1"))]
    ran = machine.boot()
    assert ran.returncode == 0 and uses_no_disk(machine) and "local disks" not in ran.stdout
    assert not any(any(disk.read_bytes()) for disk in disks)


def test_a_disk_that_is_smaller_than_asked_for_is_not_used(machine: Machine) -> None:
    """`resources.disk: 1TB` on g5.xlarge, which brings 250 GB."""
    (disk,) = with_instance_store(machine, 1, size=250 * 10**9)
    ran = machine.boot(more={"disk_bytes": 10**12})
    assert ran.returncode == 0 and uses_no_disk(machine) and not any(disk.read_bytes())
    assert "stoker: local disks are not used: they have 250 GB, 1000 GB were asked for" in ran.stdout


def test_a_disk_as_large_as_asked_for_is_used_whatever_the_root_volume_has(machine: Machine) -> None:
    free = shutil.disk_usage(machine.root).free
    with_instance_store(machine, 1, size=free // 2)
    assert "is on 1 local disk" in machine.boot(more={"disk_bytes": free // 4}).stdout


def test_without_a_size_the_larger_of_both_is_used(machine: Machine) -> None:
    with_instance_store(machine, 1, size=shutil.disk_usage(machine.root).free // 2)
    ran = machine.boot()
    assert "local disks are not used: the boot disk has more room" in ran.stdout and uses_no_disk(machine)


def test_a_job_that_maps_its_disks_keeps_them(machine: Machine) -> None:
    with_instance_store(machine, 1)
    ran = machine.boot(more={"own_disks": True})
    assert ran.returncode == 0 and uses_no_disk(machine) and "local disks" not in ran.stdout


def test_a_machine_that_lost_its_disks_never_trains_again(machine: Machine) -> None:
    """Stopped and started: "The data on an instance store volume persists only during the life of its associated
    instance" (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instance-store-lifetime.html)."""
    with_instance_store(machine, 1)
    assert machine.boot().returncode == 0
    shutil.rmtree(machine.root / "var/lib/stoker/node")
    machine.stub("mount", "#!/bin/sh\nexit 32\n")
    machine.stub("sleep", "#!/bin/sh\n")
    machine.boot()
    assert machine.is_off and not (machine.root / "var/lib/stoker/node/node.json").exists()


# ── Disks that the image has mounted ──────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def image(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> InstallPaths:
    """A machine whose image makes a volume of its instance store: LVM is on the device, and it is mounted at
    /opt/dlami/nvme."""
    (disk,) = with_instance_store(machine, 1)
    # "LABELONE" and "LVM2 001" in one of the first four sectors.
    with disk.open("r+b") as file:
        file.seek(512)
        file.write(b"LABELONE" + bytes(16) + b"LVM2 001")
    mounted = machine.root / "opt/dlami/nvme"
    mounted.mkdir(parents=True)
    (machine.root / "opt/stoker/boot").mkdir(parents=True)
    monkeypatch.setenv("STOKER_BOOT_ROOT", str(machine.root))
    monkeypatch.setenv("PATH", f"{machine.root}/stubs:{os.environ['PATH']}")
    monkeypatch.setattr(local_disks, "_is_mounted", lambda path: path == mounted)
    monkeypatch.setattr(local_disks, "_free_bytes", lambda path: 1 << (50 if path == mounted else 40))
    service(machine, "LoadState=loaded", "ActiveState=active", "Job=")
    return InstallPaths()


def service(machine: Machine, *lines: str) -> None:
    """What systemd says of the image's service."""
    told = "".join(f"echo {line}\n" for line in lines)
    machine.stub("systemctl", f'#!/bin/sh\necho "systemctl $*" >>"{machine.root}/calls"\n{told}')


def test_the_nodes_folders_go_where_the_image_has_mounted_its_disks(machine: Machine, image: InstallPaths) -> None:
    before = (machine.root / "dev/nvme1n1").read_bytes()
    assert place_folders(image) == f"{image.state} is on local disks ({image.image_disks}, which the image has made)"
    target = image.image_disks / "stoker"
    assert disk_calls(machine) == [f"mount --bind {target} {image.state}"]
    assert target.is_dir() and image.disks.exists()
    (line,) = image.fstab.read_text().splitlines()
    # "x-systemd.requires=: Configures a Requires= and an After= dependency between the created mount unit and another
    # systemd unit" (systemd.mount(5)).
    options = "bind,nofail,x-systemd.before=stoker-agent.service,x-systemd.requires=dlami-nvme.service"
    assert line == f"{target} {image.state} none {options} 0 0"
    assert (machine.root / "dev/nvme1n1").read_bytes() == before, "it was formatted"


def test_disks_of_an_image_are_taken_when_it_is_done_with_them(machine: Machine, image: InstallPaths) -> None:
    """First its service is in the queue, then at work, then done."""
    calls = machine.root / "calls"
    told = (("inactive", "7"), ("activating", "7"), ("active", ""))
    states = " ".join(f"'ActiveState={state}\\nJob={job}'" for state, job in told)
    machine.stub(
        "systemctl",
        f'#!/bin/sh\necho "systemctl $*" >>"{calls}"\nset -- {states}\nshift $(($(wc -l <"{calls}") - 1))\n'
        'printf "LoadState=loaded\\n$1\\n"\n',
    )
    assert "which the image has made" in place_folders(image)
    assert machine.calls == ["systemctl show --property=LoadState,ActiveState,Job dlami-nvme.service"] * 3


def test_disks_that_an_image_is_never_done_with_are_left_to_it(
    machine: Machine, image: InstallPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    service(machine, "LoadState=loaded", "ActiveState=activating", "Job=7")
    monkeypatch.setattr(local_disks, "_IMAGE_SERVICE_S", 0.0)
    said = place_folders(image)
    assert said.startswith("local disks are not used: ") and "dlami-nvme.service" in said and "\n" not in said
    assert not disk_calls(machine) and not image.fstab.exists()


def test_folders_that_cannot_be_put_on_the_images_disks_stay_where_they_are(
    machine: Machine, image: InstallPaths
) -> None:
    machine.stub("mount", "#!/bin/sh\necho permission denied\nexit 32\n")
    said = place_folders(image)
    assert said.startswith("local disks are not used: ") and said.endswith("permission denied")
    assert not image.disks.exists() and not image.fstab.exists()


@pytest.mark.parametrize(("asked", "used"), [(10**12, True), (1 << 61, False)])
def test_the_size_that_is_asked_for_is_that_of_the_disks(
    machine: Machine, image: InstallPaths, asked: int, used: bool
) -> None:
    assert ("is on local disks" in place_folders(image, asked)) is used
    assert bool(disk_calls(machine)) is used


def test_disks_of_an_unknown_size_are_not_used_and_end_no_boot(machine: Machine, image: InstallPaths) -> None:
    for path in image.blocks.glob("*/size"):
        path.write_text("unknown\n")
    assert place_folders(image, 10**12).startswith("local disks are not used: they have 0 GB")


def test_without_the_images_service_a_blank_disk_is_made_ready(machine: Machine, image: InstallPaths) -> None:
    """The service was removed, or failed before it did anything."""
    service(machine, "LoadState=not-found", "ActiveState=inactive")
    image.image_disks.rmdir()
    os.truncate(machine.root / "dev/nvme1n1", 0)
    os.truncate(machine.root / "dev/nvme1n1", 64 << 20)
    with pytest.MonkeyPatch.context() as unmounted:
        unmounted.setattr(local_disks, "_is_mounted", lambda _: False)
        assert "is on 1 local disk (" in place_folders(image)
