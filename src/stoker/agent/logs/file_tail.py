"""Read a file that somebody else appends to, and give its disk back behind what was read.

A training may put a link or a pipe in the place of its file, and from inside a container: neither is ever opened.
"""

from __future__ import annotations

import ctypes
import os
import stat
from pathlib import Path

from stoker.agent.confinement import open_plain

# Punching is a system call and a journal entry: worth it for this much.
PUNCH_STEP_BYTES = 4 * 1024 * 1024
# Left alone behind what is durable: the last lines are quoted from the file, and the cause of a failure is found there.
KEEP_BYTES = 1024 * 1024
_BLOCK = 4096
_FALLOC_FL_KEEP_SIZE = 1
_FALLOC_FL_PUNCH_HOLE = 2


class FileTail:
    """A position in a growing file.

    `offset` counts bytes since the file began. It goes on counting when the file is cut short under us, so that an
    offset never means two things.
    """

    def __init__(self, path: Path, offset: int = 0) -> None:
        self._path = path
        self.offset = offset
        # Offset minus place in the file: not 0 only after the file was cut short.
        self._shift = 0
        self._punched = 0
        self._can_punch = True
        self._looked = False

    def waiting(self) -> int:
        """Bytes that were not read yet. A file that is not there has none."""
        try:
            status = self._path.lstat()
        except FileNotFoundError:
            return 0
        if not stat.S_ISREG(status.st_mode):
            return 0
        size = status.st_size
        place = self.offset - self._shift
        if size < place:
            # At the first look a crash has taken back the end of a file that was sent already, and what is left may be
            # holes. Later somebody has emptied the file, and all that is in it is new.
            place = 0 if self._looked else size
            self._shift = self.offset - place
            self._punched = 0
        self._looked = True
        return size - place

    def read(self, limit: int) -> bytes:
        """The next bytes, at most `limit`, and move on behind them. Raises OSError."""
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
        """Give back the disk below the offset `durable`, in large steps. Does nothing where that cannot be done."""
        place = durable - self._shift
        upto = (place - KEEP_BYTES) // _BLOCK * _BLOCK
        if not self._can_punch or upto - self._punched < PUNCH_STEP_BYTES:
            return
        try:
            _punch(self._path, self._punched, upto - self._punched)
        except (OSError, AttributeError):
            # A file system without holes, or a C library without the call: the file just stays as large as it is.
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
