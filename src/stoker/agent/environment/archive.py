"""A folder as one stream of bytes, cut into parts that are sent, fetched, verified and written apart from each other.

The listing says which folders, files and links there are. The files' bytes, in the listing's order, are the stream. A
part is so many bytes of it, whatever files they belong to: a large file is spread over many parts, and thousands of
small ones lie in one. So all parts can be in flight at once, which one tar archive could not.
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

from stoker.model.errors import CodecError, StokerError
from stoker.store.safe_extraction import Extraction, Obstructed, inner_parts

# Many are in memory at once, on machines of any size.
PART_BYTES = 64 * 1000**2


class Changed(StokerError):
    """A file is not what it was when the folder was listed."""


@dataclass(frozen=True)
class Item:
    """A folder, a file with its size, or a link with where it leads."""

    kind: Literal["folder", "file", "link"]
    path: str
    size: int = 0
    executable: bool = False
    target: str = ""
    # When a file was last written. Compiled files name the time of their source, in seconds.
    modified_ns: int = 0


class Listing:
    """What there is in a folder, in an order that does not depend on the disk."""

    def __init__(self, items: tuple[Item, ...]) -> None:
        self.items = items
        self.files = tuple(item for item in items if item.kind == "file")
        # Where each file begins in the stream, and where the last one ends.
        self._begins = [0, *accumulate(item.size for item in self.files)]

    @property
    def size(self) -> int:
        return self._begins[-1]

    def parts(self, part_bytes: int) -> list[tuple[int, int]]:
        """Where each part begins and ends in the stream."""
        return [(begin, min(begin + part_bytes, self.size)) for begin in range(0, self.size, part_bytes)]

    def spans(self, begin: int, end: int) -> Iterator[tuple[Item, int, int, int]]:
        """The files of these bytes: each with where to begin in it, how many bytes, and where those are in the part."""
        number = max(0, bisect.bisect_right(self._begins, begin) - 1)
        while number < len(self.files) and self._begins[number] < end:
            first, last = max(begin, self._begins[number]), min(end, self._begins[number + 1])
            if last > first:
                yield self.files[number], first - self._begins[number], last - first, first - begin
            number += 1

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
    def load(cls, data: bytes) -> Listing:
        """Raises CodecError for anything that is no listing, or leads out of its folder."""
        try:
            return cls(tuple(_item(row) for row in json.loads(data)))
        except (ValueError, TypeError, KeyError, IndexError, RecursionError, Obstructed) as error:
            raise CodecError("listing", f"cannot be read: {error}") from None


def _item(row: list[object]) -> Item:
    path = row[1]
    if not isinstance(path, str):
        raise ValueError(f"{path!r} is no path")
    inner_parts(path)
    match row:
        case ["folder", _]:
            return Item("folder", path)
        case ["file", _, int(size), int(executable), int(modified_ns)] if size >= 0:
            return Item("file", path, size, bool(executable), modified_ns=modified_ns)
        case ["link", _, str(target)]:
            return Item("link", path, target=target)
    raise ValueError(f"{row!r:.100} is no item")


def take_listing(folder: Path) -> Listing:
    """What there is in the folder now. Sockets and the like are left out."""
    return Listing(tuple(_walk(str(folder), "")))


def with_compiled(listing: Listing, folder: Path) -> Listing:
    """The listing, and what Python has compiled of its files since: the next machine need not do that again."""
    known = {item.path for item in listing.items}
    compiled = []
    for item in take_listing(folder).items:
        path = PurePosixPath(item.path)
        if item.path in known or "__pycache__" not in path.parts:
            continue
        # `a/__pycache__/b.cpython-311.pyc` is of `a/b.py`. While it is written it has another name.
        source = path.parent.parent / f"{path.name.partition('.')[0]}.py"
        if item.kind == "folder" or (path.suffix == ".pyc" and str(source) in known):
            compiled.append(item)
    return Listing((*listing.items, *compiled))


def _walk(folder: str, prefix: str) -> Iterator[Item]:
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        path = prefix + entry.name
        status = entry.stat(follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode):
            yield Item("link", path, target=os.readlink(entry.path))  # noqa: PTH115 - thousands of them
        elif stat.S_ISDIR(status.st_mode):
            yield Item("folder", path)
            yield from _walk(entry.path, path + "/")
        elif stat.S_ISREG(status.st_mode):
            yield Item("file", path, status.st_size, bool(status.st_mode & 0o100), modified_ns=status.st_mtime_ns)


def fingerprint(folder: Path) -> str:
    """Of what there is in the folder: every path, size, time and mode of files, and where links lead.

    What Python compiles does not count, for that comes with each import. Nothing is read, so that it takes a fraction
    of a second for tens of thousands of files. Raises OSError.
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
                    rows.append(f"{name}\0{os.readlink(entry.path)}")  # noqa: PTH115 - thousands of them
                elif entry.is_dir(follow_symlinks=False):
                    inner.append((entry.path, f"{prefix}{name}/"))
                else:
                    status = entry.stat(follow_symlinks=False)
                    rows.append(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\0{status.st_mode:o}")
        digest.update("\n".join([f"{prefix}\0", *sorted(rows), ""]).encode("utf-8", "surrogateescape"))
        waiting += sorted(inner, reverse=True)
    return digest.hexdigest()


def read_part(folder: Path, listing: Listing, begin: int, end: int) -> bytearray:
    """These bytes of the stream. Raises Changed when a file was written to since it was listed."""
    data = bytearray(end - begin)
    view = memoryview(data)
    for item, offset, length, at in listing.spans(begin, end):
        try:
            with open(folder / item.path, "rb", buffering=0) as file:  # noqa: PTH123 - thousands of them
                status = os.fstat(file.fileno())
                if (status.st_size, status.st_mtime_ns) != (item.size, item.modified_ns):
                    raise Changed(f"{item.path} was changed")
                file.seek(offset)
                if file.readinto(view[at : at + length]) != length:
                    raise Changed(f"{item.path} was changed")
        except FileNotFoundError:
            raise Changed(f"{item.path} was removed") from None
    return data


def lay_out(folder: Path, listing: Listing) -> None:
    """Everything but the files' bytes, and the links. The folder must not be there."""
    folder.mkdir(parents=True)
    with _extraction(folder) as extraction:
        for item in listing.items:
            if item.kind == "folder":
                extraction.make_folder(item.path)
            elif item.kind == "file" and item.size == 0:
                handle = extraction.create(item.path, _mode(item))
                os.utime(handle, ns=(item.modified_ns, item.modified_ns))
                os.close(handle)


def lay_links(folder: Path, listing: Listing) -> None:
    """The links. They come last; none is made behind another."""
    links = {item.path for item in listing.items if item.kind == "link"}
    with _extraction(folder) as extraction:
        for item in listing.items:
            if item.kind == "link":
                if any(str(parent) in links for parent in PurePosixPath(item.path).parents):
                    raise CodecError("listing", f"{item.path!r} lies behind a link")
                extraction.make_link(item.path, item.target)


def write_part(folder: Path, listing: Listing, begin: int, data: bytes) -> None:
    """Put these bytes of the stream where they belong. Parts may come in any order, and at once."""
    view = memoryview(data)
    with _extraction(folder) as extraction:
        for item, offset, length, at in listing.spans(begin, begin + len(data)):
            handle = _open_file(extraction, item)
            try:
                done = 0
                while done < length:
                    done += os.pwrite(handle, view[at + done : at + length], offset + done)
                # After each of its parts: the last to come has the last word.
                os.utime(handle, ns=(item.modified_ns, item.modified_ns))
            finally:
                os.close(handle)


def _open_file(extraction: Extraction, item: Item) -> int:
    """A handle of the file, which another part may have made meanwhile."""
    try:
        return extraction.create(item.path, _mode(item))
    except FileExistsError:
        return extraction.open_file(item.path)


@contextmanager
def _extraction(folder: Path) -> Iterator[Extraction]:
    """Raises CodecError for a listing that is at odds with itself, or with the folder."""
    try:
        with Extraction(folder, follow=False) as extraction:
            yield extraction
    except (FileExistsError, Obstructed) as error:
        raise CodecError("listing", f"cannot be extracted: {error}") from None


def _mode(item: Item) -> int:
    return 0o755 if item.executable else 0o644
