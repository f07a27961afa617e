"""Objects that jobs share in the store: code, agents, programs, wheels and uploaded inputs.

A name is a digest, or from the second generation on `<digest>-<generation>`. A collector first retires a name with the
mark `collected/<kind>/<name>`, create-only and permanent. Then it reads the jobs again, and deletes the objects that no
job refers to. A submission writes its spec, which names every object that the job relies on, and then looks for those
marks. So either the collector finds the spec, or the submission finds the mark and takes the next generation. A deleted
name is never used again, however late the delete lands.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import NamedTuple

from stoker.model import codec, keys
from stoker.model.errors import CodecError, StoreError
from stoker.store.base import Meta, Store
from stoker.store.find_job import all_jobs
from stoker.store.parallel import any_exists
from stoker.store.store_clock import read_time


class SharedObject(NamedTuple):
    """An object that jobs share. `kind` is its folder in the store, such as `keys.CODE`."""

    kind: str
    name: str


def is_retired(store: Store, shared: SharedObject) -> bool:
    """True if a collector has retired this name. A name stays retired for ever."""
    return store.head(keys.collected(*shared)) is not None


def any_retired(store: Store, named: Iterable[SharedObject]) -> bool:
    """True if one of these names is retired. A submission asks this after its spec is in the store."""
    return any_exists(store, [keys.collected(*shared) for shared in sorted(named)])


def usable_name(store: Store, kind: str, digest: str) -> str:
    """The first generation of this content that is not retired. The object need not exist yet."""
    names = (keys.shared_name(digest, generation) for generation in itertools.count(1))
    return next(name for name in names if not is_retired(store, SharedObject(kind, name)))


def store_once(store: Store, kind: str, digest: str, key: Callable[[str], str], read: Callable[[], bytes]) -> str:
    """Put these bytes into the store unless they are there, and return their name.

    They stay when a submission fails: another job may rely on them by then. Unused, they are collected after a day.
    """
    name = usable_name(store, kind, digest)
    if store.head(key(name)) is None:
        store.create(key(name), read())
    return name


def references(data: bytes, url: str, where: str) -> frozenset[SharedObject]:
    """All shared objects that a spec in the store at `url` names.

    Raises StoreError when the spec cannot be read: then nothing may be collected.
    """
    try:
        tree = codec.parse_object(data)
        found = {SharedObject(keys.BUNDLES, str(name)) for name in (tree.get("bundles") or {}).values()}
        found |= {SharedObject(keys.TOOLS, str(name)) for name in (tree.get("tools") or {}).values()}
        if tree.get("code") is not None:
            found.add(SharedObject(keys.CODE, _name_of(tree["code"])))
        for wheels in (tree.get("wheels") or {}).values():
            found |= {SharedObject(keys.WHEELS, _name_of(wheel)) for wheel in wheels}
        for wanted in (tree["spec"].get("inputs") or {}).values():
            name = input_name(url, str(wanted["source"]))
            if name is not None:
                found.add(SharedObject(keys.INPUTS, name))
        return frozenset(found)
    except (CodecError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"{where}: cannot be read ({error!r}); nothing is collected") from None


def _name_of(tree: dict[str, object]) -> str:
    generation = tree.get("generation", 1)
    if not isinstance(generation, int):
        raise TypeError(f"generation {generation!r}")
    return keys.shared_name(str(tree["digest"]), generation)


def input_name(url: str, source: str) -> str | None:
    """The name of the upload in the store at `url` that a source refers to; None where it is none."""
    prefix = f"{url}/{keys.INPUTS}"
    return source.removeprefix(prefix).partition("/")[0] if source.startswith(prefix) else None


# Longer than a submission takes, as a rule. A longer one notices the marks, and sends its objects again.
COLLECT_AFTER = timedelta(days=1)


def collect_unused(store: Store, kind: str, found: Mapping[str, Callable[[], list[Meta]]]) -> int:
    """Delete objects that no job refers to, and that are retired or older than a day. Returns their number.

    `found` gives the objects of each name. A name is retired before the jobs are read again, and permanently: the head
    of this module says why a running submission loses nothing. The age limit only saves it a second try.
    """
    if not found:
        return 0
    now = read_time(store)
    retired = {meta.key.removeprefix(keys.collected(kind, "")) for meta in store.list(keys.collected(kind, ""))}
    needed = _References(store)
    unneeded: dict[str, list[Meta]] = {}
    for name in found.keys() - needed.read(kind):
        metas = found[name]()
        if metas and (name in retired or now - max(meta.modified for meta in metas) > COLLECT_AFTER):
            unneeded[name] = metas
    for name in unneeded.keys() - retired:
        # Created now or before: the mark exists in both cases.
        store.create(keys.collected(kind, name), b"")
    gone = unneeded.keys() - needed.read(kind) if unneeded else set()
    for name in sorted(gone):
        store.delete(meta.key for meta in unneeded[name])
    return len(gone)


class _References:
    """The shared names that jobs refer to. A stored spec never changes, so each is read once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._by_job: dict[str, frozenset[SharedObject]] = {}

    def read(self, kind: str) -> set[str]:
        """The names of one kind that existing jobs refer to. Raises StoreError when a spec cannot be read."""
        names: set[str] = set()
        for job in all_jobs(self._store):
            if job not in self._by_job:
                found = self._store.get(keys.spec(job))
                if found is None:
                    continue
                self._by_job[job] = references(found.data, self._store.url, found.meta.key)
            names |= {shared.name for shared in self._by_job[job] if shared.kind == kind}
        return names
