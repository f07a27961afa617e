"""Tell what ignore files left out of the packed code, where a script may need it: data sets, as a rule."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

# A folder with a million images is not counted to its end before each run.
MOST_COUNTED = 20_000
_MOST_NAMED = 3
# Made by programs and runs, and made again by them: nothing that a script reads at its start.
_UNNEEDED = (
    *(".*", "*.egg-info", "*.log", "*.o", "*.pyc", "*.swp", "*.tmp", "*~", "Thumbs.db"),
    *("__pycache__", "build", "dist", "env", "htmlcov", "node_modules", "site-packages", "venv"),
    *("checkpoint*", "ckpt*", "lightning_logs", "log", "logs", "mlruns", "out", "out-*", "output", "outputs"),
    *("result", "results", "runs", "tmp", "wandb"),
)


@dataclass(frozen=True)
class Ignored:
    """What files of one kind left out: how much, the largest of it, and the line that packs that all the same."""

    by: str
    files: int
    size: int
    largest: tuple[tuple[str, int], ...]
    take_back: str
    # False: there is more than was counted.
    whole: bool = True

    @property
    def by_accident(self) -> bool:
        """Whether it may not be meant: .gitignore was written for git, not for Stoker."""
        return self.by == ".gitignore"


def weigh(root: Path, ignored: Iterable[tuple[str, str]]) -> tuple[Ignored, ...]:
    """Sum up what was left out below `root`: names of files and folders, each with the ignore file that says so."""
    found: dict[str, list[tuple[str, list[int]]]] = {}
    budget = [MOST_COUNTED]
    for name, by in ignored:
        if _is_unneeded(name):
            continue
        sizes = list(_sizes(root / name, budget))
        if sum(sizes):
            found.setdefault(by, []).append((f"{name}/" if (root / name).is_dir() else name, sizes))
    return tuple(_sum_up(by, items, whole=budget[0] > 0) for by, items in sorted(found.items()))


def _sum_up(by: str, items: list[tuple[str, list[int]]], *, whole: bool) -> Ignored:
    items = sorted(items, key=lambda item: (-sum(item[1]), item[0]))
    return Ignored(
        by=by,
        files=sum(len(sizes) for _, sizes in items),
        size=sum(sum(sizes) for _, sizes in items),
        largest=tuple((name, sum(sizes)) for name, sizes in items[:_MOST_NAMED]),
        take_back=f"!{items[0][0]}",
        whole=whole,
    )


def _is_unneeded(name: str) -> bool:
    return any(fnmatch(part, pattern) for part in PurePosixPath(name).parts for pattern in _UNNEEDED)


def _sizes(path: Path, budget: list[int]) -> Iterator[int]:
    """The sizes of a file, or of all files below a folder. Follows no link; what cannot be read has none."""
    try:
        if path.is_symlink():
            return
        if not path.is_dir():
            yield path.stat().st_size
            return
        if (path / "pyvenv.cfg").exists():
            return
        entries = list(os.scandir(path))
    except OSError:
        return
    for entry in entries:
        if budget[0] <= 0:
            return
        budget[0] -= 1
        if not _is_unneeded(entry.name):
            yield from _sizes(Path(entry.path), budget)
