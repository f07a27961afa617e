"""Recognise files that no disk holds: reading one may wait for ever, or never come to an end."""

from __future__ import annotations

import ctypes
import os

# Numbers of file systems from linux/magic.h whose files are views of the kernel. Memory disks are not among them.
_PSEUDO = frozenset(
    {
        0x9FA0,  # proc
        0x9FA1,  # openprom
        0x9FA2,  # usbdevfs
        0x62656572,  # sysfs
        0x64626720,  # debugfs
        0x74726163,  # tracefs
        0x73636673,  # securityfs
        0xF97CFF8C,  # selinuxfs
        0x43415D53,  # smackfs
        0x0027E0EB,  # cgroup
        0x63677270,  # cgroup2
        0x07655821,  # resctrl
        0x1CD1,  # devpts
        0xCAFE4A11,  # bpf
        0x62656570,  # configfs
        0x6165676C,  # pstore
        0xDE5E81E4,  # efivarfs
        0x19800202,  # mqueue
        0x42494E4D,  # binfmt_misc
        0x65735543,  # fusectl
        0x67596969,  # rpc_pipefs
        0x6E736673,  # nsfs
        0x09041934,  # anonymous inodes
    }
)
# Larger than `struct statfs`, whose first field is the number.
_STATFS_BYTES = 256


def is_pseudo(handle: int) -> bool:
    """Return whether the open file lies on no disk, but in /proc, /sys or alike. `handle` may be of O_PATH."""
    found = ctypes.create_string_buffer(_STATFS_BYTES)
    if ctypes.CDLL(None, use_errno=True).fstatfs(handle, found) != 0:
        problem = ctypes.get_errno()
        raise OSError(problem, os.strerror(problem))
    return ctypes.c_ulong.from_buffer(found).value & 0xFFFFFFFF in _PSEUDO
