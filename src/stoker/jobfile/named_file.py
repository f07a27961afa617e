"""Read a file that a person names: plain files only, since reading a pipe or a device may never end."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from stoker.model.errors import UserError

# Open files of this process, such as the shell's `<(command)`: the other end exists, so reading ends.
_OPEN_FILES = ("/dev/fd/", "/proc/self/fd/", "/dev/stdin")


def read_named_file(path: Path, what: str = "the file", *, open_files: bool = False) -> bytes:
    """The bytes of the file. `open_files` allows `/dev/fd/3` and the like.

    Raises UserError, with the path, where it is missing, a folder, no plain file or not readable.
    """
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise UserError(f"{path}: is a folder; name {what} in it")
        if not stat.S_ISREG(mode) and not (open_files and os.path.normpath(path).startswith(_OPEN_FILES)):
            raise UserError(f"{path}: is a pipe or a device; name a plain file")
        return path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
