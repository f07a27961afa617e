"""Which URLs are stores, and what a store calls itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.model.errors import UserError
from stoker.store.base import is_valid_key, open_store
from stoker.submit.local_environment import store_environ, submitter_environ, unreachable


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in os.environ:
        if name.startswith(("AWS_", "GOOGLE_", "GCE_", "CLOUDSDK_", "STORAGE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    # Whoever runs this may be logged in there.
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:9")
    monkeypatch.setenv("GCE_METADATA_IP", "127.0.0.1:9")


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
    assert open_store(folder.as_uri()).is_local


@pytest.mark.parametrize("name", ["with space", "100%", "q?x", "h#1", "ünï"])
def test_a_folders_url_opens_that_folder(tmp_path: Path, name: str) -> None:
    open_store(str(tmp_path / name)).put("k", b"x")
    again = open_store(open_store(str(tmp_path / name)).url)
    assert again.get("k") is not None
    assert (tmp_path / name / "k").is_file()


@pytest.mark.parametrize("cloud", ["s3", "gs"])
def test_a_bucket_is_the_same_however_it_is_named(cloud: str) -> None:
    urls = (f"{cloud}://bucket/a/b", f"{cloud}://bucket/a/b/", f"{cloud.upper()}://bucket/a/b")
    assert {open_store(url).url for url in urls} == {f"{cloud}://bucket/a/b"}
    assert {open_store(url).url for url in (f"{cloud}://bucket", f"{cloud}://bucket/")} == {f"{cloud}://bucket"}
    assert not open_store(f"{cloud}://bucket").is_local


def test_google_allows_other_names_than_amazon() -> None:
    for name in ("my_bucket", "a.b-c_d", f"{'x' * 63}.{'y' * 63}.example.com"):
        assert open_store(f"gs://{name}").url == f"gs://{name}"
        with pytest.raises(UserError, match="is not the name of a bucket; write s3://bucket"):
            open_store(f"s3://{name}")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "  ",
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
        "gs://",
        "gs:///prefix",
        "gs://Bucket",
        "gs://b",
        "gs://_bucket",
        "gs://bucket_",
        f"gs://{'x' * 64}",
        f"gs://{'x.' * 111}x",
        "gs://bucket/a//b",
        "gs://bucket/../b",
        "gs://bucket?project=x",
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
    assert open_store("./s3:/x").is_local


def test_the_forms_are_told() -> None:
    with pytest.raises(UserError, match=r"s3://bucket/prefix, gs://bucket/prefix"):
        open_store("azure://bucket")


@pytest.mark.parametrize(("cloud", "variable"), [("s3", "AWS_ACCESS_KEY_ID"), ("gs", "GOOGLE_APPLICATION_CREDENTIALS")])
def test_credentials_in_a_url_are_refused_and_not_repeated(cloud: str, variable: str) -> None:
    with pytest.raises(UserError) as caught:
        open_store(f"{cloud}://AKIA:hunter2@bucket/prefix")
    assert "hunter2" not in str(caught.value)
    assert variable in str(caught.value)


def test_a_bucket_of_one_cloud_needs_nothing_of_the_others() -> None:
    code = """
import sys
before = set(sys.modules)  # Packages that share a name may be there by a .pth.
from stoker.store.base import open_store
open_store(sys.argv[1])
print([name for name in set(sys.modules) - before if name.split(".")[0] in ("google", "boto3", "httpx")])
print([name for name in sys.modules if name.startswith("stoker.store.")])
"""
    for url, own in (("s3://bucket", "stoker.store.s3"), ("gs://bucket", "stoker.store.gcs")):
        ran = subprocess.run([sys.executable, "-c", code, url], capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
        foreign, stores = ran.stdout.splitlines()
        assert foreign == "[]"
        assert own in stores and ("stoker.store.google_accounts" in stores) == (own == "stoker.store.gcs")


@pytest.mark.parametrize("below", ["", "deeper/still"])
def test_a_file_is_no_folder(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UserError, match="is a file"):
        open_store(str(tmp_path / "file" / below))


def test_opening_creates_nothing(tmp_path: Path) -> None:
    open_store(str(tmp_path / "store"))
    assert list(tmp_path.iterdir()) == []


def test_keys() -> None:
    assert is_valid_key("work/job/00000001/0/i-1.1/log/00000001")
    assert is_valid_key("...") and is_valid_key("a/..b/.c")
    assert not any(is_valid_key(key) for key in ("", ".", "..", "a/..", "../a", "a/./b", "/a", "a/", "a\n", "a\r/b"))


# ── What a job takes along ────────────────────────────────────────────────────────────────────────────────────────────


def test_where_a_bucket_is_goes_with_the_job_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://10.0.0.1:4443")
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "team")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/home/jane/key.json")
    told = {"STORAGE_EMULATOR_HOST": "http://10.0.0.1:4443", "GOOGLE_CLOUD_PROJECT": "team"}
    assert store_environ("gs://bucket") == told
    # What another cloud is told by is none of a machine's business.
    assert store_environ("s3://bucket").keys().isdisjoint(told)


@pytest.mark.parametrize(
    ("url", "names"),
    [
        (
            "s3://bucket",
            (
                *(
                    "AWS_ENDPOINT_URL",
                    "AWS_ENDPOINT_URL_S3",
                    "AWS_ENDPOINT_URL_LOGS",
                    "AWS_ENDPOINT_URL_SECRETSMANAGER",
                ),
                *("AWS_ENDPOINT_URL_SSM", "AWS_ENDPOINT_URL_CODEARTIFACT", "AWS_ENDPOINT_URL_ECR"),
                *("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ALLOW_HTTP"),
            ),
        ),
        (
            "gs://bucket",
            (
                *("STORAGE_EMULATOR_HOST", "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE", "GOOGLE_CLOUD_PROJECT"),
                *("CLOUDSDK_API_ENDPOINT_OVERRIDES_LOGGING", "CLOUDSDK_API_ENDPOINT_OVERRIDES_PUBSUB"),
                "CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER",
            ),
        ),
        ("file:///store", ()),
    ],
)
def test_each_variable_that_says_where_a_cloud_is_goes_along(
    monkeypatch: pytest.MonkeyPatch, url: str, names: tuple[str, ...]
) -> None:
    for name in ("AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", *names):
        monkeypatch.setenv(name, f"of {name}")
    assert store_environ(url) == {name: f"of {name}" for name in names}


def test_the_active_environment_goes_with_a_job_of_this_computer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/mine/bin")
    monkeypatch.setenv("VIRTUAL_ENV", "/mine")
    monkeypatch.setenv("CONDA_PREFIX", "")
    assert submitter_environ() == {"PATH": "/mine/bin", "VIRTUAL_ENV": "/mine"}
    monkeypatch.setenv("CONDA_PREFIX", "/conda")
    assert submitter_environ()["CONDA_PREFIX"] == "/conda"


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("http://127.0.0.1:9000", True),
        ("127.0.0.1:9000", True),
        ("localhost:9000", True),
        ("http://[::1]:9000/", True),
        ("10.0.0.1:9000", False),
        ("https://storage.example", False),
    ],
)
def test_a_cloud_storage_on_this_computer_is_told_to_be_out_of_reach(address: str, told: bool) -> None:
    lines = unreachable({"STORAGE_EMULATOR_HOST": address, "GOOGLE_CLOUD_PROJECT": "localhost"})
    assert [f"STORAGE_EMULATOR_HOST={address} goes with the job" in line for line in lines] == [True] * told
