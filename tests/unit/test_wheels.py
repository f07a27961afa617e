"""Wheels for machines without an index: gathered by the real uv from an index on loopback, for another machine."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import quote

import pytest

from stoker.agent.environment import read_requirements
from stoker.maintenance.delete import collect_shared
from stoker.model import codec, keys
from stoker.model.errors import UserError
from stoker.model.spec import PackageIndex, Spec
from stoker.model.submission import Submission
from stoker.submit import wheels
from stoker.submit.shared_objects import COLLECT_AFTER
from stoker.submit.wheels import WheelSet, WheelTarget, gather_wheels, send
from stoker.testing.memory_store import MemoryStore
from tests.support.package_index import PackageIndex as Running
from tests.support.package_index import make_wheel, package_index

pytestmark = pytest.mark.slow

PASSWORD = "hunter2/%#x y"
X86 = WheelTarget("3.12", "x86_64")
ARM = WheelTarget("3.10", "arm64")

ALPHA = make_wheel("alpha", "1.0", requires=("beta>=1",))
OLD = make_wheel("beta", "1.1", tag="cp310-cp310-manylinux_2_17_aarch64")
NEW = make_wheel("beta", "1.2", tag="cp312-cp312-manylinux_2_17_x86_64")


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("UV_FIND_LINKS", "PIP_FIND_LINKS", "UV_INDEX_URL", "UV_DEFAULT_INDEX"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    with package_index(ALPHA, OLD, NEW) as running:
        monkeypatch.setenv("UV_DEFAULT_INDEX", running.url)
        yield running


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    return folder


def gathered(code: Path, text: str, *targets: WheelTarget, index: PackageIndex | None = None) -> WheelSet:
    (code / "requirements.txt").write_text(text)
    return gather_wheels(code, read_requirements.read(code, "requirements.txt"), targets, index)


def names(found: WheelSet) -> dict[str, list[str]]:
    return {target: sorted(wheel.name for wheel in wheels) for target, wheels in found.wheels.items()}


def test_what_other_machines_need_and_not_this_one(index: Running, code: Path) -> None:
    found = gathered(code, "alpha\n", X86, ARM)
    assert names(found) == {
        "3.12-x86_64": [ALPHA.filename, NEW.filename],
        "3.10-arm64": [ALPHA.filename, OLD.filename],
    }
    assert found.size == sum(len(one.data) for one in (ALPHA, OLD, NEW)), "what both need counts once"
    for digest, path in found.files.items():
        assert hashlib.sha256(path.read_bytes()).hexdigest() == digest
    # The second time nobody is asked for files.
    index.requests.clear()
    assert gathered(code, "alpha\n", X86, ARM) == found
    assert not [path for path in index.requests if path.endswith(".whl")]


def test_packages_without_a_wheel_are_named_in_one_line(index: Running, code: Path) -> None:
    with pytest.raises(UserError) as failure:
        gathered(code, "alpha\n", WheelTarget("3.13", "arm64"))
    assert str(failure.value).startswith("environment.wheels: there is no wheel of beta for Python 3.13 on arm64; name")
    assert "\n" not in str(failure.value)


def test_what_no_index_has(index: Running, code: Path) -> None:
    with pytest.raises(UserError, match=r"wheels: requirements.txt cannot be resolved .* nonesuch was not found"):
        gathered(code, "nonesuch\n", X86)


def test_parts_of_the_code_cannot_be_gathered(index: Running, code: Path) -> None:
    (code / "lib").mkdir()
    with pytest.raises(UserError, match="installs a part of the code itself"):
        gathered(code, "alpha\n-e ./lib\n", X86)


def test_a_private_index_without_showing_its_password(
    code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("INDEX_PASSWORD", PASSWORD)
    with package_index(ALPHA, NEW, password=PASSWORD, user="jane") as running:
        source = PackageIndex(running.url.replace("//", "//jane@"), "env:INDEX_PASSWORD")
        assert len(gathered(code, "alpha\n", X86, index=source).digests) == 2
        assert running.refused == 0
        monkeypatch.setenv("INDEX_PASSWORD", "wrong")
        with pytest.raises(UserError, match="401 Unauthorized") as failure:
            gathered(code, "alpha<9\n", ARM, index=source)
    assert "wrong" not in str(failure.value)
    assert PASSWORD not in "".join(capfd.readouterr())
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.suffix == ".whl" for path in kept)
    assert not [path for path in kept if PASSWORD.encode() in path.read_bytes()]


@pytest.mark.parametrize(
    ("name", "before"),
    [("UV_DEFAULT_INDEX", ""), ("UV_DEFAULT_INDEX", "mine="), ("UV_INDEX_URL", ""), ("UV_INDEX", "mine=")],
)
def test_the_password_of_an_index_that_the_environment_names(
    name: str, before: str, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with package_index(ALPHA, NEW, password=PASSWORD, user="jane") as running:
        if name == "UV_INDEX":  # One of several; whatever is the default is not asked.
            monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
        monkeypatch.setenv(name, before + running.url.replace("//", f"//jane:{quote(PASSWORD, safe='')}@"))
        assert len(gathered(code, "alpha\n", X86).digests) == 2


def test_the_password_of_an_index_that_uv_cannot_read_is_not_shown(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_INDEX", f"mine=http://jane:{PASSWORD}@127.0.0.1/simple")
    with pytest.raises(UserError, match=re.escape("http://jane:****@127.0.0.1/simple")) as failure:
        gathered(code, "alpha\n", X86)
    assert "hunter2" not in str(failure.value)


@pytest.mark.parametrize("kind", ["uv.lock", "pylock.toml"])
def test_locks(kind: str, index: Running, code: Path) -> None:
    (code / "pyproject.toml").write_text(
        '[project]\nname = "p"\nversion = "1"\nrequires-python = ">=3.10"\ndependencies = ["alpha"]\n'
    )
    access = wheels._Access(None)
    if kind == "uv.lock":
        ran = access.uv("lock", cwd=code)
    else:
        ran = access.uv("pip", "compile", "pyproject.toml", "--universal", "-o", kind, "--format=pylock.toml", cwd=code)
    assert ran.returncode == 0, ran.stderr
    # A newer one that the lock does not know.
    index.add(make_wheel("alpha", "2.0"))
    found = gather_wheels(code, read_requirements.read(code, kind), [X86])
    assert names(found) == {"3.12-x86_64": [ALPHA.filename, NEW.filename]}
    # One that calls itself the same.
    index.add(make_wheel("alpha", "1.0", files={"alpha.py": b"evil = True\n"}))
    with pytest.raises(UserError, match=r"alpha-1.0-py3-none-any.whl is not what .* was locked with|hash"):
        gather_wheels(code, read_requirements.read(code, kind), [X86])


def test_a_part_of_the_code_in_a_lock_is_passed_over() -> None:
    """A pylock lists the project itself without a version."""
    digest = "0" * 64
    wheel = {"name": ALPHA.filename, "url": f"https://index/{ALPHA.filename}", "hashes": {"sha256": digest}}
    own = {"name": "p", "directory": {"path": "."}}
    lock = {"packages": [own, {"name": "alpha", "version": "1.0", "wheels": [wheel]}]}
    assert "".join(wheels._locked_lines(lock)) == f"alpha==1.0 --hash=sha256:{digest}\n"


def test_a_download_that_breaks_off_is_no_wheel(tmp_path: Path) -> None:
    """An index that states no digest would give half of a wheel."""

    class Half(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "100")
            self.end_headers()
            self.wfile.write(b"x" * 50)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Half) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        with pytest.raises(OSError, match="ended after 50 of 100 bytes"):
            wheels._Access(None).fetch(f"http://127.0.0.1:{server.server_port}/a.whl", tmp_path / "a.whl")


class Clock:
    """The store's, moved by hand."""

    def __init__(self) -> None:
        self.ahead = timedelta(0)

    def __call__(self) -> datetime:
        return datetime.now(timezone.utc) + self.ahead


def dates(store: MemoryStore) -> dict[str, datetime]:
    return {meta.key: meta.modified for meta in store.list(keys.WHEELS)}


def test_sent_once_and_by_a_clone_from_the_store(index: Running, code: Path) -> None:
    clock = Clock()
    store = MemoryStore(clock)
    found = gathered(code, "alpha\n", X86)
    send(store, found)
    sent = dates(store)
    assert set(sent) == {keys.wheel(digest) for digest in found.digests}
    send(store, found)
    assert dates(store) == sent
    # By a clone, which has no files.
    assert send(store, WheelSet(found.wheels)) == found.wheels
    assert dates(store) == sent
    # A collector has given them up, and has not deleted them yet.
    for digest in found.digests:
        store.create(keys.collected(keys.WHEELS, digest), b"")
    again = send(store, WheelSet(found.wheels))
    assert {wheel.generation for wheels in again.values() for wheel in wheels} == {2}
    assert set(dates(store)) - set(sent) == {keys.wheel(f"{digest}-2") for digest in found.digests}


def test_a_clone_whose_wheels_are_gone(index: Running, code: Path) -> None:
    found = gathered(code, "alpha\n", X86)
    with pytest.raises(UserError, match="not in the store any more"):
        send(MemoryStore(Clock()), WheelSet(found.wheels))


def test_wheels_that_no_job_uses_are_collected(index: Running, code: Path) -> None:
    clock = Clock()
    store = MemoryStore(clock)
    clock.ahead = -2 * COLLECT_AFTER
    found = gathered(code, "alpha\n", X86, ARM)
    send(store, found)
    clock.ahead = timedelta(0)
    submission = Submission("job-x", Spec("job", "true"), "jane", wheels={"3.12-x86_64": found.wheels["3.12-x86_64"]})
    store.put(keys.spec("job-x"), codec.dumps(submission))
    assert collect_shared(store, keys.WHEELS) == 1
    assert set(dates(store)) == {keys.wheel(wheel.digest) for wheel in found.wheels["3.12-x86_64"]}
    assert codec.loads(Submission, codec.dumps(submission)) == submission
