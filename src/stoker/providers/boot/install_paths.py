"""The places of the agent's files on a machine. Python 3.6 or newer."""

import os
from pathlib import Path


class InstallPaths:
    """The places of the agent's files on the machine. STOKER_BOOT_ROOT moves all of them below a folder, for tests."""

    def __init__(self) -> None:
        root = Path(os.environ.get("STOKER_BOOT_ROOT") or "/")
        self.home = root / "opt/stoker"
        self.leave = self.home / "boot/leave"
        self.agent = self.home / "agent"
        self.programs = self.home / "bin"
        # The node's folder, with its copied inputs and its environments beside it.
        self.state = root / "var/lib/stoker"
        self.node = self.state / "node"
        self.disks = root / "opt/stoker/boot/disks"
        self.fstab = root / "etc/fstab"
        self.devices = root / "dev"
        self.blocks = root / "sys/class/block"
        self.image_disks = root / "opt/dlami/nvme"
        self.units = root / "etc/systemd/system"
        self.output = root / "var/log/stoker-boot.log"
