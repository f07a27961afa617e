"""Learn from earlier commits which files one save consists of.

A script saves the same way each time. The *role* of a file is its path with every number replaced, so that
`checkpoint-100/optimizer.pt` and `checkpoint-200/optimizer.pt` have one role. The *shape* of a save is how many files
of each role it wrote, and which came last. A unit in which fewer files changed than its shape has, or in which another
file came last, is a save that stopped half-way. As long as nothing was committed, an observed shape counts
(save_cycles).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from stoker.agent.checkpoints.file_numbers import counts_time, generation_of, newest_counts, role_of
from stoker.agent.checkpoints.folder_snapshot import File, top_folder_of
from stoker.model.node_facts import BlobRef

# Files are stamped with a clock that ticks every 1 to 10 ms: the order of two files within a tick is not known.
TICK_NS = 10_000_000
# Files that were written within one tick in an earlier save belong to one save if they are no further apart than this.
_TOGETHER_NS = 10 * TICK_NS
_UNKNOWN_SPAN_NS = 1_000_000_000


@dataclass(frozen=True)
class Shape:
    """How many files of each role one save wrote, and the role of the last file; several roles if their order is not
    known.

    `span_ns` is how far apart the files of the last roles were written, where known; `pause_ns` is the longest time
    between two files.
    """

    counts: Counter[str]
    last: frozenset[str]
    span_ns: int = field(default=_UNKNOWN_SPAN_NS, compare=False)
    pause_ns: int = field(default=0, compare=False)

    def is_like(self, other: Shape) -> bool:
        """Return True if both have files of the same roles, and may have the same role last."""
        return self.counts.keys() == other.counts.keys() and bool(self.last & other.last)


def shape_of(files: Sequence[File]) -> Shape:
    """Return the shape of a save that wrote these files."""
    newest_ns = max(file.signature.modified_ns for file in files)
    last = frozenset(role_of(file.path) for file in files if newest_ns - file.signature.modified_ns < TICK_NS)
    counts = newest_counts(file.path for file in files)
    times = sorted(file.signature.modified_ns for file in files)
    pause_ns = max((later - earlier for earlier, later in pairwise(times)), default=0)
    return Shape(counts, last, _span_ns(counts, last, files), pause_ns)


class SaveShapes:
    """The shapes of saves, by the role of their unit, and sizes and forms of committed files, by role.

    `observed` gives the observed shape of a unit's saves; None: there is none. `was_observed` returns True if a whole
    save of the unit was observed with such a shape.
    """

    def __init__(
        self,
        observed: Callable[[str], Shape | None] = lambda _unit: None,
        was_observed: Callable[[str, Shape], bool] = lambda _unit, _shape: True,
    ) -> None:
        self._observed = observed
        self._was_observed = was_observed
        self._shapes: dict[str, Shape] = {}
        self._sizes: dict[str, set[int]] = {}
        self._forms: dict[str, set[str]] = {}
        # The longest time between two files of a save before the resume.
        self.resumed_pause_s = 0.0

    def learn(
        self,
        blobs: Mapping[str, BlobRef],
        before: Mapping[str, BlobRef],
        open_logs: Collection[str] = (),
        forms: Mapping[str, str] | None = None,
        files: Mapping[str, File] | None = None,
    ) -> None:
        """Learn from a commit of `blobs`, oldest first, that followed a commit of `before`.

        `files` are the committed files as they were in the folder, where known.
        """
        changed = [
            path
            for path, blob in blobs.items()
            if path not in open_logs and (path not in before or before[path].digest != blob.digest)
        ]
        by_unit: dict[str, list[str]] = {}
        for path in changed:
            by_unit.setdefault(top_folder_of(path), []).append(path)
        by_role: dict[str, list[list[str]]] = {}
        for unit, paths in by_unit.items():
            by_role.setdefault(role_of(unit), []).append(paths)
        for role, saves in by_role.items():
            # Of several saves in one commit the largest counts: the first may have been smaller.
            largest = max(saves, key=len)
            known = [files[path] for path in largest if path in files] if files else []
            shape = Shape(newest_counts(largest), frozenset({role_of(largest[-1])}))
            if len(known) == len(largest):
                shape = shape_of(known)
            observed = self._observed(top_folder_of(largest[0]))
            # A commit may contain several saves side by side, so the observed counts of one save are preferred.
            several = observed is not None and observed.counts.keys() == shape.counts.keys()
            self._shapes[role] = replace(shape, counts=observed.counts) if observed and several else shape
        if changed:
            self._sizes, self._forms = {}, {}
            for path, blob in blobs.items():
                self._sizes.setdefault(role_of(path), set()).add(blob.size)
        for path, form in (forms or {}).items():
            self._forms.setdefault(role_of(path), set()).add(form)

    def knows(self, unit: str) -> bool:
        return self._shape(unit) is not None

    def missing(self, unit: str, changed: Sequence[File], *, exceeded: bool = False) -> str | None:
        """Return a role that a save of this unit still has to write, by earlier saves.

        None: nothing is missing. Empty: no earlier save is known. Of files that are overwritten, all may differ from
        the last commit and still be of two saves: so the file that a save writes last has to be the newest.
        `exceeded`: see there; the last commit shows nothing then.
        """
        committed, observed = None if exceeded else self._committed(unit), self._observed(unit)
        if exceeded and observed is None:
            return None
        found = [_lacking(committed, changed)] if committed is not None else []
        # Saves may differ: the files of the last observed save are sufficient as well.
        if observed is not None:
            found.append("" if _has_more(observed, changed) else _lacking(observed, changed))
        return None if None in found else next(filter(None, found), "")

    def _shape(self, unit: str) -> Shape | None:
        return self._shapes.get(role_of(unit)) or self._observed(unit)

    def _committed(self, unit: str) -> Shape | None:
        """Return the shape of the last commit; None if the observed saves show that it was made in the middle of one.

        The first commit of a program that pauses between two files of a save has the first of them alone.
        """
        shape = self._shapes.get(role_of(unit))
        if shape is None or self._observed(unit) is None or self._was_observed(unit, shape):
            return shape
        return None

    def longest_pause_s(self, unit: str) -> float:
        """Return the longest time between two files of the last save of this unit, as far as it is known."""
        shapes = (self._committed(unit), self._observed(unit))
        pauses_ns = [shape.pause_ns for shape in shapes if shape is not None]
        return max((self.resumed_pause_s, *(pause_ns / 1e9 for pause_ns in pauses_ns)))

    def exceeded(self, unit: str, rounds: Mapping[str, int]) -> bool:
        """Return True if files of one role were begun more often than one save of this unit does.

        Then the next save has begun, and this one has all its files even if the last commit had more: a program may
        save in another way after it has resumed. Lightning writes `last-v1.ckpt` beside the `last.ckpt` that it resumed
        from. `rounds` says by path how often each file was begun.
        """
        shape = self._committed(unit)
        begun: Counter[str] = Counter()
        for path, count in rounds.items():
            begun[role_of(path)] += count
        return shape is not None and any(begun[role] > count for role, count in shape.counts.items())

    def same_size(self, path: str, size: int) -> bool:
        return size in self._sizes.get(role_of(path), ())

    def smallest(self, path: str) -> int | None:
        """Return the size of the smallest file of this role in the last commit; None: there is none."""
        return min(self._sizes.get(role_of(path), ()), default=None)

    def never_empty(self, path: str) -> bool:
        """Return True if no committed file of this role was empty."""
        return 0 not in self._sizes.get(role_of(path), (0,))

    def same_form(self, path: str, form: str) -> bool:
        return form in self._forms.get(role_of(path), ())


def _lacking(shape: Shape, changed: Sequence[File]) -> str | None:
    """Return the missing role as `SaveShapes.missing` does, by this shape."""
    have = newest_counts(file.path for file in changed)
    lacking = next((role for role, count in shape.counts.items() if have[role] < count), None)
    if lacking is not None or not changed:
        return lacking
    written = _written(changed)
    apart_ns = _TOGETHER_NS if len(shape.last) > 1 else 0
    newest_ns = max(written.values())
    missing = next((role for role in sorted(shape.last) if newest_ns - written[role] > apart_ns), None)
    # Parts of one role, such as a file of each rank, come in any order: parts of two saves are further apart.
    if missing is None and _span_ns(shape.counts, shape.last, changed) > max(_TOGETHER_NS, shape.span_ns * 5 // 4):
        return min(shape.last)
    return missing


def _span_ns(counts: Counter[str], roles: Collection[str], files: Sequence[File]) -> int:
    """Return how far apart the parts of these roles were written, of their newest generation.

    Parts in a folder with a number of its own are excluded: a new folder mixes no saves.
    """
    chosen = [
        file
        for file in files
        if (role := role_of(file.path)) in roles and counts[role] > 1 and not generation_of(top_folder_of(file.path))
    ]
    newest = max((generation_of(file.path) for file in chosen if counts_time(file.path)), default=())
    times = [
        file.signature.modified_ns
        for file in chosen
        if not counts_time(file.path) or generation_of(file.path) == newest
    ]
    return max(times) - min(times) if times else 0


def _has_more(shape: Shape, changed: Sequence[File]) -> bool:
    """Return True if a file was written that belongs to no save of this shape: what follows it is not known."""
    written = _written(changed)
    begun_ns = min((written[role] for role in shape.counts if role in written), default=0)
    return any(modified_ns >= begun_ns for role, modified_ns in written.items() if role not in shape.counts)


def _written(files: Sequence[File]) -> dict[str, int]:
    """Return when a file of each role was written last."""
    written: dict[str, int] = {}
    for file in files:
        role = role_of(file.path)
        written[role] = max(written.get(role, 0), file.signature.modified_ns)
    return written
