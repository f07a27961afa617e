"""The policy in its store: versions that stay, one writer at a time, and one that nobody here can read."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from stoker.core.governor_settings import DEFAULT
from stoker.model import codec, keys
from stoker.model.errors import SpecError, StoreUnavailable, UserError
from stoker.policy import versions
from stoker.policy.reader import PolicyReader
from stoker.testing.memory_store import Fault, MemoryStore

ONE, TWO = "rules: [{max_nodes: 1}]\n", "rules: [{max_nodes: 2}]\n"


def make_store(**more: object) -> MemoryStore:
    return MemoryStore(lambda: datetime.now(timezone.utc), **more)  # type: ignore[arg-type]


def test_versions_stay_with_who_made_them() -> None:
    store = make_store()
    assert versions.current(store) is None and versions.parsed_policy(None).rules == ()
    assert versions.write(store, ONE, "jane", "to begin with").version == 1
    assert versions.write(store, TWO, "joe").version == 2
    assert versions.write(store, ONE, "jane").version == 3
    told = [(kept.version, kept.written.author, kept.written.note) for kept in versions.history(store)]
    assert told == [(1, "jane", "to begin with"), (2, "joe", ""), (3, "jane", "")]
    current = versions.current(store)
    assert current is not None and versions.parsed_policy(current).rules[0].max_nodes == 1
    with pytest.raises(UserError, match="this is the policy already, as version 3, by jane"):
        versions.write(store, ONE, "joe")
    with pytest.raises(SpecError):
        versions.write(store, "rules: 5", "joe")
    assert versions.newest(store) == 3


def test_a_reply_that_is_lost_makes_no_second_version() -> None:
    lost: list[str] = []

    def faults(method: str, key: str) -> Fault | None:
        if method == "create" and not lost:
            lost.append(key)
            return Fault(after=True)
        return None

    store = make_store(faults=faults)
    assert versions.write(store, ONE, "jane").version == 1
    assert lost and versions.newest(store) == 1


@pytest.mark.parametrize("lost", [False, True])
def test_what_was_written_is_not_written_again_after_a_rival(lost: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_store()
    create = store.create

    def and_then_a_rival(key: str, data: bytes) -> bool:
        made = create(key, data)
        if made and b"max_nodes: 1" in data:
            versions.write(store, TWO, "bob")
            if lost:
                raise StoreUnavailable("no answer")
        return made

    monkeypatch.setattr(store, "create", and_then_a_rival)
    assert versions.write(store, ONE, "alice").version == 1
    assert [kept.written.author for kept in versions.history(store)] == ["alice", "bob"]


def test_a_governor_reads_it_when_it_changes_and_tells_what_it_cannot_read() -> None:
    store = make_store()
    reader = PolicyReader(store, DEFAULT)
    assert reader.read() == DEFAULT
    versions.write(store, ONE, "jane")
    assert [rule.max_nodes for rule in reader.read().policy.rules] == [1]
    assert reader.read() is reader.read()
    newer = versions.PolicyText("rules: [{telepathy: true}]", "somebody", token="t")
    store.create(keys.rules(2), codec.dumps(newer))
    unread = reader.read()
    assert (
        "policy version 2:1: rules[0].telepathy: unknown field" in unread.policy_error
        and "update" in unread.policy_error
    )
    assert [rule.max_nodes for rule in unread.policy.rules] == [1], "what was known before still holds"
    store.create(keys.rules(3), b"nonsense")
    assert reader.read().policy_error
    versions.write(store, TWO, "jane")
    assert (reader.read().policy_error, reader.read().policy.version) == ("", 4)


def test_a_store_that_does_not_answer_is_no_store_without_rules() -> None:
    store = make_store(faults=lambda method, key: Fault() if method == "list" and key == keys.RULES else None)
    with pytest.raises(StoreUnavailable):
        PolicyReader(store, DEFAULT).read()
