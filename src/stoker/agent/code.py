"""Unpack the code on a node: safely, and only if it is what the log says it is."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import tarfile
import zlib
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from stoker.errors import CodecError

_CHUNK = 1 << 20


def code_digest(archive: Path) -> str:
    """The sha256 of the tar inside the archive: what `stoker.pack` calls the digest. Raises CodecError."""
    found = hashlib.sha256()
    try:
        with gzip.open(archive) as stream:
            while chunk := stream.read(_CHUNK):
                found.update(chunk)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise CodecError("code", f"the archive is damaged: {error}") from None
    return found.hexdigest()


def unpack(archive: Path, target: Path, digest: str) -> None:
    """Make `target` the folder that was packed as `digest`.

    The digest is verified before anything is written. `target` must not exist, or be empty; it appears whole or not at
    all, so that an unpacking that was cut short can be repeated. Raises CodecError when the archive is not what it
    should be or holds anything but files, folders and links that stay inside; OSError when the disk refuses.
    """
    if (found := code_digest(archive)) != digest:
        raise CodecError("code", f"expected digest {digest}, found {found}")
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        try:
            with tarfile.open(archive, mode="r:gz", encoding="utf-8") as tar:
                _extract(tar, partial)
        except tarfile.TarError as error:
            raise CodecError("code", f"not a tar archive: {error}") from None
        except (FileExistsError, NotADirectoryError) as error:
            raise CodecError("code", f"{error.filename!r} is both a file and a folder") from None
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _extract(tar: tarfile.TarFile, root: Path) -> None:
    links: list[tarfile.TarInfo] = []
    for member in tar:
        path = root.joinpath(*_inner_parts(member.name))
        if member.isdir():
            path.mkdir(parents=True, exist_ok=True)
        elif member.isreg():
            path.parent.mkdir(parents=True, exist_ok=True)
            source = tar.extractfile(member)
            assert source is not None
            # Exclusive: a second entry of the same name is somebody's trick.
            with source, _exclusive(path, member.name) as file:
                shutil.copyfileobj(source, file, _CHUNK)
                os.fchmod(file.fileno(), 0o755 if member.mode & 0o100 else 0o644)
        elif member.issym():
            links.append(member)
        else:
            raise CodecError("code", f"{member.name!r} is neither file, folder nor link")
    # Links come last, so that no file is ever written through one.
    for member in links:
        _make_link(member, root)


def _exclusive(path: Path, name: str) -> BinaryIO:
    try:
        return path.open("xb")
    except FileExistsError:
        raise CodecError("code", f"{name!r} is there twice") from None


def _inner_parts(name: str) -> tuple[str, ...]:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise CodecError("code", f"{name!r} leads out of the folder")
    return path.parts


def _make_link(member: tarfile.TarInfo, root: Path) -> None:
    """Make a link that cannot lead out: it climbs only at its beginning, from a real folder, and not above the root.

    `..` after a name is refused because that name may be another link, and what is above its target may be outside.
    """
    parts = _inner_parts(member.name)
    steps = PurePosixPath(member.linkname).parts
    climbs = next((index for index, step in enumerate(steps) if step != ".."), len(steps))
    inside = climbs < len(parts) and ".." not in steps[climbs:] and not PurePosixPath(member.linkname).is_absolute()
    if not member.linkname or not inside:
        raise CodecError("code", f"{member.name!r} is a link out of the folder")
    folder = root
    for part in parts[:-1]:
        folder = folder / part
        if folder.is_symlink():
            raise CodecError("code", f"{member.name!r} lies behind a link")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.joinpath(parts[-1]).symlink_to(member.linkname)
    except FileExistsError:
        raise CodecError("code", f"{member.name!r} is there twice") from None
