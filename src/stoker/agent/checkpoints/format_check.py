"""Check files by their own format: does a file end where its format says that it ends?

Headers and directories are checked cheaply; no file is read in full. The format is recognised by the first bytes of a
file, and by its name only where the bytes do not suffice. Standard library only: this runs in the agent.

The files come from the training, which may write anything. So each check has a bound on what it reads and on how many
objects it makes of it; a file that would take more is unknown, never broken. No parser here evaluates, recurses or
decompresses.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import re
import stat
import struct
import time
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stoker.agent.checkpoints.folder_snapshot import File, Signature, pinned_path, signature_of
from stoker.agent.checkpoints.torch_archive import MAX_PICKLE_BYTES, missing_storage
from stoker.agent.checkpoints.unreadable_files import FileUnreadable, as_unreadable, closed_folder
from stoker.store.base import FileChanged

# How long a file that could not be read to its end counts as broken before it is read again; and after the training.
_READ_AGAIN_S = 60.0
_LAST_READ_AGAIN_S = 2.0
# Larger headers and documents are not read: such files count as unknown.
_MAX_READ_BYTES = 16 * 1024 * 1024
# Python makes ten bytes of each byte of a zip directory. This is room for tens of thousands of members.
_MAX_ZIP_DIRECTORY = 4 * 1024 * 1024
# The header of a numpy array whose elements are numbers has about a hundred bytes.
_MAX_NPY_HEADER = 64 * 1024
# Values of a JSON document, of which Python makes up to a hundred bytes each; brackets, quotes and escaped characters,
# of which the scan takes a million in half a second; and how deep the parser may recurse.
_MAX_JSON_VALUES = 1_000_000
_MAX_JSON_TOKENS = 4_000_000
_MAX_JSON_DEPTH = 200
# The limit in the specification of safetensors.
_MAX_SAFETENSORS_HEADER = 100_000_000
_ZIP, _EMPTY_ZIP = b"PK\x03\x04", b"PK\x05\x06"
_HDF5 = b"\x89HDF\r\n\x1a\n"
_NPY = b"\x93NUMPY"
_HDF5_NAMES = (".h5", ".hdf5", ".he5")
_PICKLE_NAMES = (".pkl", ".pickle", ".joblib")
# As every writer spells it. Elements of several fields have another `descr`.
_NPY_HEADER = re.compile(
    rb"\{'descr': '[<>|=]?([biufcSUV?])([0-9]{0,10})', 'fortran_order': (?:True|False),"
    rb" 'shape': \(([0-9, ]{0,1500})\),? ?\}\s*"
)
_SAFETENSORS_OFFSETS = re.compile(
    rb'"data_offsets"\s{0,8}:\s{0,8}\[\s{0,8}([0-9]{1,19})\s{0,8},\s{0,8}([0-9]{1,19})\s{0,8}\]'
)
# An escaped character, a quote, a bracket.
_JSON_TOKEN = re.compile(rb'\\.|["\[\]{}]', re.DOTALL)

State = Literal["whole", "broken", "plausible", "unknown"]


@dataclass(frozen=True)
class FormatCheck:
    """The result of a format check.

    `whole`: a file that was cut off at any point would not look like this. `plausible`: nothing is missing that the
    format demands, but a writer that gave up early may have closed the file in this state; `form` is then equal for
    files with the same content structure, where the format has one. `broken`: the file cannot be loaded, or not be read
    by the agent, for `reason`. `reads_all`: every byte of the file was read.
    """

    state: State
    reason: str = ""
    form: str = ""
    reads_all: bool = False
    # It is broken because the agent cannot read it; and that may pass.
    unreadable: bool = False
    may_pass: bool = False


UNKNOWN = FormatCheck("unknown")
WHOLE = FormatCheck("whole")


class CachedFormatChecks:
    """Format checks of the files of one folder, each made once for a file's signature.

    A file that could not be read to its end, as on a failing disk, is broken until it is read again.
    """

    def __init__(
        self,
        folder: Path,
        check: Callable[[Path, str], FormatCheck],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._check = check
        self._monotonic = monotonic
        self._known: dict[Signature, FormatCheck] = {}
        # Files that could not be read to their end: the reason, and when to try again.
        self._unreadable: dict[Signature, tuple[FileUnreadable, float]] = {}
        self._read_again_s = _READ_AGAIN_S

    def check(self, file: File | None) -> FormatCheck:
        """Check the file. A link, an absent file or one that changes meanwhile is unknown.

        A file that no checkpoint can hold is broken.
        """
        failed = self._unreadable.get(file.signature) if file is not None else None
        if failed is not None and self._monotonic() < failed[1]:
            return FormatCheck("broken", failed[0].reason, unreadable=True, may_pass=failed[0].may_pass)
        if file is not None and file.problem:
            return FormatCheck("broken", file.problem, unreadable=True)
        if file is None or file.link is not None:
            return UNKNOWN
        known = self._known.get(file.signature)
        if known is None:
            path = self._folder / file.path
            try:
                with pinned_path(path, file) as pinned:
                    known = self._check(pinned, path.name)
            except FileChanged:
                known = UNKNOWN
            except OSError as error:
                known = _unreadable(error)
            if stat.S_ISDIR(file.mode) and not known.unreadable:
                # A folder is scanned as a file only if its content could not be read.
                known = FormatCheck("broken", closed_folder(file.path).reason, unreadable=True)
            if known.unreadable:
                # Not remembered: permissions of a folder above change without the file's signature.
                return known
            if signature_of(path, file) != file.signature:
                # It changed while it was read. Sending it will notice that, too.
                return UNKNOWN
            self._known[file.signature] = known
        return known

    def note_unreadable(self, file: File, error: FileUnreadable) -> None:
        """Record that the file could not be read to its end. After a while it is tried again."""
        self._unreadable[file.signature] = (error, self._monotonic() + self._read_again_s)

    def read_again(self) -> None:
        """Read files that could not be read again at once, and then sooner than before: the training has ended."""
        self._unreadable.clear()
        self._read_again_s = _LAST_READ_AGAIN_S

    def known_form(self, file: File) -> str:
        """Return the form that an earlier check found; empty: none."""
        known = self._known.get(file.signature)
        return known.form if known is not None else ""

    def retain(self, files: Iterable[File]) -> None:
        """Forget the checks of all other files."""
        present = {file.signature for file in files}
        self._known = {signature: check for signature, check in self._known.items() if signature in present}


def _unreadable(error: OSError) -> FormatCheck:
    found = as_unreadable("", error)
    return UNKNOWN if found is None else FormatCheck("broken", found.reason, unreadable=True, may_pass=found.may_pass)


def check_format(path: Path, name: str = "") -> FormatCheck:
    """Check a closed file. `name` is its own name, where `path` is that of a handle.

    Never raises: a file that vanishes, or one of no known format, is unknown.
    """
    try:
        with _LimitedFile(path) as file:
            return _check(file, (name or path.name).lower())
    except OSError as error:
        return _unreadable(error)
    except Exception:  # noqa: BLE001 - bytes of any kind may raise any error; a check that fails proves nothing
        return UNKNOWN


class _TooLarge(Exception):
    """A check would read more than it may."""


class _LimitedFile(io.FileIO):
    """A regular file of which at most `limit` bytes are read at once; more raises _TooLarge."""

    def __init__(self, path: Path) -> None:
        # Opening must not wait, should a pipe have taken the file's place.
        super().__init__(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY), "rb")
        status = os.fstat(self.fileno())
        if not stat.S_ISREG(status.st_mode):
            self.close()
            raise OSError(f"{path} is no file")
        self.size = status.st_size
        self.limit = _MAX_READ_BYTES

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            found = self.read(self.limit)
            if super().read(1):
                raise _TooLarge
            return found
        if size > self.limit:
            raise _TooLarge
        pieces: list[bytes] = []
        while size and (piece := super().read(size)):
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    def read_at(self, at: int, size: int) -> bytes:
        self.seek(at)
        return self.read(size)


def _check(file: _LimitedFile, name: str) -> FormatCheck:
    start, size = file.read_at(0, 64), file.size
    if start.startswith((_ZIP, _EMPTY_ZIP)):
        return _check_zip(file)
    if start.startswith(_HDF5):
        return _check_hdf5(start, size)
    if start.startswith(_NPY):
        return _check_npy(file, start)
    if start[8:10] in (b'{"', b"{}") and struct.unpack("<Q", start[:8])[0] <= _MAX_SAFETENSORS_HEADER:
        return _check_safetensors(file, struct.unpack("<Q", start[:8])[0])
    if name.endswith(_HDF5_NAMES) and size and not any(start[:8]):
        return FormatCheck("broken", "its HDF5 header was never written")
    if name.endswith(".json") and 0 < size <= _MAX_READ_BYTES:
        return _check_json(file.read_at(0, size))
    if name.endswith(_PICKLE_NAMES) and start[:1] == b"\x80":
        return FormatCheck("plausible") if file.read_at(size - 1, 1) == b"." else _broken("its pickle has no end")
    return UNKNOWN


def _broken(reason: str) -> FormatCheck:
    return FormatCheck("broken", reason)


def _check_zip(file: _LimitedFile) -> FormatCheck:
    """Check a zip archive: its directory is at its end, and is written last."""
    file.limit = _MAX_ZIP_DIRECTORY
    try:
        archive = zipfile.ZipFile(file)
    except (zipfile.BadZipFile, struct.error, ValueError, EOFError):
        return _broken("the directory at the end of its zip archive is missing")
    with archive:
        file.limit = MAX_PICKLE_BYTES
        entries = archive.infolist()
        if any(entry.header_offset + entry.compress_size > file.size for entry in entries):
            return _broken("its zip archive refers to data behind its end")
        if not entries:
            return _broken("its zip archive is empty")
        # A writer that gives up may still close the archive properly: torch's does, and so does Python's own.
        lacks = missing_storage(archive)
        if lacks is not None:
            return _broken(lacks) if lacks else WHOLE
        # A writer that gives up in the middle of a member may close the member, too. So sizes count.
        members = sorted((entry.filename, entry.file_size) for entry in entries)
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


def _check_npy(file: _LimitedFile, start: bytes) -> FormatCheck:
    length, at = (
        (struct.unpack("<H", start[8:10])[0], 10) if start[6] == 1 else (struct.unpack("<I", start[8:12])[0], 12)
    )
    if length > _MAX_NPY_HEADER:
        return UNKNOWN
    header = file.read_at(at, length)
    if len(header) < length:
        return _broken("its numpy header is cut off")
    found = _NPY_HEADER.fullmatch(header)
    if found is None:
        return UNKNOWN
    width = int(found[2] or 1) * (4 if found[1] == b"U" else 1)
    expected = at + length + width * math.prod(int(count) for count in found[3].split(b",") if count.strip())
    if expected >= 2**63:
        # No array is so large.
        return UNKNOWN
    if file.size < expected:
        return _broken(f"its numpy header says {expected:,} bytes, and there are {file.size:,}")
    # A larger file has several arrays, of which the last is not checked.
    return WHOLE if file.size == expected else UNKNOWN


def _check_safetensors(file: _LimitedFile, length: int) -> FormatCheck:
    if 8 + length > file.size:
        return _broken("its safetensors header is cut off")
    if length > _MAX_READ_BYTES:
        return UNKNOWN
    header = file.read_at(8, length)
    data_bytes = covered = 0
    # Found by a pattern, since parsing makes many objects of few bytes. In a text of the header quotes are escaped.
    for found in _SAFETENSORS_OFFSETS.finditer(header):
        begin, end = int(found[1]), int(found[2])
        data_bytes, covered = max(data_bytes, end), covered + end - begin
    if covered != data_bytes or b"\0" in header or not header.rstrip().endswith(b"}"):
        # By the specification there are no gaps. So a part of the header is damaged, or not understood here.
        return UNKNOWN
    expected = 8 + length + data_bytes
    if file.size < expected:
        return _broken(f"its safetensors header says {expected:,} bytes, and there are {file.size:,}")
    return WHOLE if file.size == expected else UNKNOWN


def _check_json(data: bytes) -> FormatCheck:
    """Check a JSON document. One that was cut off ends inside a string or before its last bracket.

    Anything else that is no JSON is unknown. Raises ValueError for text that is not UTF-8.
    """
    values = sum(map(data.count, (b",", b"[", b"{")))
    tokens = sum(map(data.count, (b'"', b"\\", b"[", b"{", b"]", b"}")))
    if values > _MAX_JSON_VALUES or tokens > _MAX_JSON_TOKENS:
        return UNKNOWN
    depth = deepest = 0
    quoted = False
    for token in _JSON_TOKEN.finditer(data):
        letter = token[0]
        if letter == b'"':
            quoted = not quoted
        elif quoted or len(letter) > 1:
            continue
        elif letter in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        else:
            depth -= 1
    if deepest > _MAX_JSON_DEPTH:
        return UNKNOWN
    # In UTF-16 and in other encodings, the bytes of brackets and quotes are parts of letters as well.
    data.decode("utf-8")
    if b"\0" in data[:2]:
        return UNKNOWN
    if _parses(data):
        return FormatCheck("whole", reads_all=True)
    first, _, rest = data.partition(b"\n")
    if rest and _parses(first):
        # One document a line is a log, which is read as far as it goes.
        return UNKNOWN
    return _broken("its JSON is cut off") if depth > 0 or quoted else UNKNOWN


def _drop(_parsed: object) -> None:
    return None


def _parses(data: bytes) -> bool:
    try:
        # Numbers and objects are dropped as soon as they are read: an integer of millions of digits would take some
        # versions of Python hours.
        json.loads(data.decode("utf-8"), parse_int=_drop, parse_float=_drop, object_pairs_hook=_drop)
    except ValueError:
        return False
    return True
