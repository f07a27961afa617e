"""Disks of a machine that boots in a folder: files, and stand-ins for the programs that mount them."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Protocol


class Rooted(Protocol):
    """A machine whose files lie below a folder."""

    @property
    def root(self) -> Path: ...

    def stub(self, name: str, script: str) -> object: ...


def replace_mounting(machine: Rooted, *names: str) -> None:
    """Replace these programs by ones that only note how they were called."""
    for name in names:
        machine.stub(name, f'#!/bin/sh\necho "{name} $*" >>"{machine.root}/disk-calls"\n')


def disk_calls(machine: Rooted) -> list[str]:
    path = machine.root / "disk-calls"
    return path.read_text().splitlines() if path.exists() else []


def ext4_uuid(disk: Path) -> uuid.UUID:
    """The UUID of the file system on a disk, which must be ext4.

    Its magic number and UUID: https://www.kernel.org/doc/html/latest/filesystems/ext4/super.html
    """
    with disk.open("rb") as file:
        file.seek(1024 + 0x38)
        assert file.read(2) == b"\x53\xef"
        file.seek(1024 + 0x68)
        return uuid.UUID(bytes=file.read(16))
