"""Choose the files of a node that are its outputs, and report the files that are left out.

Two kinds of files are outputs:

- *declared* files: in the output folder (STOKER_OUTPUT_DIR), or named by the job's `outputs`. They are synced while the
  training runs, without a limit.
- files *beside the code*: all other files that the training made or changed in its working folder. They are stored at
  the end, up to MOST_FILES and MOST_BYTES. Checkpoints are not among them: they are safe already. But a last save that
  no commit has is stored if the job may be over: as it is, for people, not to be resumed from, and below
  `perhaps-unfinished/`, so that a torn file never looks like a result. And files that a script wrote into that
  folder itself, although it uses `stoker.train`, are stored like files beside the code.

Files that were there before the training began, and that it did not change, are no results. `output_links` says which
links are kept.
"""

from __future__ import annotations

import json
import os
import posixpath
import stat
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from stoker.agent.checkpoints.folder_snapshot import File, Files, Signature, scan
from stoker.agent.confinement import Confinement
from stoker.agent.output_links import FoundLink, choose_links
from stoker.agent.output_walk import (
    BASELINE,
    CACHES,
    EVERYTHING,
    OUTPUTS,
    find_problem,
    is_closed,
    leads_inside,
    walk_files,
)
from stoker.model import codec
from stoker.model.errors import CodecError
from stoker.model.keys import UNFINISHED
from stoker.model.node_facts import OutputLink

# Beside the code: at 100 MB/s this takes less than four minutes of a machine that is paid for, and holds the weights of
# a model of ten billion parameters in half precision. More was hardly left there on purpose.
MOST_BYTES = 20 * 1000**3
# Each file is one request: at 40 ms each, so many take about three minutes.
MOST_FILES = 5000
# More files than this in one folder, or with one ending, are a crowd.
_CROWD = 100
# How many skipped files are named; the rest is counted.
MOST_NAMED = 20

# If there is not room for everything, files in these folders come last.
_LESS_WORTH = frozenset({"cache", "caches", "tmp", "temp"})

# Chains of links: as many as Linux follows.
_MOST_HOPS = 40

Stamp = tuple[int, int]


class LocalOutput(NamedTuple):
    """A file to store: with its path in the stored tree, and its place on the machine."""

    file: File
    source: Path


class SkippedFile(NamedTuple):
    """A file that is not stored, and why."""

    path: str
    size: int
    why: str


@dataclass(frozen=True)
class OutputSource:
    """A folder that outputs are taken from. `prefix` comes before their paths; `takes` decides by the path in it."""

    folder: Path
    prefix: str = ""
    takes: Callable[[str], bool] = lambda _path: True
    # Every file counts: the folder is the job's own, and was empty when it was made.
    takes_all: bool = False


@dataclass(frozen=True)
class Baseline:
    """The files in the folders before the training began: size and time of each, by its absolute path."""

    files: Mapping[str, Stamp] = field(default_factory=dict)

    @classmethod
    def take(cls, folders: Iterable[Path], confinement: Confinement | None = None) -> Baseline:
        """Record the files, on all disks; markers of saves are among them. Caches and environments are left out."""
        found: dict[str, Stamp] = {}
        for folder in folders:
            for path, status, problem, _ in walk_files(folder, confinement, BASELINE):
                if status is not None:
                    found[os.fspath(folder / path)] = (status.st_size, status.st_mtime_ns)
                elif is_closed(problem):
                    # As a scan names a folder that it cannot read, or that is too deep.
                    found[f"{folder}/{path}/"] = (0, 0)
        return cls(found)

    def has(self, folder: Path, path: str, size: int, modified_ns: int) -> bool:
        """Return whether this file was there before, and is unchanged."""
        return self.files.get(f"{folder}/{path}") == (size, modified_ns)

    def has_file(self, folder: Path, file: File) -> bool:
        if file.path.endswith("/"):
            # A folder that could not be read then either.
            return f"{folder}/{file.path}" in self.files
        return self.has(folder, file.path, file.signature.size, file.signature.modified_ns)

    def without(self, paths: Iterable[Path]) -> Baseline:
        """Return the baseline without files that belong to the job, because they were restored for it."""
        own = {os.fspath(path) for path in paths}
        return Baseline({path: stamp for path, stamp in self.files.items() if path not in own})

    def write(self, path: Path) -> None:
        """Store the baseline for an agent that is started after this one died."""
        draft = path.with_name(f".{path.name}.tmp")
        draft.write_text(json.dumps(self.files), encoding="utf-8")
        draft.replace(path)

    @classmethod
    def read(cls, path: Path) -> Baseline | None:
        """Read the stored baseline; None if no training began on this machine."""
        try:
            tree = codec.parse_object(path.read_bytes())
            return cls({str(name): (int(stamp[0]), int(stamp[1])) for name, stamp in tree.items()})
        except (OSError, CodecError, ValueError, TypeError, LookupError, OverflowError):
            return None


class OutputFiles:
    """Finds the outputs of a node at this moment. `work` is the working folder, whose new files are outputs, too.

    `refused` returns True for a path in the stored tree that the job excludes from all outputs.
    """

    def __init__(
        self,
        sources: Iterable[OutputSource],
        work: OutputSource | None = None,
        baseline: Baseline | None = None,
        *,
        most_bytes: int | None = None,
        most_files: int | None = None,
        confinement: Confinement | None = None,
        refused: Callable[[str], bool] = lambda _path: False,
    ) -> None:
        self._sources = tuple(sources)
        self._work = work
        self._baseline = baseline or Baseline()
        self._confinement = confinement
        self._refused = refused
        self._saves: list[LocalOutput] = []
        # Files of these saves that cannot be stored under their names.
        self._unkept: list[SkippedFile] = []
        self._loose: list[LocalOutput] = []
        # Files of these saves that are known to be torn, by their absolute paths.
        self._torn: frozenset[str] = frozenset()
        self._most_bytes = MOST_BYTES if most_bytes is None else most_bytes
        self._most_files = MOST_FILES if most_files is None else most_files

    def keep_saves(self, folder: Path, files: Files, torn: Collection[str] = (), loose: Collection[str] = ()) -> None:
        """Store files of the checkpoint folder at the end, too, because no commit has them.

        They are perhaps unfinished, and stored as such. Those of them that are declared outputs are stored as usual,
        except for the `torn` ones. The `loose` ones were not written as parts of a save: unless they are torn, they are
        stored like files beside the code. Those that cannot be kept under their names are reported.
        """
        prefix = f"{folder.name}/"
        if self._work is not None and folder.is_relative_to(self._work.folder):
            inside = folder.relative_to(self._work.folder).as_posix()
            prefix = self._work.prefix + (f"{inside}/" if inside != "." else "")
        source = OutputSource(folder, prefix)
        kept = [(path, _output(source, path, file)) for path, file in files.items() if not file.problem]
        self._unkept = [
            SkippedFile(prefix + path, file.signature.size, file.problem)
            for path, file in files.items()
            if file.problem
        ]
        kept = [(path, output) for path, output in kept if not self._refused(output.file.path)]
        self._loose = [output for path, output in kept if path in loose and path not in torn]
        self._saves = [output for path, output in kept if path not in loose or path in torn]
        self._torn = frozenset(os.fspath(folder / path) for path in torn)

    @property
    def loose(self) -> frozenset[Path]:
        """The loose files of `keep_saves`, on this machine."""
        return frozenset(output.source for output in self._loose)

    def declared(self) -> dict[str, LocalOutput]:
        """Return the declared files, by their path in the stored tree."""
        found: dict[str, LocalOutput] = {}
        for source in self._sources:
            files = scan(source.folder, confinement=self._confinement, links_out=False)
            for path, file in (files if source.takes_all else without_caches(files)).items():
                if file.problem or (not source.takes_all and not self._is_new(source, path, file)):
                    continue
                target = _target_of(files, path) if self._confinement is not None else path
                if file.link is not None and not leads_inside(source.folder, path):
                    continue  # By way of another link.
                real = _followed(source.folder, files[target]) if target is not None else None
                if target is not None and real is not None and os.fspath(source.folder / target) not in self._torn:
                    named = source.prefix + path
                    found.setdefault(named, LocalOutput(real._replace(path=named), source.folder / target))
        return found

    def unstorable(self, declared: Mapping[str, LocalOutput]) -> list[SkippedFile]:
        """Return the files in declared folders that cannot be stored, and why."""
        found: dict[str, SkippedFile] = {}
        for source in self._sources:
            scope = EVERYTHING if source.takes_all else OUTPUTS
            for path, status, problem, parent in walk_files(source.folder, self._confinement, scope):
                target, size = source.prefix + path, status.st_size if status is not None else 0
                if target in declared or not source.takes(path):
                    continue
                if status is not None and self._is_known(source, path, status):
                    continue
                why = problem or (find_problem(parent, path, status) if status is not None else None)
                if why is not None:
                    found[target] = SkippedFile(target, size, why)
        return list(found.values())

    def _is_known(self, source: OutputSource, path: str, status: os.stat_result) -> bool:
        """Return whether a file was there before, or is a link that `links` decides about."""
        if not source.takes_all and self._baseline.has(source.folder, path, status.st_size, status.st_mtime_ns):
            return True
        return stat.S_ISLNK(status.st_mode) and leads_inside(source.folder, path)

    def beside(self, declared: Mapping[str, LocalOutput]) -> tuple[dict[str, LocalOutput], list[SkippedFile]]:
        """Return the files beside the code, as many as there is room for, and those that are skipped."""
        if self._work is None:
            return {}, []
        fitting, skipped = self._scan_beside(self._work)
        listed = {one.path for one in skipped}
        skipped += [one for one in self._unkept if one.path.rstrip("/") not in listed]
        fitting += [
            LocalOutput(output.file._replace(path=UNFINISHED + output.file.path), output.source)
            for output in self._saves
            if output.file.path not in declared
        ]
        fitting += [output for output in self._loose if output.file.path not in declared]
        fitting = sort_by_worth(fitting)
        chosen: dict[str, LocalOutput] = {}
        room = self._most_bytes
        folders = {str(parent) for path in declared for parent in PurePosixPath(path).parents}
        for output in fitting:
            if len(chosen) >= self._most_files:
                skipped.append(SkippedFile(output.file.path, output.file.size, f"more than {self._most_files:,} files"))
            elif output.file.size > room:
                gigabytes = f"{self._most_bytes / 1000**3:g} GB"
                skipped.append(SkippedFile(output.file.path, output.file.size, f"more than {gigabytes} in all"))
            else:
                room -= output.file.size
                path = output.file.path
                if path in declared or path in folders or any(str(p) in declared for p in PurePosixPath(path).parents):
                    # A declared file with this name comes first.
                    path = f"work/{path}"
                chosen[path] = LocalOutput(output.file._replace(path=path), output.source)
        return chosen, skipped

    def links(self, found: Mapping[str, LocalOutput]) -> tuple[list[OutputLink], list[SkippedFile]]:
        """Return the links that are kept, and those that are skipped. `found` are all files that are stored.

        A link inside the folders of the outputs is kept as a link if the file or folder that it leads to is stored.
        """
        roots = (*self._sources, *([self._work] if self._work is not None else []))
        places: dict[str, FoundLink] = {}
        for source in roots:
            scope = EVERYTHING if source.takes_all else OUTPUTS
            for path, status, problem, parent in walk_files(source.folder, self._confinement, scope):
                if problem is not None or status is None or not stat.S_ISLNK(status.st_mode):
                    continue
                known = not source.takes_all and self._baseline.has(
                    source.folder, path, status.st_size, status.st_mtime_ns
                )
                named = source.prefix + path
                if not known and named not in found and source.takes(path) and leads_inside(source.folder, path):
                    with suppress(OSError):
                        written = os.readlink(posixpath.basename(path), dir_fd=parent)
                        places.setdefault(named, FoundLink(source.folder / path, written))
        kept, refused = choose_links(places, [(source.folder, source.prefix) for source in roots], found)
        skipped = [SkippedFile(path, 0, why) for path, why in refused.items()]
        return [OutputLink(path, target) for path, target in kept.items()], skipped

    def _is_new(self, source: OutputSource, path: str, file: File) -> bool:
        return source.takes(path) and not self._baseline.has_file(source.folder, file)

    def _scan_beside(self, work: OutputSource) -> tuple[list[LocalOutput], list[SkippedFile]]:
        fitting: list[LocalOutput] = []
        skipped: list[SkippedFile] = []
        for path, status, problem, parent in walk_files(work.folder, self._confinement, OUTPUTS):
            if not work.takes(path):
                continue
            size = status.st_size if status is not None else 0
            if status is not None and self._baseline.has(work.folder, path, size, status.st_mtime_ns):
                continue
            if status is not None and stat.S_ISLNK(status.st_mode) and leads_inside(work.folder, path):
                continue  # `links` decides about it.
            why = problem or (find_problem(parent, path, status) if status is not None else None)
            if why is not None:
                skipped.append(SkippedFile(work.prefix + path, size, why))
            elif status is not None:
                file = File(path, Signature.of(status), status.st_mode)
                fitting.append(_output(work, path, file))
        return fitting, skipped


def without_caches(files: Files) -> Files:
    """Return the files without those that programs make again: caches and Python environments."""
    inside = {path.rpartition("/")[0] for path in files if path.endswith("/pyvenv.cfg")}
    inside |= {path.partition("/conda-meta/")[0] for path in files if "/conda-meta/" in path}
    return {
        path: file
        for path, file in files.items()
        if not any(part in CACHES for part in path.split("/"))
        and not path.endswith(".pyc")
        and not (inside and any(str(parent) in inside for parent in PurePosixPath(path).parents))
    }


def _output(source: OutputSource, path: str, file: File) -> LocalOutput:
    return LocalOutput(file._replace(path=source.prefix + path), source.folder / path)


def _followed(folder: Path, file: File) -> File | None:
    """Return a link as the file that it leads to now, since that changes without the link; None if it leads to none."""
    if file.link is None:
        return file
    try:
        status = (folder / file.path).stat()
    except OSError:
        return None
    return File(file.path, Signature.of(status), status.st_mode) if stat.S_ISREG(status.st_mode) else None


def _target_of(files: Files, path: str) -> str | None:
    """Return which of the scanned files a link inside the folder leads to; None if it leads to none of them."""
    for _ in range(_MOST_HOPS):
        file = files.get(path)
        if file is None or file.link is None:
            return path if file is not None else None
        path = posixpath.normpath(posixpath.join(posixpath.dirname(path), file.link))
    return None


def sort_by_worth(outputs: Iterable[LocalOutput]) -> list[LocalOutput]:
    """Put results before caches, and the newest first: of several saves the last one counts.

    Of thousands of files in one folder, or of one kind, all but the first come after all others: a model must not be
    skipped for the pictures that were drawn after it.
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
