"""Which URLs are stores, and what a store calls itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stoker.errors import UserError
from stoker.store import can_be_key, open_store


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")


def test_a_folder_is_the_same_however_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "a store%20"
    folder.mkdir()
    (tmp_path / "link").symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    names = [
        str(folder),
        f"{folder}/",
        "a store%20",
        "./link",
        "~/link/",
        folder.as_uri(),
        folder.as_uri() + "/",
        f"file://localhost{folder}".replace("%", "%25"),
        str(tmp_path / "nowhere" / ".." / "link"),
    ]
    assert {open_store(name).url for name in names} == {folder.as_uri()}
    assert open_store(folder.as_uri()).near


@pytest.mark.parametrize("name", ["with space", "100%", "q?x", "h#1", "ünï"])
def test_a_folders_url_opens_that_folder(tmp_path: Path, name: str) -> None:
    open_store(str(tmp_path / name)).put("k", b"x")
    again = open_store(open_store(str(tmp_path / name)).url)
    assert again.get("k") is not None
    assert (tmp_path / name / "k").is_file()


def test_a_bucket_is_the_same_however_it_is_named() -> None:
    assert {open_store(url).url for url in ("s3://bucket/a/b", "s3://bucket/a/b/", "S3://bucket/a/b")} == {
        "s3://bucket/a/b"
    }
    assert {open_store(url).url for url in ("s3://bucket", "s3://bucket/")} == {"s3://bucket"}
    assert not open_store("s3://bucket").near


@pytest.mark.parametrize(
    "url",
    [
        "",
        "  ",
        "gs://bucket",
        "s3:/bucket/prefix",
        "s3:bucket",
        "S3:/bucket",
        "gs:/bucket",
        "file:/data",
        "http://host/bucket",
        "ftp://x",
        "://x",
        "file://relative/path",
        "file://host/path",
        "file://",
        "/",
        "file:///",
        "s3://",
        "s3:///prefix",
        "s3://Bucket_Name",
        "s3://b",
        "s3://bucket/a//b",
        "s3://bucket/../b",
        "s3://bucket?region=x",
        "s3://bucket/p?region=x",
    ],
)
def test_what_is_no_store_is_the_users_mistake_in_one_line(url: str) -> None:
    with pytest.raises(UserError) as caught:
        open_store(url)
    assert "\n" not in str(caught.value)


def test_a_bucket_with_one_slash_is_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="s3:/my-training is neither a bucket nor a folder; write s3://"):
        open_store("s3:/my-training")
    # Who means a folder says so.
    assert open_store("./s3:/x").near


def test_gs_is_named_and_the_forms_are_told() -> None:
    with pytest.raises(UserError, match="Compute Engine"):
        open_store("gs://bucket")
    with pytest.raises(UserError, match="s3://bucket"):
        open_store("azure://bucket")


def test_credentials_in_a_url_are_refused_and_not_repeated() -> None:
    with pytest.raises(UserError) as caught:
        open_store("s3://AKIA:hunter2@bucket/prefix")
    assert "hunter2" not in str(caught.value)
    assert "AWS_ACCESS_KEY_ID" in str(caught.value)


@pytest.mark.parametrize("below", ["", "deeper/still"])
def test_a_file_is_no_folder(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UserError, match="is a file"):
        open_store(str(tmp_path / "file" / below))


def test_opening_creates_nothing(tmp_path: Path) -> None:
    open_store(str(tmp_path / "store"))
    assert list(tmp_path.iterdir()) == []


def test_keys() -> None:
    assert can_be_key("work/job/00000001/0/i-1.1/log/00000001")
    assert can_be_key("...") and can_be_key("a/..b/.c")
    assert not any(can_be_key(key) for key in ("", ".", "..", "a/..", "../a", "a/./b", "/a", "a/", "a\n", "a\r/b"))
