"""The command line in this process, and a folder with a store and code to type commands in."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from stoker.cli import main
from stoker.governor import background
from stoker.store.base import Store, open_store

Stoker = Callable[..., tuple[int, str, str]]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Run a command line in this process; return its exit code, stdout and stderr."""
    with pytest.raises(SystemExit) as left:
        main(arguments)
    captured = capsys.readouterr()
    assert isinstance(left.value.code, int)
    return left.value.code, captured.out, captured.err


@pytest.fixture
def stoker(capsys: pytest.CaptureFixture[str]) -> Stoker:
    return partial(run, capsys)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """The store that commands find. The working folder has a script, and no governor is started."""
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("STOKER_STORE", str(tmp_path / "store"))
    monkeypatch.setattr(background, "ensure_governor", lambda _url: None)
    monkeypatch.setattr(background, "ensure_governed", lambda _store, _jobs: background.GovernorChoice())
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print('hello')\n")
    monkeypatch.chdir(tmp_path / "code")
    return open_store(str(tmp_path / "store"))
