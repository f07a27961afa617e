"""Report every write, rename and removal below a folder as it happens, through the kernel's inotify.

A scan shows the state of a folder; it misses changes between two scans. Writes through a memory mapping make no event.
Where the kernel gives no watches (on a network file system, or when a limit is used up), OSError is raised.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_MODIFY, _CLOSE_WRITE, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x2, 0x8, 0x40, 0x80, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF, _OVERFLOW, _IGNORED, _ISDIR = 0x400, 0x800, 0x4000, 0x8000, 0x40000000
_ONLYDIR, _DONT_FOLLOW = 0x01000000, 0x02000000
_MASK = _MODIFY | _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE
_HEADER = struct.Struct("iIII")
_BUFFER_BYTES = 256 * 1024
# More folders than this are not watched: each watch takes about 1 kB of kernel memory.
MAX_FOLDERS = 2000


class FolderEvent(NamedTuple):
    """A change of `path`, relative to the folder. `source`: it was renamed from there. `gone`: it was removed."""

    path: str
    source: str | None = None
    gone: bool = False


class EventsLost(OSError):
    """Events were lost, or can no longer be received: conclusions from earlier events do not hold."""


class FolderEvents:
    """Watches on a folder and all folders below it, for one thread. Raises OSError where the kernel has none."""

    def __init__(self, folder: Path) -> None:
        self._folder = os.fspath(folder)
        self._libc = ctypes.CDLL(None, use_errno=True)
        # A C library without the call, as outside Linux, raises AttributeError.
        try:
            self._handle = _checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        except AttributeError as error:
            raise EventsLost(str(error)) from None
        self._paths: dict[int, str] = {}
        self._poll = select.poll()
        self._poll.register(self._handle, select.POLLIN)
        self._wake_handle = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll.register(self._wake_handle, select.POLLIN)
        try:
            self._root = self._add("")
            list(self._add_below(""))
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        os.close(self._handle)
        os.close(self._wake_handle)

    def wait(self, seconds: float | None) -> bool:
        """Wait for events, at most this many seconds. Return True if there are any, or `interrupt` was called."""
        # Rounded up: a fraction of a millisecond rounded down to 0 would make the caller spin.
        return bool(self._poll.poll(None if seconds is None else max(0, int(seconds * 1000) + 1)))

    def pending(self) -> bool:
        """Return True if there are unread events. Any thread may call this before `close`."""
        poll = select.poll()
        poll.register(self._handle, select.POLLIN)
        return bool(poll.poll(0))

    def interrupt(self) -> None:
        """Make `wait` return at once, now and in future calls. Any thread may call this before `close`."""
        os.eventfd_write(self._wake_handle, 1)

    def read(self) -> list[FolderEvent]:
        """Return the events since the last call, in order. Raises EventsLost."""
        found: list[FolderEvent] = []
        moved: dict[int, str] = {}
        while True:
            try:
                data = os.read(self._handle, _BUFFER_BYTES)
            except BlockingIOError:
                return found
            place = 0
            while place < len(data):
                watch, mask, cookie, length = _HEADER.unpack_from(data, place)
                name = data[place + _HEADER.size : place + _HEADER.size + length].rstrip(b"\0")
                place += _HEADER.size + length
                found += self._event(watch, mask, cookie, os.fsdecode(name), moved)

    def _event(self, watch: int, mask: int, cookie: int, name: str, moved: dict[int, str]) -> Iterator[FolderEvent]:
        if mask & _OVERFLOW or (watch == self._root and mask & (_DELETE_SELF | _MOVE_SELF | _IGNORED)):
            raise EventsLost("events were lost")
        if mask & _IGNORED:
            self._paths.pop(watch, None)
            return
        below = self._paths.get(watch)
        if below is None or not name:
            return
        path = f"{below}/{name}" if below else name
        if mask & _MOVED_FROM:
            moved[cookie] = path
        source = moved.pop(cookie, None) if mask & _MOVED_TO else None
        yield FolderEvent(path, source, gone=bool(mask & (_MOVED_FROM | _DELETE)))
        if mask & _ISDIR and mask & (_CREATE | _MOVED_TO):
            # Entries that were created before the watch was added made no event.
            try:
                if source is not None:
                    self._rename(source, path)
                self._add(path)
                yield from self._add_below(path)
            except FileNotFoundError:
                return

    def _rename(self, source: str, path: str) -> None:
        """Update the paths of watches: a renamed folder keeps its watch."""
        for watch, old in self._paths.items():
            if old == source or old.startswith(f"{source}/"):
                self._paths[watch] = path + old[len(source) :]

    def _add(self, path: str) -> int:
        if len(self._paths) >= MAX_FOLDERS:
            raise EventsLost(f"there are more than {MAX_FOLDERS:,} folders")
        whole = f"{self._folder}/{path}" if path else self._folder
        mask = _MASK | _ONLYDIR | (_DONT_FOLLOW if path else _DELETE_SELF | _MOVE_SELF)
        watch = _checked(self._libc.inotify_add_watch(self._handle, os.fsencode(whole), mask))
        self._paths[watch] = path
        return watch

    def _add_below(self, path: str) -> Iterator[FolderEvent]:
        """Watch the folders in a new folder, and yield an event for each entry, as if it had just been written."""
        with os.scandir(f"{self._folder}/{path}" if path else self._folder) as entries:
            for entry in entries:
                inner = f"{path}/{entry.name}" if path else entry.name
                yield FolderEvent(inner)
                if entry.is_dir(follow_symlinks=False):
                    try:
                        self._add(inner)
                        yield from self._add_below(inner)
                    except (FileNotFoundError, NotADirectoryError):
                        continue


def _checked(result: int) -> int:
    if result < 0:
        problem = ctypes.get_errno()
        raise OSError(problem, os.strerror(problem))
    return result
