"""A process that is started in another folder gets absolute paths."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.processes.detached import absolute_environment


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("src", "lib", "prod", "home"):
        (tmp_path / name).mkdir()
    (tmp_path / "key.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "name",
    [
        "GOOGLE_APPLICATION_CREDENTIALS",
        "AWS_SHARED_CREDENTIALS_FILE",
        "AWS_CONFIG_FILE",
        "AWS_CA_BUNDLE",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "REQUESTS_CA_BUNDLE",
        "STOKER_HOME",
        "STOKER_STORE",
        "CLOUDSDK_CONFIG",
        "DOCKER_CONFIG",
        "KUBECONFIG",
        "NETRC",
        "XDG_CONFIG_HOME",
        "TMPDIR",
        "PYTHONPATH",
    ],
)
def test_relative_paths_become_absolute(folder: Path, name: str) -> None:
    assert absolute_environment({name: "key.json"}) == {name: f"{folder}/key.json"}
    assert absolute_environment({name: "../key.json"}, folder / "src") == {name: f"{folder}/src/../key.json"}
    for same in ("/etc/hosts", "absent.json", "s3://bucket/x", "~/key.json", ""):
        assert absolute_environment({name: same}) == {name: same}


def test_lists_of_paths_become_absolute_one_by_one(folder: Path) -> None:
    given = {"PYTHONPATH": "src:/usr/lib::lib:absent"}
    assert absolute_environment(given) == {"PYTHONPATH": f"{folder}/src:/usr/lib::{folder}/lib:absent"}


def test_what_is_no_path_stays(folder: Path) -> None:
    given = {"AWS_PROFILE": "prod", "USER": "home", "MODE": "src", "PYTHONHASHSEED": "0"}
    assert absolute_environment(given) == given


def test_a_working_folder_that_was_deleted_changes_nothing(folder: Path) -> None:
    (folder / "gone").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder / "gone")
        (folder / "gone").rmdir()
        assert absolute_environment({"AWS_CONFIG_FILE": "key.json"}) == {"AWS_CONFIG_FILE": "key.json"}
