"""Under which names versions of an output are written, and which of them stay."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoint_world import JOB, memory_store

from stoker.agent.output_versions import OutputWriter
from stoker.model import keys
from stoker.model.errors import StoreUnavailable
from stoker.store.base import Store
from stoker.testing.memory_store import Fault, MemoryStore

PLAIN = keys.outputs(JOB, 1)
VERSIONS = keys.output_versions(JOB, 1)


def writer(store: Store, *, rank: int = 0, boot: int = 0, nodes: int = 1) -> OutputWriter:
    return OutputWriter(store, JOB, 1, rank, boot, nodes=nodes)


def key_list(store: MemoryStore) -> dict[str, bytes]:
    """What is stored: plain names as they are, versions as `<boot>.<number>:<path>`."""
    found = {}
    for prefix in (PLAIN, VERSIONS):
        for meta in store.list(prefix):
            got = store.get(meta.key)
            assert got is not None
            name = meta.key[len(prefix) :]
            version = keys.read_output_version(name) if prefix == VERSIONS else None
            found[f"{version[0]}.{version[1]}:{version[2]}" if version is not None else name] = got.data
    return found


def moved(own: OutputWriter, write: Callable[[], None]) -> int:
    """How many bytes this write sent."""
    before = own.bytes_moved
    write()
    return own.bytes_moved - before


def test_the_first_version_has_the_plain_name_and_of_later_ones_the_last_stays() -> None:
    store = memory_store()
    own = writer(store)
    assert moved(own, lambda: own.write("a", b"1")) == 1
    assert key_list(store) == {"a": b"1"}
    assert moved(own, lambda: own.write("a", b"22")) == 2
    assert moved(own, lambda: own.write("b", b"")) == 0
    assert moved(own, lambda: own.write("a", b"333")) == 3
    assert key_list(store) == {"a": b"333", "b": b"", "0.2:a": b"333"}


def test_a_later_boot_writes_no_plain_name_first_and_deletes_versions_of_earlier_ones() -> None:
    store = memory_store()
    first = writer(store)
    for data in (b"1", b"22"):
        first.write("a", data)
    second = writer(store, boot=1)
    second.write("a", b"333")
    second.write("new", b"4")
    assert key_list(store) == {"a": b"333", "new": b"4", "1.1:a": b"333", "1.2:new": b"4"}


def test_a_later_boot_of_another_rank_leaves_the_versions_of_others_alone() -> None:
    store = memory_store()
    writer(store, boot=1, nodes=2).write("a", b"1")
    writer(store, rank=1, boot=1, nodes=2).write("a", b"333")
    assert {key for key in key_list(store) if ":" in key} == {"1.1:a", "1.1:rank-1/a"}


def test_a_plain_name_that_is_taken_is_not_replaced_by_a_first_version() -> None:
    """A request of an agent that died may land between: the version counts."""
    store = memory_store()
    store.put(f"{PLAIN}a", b"of an earlier agent")
    own = writer(store)
    assert moved(own, lambda: own.write("a", b"1")) == 1
    assert key_list(store) == {"a": b"1", "0.1:a": b"1"}


def test_lower_versions_that_could_not_be_deleted_go_with_the_next() -> None:
    memory = memory_store()
    failing = [False]
    client = memory.client(lambda method, _key: Fault() if failing[0] and method == "delete" else None)
    own = writer(client)
    for data in (b"1", b"2"):
        own.write("a", data)
    failing[0] = True
    own.write("a", b"3")
    assert set(key_list(memory)) == {"a", "0.1:a", "0.2:a"}
    failing[0] = False
    own.write("a", b"4")
    assert set(key_list(memory)) == {"a", "0.3:a"}


def test_each_try_has_a_name_of_its_own() -> None:
    memory = memory_store()
    failing = [False]
    client = memory.client(lambda method, _key: Fault() if failing[0] and method == "create" else None)
    own = writer(client)
    own.write("a", b"1")
    failing[0] = True
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            own.write("a", b"2")
    failing[0] = False
    own.write("a", b"3")
    assert key_list(memory) == {"a": b"3", "0.4:a": b"3"}


def test_a_first_version_that_may_have_landed_is_followed_by_a_numbered_one() -> None:
    memory = memory_store()
    failing = [True]
    client = memory.client(lambda method, _key: Fault(after=True) if failing[0] and method == "create" else None)
    own = writer(client)
    with pytest.raises(StoreUnavailable):
        own.write("a", b"1")
    failing[0] = False
    own.write("a", b"2")
    assert key_list(memory) == {"a": b"2", "0.1:a": b"2"}


def test_the_plain_name_of_a_large_file_is_behind_until_it_is_published(tmp_path: Path) -> None:
    store = memory_store()
    own = writer(store)
    (tmp_path / "large").write_bytes(b"1" * 10)
    assert moved(own, lambda: own.write_file("large", tmp_path / "large")) == 10
    assert own.behind == set() and key_list(store) == {"large": b"1" * 10}
    (tmp_path / "large").write_bytes(b"2" * 11)
    assert moved(own, lambda: own.write_file("large", tmp_path / "large")) == 11
    assert own.behind == {"large"}
    assert key_list(store) == {"large": b"1" * 10, "0.1:large": b"2" * 11}
    own.publish("large", tmp_path / "large")
    assert own.behind == set() and key_list(store)["large"] == b"2" * 11


def test_a_large_file_that_became_small_is_not_behind(tmp_path: Path) -> None:
    store = memory_store()
    own = writer(store)
    for size in (10, 11):
        (tmp_path / "a").write_bytes(b"1" * size)
        own.write_file("a", tmp_path / "a")
    assert own.behind == {"a"}
    own.write("a", b"small")
    assert own.behind == set() and key_list(store)["a"] == b"small"
    (tmp_path / "a").write_bytes(b"")
    assert moved(own, lambda: own.write_file("empty", tmp_path / "a")) == 0
    assert key_list(store)["empty"] == b""


def test_a_large_file_whose_plain_name_is_taken_gets_a_number(tmp_path: Path) -> None:
    store = memory_store()
    store.put(f"{PLAIN}a", b"of an earlier agent")
    (tmp_path / "a").write_bytes(b"1" * 10)
    own = writer(store)
    assert moved(own, lambda: own.write_file("a", tmp_path / "a")) == 10
    assert key_list(store) == {"a": b"of an earlier agent", "0.1:a": b"1" * 10} and own.behind == {"a"}


@pytest.mark.parametrize(
    ("rank", "nodes", "path", "stored"),
    [
        (0, 1, "rank-1/a", "rank-1/a"),
        (0, 2, "rank-1/a", "rank-0/rank-1/a"),
        (0, 2, "rank-1", "rank-0/rank-1"),
        (0, 2, "rank-x/a", "rank-x/a"),
        (1, 2, "rank-1/a", "rank-1/rank-1/a"),
        (1, 2, "a", "rank-1/a"),
    ],
)
def test_no_node_writes_where_another_one_does(rank: int, nodes: int, path: str, stored: str) -> None:
    assert writer(memory_store(), rank=rank, nodes=nodes).plain_key(path) == f"{PLAIN}{stored}"
