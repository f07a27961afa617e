"""Read a file that another process appends to, and free the disk blocks that were read.

A training may put a link or a pipe in the place of its file, also from inside a container: neither is ever opened.
"""

from __future__ import annotations

import ctypes
import os
import stat
from pathlib import Path

from stoker.agent.confinement import open_plain

# Punching a hole is a system call and a journal entry: done only for at least this much.
PUNCH_STEP_BYTES = 4 * 1024 * 1024
# Bytes that are not freed behind the durable offset: the last lines are quoted from the file, and the cause of a
# failure is found there.
KEEP_BYTES = 1024 * 1024
_BLOCK = 4096
_FALLOC_FL_KEEP_SIZE = 1
_FALLOC_FL_PUNCH_HOLE = 2


class FileTail:
    """A position in a growing file.

    `offset` counts bytes since the file began. It continues when the file is truncated by another process, so that an
    offset never means two things.
    """

    def __init__(self, path: Path, offset: int = 0) -> None:
        self._path = path
        self.offset = offset
        # Offset minus position in the file: not 0 only after the file was truncated.
        self._shift = 0
        self._punched = 0
        self._can_punch = True
        self._looked = False

    def waiting(self) -> int:
        """Return the number of unread bytes. An absent file has none."""
        try:
            status = self._path.lstat()
        except FileNotFoundError:
            return 0
        if not stat.S_ISREG(status.st_mode):
            return 0
        size = status.st_size
        place = self.offset - self._shift
        if size < place:
            # On the first call, a crash has lost the end of a file that was sent already, and the rest may be holes.
            # Later, another process has truncated the file, and everything in it is new.
            place = 0 if self._looked else size
            self._shift = self.offset - place
            self._punched = 0
        self._looked = True
        return size - place

    def read(self, limit: int) -> bytes:
        """Return the next bytes, at most `limit`, and advance. Raises OSError."""
        count = min(limit, self.waiting())
        if count <= 0:
            return b""
        handle = open_plain(self._path, os.O_RDONLY)
        try:
            data = os.pread(handle, count, self.offset - self._shift)
        finally:
            os.close(handle)
        self.offset += len(data)
        return data

    def forget(self, durable: int) -> None:
        """Free the disk blocks below the offset `durable`, in large steps. Does nothing where that is not supported."""
        place = durable - self._shift
        upto = (place - KEEP_BYTES) // _BLOCK * _BLOCK
        if not self._can_punch or upto - self._punched < PUNCH_STEP_BYTES:
            return
        try:
            _punch(self._path, self._punched, upto - self._punched)
        except (OSError, AttributeError):
            # A file system without holes, or a C library without the call: the file stays as large as it is.
            self._can_punch = False
        else:
            self._punched = upto


def _punch(path: Path, start: int, length: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    handle = open_plain(path, os.O_RDWR)
    try:
        if libc.fallocate(handle, _FALLOC_FL_PUNCH_HOLE | _FALLOC_FL_KEEP_SIZE, start, length) != 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
    finally:
        os.close(handle)
