"""The agent's side of `stoker.train.checkpoint`: read requests for commits, and answer them."""

from __future__ import annotations

import json
import logging
import os
import secrets
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from stoker.agent.checkpoints.folder_snapshot import OPEN_FOLDER, Selection, scan
from stoker.agent.checkpoints.save_protocol import MARKER, MAX_JSON_BYTES, Lock, count_files, remove
from stoker.agent.checkpoints.unreadable_files import FileUnreadable, naming_unreadable
from stoker.agent.confinement import handle_path, open_plain, opened_folder, read_plain, replace_plain
from stoker.model import codec
from stoker.model.errors import CodecError
from stoker.model.key_segments import is_safe_name
from stoker.store.checkpoint_manifests import MOST_COUNT

log = logging.getLogger(__name__)

_REQUEST_BYTES = 64 * 1024
_REQUESTS = "commits"
_ANSWERS = "commits.done"
# The number of answers to retain: the script reads the newest only.
_MAX_ANSWERS = 100
# The script holds the lock briefly; longer only if it is stopped.
_LOCK_S = 0.5


@dataclass(frozen=True)
class CommitRequest:
    """A save that is whole in the folder, marked by `number`, with so many `files`.

    `generation` is 0 for a save that is not sharded.
    """

    sequence: int
    name: str
    number: int
    step: int | None = None
    generation: int = 0
    files: int | None = None

    @property
    def sharded(self) -> bool:
        return self.generation > 0


class CommitQueue:
    """Requests in `<channel>/commits`, answered in `<channel>/commits.done`.

    The script may put anything there: links are not followed, and pipes do not block. With a confinement in
    `selection`, no link leads to another checkpoint folder either.
    """

    def __init__(self, channel: Path, folder: Path, selection: Selection | None = None) -> None:
        self._channel = channel
        self._folder = folder
        self._selection = selection or Selection()
        self._counter = str(channel / "commits.next")
        self._used = False

    @property
    def used(self) -> bool:
        """True if the script has asked for a commit in this attempt."""
        # Read several times a second for the whole training: hence a string, and no system call once it is known.
        self._used = self._used or os.path.lexists(self._counter)
        return self._used

    def waiting(self) -> list[CommitRequest]:
        """Return the requests in the order they were made. Files that are no valid request are removed."""
        try:
            with opened_folder(self._channel, _REQUESTS) as requests:
                names = _json_files(requests)
                found = [_read(requests, name) for name in names]
        except OSError:
            return []
        return sorted((request for request in found if request is not None), key=lambda request: request.sequence)

    def in_folder(self, request: CommitRequest) -> bool | None:
        """Return True if the folder still is the requested save.

        None: not yet. False: never again, because it was replaced or removed. Raises FileUnreadable.
        """
        if self._number(request) == request.number:
            return True
        try:
            # The script holds the lock from the request until the folder has its name.
            with Lock(self._folder, self._channel, _LOCK_S, open_plain):
                return self._number(request) == request.number
        except OSError:  # Includes TimeoutError, when the lock is held.
            return None

    def gone(self, requests: Collection[CommitRequest]) -> list[CommitRequest]:
        """Return the requests whose save was replaced or removed."""
        missing = [request for request in requests if self._is_missing(request)]
        if not missing:
            return []
        try:
            # The script holds the lock from the request until the folder has its name.
            with Lock(self._folder, self._channel, _LOCK_S, open_plain):
                return [request for request in missing if self._is_missing(request)]
        except OSError:
            return []

    def has_all_files(self, request: CommitRequest) -> bool:
        """Return True if the folder of this name has as many files as the requested save: none was removed."""
        try:
            with self._opened() as folder, opened_folder(handle_path(folder), request.name) as save:
                return count_files(handle_path(save)) == request.files
        except OSError:
            return False

    def saves(self) -> dict[str, int]:
        """Return the names of the saves in the folder, with their numbers."""
        try:
            with self._opened() as folder:
                return {name: number for number, name in _numbered_saves(folder)}
        except OSError:
            return {}

    def _is_missing(self, request: CommitRequest) -> bool:
        try:
            return self._number(request) != request.number
        except FileUnreadable:
            return False

    def _number(self, request: CommitRequest) -> object:
        """Return the number of the save with this name; None if there is none. Raises FileUnreadable."""
        try:
            with naming_unreadable(f"{request.name}/{MARKER}"), self._opened() as folder:
                # A save that cannot be read is not one that was removed.
                return _read_number(folder, request.name)
        except OSError:
            return None  # There is no such folder.

    def answer(self, request: CommitRequest, *, key: str | None, note: str = "") -> None:
        """Answer the request: durable as `key`, or not needed any more for the reason in `note`.

        Raises OSError where the script put something else in the place of these folders.
        """
        number = f"{request.sequence:08d}.json"
        answer = json.dumps({"sequence": request.sequence, "key": key, "note": note}).encode()
        with opened_folder(self._channel, _ANSWERS, make=True) as answers:
            replace_plain(answers, number, answer)
            for old in _json_files(answers)[:-_MAX_ANSWERS]:
                _unlink(answers, old)
        with opened_folder(self._channel, _REQUESTS) as requests:
            _unlink(requests, number)

    def remove_old_saves(self, keep: int) -> None:
        """Remove the script's saves from the folder, except the newest `keep` and those that wait.

        Saves from before the training stay, and are not counted: the job did not make them, and may not have them in
        any checkpoint.
        """
        discarded = []
        with suppress(OSError), self._opened() as folder:
            with suppress(OSError), Lock(self._folder, self._channel, _LOCK_S, open_plain):
                # Under the lock no save takes a name and no request is made: the folders that are removed are those
                # that were checked.
                busy = {request.name for request in self.waiting()}
                own = [save for save in _numbered_saves(folder) if not self._was_there(folder, save[1])]
                for _, name in sorted(own)[:-keep]:
                    if name not in busy:
                        discarded.append(_set_aside(folder, name))
            for removed in discarded:
                _unlink(folder, removed)

    def _was_there(self, folder: int, name: str) -> bool:
        """Return whether a file of this save was there before the training. So are saves that people or others made."""
        with opened_folder(handle_path(folder), name) as save:
            files = scan(handle_path(save), ()).values()
            return any(self._selection.was_there(self._folder / name, file) for file in files)

    @contextmanager
    def _opened(self) -> Iterator[int]:
        """Open the checkpoint folder; in a container without following a link in its place."""
        confinement = self._selection.confinement
        handle = os.open(self._folder, OPEN_FOLDER) if confinement is None else confinement.open(self._folder)
        try:
            yield handle
        finally:
            os.close(handle)


def _numbered_saves(folder: int) -> list[tuple[int, str]]:
    """Return number and name of the saves in an open folder, as `save_protocol.numbered_saves`."""
    names = [name for name in os.listdir(folder) if not name.startswith(".")]
    numbers = ((_number_of(folder, name), name) for name in names)
    return [(number, name) for number, name in numbers if isinstance(number, int)]


def _number_of(folder: int, name: str) -> object:
    """Return the number of the save in an open folder; None if there is none. Follows no link."""
    try:
        return _read_number(folder, name)
    except OSError:
        return None


def _read_number(folder: int, name: str) -> object:
    """Return the number of the save in an open folder; None if its mark is not valid. Raises OSError."""
    with opened_folder(handle_path(folder), name) as save:
        data = read_plain(MARKER, MAX_JSON_BYTES, save)
    try:
        return codec.parse_object(data).get("number")
    except CodecError:
        return None


def _set_aside(folder: int, name: str) -> str:
    """Move a save into a new hidden folder, and return that folder's name. Raises OSError."""
    removed = f".tmp-removed-{secrets.token_hex(6)}"
    os.mkdir(removed, 0o700, dir_fd=folder)
    # By its handle: the training may put a link in its place.
    with opened_folder(handle_path(folder), removed) as target:
        os.rename(name, name, src_dir_fd=folder, dst_dir_fd=target)
    return removed


def _read(requests: int, name: str) -> CommitRequest | None:
    """Read a request from the open folder. A file that is no valid request is removed."""
    try:
        with os.fdopen(open_plain(name, os.O_RDONLY, requests), "rb") as file:
            request = codec.loads(CommitRequest, file.read(_REQUEST_BYTES))
        if not is_safe_name(request.name) or name != f"{request.sequence:08d}.json":
            raise CodecError("name", "is not valid")
        if abs(request.generation) > MOST_COUNT:
            raise CodecError("generation", "is out of range")
    except FileNotFoundError:
        return None
    except (OSError, CodecError) as error:
        log.warning("commit request %s is left out: %s", name, error)
        _unlink(requests, name)
        return None
    # Readers would refuse the checkpoint for such a step.
    absurd = request.step is not None and abs(request.step) > MOST_COUNT
    return replace(request, step=None) if absurd else request


def _json_files(folder: int) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.name.endswith(".json"))


def _unlink(folder: int, name: str) -> None:
    with suppress(OSError):
        remove(handle_path(folder) / name)
