"""Programs for machines that are cached under the home: built, fetched for other machines, and replaced."""

from __future__ import annotations

import gzip
import importlib
import zipfile
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from stoker.model.errors import UserError
from stoker.submit.node_programs import SPY, UV, build_program_files

programs = importlib.import_module("stoker.submit.node_programs")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, on a computer with x86_64 where version 9 of each program is installed."""
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    (tmp_path / "installed").write_bytes(b"here")
    files = [
        SimpleNamespace(as_posix=lambda name=name: f"../../bin/{name}", locate=lambda: tmp_path / "installed")
        for name in ("other", "uv", "py-spy")
    ]
    monkeypatch.setattr(programs, "metadata", SimpleNamespace(version=lambda _: "9", files=lambda _: files))
    monkeypatch.setattr(programs, "local_architecture", lambda: "x86_64")
    monkeypatch.setattr(programs, "download_wheel", lambda *_: "no index")
    return tmp_path / "home"


def lay_wheel(requirement: str, arch: str, _platforms: Sequence[str], folder: Path) -> str:
    name = requirement.partition("==")[0]
    with zipfile.ZipFile(folder / f"{name}-9-py3-none-{arch}.whl", "w") as wheel:
        wheel.writestr(f"{name}-9.data/scripts/{name}", f"{requirement} {arch}")
        wheel.writestr(f"{name}-9.dist-info/RECORD", "")
    return ""


def test_programs_of_other_machines_are_fetched_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "download_wheel", lay_wheel)
    (far, here), missing = build_program_files(UV, ["x86_64", "arm64"])
    assert missing == ()
    assert (far.name, gzip.decompress(far.path.read_bytes())) == ("uv-arm64", b"uv==9 arm64")
    assert (here.name, gzip.decompress(here.path.read_bytes())) == ("uv-x86_64", b"here")
    monkeypatch.setattr(programs, "download_wheel", lambda *_: pytest.fail("it is here"))
    assert build_program_files(UV, ["arm64"]) == ((far,), ())


def test_other_versions_give_way_and_other_programs_stay(home: Path) -> None:
    (home / "tools").mkdir(parents=True)
    for name in ("uv-8-x86_64.gz", "uv-10-arm64.gz", "uv-9-arm64.gz", "py-spy-8-x86_64.gz"):
        (home / "tools" / name).touch()
    build_program_files(UV, ["x86_64"])
    left = sorted(path.name for path in (home / "tools").iterdir())
    assert left == ["py-spy-8-x86_64.gz", "uv-9-arm64.gz", "uv-9-x86_64.gz"]


def test_a_program_that_is_not_installed_is_an_error_only_where_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "metadata", SimpleNamespace(version=lambda _: "9", files=lambda _: None))
    why = r"environment\.requirements: uv for x86_64 machines cannot be had \(it is not installed here\); "
    with pytest.raises(UserError, match=why):
        build_program_files(UV, ["x86_64"])
    assert build_program_files(SPY, ["arm64", "x86_64"]) == ((), ())
    with pytest.raises(UserError, match=r"uv for arm64 machines cannot be had \(no index\); "):
        build_program_files(UV, ["arm64"])


def test_a_dry_run_fetches_nothing_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "download_wheel", lambda *_: pytest.fail("an index was asked"))
    (tool,), missing = build_program_files(UV, ["arm64", "x86_64"], offline=True)
    assert tool.name == "uv-x86_64"
    assert missing == ("environment.requirements: uv for arm64 machines is not here yet; the run itself fetches it",)
