"""Names of what jobs share in the store: code, agents, programs, wheels and uploaded inputs.

A name is a digest, or from the second generation on `<digest>-<generation>`. Whoever collects a name first gives it up:
`collected/<kind>/<name>`, create-only and kept for good. Then it reads the jobs anew, and deletes what none refers to.
A submission writes its spec, which names everything that the job relies on, and then looks for those marks. So either
the collector finds the spec, or the submission finds the mark and takes the next generation. What is deleted is never
named again, however late the delete lands.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import NamedTuple

from stoker.model import keys
from stoker.model.errors import StoreError
from stoker.store.base import Meta, Store
from stoker.store.find_job import all_jobs
from stoker.store.parallel import run_all
from stoker.store.removed_jobs import batches

_WORKERS = 16


class Shared(NamedTuple):
    """Something that jobs share. `kind` is its folder in the store, such as `layout.CODE`."""

    kind: str
    name: str


def is_given_up(store: Store, shared: Shared) -> bool:
    """Whether a collector has given this name up. True is for good."""
    return store.head(keys.collected(*shared)) is not None


def any_given_up(store: Store, named: Iterable[Shared]) -> bool:
    """Whether one of these names was given up: asked by a submission after its spec is in the store."""
    return any(run_all([partial(is_given_up, store, shared) for shared in sorted(named)], _WORKERS))


def usable_name(store: Store, kind: str, digest: str) -> str:
    """The first generation of this content that was not given up. It may not be there yet."""
    for generation in itertools.count(1):
        name = keys.shared_name(digest, generation)
        if not is_given_up(store, Shared(kind, name)):
            return name
    raise AssertionError("generations do not end")


def keep(store: Store, kind: str, digest: str, key: Callable[[str], str], read: Callable[[], bytes]) -> str:
    """Have these bytes in the store, under the name that is answered. What is there already is not sent again.

    Never taken back when a submission fails: others may rely on it by then. Unused, it is collected after a day.
    """
    name = usable_name(store, kind, digest)
    if store.head(key(name)) is None:
        store.create(key(name), read())
    return name


def references(data: bytes, url: str, where: str) -> frozenset[Shared]:
    """Everything shared that a spec in the store at `url` names.

    Raises StoreError when it cannot be known: then nothing may be collected.
    """
    try:
        tree = json.loads(data)
        found = {Shared(keys.BUNDLES, str(name)) for name in (tree.get("bundles") or {}).values()}
        found |= {Shared(keys.TOOLS, str(name)) for name in (tree.get("tools") or {}).values()}
        if tree.get("code") is not None:
            found.add(Shared(keys.CODE, _name_of(tree["code"])))
        for wheels in (tree.get("wheels") or {}).values():
            found |= {Shared(keys.WHEELS, _name_of(wheel)) for wheel in wheels}
        for wanted in (tree["spec"].get("inputs") or {}).values():
            name = input_name(url, str(wanted["source"]))
            if name is not None:
                found.add(Shared(keys.INPUTS, name))
        return frozenset(found)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"{where}: cannot be read ({error!r}); nothing is collected") from None


def _name_of(tree: dict[str, object]) -> str:
    generation = tree.get("generation", 1)
    if not isinstance(generation, int):
        raise TypeError(f"generation {generation!r}")
    return keys.shared_name(str(tree["digest"]), generation)


def input_name(url: str, source: str) -> str | None:
    """Which upload to the store at `url` a source names; None: it is none."""
    prefix = f"{url}/{keys.INPUTS}"
    return source.removeprefix(prefix).partition("/")[0] if source.startswith(prefix) else None


# Longer than a submission takes, as a rule. One that takes longer finds out, and sends what it needs again.
COLLECT_AFTER = timedelta(days=1)


def sweep(store: Store, kind: str, found: Mapping[str, Callable[[], list[Meta]]]) -> int:
    """Delete those of these names that no job refers to, and that are given up or older than a day. Answers how many.

    `found` gives the objects of a name. A name is given up before the jobs are read anew, and for good: see
    `submit.generations` for why a submission under way loses nothing. The age only spares it a second try.
    """
    now = datetime.now(timezone.utc)
    given_up = {meta.key.removeprefix(keys.collected(kind, "")) for meta in store.list(keys.collected(kind, ""))}
    needed = _References(store)
    unneeded: dict[str, list[Meta]] = {}
    for name in found.keys() - needed.read(kind) if found else ():
        metas = found[name]()
        if metas and (name in given_up or now - max(meta.modified for meta in metas) > COLLECT_AFTER):
            unneeded[name] = metas
    for name in unneeded.keys() - given_up:
        # Either answer means that the mark is there.
        store.create(keys.collected(kind, name), b"")
    gone = unneeded.keys() - needed.read(kind) if unneeded else set()
    for name in sorted(gone):
        for key_list in batches(meta.key for meta in unneeded[name]):
            store.delete(key_list)
    return len(gone)


class _References:
    """The shared names that jobs refer to. A spec never changes once it is there: each is read once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._by_job: dict[str, frozenset[Shared]] = {}

    def read(self, kind: str) -> set[str]:
        """The names of one kind that the present jobs refer to. Raises StoreError when a spec cannot be read."""
        names: set[str] = set()
        for job in all_jobs(self._store):
            if job not in self._by_job:
                found = self._store.get(keys.spec(job))
                if found is None:
                    continue
                self._by_job[job] = references(found.data, self._store.url, found.meta.key)
            names |= {shared.name for shared in self._by_job[job] if shared.kind == kind}
        return names
