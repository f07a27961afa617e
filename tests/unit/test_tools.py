"""uv for machines: from this computer's own installation, by its digest, and collected when no job needs it."""

from __future__ import annotations

import gzip
import hashlib
import os
import time
from pathlib import Path

import pytest
from uv import find_uv_bin

from stoker.agent.environment.uv import find_program
from stoker.agent.fetch_programs import fetch_program, tool_name
from stoker.maintenance.delete import collect_shared
from stoker.model import codec, keys
from stoker.model.errors import SetupFailed, UserError
from stoker.model.spec import Environment, Spec
from stoker.model.submission import Submission
from stoker.store.base import Store, open_store
from stoker.submit import node_programs

pytestmark = pytest.mark.slow

# The architecture of this computer, and the other one.
HERE = tool_name("uv").removeprefix("uv-")
ELSEWHERE = "arm64" if HERE == "x86_64" else "x86_64"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store((tmp_path / "store").as_uri())


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    # No index answers, wherever this runs.
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    return tmp_path / "home"


def test_a_machine_fetches_what_the_submitter_put_there(store: Store, tmp_path: Path) -> None:
    (tool,), missing = node_programs.build_program_files(node_programs.UV, [HERE])
    assert (tool.name, missing) == (f"uv-{HERE}", ())
    for _ in range(2):
        node_programs.send(store, tool)
    assert [meta.key for meta in store.list(keys.TOOLS)] == [keys.tool(tool.digest)]
    program = find_program(store, {tool.name: tool.digest}, tmp_path / "shelf", copied=False)
    assert program.read_bytes() == Path(find_uv_bin()).read_bytes()
    assert os.access(program, os.X_OK)
    # Once is enough.
    store.delete([keys.tool(tool.digest)])
    assert find_program(store, {tool.name: tool.digest}, tmp_path / "shelf", copied=False) == program
    assert sorted(path.name for path in program.parent.iterdir()) == ["uv"]


def test_py_spy_is_fetched_too_and_nobody_needs_it(store: Store, tmp_path: Path) -> None:
    (tool,), missing = node_programs.build_program_files(node_programs.SPY, [HERE, ELSEWHERE])
    assert (tool.name, missing) == (f"py-spy-{HERE}", ()), "what cannot be had is no reason to refuse"
    node_programs.send(store, tool)
    program = fetch_program(store, {tool.name: tool.digest}, "py-spy", tmp_path / "shelf")
    assert program is not None and program.read_bytes()[:4] == b"\x7fELF" and os.access(program, os.X_OK)
    assert fetch_program(store, {}, "py-spy", tmp_path / "shelf") is None


def test_the_same_program_has_the_same_digest(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_programs, "gzip", gzip)  # It is compressed twice.
    (first,), _ = node_programs.build_program_files(node_programs.UV, [HERE])
    first.path.unlink()
    (second,), _ = node_programs.build_program_files(node_programs.UV, [HERE])
    assert first == second


def test_an_architecture_that_cannot_be_served(home: Path) -> None:
    with pytest.raises(UserError, match=f"environment.requirements: uv for {ELSEWHERE} machines cannot be had"):
        node_programs.build_program_files(node_programs.UV, [ELSEWHERE])
    built, missing = node_programs.build_program_files(node_programs.UV, [HERE, ELSEWHERE], offline=True)
    assert [tool.name for tool in built] == [f"uv-{HERE}"]
    assert missing == (
        f"environment.requirements: uv for {ELSEWHERE} machines is not here yet; the run itself fetches it",
    )


def test_what_is_not_what_was_submitted_is_not_run(store: Store, tmp_path: Path) -> None:
    data = gzip.compress(b"#!/bin/sh\n")
    digest = hashlib.sha256(data).hexdigest()
    with pytest.raises(SetupFailed, match="uv is not in the store any more") as missing:
        find_program(store, {tool_name("uv"): digest}, tmp_path / "shelf", copied=False)
    store.put(keys.tool(digest), data[:-1])
    with pytest.raises(SetupFailed, match="uv in the store is not what was submitted") as other:
        find_program(store, {tool_name("uv"): digest}, tmp_path / "shelf", copied=False)
    with pytest.raises(SetupFailed, match=r"uv: '\.\./\.\.' is no digest; submit the job again") as path:
        find_program(store, {tool_name("uv"): "../.."}, tmp_path / "shelf", copied=False)
    assert not any(failed.value.user for failed in (missing, other, path)), "it is nothing that the script does"
    assert not list((tmp_path / "shelf").rglob("uv"))
    store.put(keys.tool(f"{digest}-2"), data)
    found = find_program(store, {tool_name("uv"): f"{digest}-2"}, tmp_path / "shelf", copied=False)
    assert found.read_bytes() == b"#!/bin/sh\n"


def test_two_versions_of_a_program_lie_side_by_side(store: Store, tmp_path: Path) -> None:
    found = []
    for text in (b"#!/bin/sh\n", b"#!/bin/sh\ntrue\n"):
        data = gzip.compress(text, mtime=0)
        digest = hashlib.sha256(data).hexdigest()
        store.put(keys.tool(digest), data)
        found.append(fetch_program(store, {tool_name("uv"): digest}, "uv", tmp_path / "shelf"))
    assert [path.read_bytes() for path in found if path] == [b"#!/bin/sh\n", b"#!/bin/sh\ntrue\n"]


@pytest.mark.parametrize(("machine", "name"), [("aarch64", "arm64"), ("arm64", "arm64"), ("x86_64", "x86_64")])
def test_a_program_is_named_by_the_machines_processor(monkeypatch: pytest.MonkeyPatch, machine: str, name: str) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert tool_name("uv") == f"uv-{name}"


def test_a_computer_without_uv_is_told_what_to_install(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone() -> str:
        raise FileNotFoundError

    monkeypatch.setattr("uv.find_uv_bin", gone)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SetupFailed, match="uv, which installs packages, was not found; install Stoker again") as failed:
        find_program(store, {}, tmp_path / "shelf", copied=False)
    assert not failed.value.user
    (tmp_path / "uv").touch(0o755)
    assert find_program(store, {}, tmp_path / "shelf", copied=False) == tmp_path / "uv"


def test_on_the_submitters_computer_it_is_the_installed_one(store: Store, tmp_path: Path) -> None:
    assert find_program(store, {}, tmp_path / "shelf", copied=False) == Path(find_uv_bin())
    # A container sees the shelf, and not where Stoker is installed.
    copied = find_program(store, {}, tmp_path / "shelf", copied=True)
    assert copied.is_relative_to(tmp_path / "shelf")
    assert copied.read_bytes() == Path(find_uv_bin()).read_bytes()
    written = copied.stat().st_mtime_ns
    assert find_program(store, {}, tmp_path / "shelf", copied=True) == copied
    assert copied.stat().st_mtime_ns == written, "it is copied once"


@pytest.mark.parametrize(("named", "needed"), [(None, False), ("none", False), ("requirements.txt", True)])
def test_a_job_without_packages_needs_none(named: str | None, needed: bool) -> None:
    assert node_programs.needs_uv(Spec(name="j", run="true", environment=Environment(requirements=named))) is needed


def test_only_old_programs_that_no_job_fetches_are_collected(store: Store, tmp_path: Path) -> None:
    job = Submission("j", Spec(name="j", run="true"), "me", tools={"uv-x86_64": "used" * 16})
    store.put(keys.spec("j"), codec.dumps(job))
    day = time.time() - 25 * 3600
    for name in ("used", "left", "new!"):
        store.put(keys.tool(name * 16), b"x")
        if name != "new!":
            os.utime(tmp_path / "store" / keys.tool(name * 16), (day, day))
    assert collect_shared(store, keys.TOOLS) == 1
    assert {meta.key for meta in store.list(keys.TOOLS)} == {keys.tool("used" * 16), keys.tool("new!" * 16)}
