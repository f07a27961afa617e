"""Check files by their own format: does a file end where its format says that it ends?

Headers and directories are checked cheaply; no file is read in full. The format is recognised by the first bytes of a
file, and by its name only where the bytes do not suffice. Standard library only: this runs in the agent.
"""

from __future__ import annotations

import ast
import hashlib
import json
import math
import os
import re
import struct
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stoker.agent.checkpoints.folder_snapshot import File, Signature, pinned_path, signature_of
from stoker.agent.checkpoints.torch_archive import missing_storage
from stoker.store.base import FileChanged

# Larger headers, directories and documents are not read: such files count as unknown.
_MAX_READ_BYTES = 16 * 1024 * 1024
# The limit in the specification of safetensors.
_MAX_SAFETENSORS_HEADER = 100_000_000
_ZIP, _EMPTY_ZIP = b"PK\x03\x04", b"PK\x05\x06"
_HDF5 = b"\x89HDF\r\n\x1a\n"
_NPY = b"\x93NUMPY"
_HDF5_NAMES = (".h5", ".hdf5", ".he5")
_PICKLE_NAMES = (".pkl", ".pickle", ".joblib")
_SIMPLE_DTYPE = re.compile(r"[<>|=]?([biufcSUV?])([0-9]*)")

State = Literal["whole", "broken", "plausible", "unknown"]


@dataclass(frozen=True)
class FormatCheck:
    """The result of a format check.

    `whole`: a file that was cut off at any point would not look like this. `plausible`: nothing is missing that the
    format demands, but a writer that gave up early may have closed the file in this state; `form` is then equal for
    files with the same content structure, where the format has one. `broken`: the file cannot be loaded, for `reason`.
    """

    state: State
    reason: str = ""
    form: str = ""


UNKNOWN = FormatCheck("unknown")
WHOLE = FormatCheck("whole")


class CachedFormatChecks:
    """Format checks of the files of one folder, each made once for a file's signature."""

    def __init__(self, folder: Path, check: Callable[[Path, str], FormatCheck]) -> None:
        self._folder = folder
        self._check = check
        self._known: dict[Signature, FormatCheck] = {}

    def check(self, file: File | None) -> FormatCheck:
        """Check the file. A link, an absent file or one that changes meanwhile is unknown."""
        if file is None or file.link is not None:
            return UNKNOWN
        known = self._known.get(file.signature)
        if known is None:
            path = self._folder / file.path
            try:
                with pinned_path(path, file) as pinned:
                    known = self._check(pinned, path.name)
            except (OSError, FileChanged):
                return UNKNOWN
            if signature_of(path, file) != file.signature:
                # It changed while it was read. Sending it will notice that, too.
                return UNKNOWN
            self._known[file.signature] = known
        return known

    def known_form(self, file: File) -> str:
        """Return the form that an earlier check found; empty: none."""
        known = self._known.get(file.signature)
        return known.form if known is not None else ""

    def retain(self, files: Iterable[File]) -> None:
        """Forget the checks of all other files."""
        present = {file.signature for file in files}
        self._known = {signature: check for signature, check in self._known.items() if signature in present}


def check_format(path: Path, name: str = "") -> FormatCheck:
    """Check a closed file. `name` is its own name, where `path` is that of a handle.

    Never raises: an unreadable file, or one of no known format, is unknown.
    """
    try:
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            start = file.read(64) or b""
        return _check(start, size, path, (name or path.name).lower())
    except (OSError, ValueError, LookupError, ArithmeticError, RecursionError, MemoryError):
        return UNKNOWN


def _check(start: bytes, size: int, path: Path, name: str) -> FormatCheck:
    if start.startswith((_ZIP, _EMPTY_ZIP)):
        return _check_zip(path, size)
    if start.startswith(_HDF5):
        return _check_hdf5(start, size)
    if start.startswith(_NPY):
        return _check_npy(path, size)
    if start[8:10] in (b'{"', b"{}") and struct.unpack("<Q", start[:8])[0] <= _MAX_SAFETENSORS_HEADER:
        return _check_safetensors(path, struct.unpack("<Q", start[:8])[0], size)
    if name.endswith(_HDF5_NAMES) and size and not any(start[:8]):
        return FormatCheck("broken", "its HDF5 header was never written")
    if name.endswith(".json") and 0 < size <= _MAX_READ_BYTES:
        return _check_json(path)
    if name.endswith(_PICKLE_NAMES) and start[:1] == b"\x80":
        return _check_pickle(path, size)
    return UNKNOWN


def _broken(reason: str) -> FormatCheck:
    return FormatCheck("broken", reason)


def _check_zip(path: Path, size: int) -> FormatCheck:
    """Check a zip archive: its directory is at its end, and is written last."""
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, struct.error, ValueError, EOFError):
        return _broken("the directory at the end of its zip archive is missing")
    with archive:
        entries = archive.infolist()
        if any(entry.header_offset + entry.compress_size > size for entry in entries):
            return _broken("its zip archive refers to data behind its end")
        if not entries:
            return _broken("its zip archive is empty")
        # A writer that gives up in the middle of a member may close the member, too. So sizes count.
        members = sorted((entry.filename, entry.file_size) for entry in entries)
        # A writer that gives up may still close the archive properly: torch's does, and so does Python's own.
        lacks = missing_storage(archive)
        if lacks is not None:
            return _broken(lacks) if lacks else WHOLE
    # The top folder is ignored: torch names it after the file.
    below = [(name.partition("/")[2] or name, length) for name, length in members]
    return FormatCheck("plausible", form=f"zip:{hashlib.sha256(repr(below).encode()).hexdigest()}")


def _check_hdf5(start: bytes, size: int) -> FormatCheck:
    """Check the superblock: it says where the file ends, and since version 3 if a writer has it open."""
    version = start[8]
    if version in (0, 1):
        width, base = start[13], 24 if version == 0 else 28
    elif version in (2, 3):
        width, base = start[9], 12
        if version == 3 and start[11] & 1:
            return _broken("its HDF5 header says that it was never closed")
    else:
        return UNKNOWN
    place = base + 2 * width
    if width not in (2, 4, 8) or len(start) < place + width:
        return UNKNOWN
    ends_at = int.from_bytes(start[place : place + width], "little")
    if ends_at > size:
        return _broken(f"its HDF5 header says {ends_at:,} bytes, and there are {size:,}")
    return FormatCheck("plausible")


def _check_npy(path: Path, size: int) -> FormatCheck:
    with path.open("rb") as file:
        start = file.read(12)
        major = start[6]
        length, at = (
            (struct.unpack("<H", start[8:10])[0], 10) if major == 1 else (struct.unpack("<I", start[8:12])[0], 12)
        )
        if length > _MAX_READ_BYTES:
            return UNKNOWN
        file.seek(at)
        header = file.read(length)
    if len(header) < length:
        return _broken("its numpy header is cut off")
    fields = ast.literal_eval(header.decode("latin1"))
    dtype = _SIMPLE_DTYPE.fullmatch(fields["descr"]) if isinstance(fields["descr"], str) else None
    if dtype is None:
        return UNKNOWN
    width = int(dtype[2] or 1) * (4 if dtype[1] == "U" else 1)
    expected = at + length + width * math.prod(fields["shape"])
    if size < expected:
        return _broken(f"its numpy header says {expected:,} bytes, and there are {size:,}")
    # A larger file has several arrays, of which the last is not checked.
    return WHOLE if size == expected else UNKNOWN


def _check_safetensors(path: Path, length: int, size: int) -> FormatCheck:
    if 8 + length > size:
        return _broken("its safetensors header is cut off")
    if length > _MAX_READ_BYTES:
        return UNKNOWN
    with path.open("rb") as file:
        file.seek(8)
        # The header begins with a brace, so it is an object or no JSON.
        header = json.loads(file.read(length))
    ends = [value["data_offsets"][1] for key, value in header.items() if key != "__metadata__"]
    expected = 8 + length + max(ends, default=0)
    if size < expected:
        return _broken(f"its safetensors header says {expected:,} bytes, and there are {size:,}")
    return WHOLE if size == expected else UNKNOWN


def _check_json(path: Path) -> FormatCheck:
    """Check a JSON document. One that was cut off ends inside a string or before its last bracket.

    Anything else that is no JSON is unknown.
    """
    with path.open("rb") as file:
        text = file.read(_MAX_READ_BYTES).decode("utf-8")
    try:
        json.loads(text)
    except ValueError:
        pass
    else:
        return WHOLE
    depth, quoted, escaped = 0, False, False
    for letter in text:
        if escaped:
            escaped = False
        elif quoted:
            escaped, quoted = letter == "\\", letter != '"'
        elif letter == '"':
            quoted = True
        elif letter in "[{":
            depth += 1
        elif letter in "]}":
            depth -= 1
    lines = text.splitlines()
    if len(lines) > 1 and _parses(lines[0]):
        # One document a line is a log, which is read as far as it goes.
        return UNKNOWN
    return _broken("its JSON is cut off") if depth > 0 or quoted else UNKNOWN


def _parses(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _check_pickle(path: Path, size: int) -> FormatCheck:
    with path.open("rb") as file:
        file.seek(size - 1)
        return FormatCheck("plausible") if file.read(1) == b"." else _broken("its pickle has no end")
