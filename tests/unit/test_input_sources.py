"""Where an input comes from: which folder or object a URL names, and which files are there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from plain_bucket import PlainBucket

from stoker.agent.inputs import source
from stoker.agent.inputs.source import InputListing, InputSource, NothingThere, Shard, list_files, local_path
from stoker.store import s3
from stoker.store.base import ObjectNamesUnusable


class Buckets(InputSource):
    """A URL's buckets are in memory; `opened` are the folders that were looked into, by region."""

    def __init__(self, url: str, objects: dict[str, bytes], told: Callable[[str], None] = lambda _: None) -> None:
        super().__init__(url, told)
        self.objects = objects
        self.opened: list[tuple[str, str | None]] = []
        self.elsewhere = False

    def _open(self, url: str) -> Any:
        self.opened.append((url, self.region))
        if self.elsewhere and self.region is None:
            raise s3.WrongRegion("in another region")
        prefix = f"{url.rstrip('/')}/"
        return PlainBucket({key[len(prefix) :]: data for key, data in self.objects.items() if key.startswith(prefix)})


OBJECTS = {"s3://b/data/x": b"x", "s3://b/data/sub/y": b"yy", "s3://b/one": b"1"}


def test_a_url_names_a_folder_or_one_object_in_it() -> None:
    folder = Buckets("s3://b/data", OBJECTS).list()
    assert [meta.key for meta in folder.files] == ["sub/y", "x"]
    assert (folder.single, folder.total_files, folder.size) == (None, 2, 3)
    one = Buckets("s3://b/one", OBJECTS).list()
    assert ([meta.key for meta in one.files], one.single, one.total_files) == (["one"], "one", 1)
    assert Buckets("s3://b/data", OBJECTS).find() == ("s3://b/data", None)
    assert Buckets("s3://b/one", OBJECTS).find() == ("s3://b", "one")


@pytest.mark.parametrize("url", ["s3://empty", "s3://b/nothing", "s3://b/one/"])
def test_nothing_there_is_told(url: str) -> None:
    wanted = Buckets(url, OBJECTS)
    for question in (wanted.list, wanted.find):
        with pytest.raises(NothingThere, match=f"^there is nothing at {url}$"):
            question()
    assert ("s3:", None) not in wanted.opened and ("s3:/", None) not in wanted.opened, "no bucket has that name"


def test_a_folder_that_is_only_an_object_of_its_own_name_is_nothing() -> None:
    with pytest.raises(NothingThere):
        Buckets("s3://b/data/", {"s3://b/data/": b""}).list()
    with pytest.raises(NothingThere):
        Buckets("s3://b/data/", {"s3://b/data/": b""}).find()


def test_those_files_are_not_listed_again_but_the_bucket_is_reached() -> None:
    files = Buckets("s3://b/data", OBJECTS).list().files[:1]
    wanted = Buckets("s3://b/data", OBJECTS)
    listing = wanted.with_files(files)
    assert (listing.files, listing.total_files, listing.single, listing.url) == (files, 1, None, "s3://b/data")
    assert len(wanted.opened) == 1


def test_a_bucket_in_another_region_is_asked_there_and_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(s3, "bucket_region", lambda bucket: asked.append(bucket) or "eu-north-1")
    said: list[str] = []
    wanted = Buckets("s3://b/data", OBJECTS, said.append)
    wanted.elsewhere = True
    assert len(wanted.list().files) == 2
    assert wanted.opened == [("s3://b/data", None), ("s3://b/data", "eu-north-1")] and asked == ["b"]
    assert said == ["the bucket is in eu-north-1, another region: it takes longer, and the transfer is charged"]
    assert wanted.find() == ("s3://b/data", None) and len(said) == 1
    monkeypatch.setattr(s3, "bucket_region", lambda _bucket: None)
    lost = Buckets("s3://b/data", OBJECTS, said.append)
    lost.elsewhere = True
    with pytest.raises(s3.WrongRegion):
        lost.list()
    assert len(said) == 1


def test_a_bucket_of_another_region_is_opened_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[str, str, str]] = []
    monkeypatch.setattr(s3, "open_s3", lambda bucket, prefix, *, region: opened.append((bucket, prefix, region)))
    wanted = InputSource("s3://b/data/sub/")
    wanted.region = "eu-north-1"
    wanted._open(wanted.url)
    wanted._open("s3://b")
    assert opened == [("b", "data/sub", "eu-north-1"), ("b", "", "eu-north-1")]


def test_objects_that_no_disk_can_hold_are_refused_and_empty_ones_may_be_folders() -> None:
    files = {"a/b/c": b"1", "a/b": b"", "a": b"", "z": b"", "ab": b"2"}
    assert [meta.key for meta in source._usable("u", list(PlainBucket(files).list("")))] == ["a/b/c", "ab", "z"]
    with pytest.raises(ObjectNamesUnusable, match=r"^u: a is both an object and a folder, which no disk can hold$"):
        source._usable("u", list(PlainBucket({"a": b"x", "a/b/c": b"1"}).list("")))
    with pytest.raises(ObjectNamesUnusable, match=r"an object there is called '\.\./x'"):
        source._usable("u", list(PlainBucket({"../x": b"x"}).list("")))


def test_a_digest_tells_versions_apart_and_a_family_does_not() -> None:
    def listing(url: str, **files: bytes) -> InputListing:
        return InputListing(url, PlainBucket({}), tuple(PlainBucket(files).list("")))  # type: ignore[arg-type]

    base = listing("u", a=b"1", b=b"2")
    assert base.digest == listing("u", a=b"1", b=b"2").digest
    others = [
        listing("v", a=b"1", b=b"2"),
        listing("u", a=b"1"),
        listing("u", a=b"1", b=b"3"),
        listing("u", a=b"1", c=b"2"),
    ]
    assert len({base.digest, *(other.digest for other in others)}) == 5
    assert base.url_digest == others[1].url_digest != others[0].url_digest
    assert base.digest != base.url_digest
    odd = listing("u", **{"\udcff": b"1"})
    assert len(odd.digest) == 64, "a name that is no text has one, too"


def test_a_shard_is_every_nth_file() -> None:
    files = tuple("abcdefg")
    shards = [Shard(rank, 3).of(files) for rank in range(3)]
    assert shards == [("a", "d", "g"), ("b", "e"), ("c", "f")]


def test_paths_of_this_machine_and_urls_are_told_apart() -> None:
    assert local_path("/data/x") == "/data/x" and local_path("data/x") == "data/x"
    assert local_path("file:///data/a%20b") == "/data/a b"
    assert local_path("file://localhost/data") == "/data"
    assert local_path("s3://b/x") is None and local_path("https://h/x") is None


def test_files_of_a_folder_are_found_through_links_but_not_in_circles(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    for name in ("a", "sub/b", "sub/deep/c"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("1")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/d").write_text("1")
    (folder / "link").symlink_to(tmp_path / "other")
    (folder / "again").symlink_to(tmp_path / "other")
    (folder / "sub/back").symlink_to(folder)
    (folder / "self").symlink_to("self")
    (folder / "gone").symlink_to("nowhere")
    assert sorted(list_files(folder)) == ["a", "again/d", "gone", "link/d", "self", "sub/b", "sub/deep/c"]
    with pytest.raises(NotADirectoryError):
        list_files(folder / "a")


def test_what_cannot_be_looked_at_is_told(tmp_path: Path) -> None:
    class Entry:
        name = "x"

        def is_dir(self) -> bool:
            raise PermissionError(13, "Permission denied")

    with pytest.raises(PermissionError):
        source._is_folder(Entry())  # type: ignore[arg-type]
