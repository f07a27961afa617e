"""The parts of an input that are missing are fetched: whatever a bucket answers, and however often."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from plain_bucket import PlainBucket
from plain_store import wait_for

from stoker.agent.inputs import cache, download
from stoker.agent.inputs.cache import CacheEntry
from stoker.agent.inputs.download import InputDownload, size_text, time_text
from stoker.model.errors import NoCredentials, StoreDenied, StoreUnavailable
from stoker.store.base import ObjectChanged

# As they are outside of these tests.
PAUSES = {name: getattr(download, name) for name in ("_FIRST_PAUSE_S", "_MAX_PAUSE_S")}
FILES = {"a": b"aaa", "sub/b": b"bb", "empty": b""}


class Left(Exception):
    pass


def nothing() -> None:
    pass


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "THREADS", 1)
    monkeypatch.setattr(download, "_POLL_S", 0.001)
    monkeypatch.setattr(download, "_FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(download, "_MAX_PAUSE_S", 0.01)


def begun(root: Path, bucket: PlainBucket) -> CacheEntry:
    kept = CacheEntry(root, bucket.listing())
    assert kept.acquire(nothing, nothing) is False
    return kept


def there(kept: CacheEntry) -> dict[str, bytes]:
    return {str(path.relative_to(kept.files)): path.read_bytes() for path in kept.files.rglob("*") if not path.is_dir()}


def no_threads() -> None:
    wait_for(lambda: not [one for one in threading.enumerate() if one.name == "input"])


def test_nothing_to_fetch_is_done_at_once(tmp_path: Path) -> None:
    kept = begun(tmp_path, PlainBucket(FILES))
    InputDownload(kept, [], lambda _: None).run(lambda: pytest.fail("nothing is waited for"))


def test_every_part_is_fetched_once_and_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "PART_BYTES", 2)
    monkeypatch.setattr(download, "THREADS", 3)
    bucket = PlainBucket(FILES)
    kept = begun(tmp_path, bucket)
    fetch = InputDownload(kept, kept.missing(), lambda _: None)
    fetch.run(nothing)
    assert there(kept) == FILES
    assert fetch._progress.text().startswith("5 B of 5 B, 3 of 3 files"), "one came in two parts and counts once"
    assert sorted(bucket.asked) == [("a", 0), ("a", 2), ("empty", 0), ("sub/b", 0)]
    os.close(kept._lock)
    again = begun(tmp_path, bucket)
    assert again.missing() == [], "the journal was written"


def test_a_disk_that_takes_a_little_at_a_time_gets_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "PART_BYTES", 4)
    own = os.pwrite
    monkeypatch.setattr(download.os, "pwrite", lambda handle, data, offset: own(handle, data[:1], offset))
    files = {"large": b"0123456789", "small": b"abc"}
    kept = begun(tmp_path, PlainBucket(files))
    InputDownload(kept, kept.missing(), lambda _: None).run(nothing)
    assert there(kept) == files


def test_no_file_stays_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "PART_BYTES", 2)
    for number, trouble in enumerate((None, StoreDenied("no"))):
        bucket = PlainBucket({"a": b"aaaa", "b": b"bb"})
        kept = begun(tmp_path / str(number), bucket)

        def deny(key: str, begin: int, trouble: Exception | None = trouble) -> None:
            if trouble is not None and begin:
                raise trouble

        bucket.trouble = deny
        parts = kept.missing()
        before = open_files(tmp_path)
        if trouble is None:
            InputDownload(kept, parts, lambda _: None).run(nothing)
        else:
            with pytest.raises(StoreDenied):
                InputDownload(kept, parts, lambda _: None).run(nothing)
        assert open_files(tmp_path) == before


def test_a_large_file_is_closed_with_its_last_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand shards are more than a process may hold open."""
    monkeypatch.setattr(cache, "PART_BYTES", 2)
    bucket = PlainBucket(dict.fromkeys("abc", b"abcd"))
    kept = begun(tmp_path, bucket)
    held: list[list[str]] = []
    bucket.trouble = lambda _key, _begin: held.append(open_files(tmp_path))
    InputDownload(kept, kept.missing(), lambda _: None).run(nothing)
    shards = [sum(path.endswith(("/a", "/b", "/c")) for path in paths) for paths in held]
    assert len(shards) == 6 and max(shards) == 1


def open_files(root: Path) -> list[str]:
    """Those of a copy that this process holds open."""
    found = []
    for handle in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.append(str(handle.readlink()))
    return sorted(one for one in found if one.startswith(str(root)) and "/files" in one)


def test_of_a_large_file_that_was_begun_only_the_rest_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "PART_BYTES", 2)
    bucket = PlainBucket({"a": b"abcdef"})
    kept = begun(tmp_path, bucket)
    rest = kept.missing()[1:]
    (kept.files / "a").write_bytes(b"ab\0\0\0\0")
    InputDownload(kept, rest, lambda _: None).run(nothing)
    assert there(kept) == {"a": b"abcdef"}
    assert (kept.files / "a").stat().st_mode & 0o777 == 0o444


def test_a_beginning_of_another_size_is_not_built_upon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "PART_BYTES", 2)
    bucket = PlainBucket({"a": b"abcd"})
    kept = begun(tmp_path, bucket)
    parts = kept.missing()
    (kept.files / "a").write_bytes(b"longer than it was")
    InputDownload(kept, parts, lambda _: None).run(nothing)
    assert there(kept) == {"a": b"abcd"}
    assert open_files(tmp_path) == []


@pytest.mark.parametrize("why", ["read-only", "has a second name"])
def test_a_beginning_that_cannot_be_written_to_is_fetched_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """Else the parts that the journal names would be zeros in the new file."""
    monkeypatch.setattr(cache, "PART_BYTES", 2)
    bucket = PlainBucket({"a": b"abcdef"})
    kept = begun(tmp_path, bucket)
    parts = kept.missing()
    (kept.files / "a").write_bytes(b"abcdef")
    kept.record(parts[0])
    kept.record(parts[1])
    if why == "read-only":
        (kept.files / "a").chmod(0o444)  # The process was killed before the journal had the last part.
    else:
        os.link(kept.files / "a", tmp_path / ".copy")
    kept.release()
    again = begun(tmp_path, bucket)
    InputDownload(again, again.missing(), lambda _: None).run(nothing)
    again.finish()
    assert there(again) == {"a": b"abcdef"}
    assert sorted(bucket.asked) == [("a", 0), ("a", 2), ("a", 4)]


def test_a_file_that_comes_in_parts_has_its_size_from_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next attempt would not build upon it."""
    monkeypatch.setattr(cache, "PART_BYTES", 2)
    bucket = PlainBucket({"a": b"abcdef"})
    kept = begun(tmp_path, bucket)
    parts = kept.missing()

    def deny(_key: str, begin: int) -> None:
        if begin == 2:
            raise StoreDenied("no")

    bucket.trouble = deny
    with pytest.raises(StoreDenied):
        InputDownload(kept, parts, lambda _: None).run(nothing)
    assert there(kept) == {"a": b"ab\0\0\0\0"}
    bucket.trouble = lambda _key, _begin: None
    os.close(kept._lock)
    again = begun(tmp_path, bucket)
    assert [part.begin for part in again.missing()] == [2, 4], "the journal was written"


# ── What goes wrong ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_first_refusal_ends_the_fetch_and_every_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "THREADS", 2)
    bucket = PlainBucket({f"f{number}": b"x" for number in range(20)})
    kept = begun(tmp_path, bucket)
    fetch = InputDownload(kept, kept.missing(), lambda _: None)

    def refuse(key: str, _begin: int) -> None:
        if key == "f0":
            wait_for(lambda: len(bucket.asked) == 2)
            raise StoreDenied("first")
        wait_for(lambda: fetch._error is not None)
        raise ValueError("second")

    bucket.trouble = refuse
    with pytest.raises(StoreDenied, match="first"):
        fetch.run(nothing)
    assert len(bucket.asked) == 2
    no_threads()


def test_an_object_that_changed_ends_the_fetch(tmp_path: Path) -> None:
    bucket = PlainBucket(FILES)
    kept = begun(tmp_path, bucket)
    bucket.objects["a"] = b"new"
    with pytest.raises(ObjectChanged, match="a is not any more"):
        InputDownload(kept, kept.missing(), lambda _: None).run(nothing)
    assert ("a", 0) in bucket.asked and bucket.asked.count(("a", 0)) == 1


def test_a_check_that_raises_ends_the_threads(tmp_path: Path) -> None:
    bucket = PlainBucket(FILES)

    def away(_key: str, _begin: int) -> None:
        raise StoreUnavailable("away")

    def leave() -> None:
        if bucket.asked:
            raise Left

    bucket.trouble = away
    kept = begun(tmp_path, bucket)
    with pytest.raises(Left):
        InputDownload(kept, kept.missing(), lambda _: None).run(leave)
    no_threads()


def test_the_check_is_called_while_the_last_threads_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "THREADS", 2)
    bucket = PlainBucket({"bad": b"x", "slow": b"y"})
    slow, go_on = threading.Event(), threading.Event()

    def trouble(key: str, _begin: int) -> None:
        if key == "slow":
            slow.set()
            go_on.wait(30)
        else:
            slow.wait(30)
            raise StoreDenied("no")

    bucket.trouble = trouble
    kept = begun(tmp_path, bucket)
    fetch = InputDownload(kept, kept.missing(), lambda _: None)

    def leave() -> None:
        if fetch._finished.is_set():
            raise Left

    with pytest.raises(Left):
        fetch.run(leave)
    go_on.set()
    no_threads()


def test_a_folder_that_a_listing_shows_as_an_empty_object_is_made(tmp_path: Path) -> None:
    bucket = PlainBucket({"dir": b"", "x": b"x"})
    listing = bucket.listing()
    del bucket.objects["dir"]
    bucket.objects["dir/"] = b""
    kept = CacheEntry(tmp_path, listing)
    kept.acquire(nothing, nothing)
    InputDownload(kept, kept.missing(), lambda _: None).run(nothing)
    assert (kept.files / "dir").is_dir() and there(kept) == {"x": b"x"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"dir": b""}, {}),  # It is gone.
        ({"dir": b""}, {"dir": b"new", "dir/": b""}),  # It has changed.
        ({"dir": b"full"}, {"dir/": b""}),  # It was no folder.
    ],
)
def test_what_is_no_folder_is_not_made_one(tmp_path: Path, before: dict[str, bytes], after: dict[str, bytes]) -> None:
    bucket = PlainBucket(before)
    kept = begun(tmp_path, bucket)
    bucket.objects = after
    with pytest.raises(ObjectChanged):
        InputDownload(kept, kept.missing(), lambda _: None).run(nothing)
    assert not (kept.files / "dir").exists()


# ── A store that does not answer ──────────────────────────────────────────────────────────────────────────────────────


def test_an_outage_is_told_once_and_another_one_again(tmp_path: Path) -> None:
    bucket = PlainBucket({"a": b"a", "b": b"b"})
    said: list[str] = []

    def trouble(key: str, _begin: int) -> None:
        if sum(key in line for line in said) == 0 or len(bucket.asked) % 4:
            raise StoreUnavailable(f"no answer about {key}")

    bucket.trouble = trouble
    kept = begun(tmp_path, bucket)
    parts = kept.missing()
    fetch = InputDownload(kept, parts, said.append)
    between = threading.Event()
    own = bucket.get_part

    def get_part(*arguments: object) -> memoryview:
        # The loop sees that the first outage is over before the second one begins.
        if arguments[0] == parts[1].meta and not between.is_set():
            wait_for(lambda: not fetch._outage_reported)
            between.set()
        return own(*arguments)  # type: ignore[arg-type]

    bucket.get_part = get_part  # type: ignore[method-assign]
    fetch.run(nothing)
    assert said == ["no answer about a; trying again", "no answer about b; trying again"]
    assert there(kept) == {"a": b"a", "b": b"b"}


def test_an_outage_before_the_first_look_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "_POLL_S", 0.2)
    bucket = PlainBucket({"a": b"a"})
    said: list[str] = []

    def trouble(_key: str, _begin: int) -> None:
        if not said:
            raise StoreUnavailable("away")

    bucket.trouble = trouble
    kept = begun(tmp_path, bucket)
    InputDownload(kept, kept.missing(), said.append).run(nothing)
    assert said == ["away; trying again"]


def test_pauses_grow_up_to_the_longest_and_begin_anew_after_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, own in PAUSES.items():
        monkeypatch.setattr(download, name, own)
    bucket = PlainBucket({"a": b"a", "b": b"b"})

    def trouble(_key: str, _begin: int) -> None:
        if len(bucket.asked) not in (9, 11):
            raise StoreUnavailable("away")

    bucket.trouble = trouble
    kept = begun(tmp_path, bucket)
    fetch = InputDownload(kept, kept.missing(), lambda _: None)
    pauses: list[float] = []
    monkeypatch.setattr(fetch._stop, "wait", lambda pause_s: pauses.append(pause_s))
    fetch.run(nothing)
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 0.1]


def lacking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: list[tuple[float, Exception | None]]) -> None:
    """Fetch one object after another while a clock shows these times and the bucket answers so."""
    bucket = PlainBucket({"a": b"a", "b": b"b"})
    clock = [0.0]
    left = list(answers)

    def trouble(_key: str, _begin: int) -> None:
        if left:
            clock[0], error = left.pop(0)
            if error is not None:
                raise error

    bucket.trouble = trouble
    kept = begun(tmp_path, bucket)
    parts = kept.missing()
    monkeypatch.setattr(download, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    InputDownload(kept, parts, lambda _: None).run(nothing)
    assert there(kept) == {"a": b"a", "b": b"b"}


def test_credentials_may_come_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lacking(tmp_path, monkeypatch, [(1000.0, NoCredentials("none")), (1060.0, NoCredentials("none"))])


def test_credentials_that_do_not_come_are_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoCredentials):
        lacking(tmp_path, monkeypatch, [(1000.0, NoCredentials("none")), (1060.1, NoCredentials("none"))])


@pytest.mark.parametrize("between", [None, StoreUnavailable("another trouble")])
def test_credentials_that_were_there_meanwhile_may_come_late_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, between: Exception | None
) -> None:
    lacking(
        tmp_path,
        monkeypatch,
        [(1000.0, NoCredentials("none")), (1030.0, between), (1061.0, NoCredentials("none")), (1062.0, None)],
    )


def test_a_store_that_is_away_is_asked_for_as_long_as_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lacking(tmp_path, monkeypatch, [(hour * 3600.0, StoreUnavailable("away")) for hour in range(1, 10)])


# ── What people read ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_progress_counts_what_is_there_and_guesses_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "PART_BYTES", 100_000)
    bucket = PlainBucket({"had": bytes(50_000), "large": bytes(200_000), "small": bytes(50_000)})
    kept = begun(tmp_path, bucket)
    parts = [part for part in kept.missing() if part.meta.key != "had"]
    clock = [100.0]
    monkeypatch.setattr(download, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    progress = download._Progress(kept, parts)
    assert progress.text() == "50.0 kB of 300 kB, 1 of 3 files"
    clock[0] = 110.0
    progress.add(parts[0], False)
    # 100 kB and one request of three: what is left is 150 kB and two requests.
    assert progress.text() == "150 kB of 300 kB, 1 of 3 files, 10.0 kB/s, 17 s left"
    progress.add(parts[1], True)
    assert progress.text() == "250 kB of 300 kB, 2 of 3 files, 20.0 kB/s, 3 s left"
    progress.add(parts[2], True)
    assert progress.text() == "300 kB of 300 kB, 3 of 3 files, 25.0 kB/s, 0 s left"


def test_progress_is_told_when_it_is_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "PART_BYTES", 2)
    bucket = PlainBucket({"a": b"aaaa", "b": b"bb"})
    clock, looks, said = [0.0], [0], []
    monkeypatch.setattr(download, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    kept = begun(tmp_path, bucket)
    # At these times, so many lines were said.
    steps = iter([(4.9, 0), (5.0, 1), (9.9, 1)])

    def trouble(_key: str, _begin: int) -> None:
        wait_for(lambda: looks[0] > 0)
        clock[0], lines = next(steps)
        before = looks[0]
        wait_for(lambda: len(said) == lines and looks[0] > before + 2)

    def check() -> None:
        looks[0] += 1

    bucket.trouble = trouble
    InputDownload(kept, kept.missing(), said.append).run(check)
    assert said == ["2 B of 6 B, 0 of 2 files, 0 B/s, 10 s left"]


def test_what_was_fetched_is_flushed_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = PlainBucket({"a": b"a", "b": b"b"})
    clock, looks = [0.0], [0]
    monkeypatch.setattr(download, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    kept = begun(tmp_path, bucket)
    journal = kept.folder / "journal"

    def trouble(key: str, _begin: int) -> None:
        wait_for(lambda: looks[0] > 0)
        if key == "b":
            assert '"a"' not in journal.read_text()
            clock[0] = 1.0
            wait_for(lambda: '"a"' in journal.read_text())

    def check() -> None:
        looks[0] += 1

    bucket.trouble = trouble
    InputDownload(kept, kept.missing(), lambda _: None).run(check)


def test_sizes_and_times_as_people_read_them() -> None:
    sizes = [0, 999, 1000, 99_900, 100_000, 999_000, 1_000_000, 2.5e9, 999e9, 1.5e12, 2e15]
    assert [size_text(size) for size in sizes] == [
        *("0 B", "999 B", "1.0 kB", "99.9 kB", "100 kB", "999 kB", "1.0 MB", "2.5 GB", "999 GB", "1.5 TB"),
        "2000.0 TB",
    ]
    assert [time_text(seconds) for seconds in (0.4, 99, 100, 5999, 6000, 9000)] == [
        *("0 s", "99 s", "2 min", "100 min", "1.7 h", "2.5 h"),
    ]
