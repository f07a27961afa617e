"""Report files that ignore files left out of the packed code and a script may need: data sets, as a rule."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

# Counting stops here: a folder with a million images must not be counted before each run.
MOST_COUNTED = 20_000
_MOST_NAMED = 3
# Files that programs generate, and generate again: no script reads them at its start.
_GENERATED = (
    *(".*", "*.egg-info", "*.log", "*.o", "*.pyc", "*.swp", "*.tmp", "*~", "Thumbs.db"),
    *("__pycache__", "build", "dist", "env", "htmlcov", "node_modules", "site-packages", "venv"),
)
# Products of earlier runs, as a rule; sometimes the weights that a script starts from. Small ones are not reported.
_PRODUCTS = (
    *("checkpoint*", "ckpt*", "lightning_logs", "log", "logs", "mlruns", "out", "out-*", "output", "outputs"),
    *("result", "results", "runs", "tmp", "wandb"),
)
_LEAST_REPORTED_BYTES = 1000**2


@dataclass(frozen=True)
class IgnoredFiles:
    """The files that one kind of ignore file left out: how many, the largest, and the rule that packs them again."""

    by: str
    files: int
    size: int
    largest: tuple[tuple[str, int], ...]
    take_back: str
    # False: there are more files than were counted.
    whole: bool = True
    # The files have names of products of earlier runs.
    products: bool = False
    # Links, which are not followed.
    links: tuple[str, ...] = ()

    @property
    def by_accident(self) -> bool:
        """True if the files may be left out by mistake: .gitignore was written for git, not for Stoker."""
        return self.by == ".gitignore" and not self.products


def summarize_ignored(root: Path, ignored: Iterable[tuple[str, str]]) -> tuple[IgnoredFiles, ...]:
    """Sum up the files and folders that were left out below `root`. Each comes with the name of its ignore file."""
    found: dict[tuple[bool, str], list[tuple[str, list[int]]]] = {}
    links: dict[tuple[bool, str], list[str]] = {}
    budget = [MOST_COUNTED]
    for name, by in ignored:
        if _is_named(name, _GENERATED):
            continue
        kind = (_is_named(name, _PRODUCTS), by)
        if (root / name).is_symlink():
            links.setdefault(kind, []).append(name)
            continue
        sizes = list(_sizes(root / name, budget))
        if sum(sizes):
            found.setdefault(kind, []).append((f"{name}/" if (root / name).is_dir() else name, sizes))
    kinds = sorted(found.keys() | links.keys())
    summed = (_sum_up(kind, found.get(kind, []), links.get(kind, []), whole=budget[0] > 0) for kind in kinds)
    return tuple(one for one in summed if not one.products or one.size >= _LEAST_REPORTED_BYTES)


def _sum_up(
    kind: tuple[bool, str], items: list[tuple[str, list[int]]], links: list[str], *, whole: bool
) -> IgnoredFiles:
    items = sorted(items, key=lambda item: (-sum(item[1]), item[0]))
    return IgnoredFiles(
        by=kind[1],
        files=sum(len(sizes) for _, sizes in items),
        size=sum(sum(sizes) for _, sizes in items),
        largest=tuple((name, sum(sizes)) for name, sizes in items[:_MOST_NAMED]),
        take_back=f"!{items[0][0]}" if items else "",
        whole=whole,
        products=kind[0],
        links=tuple(links[:_MOST_NAMED]),
    )


def _is_named(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(part, pattern) for part in PurePosixPath(name).parts for pattern in patterns)


def _sizes(path: Path, budget: list[int]) -> Iterator[int]:
    """The size of a file, or those of all files below a folder. Follows no link; skips what cannot be read."""
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
        if not _is_named(entry.name, _GENERATED):
            yield from _sizes(Path(entry.path), budget)
