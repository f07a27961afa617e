"""Wheels that cannot be resolved, fetched or cached: each gets one line. No index and no uv is asked."""

from __future__ import annotations

import hashlib
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from stoker.agent.environment.read_requirements import Requirements
from stoker.model.errors import UserError
from stoker.model.spec import PackageIndex
from stoker.store.home import CACHE_FOR_S
from stoker.submit import wheels
from stoker.submit.wheels import WheelTarget, gather_wheels

TARGET = WheelTarget("3.12", "x86_64")
ALPHA, BETA = "alpha-1.0-py3-none-any.whl", "beta-2.0-py3-none-any.whl"
DATA = b"a wheel"
DIGEST = hashlib.sha256(DATA).hexdigest()


class Index:
    """What uv answers, and what the index has; and what was asked of them."""

    def __init__(self) -> None:
        self.asked: list[Sequence[str]] = []
        self.fetched: list[str] = []
        self.code, self.error = 0, ""
        self.packages: list[str] = [wheel_row("alpha", ALPHA, DIGEST)]
        self.fetch: Callable[[], None] = lambda: None

    def uv(self, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        self.asked.append(arguments)
        return subprocess.CompletedProcess(arguments, self.code, "\n".join(self.packages), self.error)

    def get(self, url: str, target: Path) -> str:
        self.fetched.append(url)
        self.fetch()
        target.write_bytes(DATA)
        return DIGEST


def wheel_row(name: str, file: str, digest: str | None) -> str:
    hashes = f', hashes = {{ sha256 = "{digest}" }}' if digest else ""
    row = f'{{ url = "https://index.test/files/{file}"{hashes} }}'
    return f'[[packages]]\nname = "{name}"\nversion = "1"\nwheels = [{row}]'


@pytest.fixture(autouse=True)
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    made = Index()
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(wheels._Access, "uv", lambda _self, *arguments, cwd: made.uv(*arguments, cwd=cwd))
    monkeypatch.setattr(wheels._Access, "fetch", lambda _self, url, target: made.get(url, target))
    return made


def gathered(
    tmp_path: Path, target: WheelTarget = TARGET, index: PackageIndex | None = None, *, kind: str = "pip"
) -> dict[str, list[str]]:
    name = "uv.lock" if kind == "uv-lock" else "requirements.txt"
    (tmp_path / name).write_text("alpha\n")
    asked = Requirements(name, kind, {}, {}, local=False)  # type: ignore[arg-type]
    found = gather_wheels(tmp_path, asked, [target], index)
    return {name: [wheel.name for wheel in each] for name, each in found.wheels.items()}


def test_machines_are_named_to_uv_by_version_and_platform_or_by_their_python(tmp_path: Path, index: Index) -> None:
    assert gathered(tmp_path) == {TARGET.name: [ALPHA]}
    gathered(tmp_path, WheelTarget("3.10", "arm64"))
    gathered(tmp_path, WheelTarget("3.12", "x86_64", "/opt/python"))
    named = [[word for word in words if word.startswith("--python")] for words in index.asked]
    assert named == [
        ["--python-version=3.12", "--python-platform=x86_64-manylinux_2_28"],
        ["--python-version=3.10", "--python-platform=aarch64-manylinux_2_28"],
        ["--python=/opt/python"],
    ]
    assert index.fetched == [f"https://index.test/files/{ALPHA}"], "what is cached is not fetched again"


def test_all_packages_without_a_wheel_are_named(tmp_path: Path, index: Index) -> None:
    index.packages += ['[[packages]]\nname = "gamma"\nversion = "1"', '[[packages]]\nname = "delta"\nversion = "1"']
    with pytest.raises(
        UserError, match=r"^environment\.wheels: there is no wheel of gamma, delta for Python 3\.12 on x"
    ):
        gathered(tmp_path)
    assert index.fetched == []


def test_a_lock_file_that_uv_cannot_export_is_named(tmp_path: Path, index: Index) -> None:
    index.code, index.error = 2, "warning: hm\nerror: the lock is broken\n  cause: at line 1\n"
    with pytest.raises(UserError, match=r"^uv.lock: the lock is broken; at line 1$"):
        gathered(tmp_path, kind="uv-lock")


def test_a_password_that_cannot_be_fetched_is_named_before_anything_is_asked(tmp_path: Path, index: Index) -> None:
    source = PackageIndex("https://index.test/simple", "env:NOT_SET_HERE")
    with pytest.raises(UserError, match="NOT_SET_HERE"):
        gathered(tmp_path, index=source)
    assert index.asked == []


def test_a_file_that_is_not_what_the_index_says_is_not_kept(tmp_path: Path, index: Index) -> None:
    index.packages = [wheel_row("alpha", ALPHA, "0" * 64)]
    with pytest.raises(UserError, match=f"^environment.wheels: {ALPHA} is not what its index says it is; try again$"):
        gathered(tmp_path)
    assert list((tmp_path / "home/wheels").iterdir()) == []
    # Without a digest there is nothing to compare with.
    index.packages = [wheel_row("alpha", ALPHA, None)]
    assert gathered(tmp_path) == {TARGET.name: [ALPHA]}
    assert (tmp_path / "home/wheels" / DIGEST / ALPHA).read_bytes() == DATA


def test_an_index_that_does_not_answer_is_named_and_leaves_nothing(tmp_path: Path, index: Index) -> None:
    def fail() -> None:
        raise ConnectionError("the connection ended")

    index.fetch = fail
    said = f"^environment.wheels: {ALPHA} cannot be fetched from https://index.test: the connection ended$"
    with pytest.raises(UserError, match=said):
        gathered(tmp_path)
    assert list((tmp_path / "home/wheels").iterdir()) == []


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home/wheels").touch()
    with pytest.raises(UserError, match=r"/home/wheels cannot be written: .*; set STOKER_HOME to a folder of yours$"):
        gathered(tmp_path)


def test_what_was_not_used_for_long_is_deleted_from_the_cache(tmp_path: Path) -> None:
    cache = tmp_path / "home/wheels"
    gathered(tmp_path)
    (cache / "old").mkdir()
    (cache / "old" / BETA).write_bytes(b"")
    (cache / "new").mkdir()
    (cache / "left.part").touch()
    now = time.time()
    for name, age_s in (("old", CACHE_FOR_S + 60), ("left.part", CACHE_FOR_S + 60), ("new", CACHE_FOR_S - 60)):
        os.utime(cache / name, (now - age_s, now - age_s))
    os.utime(cache / DIGEST, (0, 0))
    gathered(tmp_path)
    assert {path.name for path in cache.iterdir()} == {"new", DIGEST}, "what is used again is as good as new"


@pytest.mark.parametrize(
    ("text", "login"),
    [
        ("machine index.test login jane password hunter2", ("jane", "hunter2")),
        ("machine other.test login jane password hunter2", None),
        ("machine index.test login jane", ("jane", "")),
        ("nonsense", None),
    ],
)
def test_a_login_of_netrc_is_for_its_own_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, login: tuple[str, str] | None
) -> None:
    (tmp_path / "netrc").write_text(text)
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert wheels._netrc("index.test") == login
