"""The agent's end of `stoker.train.checkpoint`: which saves the script asked to be committed."""

from __future__ import annotations

import logging
import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from stoker import codec
from stoker.errors import CodecError
from stoker.layout import safe_name
from stoker.saves import MARKER, Lock, numbered, open_at_once, read_json, remove, write_json

log = logging.getLogger(__name__)

_REQUEST_BYTES = 64 * 1024
# Answers that are kept: the script looks for the newest one only.
_ANSWERS = 100
# The script holds the lock for moments; longer only if it is stopped.
_LOCK_S = 0.5


@dataclass(frozen=True)
class CommitRequest:
    """A save that lies whole in the folder, marked by `number`. `generation` is 0 for one that is not sharded."""

    sequence: int
    name: str
    number: int
    step: int | None = None
    generation: int = 0

    @property
    def sharded(self) -> bool:
        return self.generation > 0


class CommitQueue:
    """Requests in `<channel>/commits`, answered in `<channel>/commits.done`."""

    def __init__(self, channel: Path, folder: Path) -> None:
        self._channel = channel
        self._folder = folder
        self._requests = channel / "commits"
        self._answers = channel / "commits.done"
        self._counter = str(channel / "commits.next")
        self._used = False

    @property
    def used(self) -> bool:
        """Whether the script ever asked for a commit in this attempt."""
        # Asked several times a second as long as the training lasts: a string, and no more once it is known.
        self._used = self._used or os.path.exists(self._counter)  # noqa: PTH110
        return self._used

    def waiting(self) -> list[CommitRequest]:
        """In the order they were made. The script may write anything here: what is no request is removed."""
        try:
            names = sorted(entry.name for entry in os.scandir(self._requests) if entry.name.endswith(".json"))
        except OSError:
            return []
        found = []
        for name in names:
            path = self._requests / name
            try:
                # A pipe must not block the saving.
                with open(path, "rb", opener=open_at_once) as file:
                    request = codec.loads(CommitRequest, file.read(_REQUEST_BYTES))
                if not safe_name(request.name) or name != f"{request.sequence:08d}.json":
                    raise CodecError("name", "cannot be")
            except FileNotFoundError:
                continue
            except (OSError, CodecError) as error:
                log.warning("commit request %s is left out: %s", name, error)
                with suppress(OSError):
                    remove(path)
                continue
            found.append(request)
        return sorted(found, key=lambda request: request.sequence)

    def holds(self, request: CommitRequest) -> bool | None:
        """Whether the folder is what was saved then. None: not yet; False: never again, it was replaced or removed."""
        if self._number(request) == request.number:
            return True
        try:
            # The script holds the lock from the request until the folder has its name.
            with Lock(self._folder, self._channel, _LOCK_S):
                return self._number(request) == request.number
        except TimeoutError:
            return None

    def _number(self, request: CommitRequest) -> object:
        return (read_json(self._folder / request.name / MARKER) or {}).get("number")

    def answer(self, request: CommitRequest, *, key: str | None, note: str = "") -> None:
        """The request is dealt with: durable as `key`, or not needed any more for the reason in `note`."""
        self._answers.mkdir(exist_ok=True)
        number = f"{request.sequence:08d}.json"
        write_json(self._answers / number, {"sequence": request.sequence, "key": key, "note": note})
        (self._requests / number).unlink(missing_ok=True)
        for old in sorted(self._answers.glob("*.json"))[:-_ANSWERS]:
            old.unlink(missing_ok=True)

    def tidy(self, keep: int) -> None:
        """Remove the script's saves from the folder but the newest `keep` and those that wait."""
        discarded = []
        with suppress(TimeoutError), Lock(self._folder, self._channel, _LOCK_S):
            # Under the lock no save takes a name and no request is made: what is removed is what was looked at.
            busy = {request.name for request in self.waiting()}
            for _, name in sorted(numbered(self._folder))[:-keep]:
                if name not in busy:
                    out_of_sight = Path(tempfile.mkdtemp(prefix=".tmp-removed-", dir=self._folder))
                    (self._folder / name).rename(out_of_sight / name)
                    discarded.append(out_of_sight)
        for path in discarded:
            remove(path)
