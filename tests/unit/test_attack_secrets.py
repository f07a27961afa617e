"""What must not leave the computer, or be read by others on it."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from stoker import client
from stoker.jobfile import Job
from stoker.model.errors import UserError
from stoker.store.base import open_store
from stoker.store.home import default_store_url, make_home
from stoker.submit.pack_code import pack


@pytest.fixture(autouse=True)
def _world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "deep" / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("STOKER_STORE", raising=False)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").touch()
    monkeypatch.chdir(tmp_path / "code")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_home_is_for_its_user_alone(tmp_path: Path) -> None:
    client.submit(Job(run="python train.py", env={"TOKEN": "from --env-file"}), store=open_store(default_store_url()))
    assert mode(tmp_path / "deep" / "home") == 0o700


def test_a_home_that_is_there_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "deep" / "home").mkdir(parents=True)
    (tmp_path / "deep" / "home").chmod(0o755)
    make_home()
    assert mode(tmp_path / "deep" / "home") == 0o755


def test_a_whole_home_or_computer_is_not_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "me" / ".ssh").mkdir(parents=True)
    (tmp_path / "me" / ".ssh" / "id_ed25519").write_text("secret")
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    (tmp_path / "link").symlink_to(tmp_path / "me")
    for folder in (tmp_path / "me", tmp_path / "link", Path("/")):
        with pytest.raises(UserError, match="folder that holds the script"):
            pack(folder)


def test_a_secret_by_reference_is_nowhere_in_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "hunter2hunter2")
    client.submit(Job(run="python train.py", secrets={"MY_TOKEN": "env"}), store=str(tmp_path / "store"))
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or b"hunter2" not in path.read_bytes(), path


def test_what_holds_a_secret_in_memory_does_not_print_it(tmp_path: Path) -> None:
    """A traceback, a log line or a debugger shows these by their repr."""
    from stoker.agent.runtime import Command
    from stoker.agent.setup import SetupResult
    from stoker.cloudapi.aws.identity import AwsIdentity as AwsIdentity
    from stoker.cloudapi.aws.sigv4 import Credentials
    from stoker.cloudapi.google.secrets import GoogleIdentity as GoogleIdentity

    secret = "hunter2hunter2"
    held = (
        Command(("true",), {}, tmp_path, {"TOKEN": secret}),
        SetupResult({}, {"TOKEN": secret}),
        AwsIdentity(Credentials("AKIA", secret, secret), "us-east-1", machine=True),
        GoogleIdentity(secret, "vision-1", machine=True),
    )
    for one in held:
        assert secret not in repr(one), type(one)


def test_a_secret_in_the_place_of_a_reference_is_not_repeated(tmp_path: Path) -> None:
    for text in ("hunter2hunter2", "aws-sm: hunter2hunter2", "hunter2hunter2:env", "env:hunter2 hunter2"):
        with pytest.raises(UserError, match=r"secrets.MY_TOKEN: expected env, env:NAME, aws-sm:NAME") as failure:
            client.submit(Job(run="python train.py", secrets={"MY_TOKEN": text}), store=str(tmp_path / "store"))
        assert "hunter2" not in str(failure.value)


def test_an_empty_variable_is_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "")
    with pytest.raises(UserError, match=r"secrets.MY_TOKEN: MY_TOKEN is empty in your environment"):
        client.submit(Job(run="python train.py", secrets={"MY_TOKEN": "env"}), store=str(tmp_path / "store"))
