"""Choose the files of a node that are its outputs, and say what is left out.

Two kinds of files are kept:

- *declared* ones: in the output folder (STOKER_OUTPUT_DIR), or named by the job's `outputs`. They are synced while the
  training runs, without a bound.
- files *beside the code*: whatever else the training made or changed in its working folder. They are kept at the end,
  up to MOST_FILES and MOST_BYTES. Checkpoints are not among them: they are safe already. But a file of the checkpoint
  folder that no commit has is kept, where the job may be over: as it is, for people and not to be resumed from.

Files that lay there before the training began, and that it did not change, are nobody's result.
"""

from __future__ import annotations

import errno
import json
import os
import posixpath
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import translate
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from stoker.agent.checkpoints.folder_snapshot import FOLDER, IGNORED, MOST_DEEP, File, Files, Signature, scan
from stoker.agent.confinement import Confinement
from stoker.store.checkpoint_manifests import safe_path

# Beside the code: at 100 MB/s this takes less than four minutes of a machine that is paid for, and holds the weights of
# a model of ten billion parameters in half precision. More than that was hardly left there to be kept.
MOST_BYTES = 20 * 1000**3
# Each file is a request of its own: at 40 ms each, so many take about three minutes.
MOST_FILES = 5000
# More files than this in one folder, or with one ending, are a crowd.
_CROWD = 100
# How many files that were left out are named; the rest is counted.
MOST_NAMED = 20

# Made again by whoever needs them. Left out without a word.
_CACHES = frozenset(
    {
        *("__pycache__", ".git", ".stoker", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis"),
        *(".ipynb_checkpoints", ".tox", ".nox", ".triton", ".nv", "node_modules", ".DS_Store"),
    }
)
_ENVIRONMENT_MARKS = ("pyvenv.cfg", "conda-meta")
_CORE = re.compile(r"core(\.\d+)?")
_CORE_MAGIC = b"\x7fELF"
# Stoker's own, and what Python makes again: left out without a word.
_UNTOLD = re.compile("|".join(translate(name) for name in (".stoker-*", "*.pyc")))
_UNFINISHED = re.compile("|".join(translate(name) for name in IGNORED))
# Where there is not room for everything, this comes last.
_LESS_WORTH = frozenset({"cache", "caches", "tmp", "temp"})

# Links that lead to links: as many as Linux follows.
_MOST_HOPS = 40

Stamp = tuple[int, int]


class Output(NamedTuple):
    """A file to keep: under its path in the kept tree, and where it lies."""

    file: File
    source: Path


class LeftOut(NamedTuple):
    """A file that is not kept, and why."""

    path: str
    size: int
    why: str


@dataclass(frozen=True)
class Source:
    """A folder that outputs are taken from. `prefix` comes before their paths; `takes` decides by the path in it."""

    folder: Path
    prefix: str = ""
    takes: Callable[[str], bool] = lambda _path: True
    # What lay there before counts, too: the folder is the job's own and was empty when it was made.
    whole: bool = False


@dataclass(frozen=True)
class Baseline:
    """What lay in the folders before the training began: size and time of each file, by its absolute path."""

    files: Mapping[str, Stamp] = field(default_factory=dict)

    @classmethod
    def take(cls, folders: Iterable[Path]) -> Baseline:
        found: dict[str, Stamp] = {}
        for folder in folders:
            for path, status, _ in _walk(folder):
                if status is not None:
                    found[os.fspath(folder / path)] = (status.st_size, status.st_mtime_ns)
        return cls(found)

    def has(self, folder: Path, path: str, size: int, modified_ns: int) -> bool:
        """Whether this file was there before, and is unchanged."""
        return self.files.get(f"{folder}/{path}") == (size, modified_ns)

    def has_file(self, folder: Path, file: File) -> bool:
        return self.has(folder, file.path, file.signature.size, file.signature.modified_ns)

    def without(self, paths: Iterable[Path]) -> Baseline:
        """Without files that belong to the job: what was restored for it."""
        own = {os.fspath(path) for path in paths}
        return Baseline({path: stamp for path, stamp in self.files.items() if path not in own})

    def write(self, path: Path) -> None:
        """For an agent that is started after this one died."""
        draft = path.with_name(f".{path.name}.tmp")
        draft.write_text(json.dumps(self.files), encoding="utf-8")
        draft.replace(path)

    @classmethod
    def read(cls, path: Path) -> Baseline | None:
        """None: no training began here."""
        try:
            tree = json.loads(path.read_text(encoding="utf-8"))
            return cls({str(name): (int(stamp[0]), int(stamp[1])) for name, stamp in tree.items()})
        except (OSError, ValueError, TypeError, LookupError, AttributeError):
            return None


class OutputFiles:
    """Which files of a node are its outputs at this moment. `work` is the folder beside whose code files are kept."""

    def __init__(
        self,
        sources: Iterable[Source],
        work: Source | None = None,
        baseline: Baseline | None = None,
        *,
        most_bytes: int | None = None,
        most_files: int | None = None,
        confinement: Confinement | None = None,
    ) -> None:
        self._sources = tuple(sources)
        self._work = work
        self._baseline = baseline or Baseline()
        self._confinement = confinement
        self._saves: list[Output] = []
        self._most_bytes = MOST_BYTES if most_bytes is None else most_bytes
        self._most_files = MOST_FILES if most_files is None else most_files

    def keep_saves(self, folder: Path, files: Files) -> None:
        """Keep files of the checkpoint folder at the end, too: no commit has them."""
        prefix = f"{folder.name}/"
        if self._work is not None and folder.is_relative_to(self._work.folder):
            inside = folder.relative_to(self._work.folder).as_posix()
            prefix = self._work.prefix + (f"{inside}/" if inside != "." else "")
        source = Source(folder, prefix)
        self._saves = [_output(source, path, file) for path, file in files.items()]

    def declared(self) -> dict[str, Output]:
        """The files that the job names as its outputs, by their path in the kept tree."""
        found: dict[str, Output] = {}
        for source in self._sources:
            files = scan(source.folder, confinement=self._confinement)
            for path, file in (files if source.whole else without_caches(files)).items():
                if not source.whole and not self._is_new(source, path, file):
                    continue
                target = _target_of(files, path) if self._confinement is not None else path
                real = _followed(source.folder, files[target]) if target is not None else None
                if target is not None and real is not None:
                    named = source.prefix + path
                    found.setdefault(named, Output(real._replace(path=named), source.folder / target))
        return found

    def unkept(self, declared: Mapping[str, Output]) -> list[LeftOut]:
        """What lies among the declared files and cannot be kept, and why."""
        found: dict[str, LeftOut] = {}
        for source in self._sources:
            for path, status, problem in _walk(source.folder, self._confinement, everything=source.whole):
                target, size = source.prefix + path, status.st_size if status is not None else 0
                if target in declared or not source.takes(path):
                    continue
                if status is not None and self._is_no_news(source, path, status):
                    continue
                why = problem or (_problem_of(source.folder / path, status) if status is not None else None)
                if why is not None:
                    found[target] = LeftOut(target, size, why)
        return list(found.values())

    def _is_no_news(self, source: Source, path: str, status: os.stat_result) -> bool:
        """Whether it lay there before, or is a link whose target is kept by its own name."""
        if not source.whole and self._baseline.has(source.folder, path, status.st_size, status.st_mtime_ns):
            return True
        return stat.S_ISLNK(status.st_mode) and _leads_inside(source.folder, path)

    def beside(self, declared: Mapping[str, Output]) -> tuple[dict[str, Output], list[LeftOut]]:
        """What the training made beside its code, as much as there is room for, and what is left out."""
        if self._work is None:
            return {}, []
        fitting, left_out = self._look_beside(self._work)
        fitting += [output for output in self._saves if output.file.path not in declared]
        fitting = by_worth(fitting)
        kept: dict[str, Output] = {}
        room = self._most_bytes
        folders = {str(parent) for path in declared for parent in PurePosixPath(path).parents}
        for output in fitting:
            if len(kept) >= self._most_files:
                left_out.append(LeftOut(output.file.path, output.file.size, f"more than {self._most_files:,} files"))
            elif output.file.size > room:
                gigabytes = f"{self._most_bytes / 1000**3:g} GB"
                left_out.append(LeftOut(output.file.path, output.file.size, f"more than {gigabytes} in all"))
            else:
                room -= output.file.size
                path = output.file.path
                if path in declared or path in folders or any(str(p) in declared for p in PurePosixPath(path).parents):
                    # A declared file of this name lies in another folder, and comes first.
                    path = f"work/{path}"
                kept[path] = Output(output.file._replace(path=path), output.source)
        return kept, left_out

    def _is_new(self, source: Source, path: str, file: File) -> bool:
        if not source.takes(path) or self._baseline.has_file(source.folder, file):
            return False
        # A link that leads out of the folder is read as its target elsewhere: data of others, as a rule.
        return file.link is not None or not (source.folder / path).is_symlink()

    def _look_beside(self, work: Source) -> tuple[list[Output], list[LeftOut]]:
        fitting: list[Output] = []
        left_out: list[LeftOut] = []
        for path, status, problem in _walk(work.folder, self._confinement):
            if not work.takes(path):
                continue
            size = status.st_size if status is not None else 0
            if status is not None and self._baseline.has(work.folder, path, size, status.st_mtime_ns):
                continue
            if status is not None and stat.S_ISLNK(status.st_mode) and _leads_inside(work.folder, path):
                continue  # Its target is kept by its own name.
            why = problem or (_problem_of(work.folder / path, status) if status is not None else None)
            if why is not None:
                left_out.append(LeftOut(work.prefix + path, size, why))
            elif status is not None:
                file = File(path, Signature.of(status), status.st_mode)
                fitting.append(_output(work, path, file))
        return fitting, left_out


def without_caches(files: Files) -> Files:
    """Without what programs make again by themselves: caches and Python environments."""
    inside = {path.rpartition("/")[0] for path in files if path.endswith("/pyvenv.cfg")}
    inside |= {path.partition("/conda-meta/")[0] for path in files if "/conda-meta/" in path}
    return {
        path: file
        for path, file in files.items()
        if not any(part in _CACHES for part in path.split("/"))
        and not path.endswith(".pyc")
        and not (inside and any(str(parent) in inside for parent in PurePosixPath(path).parents))
    }


def _output(source: Source, path: str, file: File) -> Output:
    return Output(file._replace(path=source.prefix + path), source.folder / path)


def _followed(folder: Path, file: File) -> File | None:
    """A link as the file that it leads to at this moment, which changes without the link; None: it leads to none."""
    if file.link is None:
        return file
    try:
        status = (folder / file.path).stat()
    except OSError:
        return None
    return File(file.path, Signature.of(status), status.st_mode) if stat.S_ISREG(status.st_mode) else None


def _target_of(files: Files, path: str) -> str | None:
    """The file that a link inside the folder leads to, among those that were scanned; None: to none of them."""
    for _ in range(_MOST_HOPS):
        file = files.get(path)
        if file is None or file.link is None:
            return path if file is not None else None
        path = posixpath.normpath(posixpath.join(posixpath.dirname(path), file.link))
    return None


def by_worth(outputs: Iterable[Output]) -> list[Output]:
    """Put results before caches, and the newest first: of several saves it is the last that counts.

    Thousands of files of one folder, or of one kind, come after the first of them and after all others: a model must
    not be left out for the pictures that were drawn after it.
    """
    newest = sorted(outputs, key=lambda output: -output.file.signature.modified_ns)
    folders: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    crowding: dict[str, int] = {}
    for output in newest:
        path = PurePosixPath(output.file.path)
        folder, kind = str(path.parent), path.suffix
        crowding[output.file.path] = folders[folder] // _CROWD + kinds[kind] // _CROWD
        folders[folder] += 1
        kinds[kind] += 1
    return sorted(newest, key=lambda output: (_worth_less(output.file.path), crowding[output.file.path]))


def _worth_less(path: str) -> bool:
    return any(part.startswith(".") or part in _LESS_WORTH for part in path.split("/"))


Walked = tuple[str, os.stat_result | None, str | None]


def _walk(folder: Path, confinement: Confinement | None = None, *, everything: bool = False) -> Iterator[Walked]:
    """Every file below a folder, with its status, or with why it cannot be kept. Follows no link.

    Crosses no mount, and leaves out caches and Python environments, unless `everything` is wanted.
    """
    try:
        handle = os.open(folder, FOLDER) if confinement is None else confinement.open(folder)
    except FileNotFoundError:
        return
    except OSError as error:
        yield ".", None, _unreadable(error)
        return
    try:
        yield from _walk_in(handle, "", None if everything else os.fstat(handle).st_dev)
    finally:
        os.close(handle)


def _walk_in(handle: int, below: str, device: int | None) -> Iterator[Walked]:
    """By handles: a folder that is replaced by a link meanwhile leads nowhere else. No `device`: everything counts."""
    with os.scandir(handle) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        if _UNTOLD.match(entry.name) or (device is not None and entry.name in _CACHES):
            continue
        path = f"{below}/{entry.name}" if below else entry.name
        with suppress(FileNotFoundError):
            status = entry.stat(follow_symlinks=False)
            if _UNFINISHED.match(entry.name):
                yield path, None if stat.S_ISDIR(status.st_mode) else status, "its name says that it is unfinished"
            elif not stat.S_ISDIR(status.st_mode):
                yield path, status, None
            elif path.count("/") >= MOST_DEEP:
                yield path, None, f"lies deeper than {MOST_DEEP} folders"
            elif device is not None and status.st_dev != device:
                yield path, None, "lies on another disk"
            else:
                yield from _walk_folder(handle, entry.name, path, device)


def _walk_folder(parent: int, name: str, path: str, device: int | None) -> Iterator[Walked]:
    try:
        handle = os.open(name, FOLDER | os.O_NOFOLLOW, dir_fd=parent)
    except FileNotFoundError:
        return
    except OSError as error:
        yield path, None, _unreadable(error)
        return
    try:
        if device is not None and any(os.access(mark, os.F_OK, dir_fd=handle) for mark in _ENVIRONMENT_MARKS):
            yield path, None, "a Python environment"
        else:
            yield from _walk_in(handle, path, device)
    finally:
        os.close(handle)


def _unreadable(error: OSError) -> str:
    return f"cannot be read ({error.strerror})"


def _leads_inside(folder: Path, path: str) -> bool:
    return os.path.realpath(folder / path).startswith(f"{os.path.realpath(folder)}/")


def _problem_of(path: Path, status: os.stat_result) -> str | None:
    """Why this file cannot be kept; None where it can."""
    if stat.S_ISLNK(status.st_mode):
        return "a link out of the folder"
    if not stat.S_ISREG(status.st_mode):
        return "not a regular file"
    if not safe_path(path.name):
        return "its name cannot be kept in the store"
    try:
        with path.open("rb") as reader:
            if _CORE.fullmatch(path.name) and reader.read(len(_CORE_MAGIC)) == _CORE_MAGIC:
                return "a core dump"
    except OSError as error:
        return None if error.errno == errno.ENOENT else _unreadable(error)
    return None
