"""Blobs that are pruned and committed again, and chunks that grow: with deletes and puts that land late."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Folder:
    """The blobs of one rank: `commits` so far, the objects there, the newest manifest's, and requests under way."""

    commits: int = 0
    objects: frozenset[str] = frozenset()
    manifest: str | None = None
    before: str | None = None
    late_deletes: frozenset[str] = frozenset()
    lateness: int = 2


class Blobs:
    """The contents a, b, a, b … are committed; only the newest is kept. `unique`: every upload has its own name."""

    CONTENTS = "abab"

    def __init__(self, *, unique: bool) -> None:
        self.unique = unique

    def initial(self) -> Folder:
        return Folder()

    def successors(self, state: Folder) -> Iterator[tuple[str, Folder]]:
        if state.commits < len(self.CONTENTS) and state.before is None:
            content = self.CONTENTS[state.commits]
            name = f"{content}-{state.commits}" if self.unique else content
            yield (
                f"commits {name}",
                replace(
                    state,
                    commits=state.commits + 1,
                    objects=state.objects | {name},
                    manifest=name,
                    before=state.manifest,
                ),
            )
        if state.before is not None:
            pruned = replace(state, before=None, objects=state.objects - {state.before})
            yield f"prunes {state.before}", pruned
            if state.lateness:
                # The reply is lost, the delete is sent again and answered; the first one is still under way.
                late = state.late_deletes | {state.before}
                yield f"prunes {state.before}, twice", replace(pruned, late_deletes=late, lateness=state.lateness - 1)
        for name in state.late_deletes:
            landed = replace(state, late_deletes=state.late_deletes - {name}, objects=state.objects - {name})
            yield f"a delete of {name} lands late", landed

    def broken(self, state: Folder) -> str | None:
        return "a committed checkpoint lost its blob" if state.manifest not in {*state.objects, None} else None

    def broken_at_rest(self, state: Folder) -> str | None:
        return None


@dataclass(frozen=True)
class Row:
    """A chunk: how far it was written, the versions there (name, size), and puts under way."""

    written: int = 0
    objects: frozenset[tuple[int, int]] = frozenset()
    late: frozenset[tuple[int, int]] = frozenset()
    lateness: int = 2


class Chunks:
    """A log that grows to 3 lines. `sized`: every size has a name of its own, and readers take the largest."""

    LINES = 3

    def __init__(self, *, sized: bool) -> None:
        self.sized = sized

    def initial(self) -> Row:
        return Row()

    def successors(self, state: Row) -> Iterator[tuple[str, Row]]:
        if state.written < self.LINES:
            size = state.written + 1
            version = (size if self.sized else 0, size)
            # The smaller version is deleted once the larger is there; or is not, when that fails.
            for kept in (frozenset[tuple[int, int]](), state.objects):
                after = replace(state, written=size, objects=_put(kept, version))
                yield f"writes {size}", after
                if state.lateness:
                    again = replace(after, late=after.late | {version}, lateness=state.lateness - 1)
                    yield f"writes {size}, twice", again
        for version in state.late:
            landed = replace(state, late=state.late - {version}, objects=_put(state.objects, version))
            yield f"the put of {version[1]} lands late", landed

    def broken(self, state: Row) -> str | None:
        read = max((size for _, size in state.objects), default=0)
        return f"{read} of {state.written} drained lines are there" if read < state.written else None

    def broken_at_rest(self, state: Row) -> str | None:
        return None


def _put(objects: frozenset[tuple[int, int]], version: tuple[int, int]) -> frozenset[tuple[int, int]]:
    return frozenset({*(one for one in objects if one[0] != version[0]), version})


@dataclass(frozen=True)
class Handover:
    """A manifest on its way from a machine that was taken, and the next attempt that finds its blobs unneeded."""

    blob: bool = True
    manifest: bool = False
    under_way: bool = True
    old: bool = False
    collected: bool = False


class Orphans:
    """`aged`: blobs that no manifest needs are collected only when they are older than any request."""

    def __init__(self, *, aged: bool) -> None:
        self.aged = aged

    def initial(self) -> Handover:
        return Handover()

    def successors(self, state: Handover) -> Iterator[tuple[str, Handover]]:
        if state.under_way:
            yield "the manifest lands", replace(state, manifest=True, under_way=False)
        if not state.under_way and not state.old:
            yield "an hour goes by: nothing is under way any more", replace(state, old=True)
        if not state.collected and not state.manifest and (state.old or not self.aged):
            yield "the next attempt collects the blob", replace(state, collected=True, blob=False)

    def broken(self, state: Handover) -> str | None:
        return "a manifest landed without its blob" if state.manifest and not state.blob else None

    def broken_at_rest(self, state: Handover) -> str | None:
        return None
