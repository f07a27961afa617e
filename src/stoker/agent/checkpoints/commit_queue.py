"""The agent's side of `stoker.train.checkpoint`: read requests for commits, and answer them."""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from stoker.agent.checkpoints.save_protocol import MARKER, Lock, numbered_saves, read_json, remove
from stoker.agent.confinement import Confinement, open_plain, opened_folder, replace_plain
from stoker.model import codec
from stoker.model.errors import CodecError
from stoker.model.key_segments import is_safe_name

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
    """A save that is whole in the folder, marked by `number`. `generation` is 0 for a save that is not sharded."""

    sequence: int
    name: str
    number: int
    step: int | None = None
    generation: int = 0

    @property
    def sharded(self) -> bool:
        return self.generation > 0


class CommitQueue:
    """Requests in `<channel>/commits`, answered in `<channel>/commits.done`.

    The script may put anything there: links are not followed, and pipes do not block. With `confinement`, no link leads
    out of the checkpoint folder either.
    """

    def __init__(self, channel: Path, folder: Path, confinement: Confinement | None = None) -> None:
        self._channel = channel
        self._folder = folder
        self._confinement = confinement
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

        None: not yet. False: never again, because it was replaced or removed.
        """
        if self._number(request) == request.number:
            return True
        try:
            # The script holds the lock from the request until the folder has its name.
            with Lock(self._folder, self._channel, _LOCK_S):
                return self._number(request) == request.number
        except OSError:  # Includes TimeoutError, when the lock is held.
            return None

    def _number(self, request: CommitRequest) -> object:
        try:
            with self._opened() as folder:
                return (read_json(folder / request.name / MARKER) or {}).get("number")
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
        """Remove the script's saves from the folder, except the newest `keep` and those that wait."""
        discarded = []
        with suppress(OSError), self._opened() as folder:
            with suppress(OSError), Lock(folder, self._channel, _LOCK_S):
                # Under the lock no save takes a name and no request is made: the folders that are removed are those
                # that were checked.
                busy = {request.name for request in self.waiting()}
                for _, name in sorted(numbered_saves(folder))[:-keep]:
                    if name not in busy:
                        removed = Path(tempfile.mkdtemp(prefix=".tmp-removed-", dir=folder))
                        (folder / name).rename(removed / name)
                        discarded.append(removed)
            for path in discarded:
                remove(path)

    @contextmanager
    def _opened(self) -> Iterator[Path]:
        """Give the checkpoint folder; in a container by its handle, so that a link in its place leads nowhere."""
        if self._confinement is None:
            yield self._folder
            return
        handle = self._confinement.open(self._folder)
        try:
            yield Path(f"/proc/self/fd/{handle}")
        finally:
            os.close(handle)


def _read(requests: int, name: str) -> CommitRequest | None:
    """Read a request from the open folder. A file that is no valid request is removed."""
    try:
        with os.fdopen(open_plain(name, os.O_RDONLY, requests), "rb") as file:
            request = codec.loads(CommitRequest, file.read(_REQUEST_BYTES))
        if not is_safe_name(request.name) or name != f"{request.sequence:08d}.json":
            raise CodecError("name", "is not valid")
    except FileNotFoundError:
        return None
    except (OSError, CodecError) as error:
        log.warning("commit request %s is left out: %s", name, error)
        _unlink(requests, name)
        return None
    return request


def _json_files(folder: int) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.name.endswith(".json"))


def _unlink(folder: int, name: str) -> None:
    with suppress(OSError):
        remove(Path(f"/proc/self/fd/{folder}", name))
