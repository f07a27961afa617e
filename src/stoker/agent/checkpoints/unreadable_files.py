"""Errors of reading a file of the training, and names of files as one line of text."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

# Errors that say that this file or folder cannot be read. Others, such as too many open files, are the agent's own.
_UNREADABLE = (errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE, errno.EUCLEAN, errno.EBADMSG)


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
