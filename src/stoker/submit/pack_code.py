"""Pack a code folder. The same content gives the same digest on any machine.

Files and links are sorted, their times and owners dropped, their modes reduced to 644 and 755. The digest is that
of the tar inside the gzip: versions of zlib compress the same bytes differently, and a digest of the compressed bytes
would cause needless uploads. A folder gets an entry of its own only if it is empty; others follow from the paths of
their files.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import os
import stat
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import IO, cast

from stoker.model.errors import UserError
from stoker.model.submission import Code
from stoker.submit.git_revision import Revision, revision
from stoker.submit.ignore_rules import IgnoreRules, ignored_by, is_ignored, read_rules, rules_above, unreadable_code
from stoker.submit.ignored_files import MOST_COUNTED, IgnoredFiles, summarize_ignored
from stoker.submit.results_in_code import UnpackedResults
from stoker.submit.system_folders import check_code_folder, is_kernel_filesystem

WARN_ABOVE_BYTES = 100 * 1000**2
# More than this is no code, but a disk, a dataset or a folder of environments that was named by mistake.
MOST_FILES = 200_000
MOST_BYTES = 10 * 1000**3

# Never code, whatever the ignore files say.
_ALWAYS_OUT = frozenset(
    {
        ".git",
        ".stoker",
        "__pycache__",
        ".mypy_cache",
        ".pytest_cache",
        ".ruff_cache",
        ".hypothesis",
        ".ipynb_checkpoints",
        ".tox",
        ".nox",
        ".DS_Store",
    }
)


@dataclass(frozen=True)
class PackedCode:
    """A packed folder. `path` is a temporary file: use it in a `with`, or delete it."""

    path: Path
    digest: str
    size: int
    files: int
    commit: str | None
    dirty: bool | None
    warnings: tuple[str, ...]
    # The paths of everything in it, relative to the folder.
    names: frozenset[str] = frozenset()
    # Files that the script may need and ignore files left out: one for each kind of ignore file.
    ignored: tuple[IgnoredFiles, ...] = ()
    # Folders for results in it, with the files that are not packed therefore.
    results: tuple[UnpackedResults, ...] = ()

    @property
    def code(self) -> Code:
        """The part of it that the submission records."""
        return Code(self.digest, self.size, self.files, self.commit, self.dirty)

    def __enter__(self) -> PackedCode:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.path.unlink(missing_ok=True)


@dataclass(frozen=True)
class _Entry:
    """A file, a link (with its target) or an empty folder to pack."""

    name: str
    path: Path
    status: os.stat_result
    link: str | None = None

    @property
    def size(self) -> int:
        return self.status.st_size if stat.S_ISREG(self.status.st_mode) else 0


def pack(
    folder: Path,
    *,
    exclude: Sequence[str] = (),
    results: Sequence[tuple[str, str]] = (),
    known: Sequence[Path] = (),
    into: Path | None = None,
) -> PackedCode:
    """Pack everything in `folder` that is code, into a new temporary file (in `into`, where that is given).

    Left out are files that `.gitignore` and `.stokerignore` name, at any depth and above the folder up to the root of
    its git repository; caches and virtual environments; links that lead out of the folder; and `exclude`, paths
    relative to the folder or absolute. So are `results`, pairs of a field and a path that it names: the files in them
    are listed in the result. `known` are the job's inputs: they may be left out without a warning. Raises UserError
    when the folder or a file in it cannot be read, and leaves no temporary file then.
    """
    if not folder.is_dir():
        problem = "is not a folder" if folder.exists() else "there is no such folder"
        raise UserError(f"code: {folder}: {problem}")
    root = folder.resolve()
    check_code_folder(root)
    fields = {name: field for field, path in results for name in _relative(root, [path])}
    excluded = frozenset(_relative(root, exclude)) | fields.keys()
    walk = _Walk(root, excluded, frozenset(_relative(root, map(str, known))))
    entries = sorted(walk.entries(), key=lambda entry: os.fsencode(entry.name))
    unpacked = sum(entry.size for entry in entries)
    if unpacked > WARN_ABOVE_BYTES:
        largest = ", ".join(f"{name} ({_megabytes(size)})" for name, size in _largest(entries))
        walk.warnings.append(
            f"the code is {_megabytes(unpacked)}; the largest: {largest}. List what is not code in .stokerignore"
        )
    source = revision(root, exclude=sorted(walk.excluded)) or Revision(None, None)
    ignored = summarize_ignored(root, walk.ignored)
    left_out = tuple(_unpacked(root, one, fields[one.name]) for one in walk.left_out if one.name in fields)
    # Last: whatever fails before it, Ctrl-C while git is asked too, leaves no file.
    digest, path = _write(entries, into)
    return PackedCode(
        path=path,
        digest=digest,
        size=path.stat().st_size,
        files=sum(not stat.S_ISDIR(entry.status.st_mode) for entry in entries),
        commit=source.commit,
        dirty=source.dirty,
        warnings=tuple(walk.warnings),
        names=frozenset(entry.name for entry in entries),
        ignored=ignored,
        results=left_out,
    )


def _unpacked(root: Path, left: _LeftOut, field: str) -> UnpackedResults:
    """List the files that would have been packed if they were not for results: up to `MOST_COUNTED`."""
    if not left.path.is_dir():
        return UnpackedResults(field, left.name, is_file=True, files=())
    files: list[tuple[str, int]] = []
    # A file that cannot be read there is not packed anyway.
    with suppress(UserError):
        for entry in islice(_Walk(root, frozenset()).below(left), MOST_COUNTED):
            if stat.S_ISREG(entry.status.st_mode):
                files.append((entry.name, entry.size))  # noqa: PERF401 - those before an unreadable one stay
    return UnpackedResults(field, left.name, is_file=False, files=tuple(files))


def _relative(root: Path, paths: Iterable[str]) -> Iterator[str]:
    for path in paths:
        # The folder may itself be reached through a link.
        for full in (os.path.normpath(root / path), os.path.realpath(root / path)):
            if full.startswith(f"{root}{os.sep}"):
                yield Path(full).relative_to(root).as_posix()


@dataclass(frozen=True)
class _LeftOut:
    """An excluded file or folder that no ignore file names, with the ignore rules around it."""

    name: str
    path: Path
    rules: tuple[IgnoreRules, ...]


class _Walk:
    """Walks through the folder once, and decides what is code."""

    def __init__(self, root: Path, excluded: frozenset[str], known: frozenset[str] = frozenset()) -> None:
        self.excluded = excluded
        self.known = known
        # Paths that an ignore file left out, with the name of that file.
        self.ignored: list[tuple[str, str]] = []
        self.left_out: list[_LeftOut] = []
        self.warnings: list[str] = []
        self._root = root
        self._device = root.stat().st_dev

    def entries(self) -> Iterator[_Entry]:
        """Everything to pack. Raises UserError as soon as there is more than code can be."""
        files = size = 0
        for entry in self._folder(self._root, "", rules_above(self._root)):
            files, size = files + 1, size + entry.size
            if files > MOST_FILES or size > MOST_BYTES:
                found = (
                    f"more than {MOST_FILES:,} files" if files > MOST_FILES else f"more than {_megabytes(MOST_BYTES)}"
                )
                raise UserError(
                    f"code: {self._root} holds {found}, at {entry.name}; name a smaller folder, list what is not code "
                    "in .stokerignore, and data under inputs"
                )
            yield entry

    def below(self, left: _LeftOut) -> Iterator[_Entry]:
        """Everything in a folder that was left out, as if it was to be packed."""
        return self._folder(left.path, left.name, left.rules)

    def _folder(self, folder: Path, name: str, rules: tuple[IgnoreRules, ...]) -> Iterator[_Entry]:
        own = read_rules(folder)
        rules = (*rules, own) if own is not None else rules
        for item in self._scan(folder, name):
            inner = f"{name}/{item.name}" if name else item.name
            path = Path(item.path)
            is_folder = item.is_dir(follow_symlinks=False)
            if item.name in _ALWAYS_OUT or item.name.endswith(".pyc"):
                continue
            ignored = is_ignored(path, is_folder, rules)
            if inner in self.excluded:
                if not ignored and (is_folder or item.is_file()):
                    self.left_out.append(_LeftOut(inner, path, rules))
                continue
            if ignored:
                if inner not in self.known:
                    self.ignored.append((inner, ignored_by(path, is_folder, rules)))
                continue
            if item.is_symlink():
                yield from self._link(path, inner)
            elif is_folder:
                self._check_device(item, inner)
                if not (path / "pyvenv.cfg").is_file():
                    yield from self._inside(path, inner, rules)
            elif item.is_file():
                if item.name == ".env":
                    self.warnings.append(f"{inner} goes into the bucket as it is; keep secrets out with .stokerignore")
                yield _Entry(inner, path, item.stat(follow_symlinks=False))
            # Sockets, pipes and devices are no code.

    def _check_device(self, item: os.DirEntry[str], name: str) -> None:
        """Raise UserError for a filesystem of the kernel that is mounted inside the folder."""
        device = item.stat().st_dev
        if device != self._device and is_kernel_filesystem(device):
            raise UserError(f"code: {name} belongs to the operating system; list it in .stokerignore")

    def _inside(self, path: Path, name: str, rules: tuple[IgnoreRules, ...]) -> Iterator[_Entry]:
        if not self._scan(path, name):
            yield _Entry(name, path, path.lstat())
            return
        yield from self._folder(path, name, rules)

    def _scan(self, folder: Path, name: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as found:
                return list(found)
        except OSError as error:
            raise unreadable_code(name or ".", error) from None

    def _link(self, path: Path, name: str) -> Iterator[_Entry]:
        target = _inner_target(self._root, path)
        if target is None:
            self.warnings.append(
                f"{name} is a link out of the code folder and is left out; list its target as an input"
            )
            return
        yield _Entry(name, path, path.lstat(), link=target)


def _inner_target(root: Path, path: Path) -> str | None:
    """The target of a link as a relative path that stays in the folder on any machine; None if it leads out."""
    text = str(path.readlink())
    real = os.path.realpath(path)
    if real != str(root) and not real.startswith(f"{root}{os.sep}"):
        return None
    # `..` after a name may pass through another link and come out anywhere: only leading ones are kept as they are.
    steps = PurePosixPath(text).parts
    climbs = next((index for index, step in enumerate(steps) if step != ".."), len(steps))
    if (
        not PurePosixPath(text).is_absolute()
        and ".." not in steps[climbs:]
        and climbs <= len(path.relative_to(root).parts) - 1
    ):
        return text
    return os.path.relpath(real, path.parent)


# ── The archive ───────────────────────────────────────────────────────────────────────────────────────────────────────


class _Digesting:
    """Passes bytes on and computes their sha256."""

    def __init__(self, inner: IO[bytes]) -> None:
        self._inner = inner
        self.sha256 = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.sha256.update(data)
        return self._inner.write(data)


def _write(entries: list[_Entry], into: Path | None) -> tuple[str, Path]:
    handle, name = tempfile.mkstemp(prefix="stoker-code-", suffix=".tar.gz", dir=into)
    path = Path(name)
    try:
        with (
            os.fdopen(handle, "wb") as raw,
            gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as zipped,
        ):
            stream = _Digesting(cast("IO[bytes]", zipped))
            with tarfile.open(
                fileobj=cast("IO[bytes]", stream), mode="w|", format=tarfile.PAX_FORMAT, encoding="utf-8"
            ) as tar:
                for entry in entries:
                    _add(tar, entry)
        return stream.sha256.hexdigest(), path
    except BaseException:  # Ctrl-C, too, must not leave the archive behind; raised again
        path.unlink(missing_ok=True)
        raise


def _add(tar: tarfile.TarFile, entry: _Entry) -> None:
    member = tarfile.TarInfo(entry.name)
    member.mode = 0o755
    if entry.link is not None:
        member.type, member.linkname = tarfile.SYMTYPE, entry.link
        tar.addfile(member)
    elif stat.S_ISDIR(entry.status.st_mode):
        member.type = tarfile.DIRTYPE
        tar.addfile(member)
    else:
        member.size = entry.status.st_size
        member.mode = 0o755 if entry.status.st_mode & stat.S_IXUSR else 0o644
        try:
            with entry.path.open("rb") as file:
                tar.addfile(member, file)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise UserError(f"code: packing needs room in {tempfile.gettempdir()}: {error.strerror}") from None
            raise unreadable_code(entry.name, error) from None


def _largest(entries: list[_Entry]) -> list[tuple[str, int]]:
    """The three largest files and folders. A folder that is large because of one entry is replaced by that entry."""
    found = sorted(_grouped(entries, "").items(), key=lambda item: -item[1])[:3]
    return [_narrowed(entries, name, size) for name, size in found]


def _narrowed(entries: list[_Entry], name: str, size: int) -> tuple[str, int]:
    while name.endswith("/"):
        inner, part = max(_grouped(entries, name).items(), key=lambda item: item[1])
        if part < 0.9 * size:
            break
        name, size = inner, part
    return name, size


def _grouped(entries: list[_Entry], prefix: str) -> dict[str, int]:
    """The sizes one level below `prefix`; the names of folders end with a slash."""
    sizes: dict[str, int] = {}
    for entry in entries:
        if entry.name.startswith(prefix):
            head, slash, _ = entry.name[len(prefix) :].partition("/")
            sizes[prefix + head + slash] = sizes.get(prefix + head + slash, 0) + entry.size
    return sizes


def _megabytes(size: int) -> str:
    return f"{size / 1000**2:,.0f} MB"
