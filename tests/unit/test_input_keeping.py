"""What was fetched of an input: which node holds it, what of it is believed, and when it is forgotten."""

from __future__ import annotations

import fcntl
import json
import os
import time
from contextlib import suppress
from pathlib import Path

import pytest
from plain_bucket import PlainBucket
from plain_store import wait_for

from stoker.agent.inputs import cache
from stoker.agent.inputs.cache import UNUSED_FOR_S, CacheEntry, InputInUse, ObjectPart, prune
from stoker.agent.inputs.download import InputDownload

FILES = {"a": b"aaa", "sub/b": b"bb", "empty": b""}


class Left(Exception):
    pass


def nothing() -> None:
    pass


def leave() -> None:
    raise Left


def take(kept: CacheEntry) -> bool:
    """Take it at once, or raise Left."""
    return kept.acquire(leave, nothing)


def fill(kept: CacheEntry) -> None:
    InputDownload(kept, kept.missing(), lambda _: None).run(nothing)
    kept.finish()


def fetched(root: Path, bucket: PlainBucket) -> CacheEntry:
    """All of it, taken and whole."""
    kept = CacheEntry(root, bucket.listing())
    assert take(kept) is False
    fill(kept)
    return kept


def missing(kept: CacheEntry) -> set[tuple[str, int]]:
    return {(part.meta.key, part.begin) for part in kept.missing()}


def settled(kept: CacheEntry) -> None:
    wait_for((kept.folder / "settled").exists)


# ── Which node holds it ───────────────────────────────────────────────────────────────────────────────────────────────


def test_a_whole_input_that_is_not_in_use_is_taken_by_several_at_once(tmp_path: Path) -> None:
    bucket = PlainBucket(FILES)
    fetched(tmp_path, bucket).release()
    first, second = CacheEntry(tmp_path, bucket.listing()), CacheEntry(tmp_path, bucket.listing())
    assert take(first) is True and take(second) is True


def test_a_whole_input_is_shared_from_the_moment_that_it_is_whole(tmp_path: Path) -> None:
    bucket = PlainBucket(FILES)
    first = CacheEntry(tmp_path, bucket.listing())
    assert take(first) is False
    second = CacheEntry(tmp_path, bucket.listing())
    with pytest.raises(Left):
        take(second)
    fill(first)
    assert take(second) is True


def open_locks(folder: Path) -> int:
    found = []
    for handle in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.append(handle.readlink())
    return found.count(folder / "lock")


def test_waiting_for_another_node_is_told_once_and_checked_all_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_POLL_S", 0.0)
    bucket = PlainBucket(FILES)
    first, second = CacheEntry(tmp_path, bucket.listing()), CacheEntry(tmp_path, bucket.listing())
    take(first)
    told: list[int] = []
    checks: list[int] = []

    def check() -> None:
        checks.append(len(told))
        assert open_locks(first.folder) == 1, "that of the other node"
        if len(checks) == 5:
            fill(first)

    assert second.acquire(check, lambda: told.append(1)) is True
    assert told == [1] and checks == [1] * 5


def test_what_is_in_use_and_changed_is_left_to_its_user_and_not_held(tmp_path: Path) -> None:
    bucket = PlainBucket(FILES)
    user = fetched(tmp_path, bucket)
    (user.files / "a").unlink()
    other = CacheEntry(tmp_path, bucket.listing())
    with pytest.raises(InputInUse):
        take(other)
    user.release()
    assert take(other) is False, "now it can be repaired"


def test_a_released_input_can_be_filled_by_the_next(tmp_path: Path) -> None:
    bucket = PlainBucket(FILES)
    first = CacheEntry(tmp_path, bucket.listing())
    take(first)
    first.missing()
    first.release()
    second = CacheEntry(tmp_path, bucket.listing())
    assert take(second) is False


def test_a_folder_that_is_pruned_while_it_is_taken_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = CacheEntry(tmp_path, PlainBucket(FILES).listing())
    own, lost = os.open, [1]

    def open_lock(path: Path, flags: int, mode: int = 0o777) -> int:
        if lost and path == kept.folder / "lock":
            lost.pop()
            kept.folder.rmdir()
        return own(path, flags, mode)

    monkeypatch.setattr(cache.os, "open", open_lock)
    assert take(kept) is False
    assert (kept.folder / "lock").exists()


def test_a_lock_of_a_folder_that_was_pruned_holds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_POLL_S", 0.0)
    kept = CacheEntry(tmp_path, PlainBucket(FILES).listing())
    own, lost = fcntl.flock, [1]

    def lock_late(handle: int, how: int) -> None:
        if lost:
            lost.pop()
            (kept.folder / "lock").unlink()
        own(handle, how)

    monkeypatch.setattr(cache.fcntl, "flock", lock_late)
    assert kept.acquire(nothing, nothing) is False
    with pytest.raises(Left):
        take(CacheEntry(tmp_path, kept.listing))


# ── What is believed ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_files_are_only_to_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "PART_BYTES", 2)
    kept = fetched(tmp_path, PlainBucket(FILES))
    for name in FILES:
        assert (kept.files / name).stat().st_mode & 0o777 == 0o444


def test_a_single_object_is_the_path_itself(tmp_path: Path) -> None:
    bucket = PlainBucket({"a": b"aaa"})
    assert CacheEntry(tmp_path, bucket.listing(single="a")).path.name == "a"
    folder = CacheEntry(tmp_path, bucket.listing())
    assert folder.path == folder.files


def test_parts_cover_an_object_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "PART_BYTES", 4)
    kept = CacheEntry(tmp_path, PlainBucket({"a": b"x" * 8, "b": b"x" * 9, "c": b"x" * 4, "d": b""}).listing())
    take(kept)
    parts = [(part.meta.key, part.begin, part.end, part.whole) for part in kept.missing()]
    assert parts == [
        ("a", 0, 4, False),
        ("a", 4, 8, False),
        ("b", 0, 4, False),
        ("b", 4, 8, False),
        ("b", 8, 9, False),
        ("c", 0, 4, True),
        ("d", 0, 0, True),
    ]


def test_what_was_noted_survives_two_kills(tmp_path: Path) -> None:
    """The second one before anything else was fetched."""
    bucket = PlainBucket(FILES)
    first = CacheEntry(tmp_path, bucket.listing())
    take(first)
    (part,) = (part for part in first.missing() if part.meta.key == "a")
    (first.files / "a").write_bytes(b"aaa")
    first.record(part)
    first.flush()
    # As a kill leaves it: the lock is gone, and nothing more is written.
    for _ in range(2):
        os.close(first._lock)
        second = CacheEntry(tmp_path, bucket.listing())
        assert take(second) is False
        assert missing(second) == {("sub/b", 0), ("empty", 0)}
        first = second


def test_an_input_that_is_being_repaired_is_not_whole(tmp_path: Path) -> None:
    bucket = PlainBucket(FILES)
    kept = fetched(tmp_path, bucket)
    settled(kept)
    (kept.files / "a").unlink()
    kept.release()
    again = CacheEntry(tmp_path, bucket.listing())
    assert take(again) is False
    assert missing(again) == {("a", 0)}
    # The file is back, but the journal has no word of it.
    (again.files / "a").write_bytes(b"aaa")
    again.release()
    assert take(CacheEntry(tmp_path, bucket.listing())) is False
    assert not (again.folder / "done").exists() and not (again.folder / "settled").exists()


def test_a_journal_of_another_boot_counts_once_all_was_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = PlainBucket(FILES)
    kept = fetched(tmp_path, bucket)
    settled(kept)
    (kept.files / "a").unlink()
    kept.release()
    monkeypatch.setattr(cache, "boot_id", lambda: "another boot")
    again = CacheEntry(tmp_path, bucket.listing())
    assert take(again) is False
    assert missing(again) == {("a", 0)}


@pytest.mark.parametrize(("on_disk", "whole"), [(True, True), (False, False)])
def test_after_a_power_cut_only_what_was_on_the_disk_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_disk: bool, whole: bool
) -> None:
    bucket = PlainBucket(FILES)
    kept = fetched(tmp_path, bucket)
    settled(kept)
    kept.release()
    if not on_disk:
        (kept.folder / "settled").unlink()
        assert kept._is_complete(), "in the same boot it is"
    monkeypatch.setattr(cache, "boot_id", lambda: "another boot")
    again = CacheEntry(tmp_path, bucket.listing())
    assert take(again) is whole
    if not whole:
        assert missing(again) == {("a", 0), ("sub/b", 0), ("empty", 0)}


def open_below(folder: Path) -> list[str]:
    found = []
    for handle in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.append(str(handle.readlink()))
    return [path for path in found if path.startswith(f"{folder}/")]


def test_what_was_kept_and_released_leaves_no_handle_open(tmp_path: Path) -> None:
    """An agent keeps many inputs, and looks at all versions of each."""
    bucket = PlainBucket(FILES)
    for number in range(3):
        bucket.objects["a"] = f"{number:03d}".encode()
        kept = fetched(tmp_path, bucket)
        settled(kept)
        assert open_below(tmp_path) == [str(kept.folder / "lock")]
        kept.release()
        kept._sync_to_disk()
        prune(tmp_path)
    assert open_below(tmp_path) == []


def test_a_file_system_that_cannot_be_synced_is_not_settled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        @staticmethod
        def syncfs(_handle: int) -> int:
            return -1

    monkeypatch.setattr(cache.ctypes, "CDLL", lambda _name: Library)
    kept = CacheEntry(tmp_path, PlainBucket(FILES).listing())
    kept.files.mkdir(parents=True)
    kept._sync_to_disk()
    assert not (kept.folder / "settled").exists()


def test_a_file_of_another_size_or_kind_is_not_believed(tmp_path: Path) -> None:
    bucket = PlainBucket(FILES)
    for spoil in ("longer", "link", "folder", "younger"):
        root = tmp_path / spoil
        kept = fetched(root, bucket)
        file = kept.files / "a"
        content = file.read_bytes()
        file.unlink()
        if spoil == "longer":
            file.write_bytes(content + b"x")
            os.utime(file, ns=(0, 0))
        elif spoil == "link":
            (root / "elsewhere").write_bytes(content)
            file.symlink_to(root / "elsewhere")
            os.utime(file, ns=(0, 0), follow_symlinks=False)
        elif spoil == "folder":
            file.mkdir()
            os.utime(file, ns=(0, 0))
        else:
            file.write_bytes(content)
            late = (kept.folder / "done").stat().st_mtime_ns + 1
            os.utime(file, ns=(late, late))
        kept.release()
        again = CacheEntry(root, bucket.listing())
        assert take(again) is False, spoil
        assert missing(again) == {("a", 0)}, spoil


def test_a_file_as_young_as_the_end_of_the_fetch_is_believed(tmp_path: Path) -> None:
    bucket = PlainBucket(FILES)
    kept = fetched(tmp_path, bucket)
    end = (kept.folder / "done").stat().st_mtime_ns
    os.utime(kept.files / "a", ns=(end, end))
    kept.release()
    assert take(CacheEntry(tmp_path, bucket.listing())) is True


def test_a_torn_or_strange_journal_says_nothing_of_what_it_does_not_name(tmp_path: Path) -> None:
    bucket = PlainBucket(FILES)
    kept = fetched(tmp_path, bucket)
    journal = kept.folder / "journal"
    first, *lines = journal.read_text().splitlines()
    keep = [line for line in lines if json.loads(line)[0] == "a"]
    (kept.folder / "done").unlink()
    journal.write_text("\n".join([first, "5", "{", *keep, '["sub/b", "']))
    kept.release()
    again = CacheEntry(tmp_path, bucket.listing())
    assert take(again) is False
    assert missing(again) == {("sub/b", 0), ("empty", 0)}


# ── Taken over from another version ───────────────────────────────────────────────────────────────────────────────────


def test_what_has_stayed_the_same_is_linked_and_not_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "PART_BYTES", 2)
    bucket = PlainBucket(FILES)
    old = fetched(tmp_path, bucket)
    bucket.objects["sub/b"] = b"BB"
    new = CacheEntry(tmp_path, bucket.listing())
    assert take(new) is False
    assert missing(new) == {("sub/b", 0)}
    assert (new.files / "a").samefile(old.files / "a")


def test_of_a_version_that_is_being_filled_nothing_is_taken_over(tmp_path: Path) -> None:
    bucket = PlainBucket(FILES)
    old = CacheEntry(tmp_path, bucket.listing())
    take(old)
    InputDownload(old, old.missing(), lambda _: None).run(nothing)
    bucket.objects["sub/b"] = b"BB"
    new = CacheEntry(tmp_path, bucket.listing())
    assert take(new) is False
    assert missing(new) == {("a", 0), ("sub/b", 0), ("empty", 0)}


def test_of_a_large_file_that_is_there_in_part_nothing_is_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "PART_BYTES", 2)
    bucket = PlainBucket({"a": b"aaaa", "b": b"b"})
    old = CacheEntry(tmp_path, bucket.listing())
    take(old)
    part: ObjectPart = old.missing()[0]
    (old.files / "a").write_bytes(b"aa\0\0")
    old.record(part)
    old.release()
    bucket.objects["b"] = b"B"
    new = CacheEntry(tmp_path, bucket.listing())
    assert take(new) is False
    assert missing(new) == {("a", 0), ("a", 2), ("b", 0)}


def test_a_file_that_a_training_left_in_the_way_is_replaced_by_the_link(tmp_path: Path) -> None:
    bucket = PlainBucket(FILES)
    old = fetched(tmp_path, bucket)
    bucket.objects["sub/b"] = b"BB"
    new = CacheEntry(tmp_path, bucket.listing())
    take(new)
    new.files.mkdir()
    (new.files / "a").write_bytes(b"other")
    assert missing(new) == {("sub/b", 0)}
    assert (new.files / "a").samefile(old.files / "a")


@pytest.mark.parametrize("place", ["files", "files/sub"])
@pytest.mark.parametrize("whose", ["theirs", "mine"])
def test_a_folder_that_a_training_replaced_by_a_link_is_not_followed(tmp_path: Path, whose: str, place: str) -> None:
    bucket = PlainBucket(FILES)
    old = fetched(tmp_path / "kept", bucket)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    bucket.objects["a"] = b"AAA"
    new = CacheEntry(tmp_path / "kept", bucket.listing())
    take(new)
    if whose == "theirs":
        (old.folder / place).rename(tmp_path / "moved")
        (old.folder / place).symlink_to(tmp_path / "moved")
        assert ("sub/b", 0) in missing(new) and not (new.files / "sub/b").exists()
    else:
        (new.folder / place).parent.mkdir(exist_ok=True)
        (new.folder / place).symlink_to(elsewhere)
        parts = new.missing()
        if place == "files":
            with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
                InputDownload(new, parts, lambda _: None).run(nothing)
        assert list(elsewhere.iterdir()) == [], "nothing is written through the link"


# ── Forgotten ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def age(kept: CacheEntry, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(kept.folder / "lock", (then, then))


def test_only_what_was_not_used_for_long_is_forgotten(tmp_path: Path) -> None:
    bucket = PlainBucket(FILES)
    kept = fetched(tmp_path, bucket)
    kept.release()
    age(kept, 7 * 86400)
    prune(tmp_path)
    assert kept.folder.exists(), "a week is not long"
    age(kept, UNUSED_FOR_S - 600)
    prune(tmp_path)
    assert kept.folder.exists()
    age(kept, UNUSED_FOR_S + 600)
    prune(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_use_counts_as_one(tmp_path: Path) -> None:
    bucket = PlainBucket(FILES)
    kept = fetched(tmp_path, bucket)
    kept.release()
    age(kept, UNUSED_FOR_S + 600)
    user = CacheEntry(tmp_path, bucket.listing())
    take(user)
    user.release()
    prune(tmp_path)
    assert kept.folder.exists()


def test_what_is_in_use_is_not_forgotten_and_nothing_stays_locked(tmp_path: Path) -> None:
    bucket = PlainBucket(FILES)
    kept = fetched(tmp_path, bucket)
    age(kept, UNUSED_FOR_S + 600)
    prune(tmp_path)
    assert kept.folder.exists()
    kept.release()
    age(kept, 0)
    prune(tmp_path)
    lock = os.open(kept.folder / "lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(lock)


def test_pruning_goes_on_past_what_is_no_copy(tmp_path: Path) -> None:
    bucket = PlainBucket(FILES)
    kept = fetched(tmp_path, bucket)
    kept.release()
    age(kept, UNUSED_FOR_S + 600)
    (tmp_path / "0-a-file").write_text("x")
    (tmp_path / "0-without-a-lock").mkdir()
    # What an earlier pruning was killed over.
    (tmp_path / ".gone-old" / "files").mkdir(parents=True)
    (tmp_path / ".gone-old" / "lock").touch()
    os.utime(tmp_path / ".gone-old" / "lock", (0, 0))
    prune(tmp_path)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["0-a-file", "0-without-a-lock"]
    prune(tmp_path / "not there")
