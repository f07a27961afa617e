"""A folder as one stream of bytes, cut into parts that are sent, fetched, verified and written independently.

The listing names the folders, files and links. The bytes of the files, in the order of the listing, are the stream. A
part is a range of the stream, whatever files it belongs to: a large file spans many parts, and one part may hold
thousands of small files. All parts can therefore be in flight at once, which one tar archive would not allow.
"""

from __future__ import annotations

import bisect
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path, PurePosixPath
from typing import Literal

from stoker.model import codec
from stoker.model.errors import CodecError, StokerError
from stoker.store.safe_extraction import Extraction, PathObstructed, inner_parts

# Many parts are in memory at once, on machines of any size.
PART_BYTES = 64 * 1000**2


class FolderChanged(StokerError):
    """A file differs from what it was when the folder was listed."""


@dataclass(frozen=True)
class ListingItem:
    """A folder, a file with its size, or a link with its target."""

    kind: Literal["folder", "file", "link"]
    path: str
    size: int = 0
    executable: bool = False
    target: str = ""
    # Modification time of a file. Compiled Python files store the modification time of their source, in seconds.
    modified_ns: int = 0


class FolderListing:
    """The contents of a folder, in an order that does not depend on the disk."""

    def __init__(self, items: tuple[ListingItem, ...]) -> None:
        self.items = items
        self.files = tuple(item for item in items if item.kind == "file")
        # Offset of each file in the stream, followed by the end of the last file.
        self._begins = [0, *accumulate(item.size for item in self.files)]

    @property
    def size(self) -> int:
        return self._begins[-1]

    def parts(self, part_bytes: int) -> list[tuple[int, int]]:
        """Return the begin and end of each part in the stream."""
        return [(begin, min(begin + part_bytes, self.size)) for begin in range(0, self.size, part_bytes)]

    def spans(self, begin: int, end: int) -> Iterator[tuple[ListingItem, int, int, int]]:
        """Yield the files of this range: each with the offset in the file, the length, and the offset in the part."""
        for number in range(
            max(0, bisect.bisect_right(self._begins, begin) - 1), bisect.bisect_left(self._begins, end)
        ):
            first, last = max(begin, self._begins[number]), min(end, self._begins[number + 1])
            if last > first:
                yield self.files[number], first - self._begins[number], last - first, first - begin

    def dump(self) -> bytes:
        rows: list[list[object]] = []
        for item in self.items:
            match item.kind:
                case "folder":
                    rows.append(["folder", item.path])
                case "file":
                    rows.append(["file", item.path, item.size, int(item.executable), item.modified_ns])
                case "link":
                    rows.append(["link", item.path, item.target])
        return json.dumps(rows, ensure_ascii=True, separators=(",", ":")).encode()

    @classmethod
    def load(cls, data: bytes) -> FolderListing:
        """Parse a stored listing. Raises CodecError if it is malformed or a path leaves the folder."""
        try:
            return cls(tuple(_item(row) for row in codec.parse(data)))
        except (CodecError, ValueError, TypeError, KeyError, IndexError, PathObstructed) as error:
            raise CodecError("listing", f"cannot be read: {error}") from None


def _item(row: list[object]) -> ListingItem:
    path = row[1]
    if not isinstance(path, str):
        raise ValueError(f"{path!r} is no path")
    inner_parts(path)
    match row:
        case ["folder", _]:
            return ListingItem("folder", path)
        case ["file", _, int(size), int(executable), int(modified_ns)] if size >= 0:
            return ListingItem("file", path, size, bool(executable), modified_ns=modified_ns)
        case ["link", _, str(target)]:
            return ListingItem("link", path, target=target)
    raise ValueError(f"{row!r:.100} is no item")


def list_folder(folder: Path) -> FolderListing:
    """List the folder as it is now. Sockets and other special files are left out."""
    return FolderListing(tuple(_walk(str(folder), "")))


def with_compiled(listing: FolderListing, folder: Path) -> FolderListing:
    """Return the listing plus the files that Python compiled since, so that the next machine need not."""
    known = {item.path for item in listing.items}
    compiled = []
    for item in list_folder(folder).items:
        path = PurePosixPath(item.path)
        if item.path in known or "__pycache__" not in path.parts:
            continue
        # `a/__pycache__/b.cpython-311.pyc` belongs to `a/b.py`. Python gives it a temporary name while writing it.
        source = path.parent.parent / f"{path.name.partition('.')[0]}.py"
        if item.kind == "folder" or (path.suffix == ".pyc" and str(source) in known):
            compiled.append(item)
    return FolderListing((*listing.items, *compiled))


def _walk(folder: str, prefix: str) -> Iterator[ListingItem]:
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        path = prefix + entry.name
        status = entry.stat(follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode):
            yield ListingItem("link", path, target=os.readlink(entry.path))  # noqa: PTH115 - quicker for thousands of links
        elif stat.S_ISDIR(status.st_mode):
            yield ListingItem("folder", path)
            yield from _walk(entry.path, path + "/")
        elif stat.S_ISREG(status.st_mode):
            yield ListingItem(
                "file", path, status.st_size, bool(status.st_mode & 0o100), modified_ns=status.st_mtime_ns
            )


def fingerprint(folder: Path) -> str:
    """Return a digest of the folder: paths, sizes, times and modes of files, and targets of links.

    Compiled Python files are ignored, because every import writes them. No file is read, so tens of thousands of files
    take a fraction of a second. Raises OSError.
    """
    digest = hashlib.sha256()
    waiting = [(str(folder), "")]
    while waiting:
        place, prefix = waiting.pop()
        rows: list[str] = []
        inner: list[tuple[str, str]] = []
        with os.scandir(place) as entries:
            for entry in entries:
                name = entry.name
                if name == "__pycache__" or name.endswith(".pyc"):
                    continue
                if entry.is_symlink():
                    rows.append(f"{name}\0{os.readlink(entry.path)}")  # noqa: PTH115 - quicker for thousands of links
                elif entry.is_dir(follow_symlinks=False):
                    inner.append((entry.path, f"{prefix}{name}/"))
                else:
                    status = entry.stat(follow_symlinks=False)
                    rows.append(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\0{status.st_mode:o}")
        digest.update("\n".join([f"{prefix}\0", *sorted(rows), ""]).encode("utf-8", "surrogateescape"))
        waiting += sorted(inner, reverse=True)
    return digest.hexdigest()


def read_part(folder: Path, listing: FolderListing, begin: int, end: int) -> bytearray:
    """Return these bytes of the stream. Raises FolderChanged if a file was modified since it was listed."""
    data = bytearray(end - begin)
    view = memoryview(data)
    for item, offset, length, at in listing.spans(begin, end):
        try:
            with open(folder / item.path, "rb", buffering=0) as file:  # noqa: PTH123 - quicker for thousands of files
                status = os.fstat(file.fileno())
                if (status.st_size, status.st_mtime_ns) != (item.size, item.modified_ns):
                    raise FolderChanged(f"{item.path} was changed")
                file.seek(offset)
                if file.readinto(view[at : at + length]) != length:
                    raise FolderChanged(f"{item.path} was changed")
        except FileNotFoundError:
            raise FolderChanged(f"{item.path} was removed") from None
    return data


def create_folders(folder: Path, listing: FolderListing) -> None:
    """Create the folders and the empty files of a listing. The folder must not exist."""
    folder.mkdir(parents=True)
    with _extraction(folder) as extraction:
        for item in listing.items:
            if item.kind == "folder":
                extraction.make_folder(item.path)
            elif item.kind == "file" and item.size == 0:
                handle = extraction.create(item.path, _mode(item))
                os.utime(handle, ns=(item.modified_ns, item.modified_ns))
                os.close(handle)


def create_links(folder: Path, listing: FolderListing) -> None:
    """Create the links, after all files. Raises CodecError for a link below another link."""
    links = {item.path for item in listing.items if item.kind == "link"}
    with _extraction(folder) as extraction:
        for item in listing.items:
            if item.kind == "link":
                if any(str(parent) in links for parent in PurePosixPath(item.path).parents):
                    raise CodecError("listing", f"{item.path!r} lies behind a link")
                extraction.make_link(item.path, item.target)


def write_part(folder: Path, listing: FolderListing, begin: int, data: bytes) -> None:
    """Write these bytes of the stream to their files. Parts may be written in any order and concurrently."""
    view = memoryview(data)
    with _extraction(folder) as extraction:
        for item, offset, length, at in listing.spans(begin, begin + len(data)):
            handle = _open_file(extraction, item)
            try:
                done = 0
                while done < length:
                    done += os.pwrite(handle, view[at + done : at + length], offset + done)
                # Repeated after each part of a file: the part that is written last must leave the right time.
                os.utime(handle, ns=(item.modified_ns, item.modified_ns))
            finally:
                os.close(handle)


def _open_file(extraction: Extraction, item: ListingItem) -> int:
    """Open the file for writing. Another part may have created it already."""
    try:
        return extraction.create(item.path, _mode(item))
    except FileExistsError:
        return extraction.open_file(item.path)


@contextmanager
def _extraction(folder: Path) -> Iterator[Extraction]:
    """Open the folder for extraction. Raises CodecError for a listing that contradicts itself or the folder."""
    try:
        with Extraction(folder, follow=False) as extraction:
            yield extraction
    except (FileExistsError, PathObstructed) as error:
        raise CodecError("listing", f"cannot be extracted: {error}") from None


def _mode(item: ListingItem) -> int:
    return 0o755 if item.executable else 0o644
