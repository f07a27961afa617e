"""What only a folder can do wrong: full disks, crashed writers, moved folders, things that are no files."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.model.errors import StoreDenied, StoreError, StoreUnavailable
from stoker.store import folder, hashed_copy
from stoker.store.base import open_store

PARTIAL = ".stoker-partial"


def python(code: str, *arguments: str, under: tuple[str, ...] = ()) -> str:
    """Run `code` in an interpreter of its own and give back what it printed."""
    ran = subprocess.run([*under, sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def test_opening_and_reading_create_nothing(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "deep" / "store"))
    assert store.get("k") is None
    assert list(store.list("")) == []
    store.delete(["k"])
    assert list(tmp_path.iterdir()) == []
    store.put("k", b"x")
    assert (tmp_path / "deep" / "store" / "k").read_bytes() == b"x"


def test_objects_are_plain_files_and_nothing_else_is_left(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    (tmp_path / "in").write_bytes(b"x" * 1_000_000)
    store.put("a/b", b"1")
    store.put("a/b", b"2")
    store.create("a/c", b"3")
    assert not store.create("a/c", b"4")
    sent = store.put_file(tmp_path / "in", lambda digest: f"blobs/{digest}")
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {"in", "a/b", "a/c", f"blobs/{sent.digest}"}
    assert (tmp_path / "blobs" / sent.digest).stat().st_nlink == 1
    store.delete(["a/b", "a/c"])
    assert not (tmp_path / "a").exists()


def test_a_trial_leaves_nothing(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "above" / "store"))
    for _ in range(2):
        store.put("check/1", b"")
        store.delete(["check/1"])
        assert not list(tmp_path.iterdir())
    assert store.get("check/1") is None, "nothing is missing"
    store.put("kept", b"x")
    store.put("check/1", b"")
    store.delete(["check/1"])
    assert store.get("kept") is not None


def test_anothers_trial_is_not_missed(tmp_path: Path) -> None:
    one = open_store(str(tmp_path / "store"))
    one.put("check/abc", b"")
    other = open_store(str(tmp_path / "store"))
    one.delete(["check/abc"])
    assert not (tmp_path / "store").exists()
    assert other.get("policy/defaults.yaml") is None
    assert list(other.list("")) == []
    other.put("jobs/a", b"1")
    assert one.get("jobs/a") is not None


@pytest.mark.parametrize("look", ["get", "head", "list", "folders"])
def test_a_store_that_was_looked_into_is_missed(tmp_path: Path, look: str) -> None:
    """Also by who opened it when there was nothing in it yet."""
    reader = open_store(str(tmp_path / "store"))
    open_store(str(tmp_path / "store")).put("jobs/a/spec.json", b"1")
    asked = "jobs/" if look in ("list", "folders") else "jobs/a/spec.json"
    found = getattr(reader, look)(asked)
    assert list(found) if look == "list" else found
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    with pytest.raises(StoreUnavailable, match="is gone"):
        reader.get("jobs/a/spec.json")
    with pytest.raises(StoreUnavailable, match="is gone"):
        reader.put("jobs/b/spec.json", b"2")
    assert not (tmp_path / "store").exists()


def test_what_others_made_stays(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    mine, other = (open_store(str(tmp_path / "store")) for _ in range(2))
    mine.put("check/1", b"")
    other.put("theirs", b"x")
    mine.delete(["check/1"])
    assert other.get("theirs") is not None
    other.delete(["theirs"])
    mine.put("check/1", b"")
    mine.delete(["check/1"])
    assert (tmp_path / "store").is_dir(), "somebody made this folder"


def test_unfinished_files_are_not_objects(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.put("k", b"x")
    (tmp_path / PARTIAL / "half").write_bytes(b"y")
    assert [meta.key for meta in store.list("")] == ["k"]
    assert store.folders("") == []
    with pytest.raises(StoreError):
        store.get(f"{PARTIAL}/half")
    with pytest.raises(StoreError):
        store.put(f"{PARTIAL}/mine", b"")


def test_what_crashed_writers_left_is_removed_and_what_the_living_write_is_not(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    store.put("k", b"x")
    source = tmp_path / "in"
    source.write_bytes(b"x")
    stale, locked, young = (tmp_path / "store" / PARTIAL / name for name in ("stale", "locked", "young"))
    for path in (stale, locked, young):
        path.write_bytes(b"half a checkpoint")
    for path in (stale, locked):
        os.utime(path, (0, 0))
    with locked.open("rb") as living:
        fcntl.flock(living, fcntl.LOCK_EX)
        store.put_file(source, lambda digest: f"blobs/{digest}")
        assert not stale.exists()
        assert locked.exists()
        assert young.exists()


def test_a_writer_that_is_killed_leaves_nothing_in_sight(tmp_path: Path) -> None:
    code = """
import os, sys
from pathlib import Path
from stoker.store.base import open_store
def key(digest):
    os.kill(os.getpid(), 9)
    return digest
open_store(sys.argv[1]).put_file(Path(sys.argv[2]), key)
"""
    (tmp_path / "in").write_bytes(b"x" * 1_000_000)
    ran = subprocess.run([sys.executable, "-c", code, str(tmp_path / "store"), str(tmp_path / "in")], check=False)
    assert ran.returncode == -9
    store = open_store(str(tmp_path / "store"))
    assert list(store.list("")) == []
    (left,) = (tmp_path / "store" / PARTIAL).iterdir()
    # Its lock died with it: after a while the next writer clears up.
    os.utime(left, (0, 0))
    store.put_file(tmp_path / "in", lambda digest: digest)
    assert not left.exists()


def test_a_root_that_vanished_is_an_outage_not_an_empty_store(tmp_path: Path) -> None:
    root = tmp_path / "store"
    store = open_store(str(root))
    store.create("jobs/a/log/00000001.json", b"x")
    root.rename(tmp_path / "away")
    for call in (
        lambda: store.get("jobs/a/log/00000001.json"),
        lambda: store.head("k"),
        lambda: list(store.list("jobs/")),
        lambda: store.folders("jobs/"),
        lambda: store.put("k", b"x"),
        lambda: store.create("k", b"x"),
    ):
        with pytest.raises(StoreUnavailable):
            call()
    assert not root.exists()
    (tmp_path / "away").rename(root)
    assert store.get("jobs/a/log/00000001.json") is not None


def test_things_that_are_no_files_are_not_objects(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    store.put("k", b"x")
    root = tmp_path / "store"
    (tmp_path / "secret").write_bytes(b"s")
    (root / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(root / "pipe")
    (root / os.fsdecode(b"not-utf8-\xff")).write_bytes(b"")
    for key in ("link", "pipe"):
        assert store.get(key) is None
        assert store.head(key) is None
        with pytest.raises(StoreError):
            store.create(key, b"")
    assert [meta.key for meta in store.list("")] == ["k"]


@pytest.mark.parametrize(("name", "writes"), [("rename", "put"), ("link", "create")])
def test_a_folder_that_vanishes_as_often_as_it_is_made_is_an_outage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, writes: str
) -> None:
    store = open_store(str(tmp_path))
    tries: list[object] = []

    def gone(*paths: object) -> None:
        tries.append(paths)
        shutil.rmtree(tmp_path / "a", ignore_errors=True)
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(os, name, gone)
    with pytest.raises(StoreUnavailable, match="vanishes as often as it is created"):
        getattr(store, writes)("a/b", b"x")
    assert 2 < len(tries) < 100


def test_a_place_for_unfinished_files_that_cannot_be_had_is_an_outage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(str(tmp_path))
    opened = os.open
    tries: list[str] = []

    def vanishing(path: str, *args: int, **kwargs: int) -> int:
        if PARTIAL in str(path) and args[0] & os.O_CREAT:
            tries.append(path)
            raise FileNotFoundError(2, "No such file or directory", path)
        return opened(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", vanishing)
    with pytest.raises(StoreUnavailable, match="No such file"):
        store.put("a", b"x")
    assert 2 < len(tries) < 100


def test_a_name_that_is_free_again_by_the_time_one_looks_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another made it and deleted it again, both at this moment."""
    store = open_store(str(tmp_path))
    link = os.link
    refusals = [FileExistsError(17, "File exists")]

    def once_taken(*paths: str) -> None:
        if refusals:
            raise refusals.pop()
        link(*paths)

    monkeypatch.setattr(os, "link", once_taken)
    assert store.create("a/b", b"x")
    found = store.get("a/b")
    assert found is not None and found.data == b"x"


def test_a_name_that_another_takes_at_this_moment_is_theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, link = open_store(str(tmp_path)), os.link

    def faster(name: str, path: str) -> None:
        Path(path).parent.mkdir(exist_ok=True)
        Path(path).write_bytes(b"theirs")
        link(name, path)

    monkeypatch.setattr(os, "link", faster)
    (tmp_path / "source").write_bytes(b"mine")
    assert not store.create("a/b", b"mine")
    assert store.put_file(tmp_path / "source", lambda _: "a/c").moved == 0
    assert {(tmp_path / "a" / name).read_bytes() for name in "bc"} == {b"theirs"}


@pytest.mark.parametrize(("number", "kind"), [(13, StoreDenied), (5, StoreUnavailable)])
def test_a_folder_that_cannot_be_listed_is_not_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[StoreError]
) -> None:
    store = open_store(str(tmp_path))
    store.put("a/b", b"x")

    def fails(path: str) -> None:
        raise OSError(number, os.strerror(number), path)

    monkeypatch.setattr(os, "scandir", fails)
    for call in (lambda: list(store.list("a/")), lambda: store.folders("")):
        with pytest.raises(kind):
            call()


def test_an_object_cannot_lie_below_another(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.put("a", b"x")
    for key in ("a/b", "a/b/c"):
        with pytest.raises(StoreError) as caught:
            store.put(key, b"")
        assert type(caught.value) is StoreError
    store.put("d/e", b"x")
    with pytest.raises(StoreError):
        store.create("d", b"")
    with pytest.raises(StoreError):
        store.put("n" * 300, b"")


def test_empty_folders_of_a_crashed_writer_are_not_told(tmp_path: Path) -> None:
    (tmp_path / "jobs" / "a" / "log").mkdir(parents=True)
    store = open_store(str(tmp_path))
    assert store.folders("jobs/") == []
    assert store.create("jobs/a/log/1", b"")
    assert store.folders("jobs/") == ["a"]


# ── when the disk says no ─────────────────────────────────────────────────────────────────────────────────────────────


FULL = """
import sys
from pathlib import Path
from stoker.model.errors import StoreUnavailable
from stoker.store.base import open_store
root, source = map(Path, sys.argv[1:])
store = open_store(str(root))
store.put("small", b"x")
before = sorted(str(path) for path in root.rglob("*"))
for call in (
    lambda: store.put("a/k", b"x" * 4_000_000),
    lambda: store.put("small", b"x" * 4_000_000),
    lambda: store.create("a/k", b"x" * 4_000_000),
    lambda: store.put_file(source, lambda digest: "blobs/" + digest),
):
    try:
        call()
    except StoreUnavailable as error:
        assert "\\n" not in str(error)
    else:
        raise SystemExit("no error")
assert store.get("small").data == b"x"
assert sorted(str(path) for path in root.rglob("*")) == before, "something was left behind"
# What fits still goes.
assert store.create("a/k", b"x")
print("ok")
"""


def test_a_full_disk_is_an_outage_and_leaves_no_partial_object(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"x" * 4_000_000)
    (tmp_path / "disk").mkdir()
    mapped = () if os.geteuid() == 0 else ("--map-root-user",)
    mount = 'mount -t tmpfs -o size=1m tmpfs "$0" && exec "$@"'
    under = ("unshare", *mapped, "--mount", "sh", "-c", mount, str(tmp_path / "disk"))
    assert python(FULL, str(tmp_path / "disk" / "store"), str(tmp_path / "in"), under=under) == "ok"


def test_a_file_size_limit_is_an_outage_too(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"x" * 4_000_000)
    limited = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))\n" + FULL
    assert python(limited, str(tmp_path / "store"), str(tmp_path / "in")) == "ok"


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that another user may enter, unlike pytest's own."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def test_a_folder_one_may_not_write_to_is_denied(shared: Path) -> None:
    code = """
import os, sys
from stoker.model.errors import StoreDenied
from stoker.store.base import open_store
store = open_store(sys.argv[1])
if os.geteuid() == 0:  # who may write everywhere
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
assert store.get("k").data == b"x"
for call in (lambda: store.put("k", b"y"), lambda: store.create("j", b"y"), lambda: store.delete(["k"])):
    try:
        call()
    except StoreDenied as error:
        assert "\\n" not in str(error) and sys.argv[1] in str(error)
    else:
        raise SystemExit("no error")
try:
    open_store(sys.argv[1] + "-other").put("k", b"y")
except StoreDenied:
    print("denied")
"""
    open_store(str(shared / "store")).put("k", b"x")
    for path in (shared / "store" / PARTIAL, shared / "store", shared):
        path.chmod(0o555)
    try:
        assert python(code, str(shared / "store")) == "denied"
    finally:
        for path in (shared, shared / "store", shared / "store" / PARTIAL):
            path.chmod(0o755)


def test_a_filesystem_without_hard_links_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    store = open_store(str(tmp_path))
    monkeypatch.setattr(os, "link", link)
    with pytest.raises(StoreDenied, match="hard links"):
        store.create("k", b"x")
    assert list(store.list("")) == []


# ── each way of copying ───────────────────────────────────────────────────────────────────────────────────────────────


def fail(*_: object, **__: object) -> None:
    raise OSError(95, "Operation not supported")


def copy_by_reference(source: int, target: int) -> bool:
    """What a filesystem with reflinks does, as far as one can see."""
    os.lseek(target, 0, os.SEEK_SET)
    os.write(target, os.pread(source, os.fstat(source).st_size, 0))
    os.lseek(target, 0, os.SEEK_SET)
    return True


@pytest.mark.parametrize("way", ["kernel", "by hand", "nothing to copy", "fails midway", "reference"])
@pytest.mark.parametrize("size", [0, 5, hashed_copy.BUFFER_SIZE, 5_000_001])
def test_every_way_of_copying_gives_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, size: int
) -> None:
    genuine = os.copy_file_range
    calls: list[int] = []

    def midway(source: int, target: int, count: int) -> int:
        calls.append(count)
        if len(calls) % 2 == 0:
            raise OSError(5, "Input/output error")
        return genuine(source, target, min(count, 1_000_000))

    if way == "by hand":
        monkeypatch.setattr(os, "copy_file_range", fail)
    elif way == "nothing to copy":
        monkeypatch.setattr(os, "copy_file_range", lambda *_: 0)
    elif way == "fails midway":
        monkeypatch.setattr(os, "copy_file_range", midway)
    elif way == "reference":
        monkeypatch.setattr(folder, "clone", copy_by_reference)
        monkeypatch.setattr(hashed_copy, "clone", copy_by_reference)
    data = os.urandom(size)
    digest = hashlib.sha256(data).hexdigest()
    (tmp_path / "in").write_bytes(data)
    store = open_store(str(tmp_path / "store"))
    sent = store.put_file(tmp_path / "in", lambda found: f"b/{found}")
    assert (sent.digest, sent.size, sent.moved) == (digest, size, size)
    assert (tmp_path / "store" / "b" / digest).read_bytes() == data
    assert store.get_file(f"b/{digest}", tmp_path / "out") == digest
    assert (tmp_path / "out").read_bytes() == data


def test_a_source_that_fails_is_the_callers_error_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").write_bytes(b"x" * 1_000_000)
    store = open_store(str(tmp_path / "store"))
    monkeypatch.setattr(os, "copy_file_range", fail)
    monkeypatch.setattr(os, "readv", fail)
    with pytest.raises(OSError, match="not supported"):
        store.put_file(tmp_path / "in", lambda digest: digest)
    assert [path for path in (tmp_path / "store").rglob("*") if path.is_file()] == []


def test_create_flushes_the_bytes_before_the_name_and_the_name_before_it_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(str(tmp_path / "store"))
    (tmp_path / "in").write_bytes(b"x" * 10)
    store.put("a/k", b"")
    done: list[str] = []
    fsync, link = os.fsync, os.link

    def watched_fsync(file: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(file).st_mode) else "file")
        fsync(file)

    def watched_link(*names: str) -> None:
        done.append("link")
        link(*names)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "link", watched_link)
    for write in (
        lambda: store.create("a/entry", b"x"),
        lambda: store.put_file(tmp_path / "in", lambda digest: f"a/{digest}"),
    ):
        done.clear()
        write()
        assert done == ["file", "link", "folder"]
    done.clear()
    store.put("a/heartbeat", b"x")
    assert done == []
