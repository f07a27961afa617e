"""Hear of every write, rename and removal below a folder from the kernel (inotify), as it happens.

A scan sees how a folder is; it misses what happens between two scans. Writes through a mapping make no event. Where the
kernel gives no watches (a network file system, a limit that is used up) there are no events, and OSError says so.
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
# More folders than this are not watched: each takes about 1 kB of the kernel's memory.
MOST_FOLDERS = 2000


class Event(NamedTuple):
    """Something happened to `path`, relative to the folder. `source`: it was renamed from there. `gone`: it is away."""

    path: str
    source: str | None = None
    gone: bool = False


class Unobserved(OSError):
    """Events were lost, or can no longer be heard: what was learnt from them does not hold."""


class FolderEvents:
    """Watches on a folder and all folders below it, for one thread. Raises OSError where the kernel has none."""

    def __init__(self, folder: Path) -> None:
        self._folder = os.fspath(folder)
        self._libc = ctypes.CDLL(None, use_errno=True)
        # Where the C library lacks the call, as outside of Linux, this is an AttributeError.
        try:
            self._handle = _checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        except AttributeError as error:
            raise Unobserved(str(error)) from None
        self._paths: dict[int, str] = {}
        self._poll = select.poll()
        self._poll.register(self._handle, select.POLLIN)
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll.register(self._bell, select.POLLIN)
        try:
            self._root = self._add("")
            list(self._add_below(""))
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        os.close(self._handle)
        os.close(self._bell)

    def wait(self, seconds: float | None) -> bool:
        """Whether there are events before so many seconds have passed, or `interrupt` was called."""
        # A part of a millisecond is rounded up, or this would be asked again and again.
        return bool(self._poll.poll(None if seconds is None else max(0, int(seconds * 1000) + 1)))

    def pending(self) -> bool:
        """Whether there are events that were not read. Any thread may ask, as long as it is not closed."""
        poll = select.poll()
        poll.register(self._handle, select.POLLIN)
        return bool(poll.poll(0))

    def interrupt(self) -> None:
        """Let `wait` return, now and from now on. Any thread may call this, as long as it is not closed."""
        os.eventfd_write(self._bell, 1)

    def read(self) -> list[Event]:
        """The events since the last call, in their order. Raises Unobserved."""
        found: list[Event] = []
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

    def _event(self, watch: int, mask: int, cookie: int, name: str, moved: dict[int, str]) -> Iterator[Event]:
        if mask & _OVERFLOW or (watch == self._root and mask & (_DELETE_SELF | _MOVE_SELF | _IGNORED)):
            raise Unobserved("events were lost")
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
        yield Event(path, source, gone=bool(mask & (_MOVED_FROM | _DELETE)))
        if mask & _ISDIR and mask & (_CREATE | _MOVED_TO):
            # What was made in it before it was watched made no event.
            try:
                if source is not None:
                    self._rename(source, path)
                self._add(path)
                yield from self._add_below(path)
            except FileNotFoundError:
                return

    def _rename(self, source: str, path: str) -> None:
        """A folder keeps its watch when it is renamed."""
        for watch, old in self._paths.items():
            if old == source or old.startswith(f"{source}/"):
                self._paths[watch] = path + old[len(source) :]

    def _add(self, path: str) -> int:
        if len(self._paths) >= MOST_FOLDERS:
            raise Unobserved(f"there are more than {MOST_FOLDERS:,} folders")
        whole = f"{self._folder}/{path}" if path else self._folder
        mask = _MASK | _ONLYDIR | (_DONT_FOLLOW if path else _DELETE_SELF | _MOVE_SELF)
        watch = _checked(self._libc.inotify_add_watch(self._handle, os.fsencode(whole), mask))
        self._paths[watch] = path
        return watch

    def _add_below(self, path: str) -> Iterator[Event]:
        """Watch the folders in a folder that is new here; its files, as if each was just written."""
        with os.scandir(f"{self._folder}/{path}" if path else self._folder) as entries:
            for entry in entries:
                inner = f"{path}/{entry.name}" if path else entry.name
                yield Event(inner)
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
