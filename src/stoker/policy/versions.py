"""The versions of a store's policy, each with its author and time. A version is written once and never changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone

from stoker.model import codec, keys
from stoker.model.errors import CodecError, SpecError, StoreError, StoreUnavailable, UserError
from stoker.model.policy import NO_RULES, Policy
from stoker.policy.approvals import ApprovalReader
from stoker.policy.policy_file import MAX_BYTES, parse_policy
from stoker.store.base import Store
from stoker.store.job_log import new_token

# The text, with room for JSON escapes, the author and the note.
_MOST_BYTES = 3 * MAX_BYTES
_TRIES = 20
# Older versions are not read, since each is one object: the property counts as no older than this.
_MAX_VERSIONS = 100


class Unchanged(UserError):
    """The text is the policy already."""


@dataclass(frozen=True)
class PolicyText:
    """One version, as it is stored."""

    text: str
    author: str
    # The author's comment, for readers of the history.
    note: str = ""
    # Distinguishes this writer's object from another's when a reply is lost.
    token: str = ""


@dataclass(frozen=True)
class PolicyVersion:
    """One version, with its number and the store's time of writing."""

    version: int
    at: datetime
    written: PolicyText

    @property
    def source(self) -> str:
        """The name of this version in messages about its text."""
        return f"policy version {self.version}"


def newest(store: Store) -> int:
    """The number of the newest version; 0: there never was one."""
    return max((_number(meta.key) for meta in store.list(keys.RULES)), default=0)


def read(store: Store, version: int) -> PolicyVersion | None:
    """One version. Raises StoreError where it cannot be read."""
    key = keys.rules(version)
    found = store.get(key, limit=_MOST_BYTES)
    if found is None:
        return None
    try:
        return PolicyVersion(version, found.meta.modified, codec.loads(PolicyText, found.data))
    except CodecError as error:
        raise StoreError(f"{key}: {error}") from error


def current(store: Store) -> PolicyVersion | None:
    """The version in force; None where there is no policy."""
    version = newest(store)
    return read(store, version) if version else None


def history(store: Store) -> list[PolicyVersion]:
    """All versions, oldest first."""
    numbers = sorted(_number(meta.key) for meta in store.list(keys.RULES))
    return [stored for version in numbers if (stored := read(store, version)) is not None]


def policy_digest(stored: PolicyVersion) -> str:
    """The digest that decisions record."""
    return codec.digest(stored.written.text.encode())


def parsed_policy(stored: PolicyVersion | None) -> Policy:
    """The policy of a version. Raises SpecError where this Stoker cannot read it: a newer one may have written it."""
    if stored is None:
        return NO_RULES
    try:
        return parse_policy(stored.written.text.encode(), stored.source, version=stored.version)
    except SpecError as error:
        raise SpecError(f"{error}; a newer Stoker may have written it: update this one") from error


def current_policy(store: Store) -> Policy:
    """The policy in force, with its approvals; one without rules where none was written. Raises SpecError as
    `parsed_policy` does."""
    policy, today = parsed_policy(current(store)), datetime.now(timezone.utc).date()
    return ApprovalReader(store).with_approvals(policy, today)


class PolicyHistory:
    """Versions of the policy, each read once when first needed: they never change."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._read: dict[int, tuple[datetime, Policy] | None] = {}

    def since(self, policy: Policy, wanted: Callable[[Policy], bool]) -> datetime | None:
        """When the first version of the unbroken run up to `policy` was set for which `wanted` holds; None where it
        does not hold for `policy` itself. Raises StoreError.
        """
        found = None
        for version in range(policy.version, max(0, policy.version - _MAX_VERSIONS), -1):
            if version not in self._read:
                self._read[version] = self._version(version)
            each = self._read[version]
            if each is None or not wanted(each[1]):
                break
            found = each[0]
        return found

    def _version(self, version: int) -> tuple[datetime, Policy] | None:
        stored = read(self._store, version)
        try:
            return None if stored is None else (stored.at, parsed_policy(stored))
        except SpecError:
            return None


def write(
    store: Store, text: str, author: str, note: str = "", *, token: Callable[[], str] = new_token
) -> PolicyVersion:
    """Make this text the policy. Raises SpecError for a mistake in it, and Unchanged when it is the policy already."""
    parse_policy(text.encode(), "policy")
    mine = PolicyText(text, author, note, token())
    tried: list[int] = []
    for _ in range(_TRIES):
        # A reply may be lost, and another version may follow at once: only the versions that were tried can show
        # whether one of them was written here.
        for stored in (_readable(store, number) for number in tried):
            if stored is not None and stored.written.token == mine.token:
                return stored
        version = newest(store)
        before = _readable(store, version) if version else None
        if before is not None and before.written.text == text:
            raise Unchanged(f"this is the policy already, as version {before.version}, by {before.written.author}")
        tried.append(version + 1)
        try:
            store.create(keys.rules(version + 1), codec.dumps(mine))
        except StoreUnavailable:
            continue  # The version may have been written all the same.
    raise StoreUnavailable("the policy could not be written: the store does not answer, or others write all the time")


def _readable(store: Store, version: int) -> PolicyVersion | None:
    """One version; None where it cannot be read. An unreadable version must not block later writes."""
    try:
        return read(store, version)
    except StoreUnavailable:
        raise
    except StoreError:
        return None


def _number(key: str) -> int:
    name = key.removeprefix(keys.RULES).removesuffix(".json")
    return int(name) if name.isascii() and name.isdigit() else 0
