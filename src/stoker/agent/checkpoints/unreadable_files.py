"""Errors of reading a file of the training, saves that wait because of one, and names of files as one line of text."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

# Errors that say that this file or folder cannot be read. Others, such as too many open files, are the agent's own.
_UNREADABLE = (errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE, errno.EUCLEAN, errno.EBADMSG)
# A save with a file that cannot be read is tried again after this time; and during the last commit.
_READ_AGAIN_S = 10.0
_LAST_READ_AGAIN_S = 2.0
_NEVER = float("inf")

log = logging.getLogger(__name__)


def printable(text: str, most: int | None = None) -> str:
    """Return text with a name of a file in it as one line: bytes that are not UTF-8 and control characters escaped.

    With `most`, the middle of a longer text is left out.
    """
    text = os.fsencode(text).decode("utf-8", "backslashreplace")
    text = "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
    return text if most is None or len(text) <= most else f"{text[: most // 2]}…{text[-most // 2 :]}"


class FileUnreadable(Exception):
    """The agent cannot read a file of the training. The store is not at fault.

    `may_pass`: the file may be readable later without a change, as on a network mount that is away.
    """

    def __init__(self, path: str, reason: str, *, may_pass: bool) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason
        self.may_pass = may_pass


def as_unreadable(path: str, error: OSError) -> FileUnreadable | None:
    """Return the error as one of reading this file, with advice. None: it says nothing about the file."""
    if error.errno not in _UNREADABLE:
        return None
    denied = error.errno in (errno.EACCES, errno.EPERM)
    advice = "make it readable (chmod), or write it to another folder" if denied else "write it anew, or remove it"
    reason = f"the agent cannot read it ({error.strerror or os.strerror(error.errno)}); {advice}"
    return FileUnreadable(path, reason, may_pass=not denied)


def closed_folder(path: str) -> FileUnreadable:
    """Return the error of a folder whose content cannot be read."""
    return FileUnreadable(path, "the agent cannot read this folder; make it readable (chmod)", may_pass=False)


@contextmanager
def naming_unreadable(path: str) -> Iterator[None]:
    """Turn an error that says that the file cannot be read into FileUnreadable with this path."""
    try:
        yield
    except OSError as error:
        unreadable = as_unreadable(path, error)
        if unreadable is None:
            raise
        raise unreadable from error


class UnreadableSaves:
    """Saves with a file that cannot be read, by sequence number. Each is tried again after a while, or given up."""

    def __init__(self, monotonic: Callable[[], float], say: Callable[[str], None]) -> None:
        self._monotonic = monotonic
        self._say = say
        self._again_at: dict[int, float] = {}
        self._logged: set[int] = set()
        # Which save cannot be committed, and why; None: all can.
        self.held_back: str | None = None
        # A save waits because a file cannot be read now, and may be readable later.
        self.disk_fails = False

    def note(self, sequence: int, name: str, error: FileUnreadable, *, final: bool) -> None:
        """Record that the save cannot be read. During the last commit, an error that cannot pass gives it up."""
        given_up = final and not error.may_pass
        again_s = _LAST_READ_AGAIN_S if final else _READ_AGAIN_S
        self._again_at[sequence] = _NEVER if given_up else self._monotonic() + again_s
        self.disk_fails = error.may_pass
        self.held_back = f"the save {name} is not committed: {printable(str(error))}"
        if sequence not in self._logged:
            self._logged.add(sequence)
            log.warning("%s", self.held_back)
            if len(self._logged) == 1:
                self._say(self.held_back)

    def is_due(self, sequence: int) -> bool:
        """Return True if the save may be read now: it could be so far, or is to be tried again."""
        return self._again_at.get(sequence, -_NEVER) <= self._monotonic()

    def is_given_up(self, sequence: int) -> bool:
        return self._again_at.get(sequence) == _NEVER

    def read_again(self) -> None:
        """Make all saves due at once: the training has ended."""
        self._again_at.clear()
        self.disk_fails = False

    def forget(self, sequences: Collection[int]) -> None:
        """Forget saves that have gone."""
        self._keep({number: at_s for number, at_s in self._again_at.items() if number not in sequences})

    def forget_through(self, sequence: int) -> None:
        """Forget the save with this number, and all older ones: it was committed."""
        self._keep({number: at_s for number, at_s in self._again_at.items() if number > sequence})

    def _keep(self, again_at: dict[int, float]) -> None:
        self._again_at = again_at
        if not again_at:
            self.held_back, self.disk_fails = None, False
