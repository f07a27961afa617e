"""Pack a code folder: the same content gives the same digest on any machine.

Files and links are sorted, their times and owners dropped, their modes reduced to 644 and 755. The digest is of the
tar inside the gzip: what deflate makes of the same bytes differs between versions of zlib, and a digest that differed
with it would be uploaded again for nothing. Folders count only when they are quite empty, as they do for git.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import os
import re
import stat
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import IO, TYPE_CHECKING, cast

from stoker.model.errors import UserError
from stoker.model.spec import Code
from stoker.submit.git_revision import Revision, revision
from stoker.submit.ignored_files import Ignored, weigh
from stoker.submit.system_folders import check_code_folder, is_made_up

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

WARN_ABOVE_BYTES = 100 * 1000**2
# More than this is not code: a disk, a dataset or a folder of environments that was named by mistake.
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
_IGNORE_FILES = (".gitignore", ".stokerignore")


@dataclass(frozen=True)
class Packed:
    """A packed folder. `path` is a temporary file: use it in a `with`, or remove it."""

    path: Path
    digest: str
    size: int
    files: int
    unpacked_size: int
    commit: str | None
    dirty: bool | None
    warnings: tuple[str, ...]
    # Everything in it, relative to the folder.
    names: frozenset[str] = frozenset()
    # What ignore files left out and the script may need: one for each kind of ignore file.
    ignored: tuple[Ignored, ...] = ()

    @property
    def code(self) -> Code:
        """What the submission records of it."""
        return Code(self.digest, self.size, self.files, self.commit, self.dirty)

    def __enter__(self) -> Packed:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.path.unlink(missing_ok=True)


@dataclass(frozen=True)
class _Entry:
    """Something to pack: a file, a link (with where it leads) or an empty folder."""

    name: str
    path: Path
    status: os.stat_result
    link: str | None = None

    @property
    def size(self) -> int:
        return self.status.st_size if stat.S_ISREG(self.status.st_mode) else 0


def pack(folder: Path, *, exclude: Sequence[str] = (), known: Sequence[Path] = (), into: Path | None = None) -> Packed:
    """Pack everything in `folder` that is code, into a new temporary file (in `into`, where that is given).

    Left out: what `.gitignore` and `.stokerignore` say, at any depth and above the folder up to the root of its git
    repository; caches and virtual environments; links that lead out of the folder; and `exclude`, paths relative to
    the folder or absolute. `known` is what the job has by other ways, its inputs: that it is left out is no news.
    Raises UserError when the folder or something in it cannot be read, leaving nothing behind.
    """
    if not folder.is_dir():
        problem = "is not a folder" if folder.exists() else "there is no such folder"
        raise UserError(f"code: {folder}: {problem}")
    root = folder.resolve()
    check_code_folder(root)
    walk = _Walk(root, frozenset(_relative(root, exclude)), frozenset(_relative(root, map(str, known))))
    entries = sorted(walk.entries(), key=lambda entry: os.fsencode(entry.name))
    digest, path = _write(entries, into)
    unpacked = sum(entry.size for entry in entries)
    if unpacked > WARN_ABOVE_BYTES:
        largest = ", ".join(f"{name} ({_megabytes(size)})" for name, size in _largest(entries))
        walk.warnings.append(
            f"the code is {_megabytes(unpacked)}; the largest: {largest}. List what is not code in .stokerignore"
        )
    source = revision(root, exclude=sorted(walk.excluded)) or Revision(None, None)
    return Packed(
        path=path,
        digest=digest,
        size=path.stat().st_size,
        files=sum(not stat.S_ISDIR(entry.status.st_mode) for entry in entries),
        unpacked_size=unpacked,
        commit=source.commit,
        dirty=source.dirty,
        warnings=tuple(walk.warnings),
        names=frozenset(entry.name for entry in entries),
        ignored=weigh(root, walk.ignored),
    )


def _relative(root: Path, paths: Iterable[str]) -> Iterator[str]:
    for path in paths:
        # The folder may itself be reached through a link.
        for full in (os.path.normpath(root / path), os.path.realpath(root / path)):
            if full.startswith(f"{root}{os.sep}"):
                yield Path(full).relative_to(root).as_posix()


class _Walk:
    """Goes through the folder once, deciding what is code."""

    def __init__(self, root: Path, excluded: frozenset[str], known: frozenset[str] = frozenset()) -> None:
        self.excluded = excluded
        self.known = known
        # What an ignore file left out, with the name of that file.
        self.ignored: list[tuple[str, str]] = []
        self.warnings: list[str] = []
        self._root = root
        self._device = root.stat().st_dev

    def entries(self) -> Iterator[_Entry]:
        """Raises UserError as soon as there is more than code can be."""
        files = size = 0
        for entry in self._folder(self._root, "", _rules_above(self._root)):
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

    def _folder(self, folder: Path, name: str, rules: tuple[_Rules, ...]) -> Iterator[_Entry]:
        own = _read_rules(folder)
        rules = (*rules, own) if own is not None else rules
        for item in self._scan(folder, name):
            inner = f"{name}/{item.name}" if name else item.name
            path = Path(item.path)
            is_folder = item.is_dir(follow_symlinks=False)
            if item.name in _ALWAYS_OUT or item.name.endswith(".pyc") or inner in self.excluded:
                continue
            if _ignored(path, is_folder, rules):
                if inner not in self.known:
                    self.ignored.append((inner, _ignored_by(path, is_folder, rules)))
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
            # Sockets, pipes and devices are nobody's code.

    def _check_device(self, item: os.DirEntry[str], name: str) -> None:
        """Something else may be mounted inside."""
        device = item.stat().st_dev
        if device != self._device and is_made_up(device):
            raise UserError(f"code: {name} belongs to the operating system; list it in .stokerignore")

    def _inside(self, path: Path, name: str, rules: tuple[_Rules, ...]) -> Iterator[_Entry]:
        if not self._scan(path, name):
            yield _Entry(name, path, path.lstat())
            return
        yield from self._folder(path, name, rules)

    def _scan(self, folder: Path, name: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as found:
                return list(found)
        except OSError as error:
            raise _unreadable(name or ".", error) from None

    def _link(self, path: Path, name: str) -> Iterator[_Entry]:
        target = _inner_target(self._root, path)
        if target is None:
            self.warnings.append(
                f"{name} is a link out of the code folder and is left out; list its target as an input"
            )
            return
        yield _Entry(name, path, path.lstat(), link=target)


def _inner_target(root: Path, path: Path) -> str | None:
    """Where a link leads, as a relative path that stays in the folder whoever resolves it; None if it leads out."""
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


# ── ignore files ──────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Rules:
    """The ignore rules written in one folder, for everything below it."""

    folder: Path
    spec: GitIgnoreSpec
    # Of that, what is written in Stoker's own file.
    own: GitIgnoreSpec


def _read_rules(folder: Path) -> _Rules | None:
    lines: list[str] = []
    before = 0
    # Stoker's own file comes last: it may take back what git's says.
    for name in _IGNORE_FILES:
        before = len(lines)
        try:
            # A pipe of that name would never end.
            if (folder / name).is_file():
                text = (folder / name).read_text(encoding="utf-8", errors="surrogateescape")
                lines += text.splitlines()
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            continue
        except OSError as error:
            raise _unreadable(str(folder / name), error) from None
    if not lines:
        return None
    from pathspec import GitIgnoreSpec

    # To pathspec `a/**` matches the folder `a/` itself; to git it does not, so that `!a/keep` can follow.
    lines = [re.sub(r"/\*\*$", "/*", line.rstrip()) for line in lines]
    return _Rules(folder, GitIgnoreSpec.from_lines(lines), GitIgnoreSpec.from_lines(lines[before:]))


def _rules_above(root: Path) -> tuple[_Rules, ...]:
    """The rules of the git repository that the folder lies in, unless they ignore the folder itself."""
    above: list[Path] = []
    for parent in (root, *root.parents):
        if (parent / ".git").exists():
            break
        above.append(parent.parent)
    else:
        return ()
    rules = tuple(found for folder in reversed(above) if (found := _read_rules(folder)) is not None)
    return () if _ignored(root, True, rules) else rules


def _ignored(path: Path, is_folder: bool, rules: tuple[_Rules, ...]) -> bool:
    """The deepest file that says anything about the path decides."""
    for rule in reversed(rules):
        name = path.relative_to(rule.folder).as_posix() + ("/" if is_folder else "")
        verdict = rule.spec.check_file(name).include
        if verdict is not None:
            return verdict
    return False


def _ignored_by(path: Path, is_folder: bool, rules: tuple[_Rules, ...]) -> str:
    """Which file says so, of those that stand beside each other."""
    for rule in reversed(rules):
        name = path.relative_to(rule.folder).as_posix() + ("/" if is_folder else "")
        if rule.spec.check_file(name).include is not None:
            return _IGNORE_FILES[1] if rule.own.check_file(name).include else _IGNORE_FILES[0]
    return _IGNORE_FILES[0]


# ── the archive ───────────────────────────────────────────────────────────────────────────────────────────────────────


class _Digesting:
    """Passes bytes on and keeps their sha256."""

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
    except BaseException:
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
            raise _unreadable(entry.name, error) from None


def _unreadable(name: str, error: OSError) -> UserError:
    # tarfile says "unexpected end of data" without a number when the file shrank under it.
    problem = f"cannot be read ({error.strerror})" if error.errno is not None else "changed while it was packed"
    return UserError(f"code: {name}: {problem}; put that right or list it in .stokerignore")


def _largest(entries: list[_Entry]) -> list[tuple[str, int]]:
    """The three largest things, looking into folders that are large because of one thing in them."""
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
