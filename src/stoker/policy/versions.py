"""The policy of a store: every version of its rules, who made it and when. A version is written once, and stays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from stoker.model import codec, keys
from stoker.model.errors import CodecError, SpecError, StoreError, StoreUnavailable, UserError
from stoker.model.policy import NO_RULES, House
from stoker.policy.policy_file import MOST_BYTES, parse_policy
from stoker.store.base import Store
from stoker.store.job_log import new_token

# The text, twice for what JSON makes of it, and who wrote it.
_MOST_BYTES = 3 * MOST_BYTES
_TRIES = 20


class Unchanged(UserError):
    """The text is the policy already."""


@dataclass(frozen=True)
class Written:
    """One version, as it is kept."""

    text: str
    author: str
    # For whoever reads the history.
    note: str = ""
    # Tells my write from a rival's when a reply is lost.
    token: str = ""


@dataclass(frozen=True)
class Kept:
    """One version, with its number and the store's time of writing."""

    version: int
    at: datetime
    written: Written

    @property
    def source(self) -> str:
        """For messages about its text."""
        return f"policy version {self.version}"


def newest(store: Store) -> int:
    """The number of the newest version; 0: there never was one."""
    return max((_number(meta.key) for meta in store.list(keys.RULES)), default=0)


def read(store: Store, version: int) -> Kept | None:
    """One version. Raises StoreError where it cannot be read."""
    key = keys.rules(version)
    found = store.get(key, limit=_MOST_BYTES)
    if found is None:
        return None
    try:
        return Kept(version, found.meta.modified, codec.loads(Written, found.data))
    except CodecError as error:
        raise StoreError(f"{key}: {error}") from error


def current(store: Store) -> Kept | None:
    """The version that counts; None where the house has no rules."""
    version = newest(store)
    return read(store, version) if version else None


def history(store: Store) -> list[Kept]:
    """All of them, oldest first."""
    numbers = sorted(_number(meta.key) for meta in store.list(keys.RULES))
    return [kept for version in numbers if (kept := read(store, version)) is not None]


def digest(kept: Kept) -> str:
    """What decisions record of it."""
    return codec.digest(kept.written.text.encode())


def house(kept: Kept | None) -> House:
    """The rules of a version. Raises SpecError where this Stoker cannot read them: a newer one wrote them."""
    if kept is None:
        return NO_RULES
    try:
        return parse_policy(kept.written.text.encode(), kept.source, version=kept.version)
    except SpecError as error:
        raise SpecError(f"{error}; a newer Stoker may have written it: update this one") from error


def write(store: Store, text: str, author: str, note: str = "", *, token: Callable[[], str] = new_token) -> Kept:
    """Make this text the policy. Raises SpecError for a mistake in it, and Unchanged when it is the policy already."""
    parse_policy(text.encode(), "policy")
    mine = Written(text, author, note, token())
    tried: list[int] = []
    for _ in range(_TRIES):
        # A reply may be lost, and another version may follow at once: only the very ones that were tried can tell.
        for kept in (_readable(store, number) for number in tried):
            if kept is not None and kept.written.token == mine.token:
                return kept
        version = newest(store)
        before = _readable(store, version) if version else None
        if before is not None and before.written.text == text:
            raise Unchanged(f"this is the policy already, as version {before.version}, by {before.written.author}")
        tried.append(version + 1)
        try:
            store.create(keys.rules(version + 1), codec.dumps(mine))
        except StoreUnavailable:
            continue  # It may have been written all the same.
    raise StoreUnavailable("the policy could not be written: the store does not answer, or others write all the time")


def _readable(store: Store, version: int) -> Kept | None:
    """One version; None for what nobody can read, which must not be for good."""
    try:
        return read(store, version)
    except StoreUnavailable:
        raise
    except StoreError:
        return None


def _number(key: str) -> int:
    name = key.removeprefix(keys.RULES).removesuffix(".json")
    return int(name) if name.isascii() and name.isdigit() else 0
