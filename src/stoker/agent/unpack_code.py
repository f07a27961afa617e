"""Unpack the code on a node: safely, and only if its digest is the one in the log."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import tarfile
import zlib
from collections.abc import Collection
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from stoker.model.errors import CodecError
from stoker.store.safe_extraction import Extraction, PathObstructed

_CHUNK = 1 << 20


def code_digest(archive: Path) -> str:
    """Return the sha256 of the tar inside the archive, the digest of `stoker.submit.pack_code`. Raises CodecError."""
    found = hashlib.sha256()
    try:
        with gzip.open(archive) as stream:
            while chunk := stream.read(_CHUNK):
                found.update(chunk)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise CodecError("code", f"the archive is damaged: {error}") from None
    return found.hexdigest()


def unpack(archive: Path, target: Path, digest: str) -> None:
    """Unpack the archive whose digest is `digest` to `target`.

    The digest is verified before anything is written. `target` must not exist, or be empty; it appears whole or not at
    all, so that an unpacking that was cut short can be repeated. Raises CodecError when the archive is not what it
    should be or holds anything but files, folders and links that stay inside; OSError when the disk refuses.
    """
    if (found := code_digest(archive)) != digest:
        raise CodecError("code", f"expected digest {digest}, found {found}")
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        try:
            with (
                tarfile.open(archive, mode="r:gz", encoding="utf-8") as tar,
                Extraction(partial, follow=False) as root,
            ):
                _extract(tar, root)
        except tarfile.TarError as error:
            raise CodecError("code", f"not a tar archive: {error}") from None
        except (PathObstructed, IsADirectoryError) as error:
            raise CodecError("code", f"a name is both a file and a folder: {error}") from None
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _extract(tar: tarfile.TarFile, root: Extraction) -> None:
    links: list[tarfile.TarInfo] = []
    for member in tar:
        path = "/".join(_inner_parts(member.name))
        if member.isdir():
            root.make_folder(path)
        elif member.isreg():
            source = tar.extractfile(member)
            assert source is not None
            # A second entry with the same name is an attack.
            with source, _exclusive(root, path) as file:
                shutil.copyfileobj(source, file, _CHUNK)
                os.fchmod(file.fileno(), 0o755 if member.mode & 0o100 else 0o644)
        elif member.issym():
            links.append(member)
        else:
            raise CodecError("code", f"{member.name!r} is neither file, folder nor link")
    # Links come last: a link never replaces a folder.
    made: set[str] = set()
    for member in links:
        made.add(_make_link(member, root, made))


def _exclusive(root: Extraction, path: str) -> BinaryIO:
    try:
        return os.fdopen(root.create(path), "wb")
    except FileExistsError:
        raise CodecError("code", f"{path!r} is there twice") from None


def _inner_parts(name: str) -> tuple[str, ...]:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise CodecError("code", f"{name!r} leads out of the folder")
    return path.parts


def _make_link(member: tarfile.TarInfo, root: Extraction, links: Collection[str]) -> str:
    """Make a link that cannot lead out: it climbs only at its beginning, from a real folder, and not above the root.

    `links` are the paths of earlier links: none may be above it. Returns its own path.

    `..` after a name is refused because that name may be another link, and what is above its target may be outside.
    """
    parts = _inner_parts(member.name)
    steps = PurePosixPath(member.linkname).parts
    climbs = next((index for index, step in enumerate(steps) if step != ".."), len(steps))
    inside = climbs < len(parts) and ".." not in steps[climbs:] and not PurePosixPath(member.linkname).is_absolute()
    if not member.linkname or not inside:
        raise CodecError("code", f"{member.name!r} is a link out of the folder")
    path = "/".join(parts)
    if any("/".join(parts[:depth]) in links for depth in range(1, len(parts))):
        raise CodecError("code", f"{member.name!r} lies behind a link")
    try:
        root.make_link(path, member.linkname)
    except FileExistsError:
        raise CodecError("code", f"{member.name!r} is there twice") from None
    return path
