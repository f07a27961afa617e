"""Agents packed for machines that have no package index."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import pytest

from stoker.model import keys
from stoker.model.errors import UserError
from stoker.model.resources import Resources
from stoker.model.spec import Spec
from stoker.providers import registry
from stoker.providers.boot.script import BootSettings, render
from stoker.providers.image_info import newer_image
from stoker.store.base import Store
from stoker.submit import agent_bundle
from stoker.submit.agent_bundle import (
    AgentArchive,
    NoAgentAvailable,
    build_archive,
    build_archives,
    local_tag,
    send,
    tags_for,
)
from stoker.submit.node_packages import TargetMachines, pack_agents
from stoker.submit.pip_download import write_cached
from stoker.testing.memory_store import MemoryStore

ROOT = Path(__file__).parents[2]
HERE = local_tag()


@pytest.fixture(scope="module")
def shared_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def home(shared_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One home for those that need the whole archive, which takes seconds to pack."""
    monkeypatch.setenv("STOKER_HOME", str(shared_home))
    return shared_home


@pytest.fixture
def no_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """A home of its own, and no package index. Answers what pip was asked."""
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    asked: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        return subprocess.CompletedProcess(command, 1, "", "WARNING: hm\nERROR: there is no index\n")

    monkeypatch.setattr(subprocess, "run", run)
    return asked


def lay_wheel(folder: Path, name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("obstore/__init__.py", f"# {name}")
        wheel.writestr("obstore/_obstore.so", "machine code")
        wheel.writestr("obstore/_get.pyi", "for editors")
        wheel.writestr("obstore-1.dist-info/METADATA", "Name: obstore")
        wheel.writestr("obstore-1.dist-info/sboms/all.json", "{}")
    return path


def names(built: AgentArchive) -> list[str]:
    with tarfile.open(built.path) as archive:
        return archive.getnames()


# ── What is in it ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_it_is_small_and_holds_what_the_agent_needs(home: Path) -> None:
    built = build_archive(HERE)
    assert built.size == built.path.stat().st_size <= 10_000_000
    held = names(built)
    assert held == sorted(held)
    for wanted in ("__main__.py", "pynvml.py", "stoker/agent/main.py", "stoker/providers/ec2/machine.py"):
        assert wanted in held
    assert {f"stoker/store/{name}.py" for name in ("bucket", "folder", "gcs", "s3")} <= set(held)
    # What scripts import on the machine is laid out from here.
    assert {"stoker/train.py", "stoker/agent/checkpoints/save_protocol.py", "stoker/model/keys.py"} <= set(held)
    assert any(name.startswith("obstore/_obstore") and name.endswith(".so") for name in held)
    assert not [name for name in held if name.endswith((".pyi", ".pyc")) or "sbom" in name]
    assert not [name for name in held if name.startswith(("stoker/cli/", "stoker/governor/", "stoker/jobfile/"))]
    assert not [name for name in held if name.startswith(("stoker/testing/", "stoker/providers/local/"))]
    assert "stoker/providers/ec2/provider.py" not in held


def test_every_module_of_it_imports_with_nothing_else_installed(home: Path, tmp_path: Path) -> None:
    with tarfile.open(build_archive(HERE).path) as archive:
        archive.extractall(tmp_path / "agent")
    code = """
import importlib, pathlib, sys
root = pathlib.Path(sys.argv[1])
sys.path.insert(0, str(root))
for path in sorted(root.glob("stoker/**/*.py")):
    importlib.import_module(".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"))
import obstore, pynvml
print(obstore.__file__)
"""
    # Neither this project nor anything else that is installed can be seen: -I and -S.
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(tmp_path / "agent")], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith(str(tmp_path))
    ran = subprocess.run([sys.executable, str(tmp_path / "agent")], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr.split()[0]) == (2, "usage:")


# What is imported where it is used and never on a node.
NOT_ON_A_NODE = {
    *(f"stoker.providers.{name}.provider" for name in ("ec2", "gce", "sagemaker")),
    "stoker.providers.local",
}


def test_it_holds_the_rooms_of_the_agent_and_below(home: Path) -> None:
    """Whole, but for the providers: of each of them the modules that contract 3 names, and its package; and of the boot
    what starts the agent."""
    settings = (ROOT / "pyproject.toml").read_text()
    layers = re.findall(r'"stoker\.(\w+)"', settings.partition("layers = [")[2].partition("]")[0])
    below = layers[layers.index("agent") :]
    assert len(below) >= 8
    node_side = re.findall(r'"stoker\.providers\.\*\.(\w+)"', settings)
    assert set(node_side) == {"machine", "capabilities"}
    source = ROOT / "src" / "stoker"
    rooms = [path for room in below if room != "providers" for path in (source / room).rglob("*.py")]
    providers = [path for name in (*node_side, "__init__") for path in source.glob(f"providers/*/{name}.py")]
    expected = {
        *rooms,
        *source.glob("providers/*.py"),
        # What starts the agent on a new machine.
        *(source / f"providers/boot/{name}.py" for name in ("agent_service", "install_paths", "local_disks", "start")),
        *(path for path in providers if path.parent.name != "local"),
        *(source / name for name in ("__init__.py", "train.py")),
    }
    held = {name for name in names(build_archive(HERE)) if name.startswith("stoker/")}
    assert held == {path.relative_to(source.parent).as_posix() for path in expected}


def test_nothing_it_imports_later_is_missing(home: Path) -> None:
    with tarfile.open(build_archive(HERE).path) as archive:
        sources = {
            name: (archive.extractfile(name) or sys.exit()).read().decode()
            for name in archive.getnames()
            if name.startswith("stoker/") and name.endswith(".py")
        }
    held = {name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in sources}
    for name, text in sources.items():
        for module in _imported(ast.parse(text)):
            assert module in held | NOT_ON_A_NODE, f"{name} imports {module}, which is not in the bundle"


def _is_module(name: str) -> bool:
    path = ROOT / "src" / name.replace(".", "/")
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def _imported(tree: ast.AST) -> set[str]:
    found: set[str] = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] == "stoker"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "stoker":
            assert node.module is not None
            found.add(node.module)
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {each for each in inner if _is_module(each)}
        found |= _imported(node)
    return found


def test_the_same_sources_give_the_same_bytes(home: Path) -> None:
    files = agent_bundle._stoker_files()
    assert agent_bundle._pack(files) == agent_bundle._pack(dict(reversed(files.items())))
    first = build_archive(HERE)
    packed = first.path.stat().st_ino
    second = build_archive(HERE)
    assert second == first
    assert second.path.stat().st_ino == packed, "it was packed again"


def test_another_source_is_another_bundle(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_bundle, "obstore_files", lambda tag, offline: {})
    before = build_archive(HERE)
    monkeypatch.setattr(agent_bundle, "_MAIN", b"# changed")
    after = build_archive(HERE)
    assert after.digest != before.digest and after.path != before.path


def test_archives_that_are_not_used_for_long_are_deleted(
    no_pip: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_bundle, "_stoker_files", dict)
    monkeypatch.setattr(agent_bundle, "obstore_files", lambda tag, offline: {})

    def built(main: bytes) -> Path:
        monkeypatch.setattr(agent_bundle, "_MAIN", main)
        return build_archive(HERE).path

    used, unused = built(b"1"), built(b"2")
    for path in (used, unused):
        os.utime(path, (0, 0))
    assert built(b"1") == used, "it is as good as new"
    new = built(b"3")
    assert set(new.parent.glob("*.tar.gz")) == {used, new}


def test_the_requirement_is_the_projects_own() -> None:
    assert f'"{agent_bundle.OBSTORE}",' in (ROOT / "pyproject.toml").read_text()


# ── Machines unlike this one ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("wheel", "tag"),
    [
        ("obstore-0.12.1-cp311-abi3-manylinux_2_24_aarch64.whl", "cp311-arm64"),
        ("obstore-0.11.1-cp310-cp310-manylinux_2_17_aarch64.manylinux2014_aarch64.whl", "cp310-arm64"),
    ],
)
def test_wheels_that_were_fetched_once_serve_without_an_index(
    no_pip: list[list[str]], tmp_path: Path, wheel: str, tag: str
) -> None:
    wheels = tmp_path / "home/bundles/wheels"
    lay_wheel(wheels, wheel)
    for unfit in (
        "obstore-0.12.9-cp311-abi3-musllinux_1_2_aarch64.whl",
        "obstore-0.12.9-cp313-cp313t-manylinux_2_24_aarch64.whl",
        "obstore-0.12.9-cp311-abi3-macosx_11_0_arm64.whl",
        "obstore-0.12.9-cp312-cp312-manylinux_2_17_ppc64le.whl",
    ):
        lay_wheel(wheels, unfit)
    with tarfile.open(build_archive(tag).path) as archive:
        held = archive.extractfile("obstore/__init__.py")
        assert held is not None and held.read().decode() == f"# {wheel}"
        assert [name for name in archive.getnames() if name.startswith("obstore")] == [
            "obstore-1.dist-info/METADATA",
            "obstore/__init__.py",
            "obstore/_obstore.so",
        ]
    assert no_pip == []


def test_the_newest_wheel_is_taken(no_pip: list[list[str]], tmp_path: Path) -> None:
    wheels = tmp_path / "home/bundles/wheels"
    for version in ("0.9.3", "0.11.10", "0.11.9"):
        lay_wheel(wheels, f"obstore-{version}-cp310-cp310-manylinux_2_17_aarch64.whl")
    found = agent_bundle._find_wheel(wheels, "cp310-arm64")
    assert found is not None and "0.11.10" in found.name


def test_what_cannot_be_served_is_said_and_not_asked_for_again_at_once(no_pip: list[list[str]]) -> None:
    for _ in range(2):
        with pytest.raises(
            NoAgentAvailable, match=r"arm64 machines that have only Python 3\.10 .*\(there is no index\); "
        ):
            build_archive("cp310-arm64")
    assert len(no_pip) == 1
    command = " ".join(no_pip[0])
    assert "--python-version=3.10" in command and "--platform=manylinux_2_17_aarch64" in command
    assert "--only-binary=:all: " in command and "--no-deps" in command and command.endswith(agent_bundle.OBSTORE)


def test_an_index_that_had_no_wheel_is_asked_again_later(no_pip: list[list[str]], tmp_path: Path) -> None:
    with pytest.raises(NoAgentAvailable):
        build_archive("cp310-arm64")
    (missing,) = (tmp_path / "home/bundles/wheels").iterdir()
    os.utime(missing, (0, 0))
    with pytest.raises(NoAgentAvailable):
        build_archive("cp310-arm64")
    assert len(no_pip) == 2


def test_a_wheel_that_pip_fetches_is_in_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    wheel = "obstore-0.11.1-cp310-cp310-manylinux_2_17_aarch64.whl"

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        (folder,) = [Path(word.removeprefix("--dest=")) for word in command if word.startswith("--dest=")]
        lay_wheel(folder, wheel)
        return subprocess.CompletedProcess(command, 0, "", "WARNING: hm")

    monkeypatch.setattr(subprocess, "run", run)
    assert agent_bundle.obstore_files("cp310-arm64", False)["obstore/__init__.py"] == f"# {wheel}".encode()


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (subprocess.TimeoutExpired("pip", 180), r"\(Command 'pip' timed out after 180 seconds\)"),
        (FileNotFoundError(2, "No such file", "/x/python"), r"\(\[Errno 2\] No such file: '/x/python'\)"),
    ],
)
def test_a_pip_that_does_not_run_or_end_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, why: str
) -> None:
    def run(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(NoAgentAvailable, match=why):
        build_archive("cp310-arm64")


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "home/bundles").touch()
    with pytest.raises(UserError, match=r"/home/bundles cannot be written: .*; set STOKER_HOME to a folder of yours$"):
        write_cached(tmp_path / "home/bundles/agent", b"")


@pytest.mark.parametrize(
    ("tags", "version"),
    [
        (["cp310-x86_64", "cp311-x86_64"], "3.10"),
        (["cp311-x86_64"], "3.11"),
        # Enough on either machine.
        (["cp310-x86_64", "cp311-x86_64", "cp311-arm64"], "3.11"),
        ([], "3.10"),
    ],
)
def test_the_plan_and_a_failed_boot_advise_the_same(tags: list[str], version: str) -> None:
    advice = f"choose another resources.image, with Python {version} or newer"
    assert newer_image(tags) == advice
    told = render(BootSettings("s3://bucket", "ec2", "job-1", 2, 1, dict.fromkeys(tags, "0" * 64)), b"")
    assert advice in told and told.count("or newer") == 1


def test_a_dry_run_asks_no_index(no_pip: list[list[str]]) -> None:
    with pytest.raises(
        NoAgentAvailable, match=r"the run itself tries; choose another resources\.image, with Python 3\.11 or newer"
    ):
        build_archive("cp310-arm64", offline=True)
    assert no_pip == []


def test_one_python_that_is_not_served_is_a_line_and_all_of_them_an_error(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_but(*tags: str) -> Callable[..., AgentArchive]:
        def one(tag: str, *, offline: bool) -> AgentArchive:
            if tag not in tags:
                raise NoAgentAvailable(f"no {tag}")
            return AgentArchive(tag, "0" * 64, Path(), 1)

        return one

    monkeypatch.setattr(agent_bundle, "build_archive", none_but("cp311-x86_64", "cp310-arm64", "cp311-arm64"))
    built, told = build_archives({"x86_64", "arm64"})
    assert [one.tag for one in built] == ["cp310-arm64", "cp311-arm64", "cp311-x86_64"]
    assert told == ("no cp310-x86_64",)
    monkeypatch.setattr(agent_bundle, "build_archive", none_but())
    with pytest.raises(NoAgentAvailable, match=r"^no cp311-x86_64$"):
        build_archives({"x86_64"})
    # A dry run can be told neither that it cannot be nor what it would be.
    assert build_archives({"x86_64"}, offline=True)[0] == ()
    assert "resources.machine" in build_archives({"x86_64"}, offline=True)[1][0]
    assert tags_for("arm64") == ("cp310-arm64", "cp311-arm64")


@pytest.mark.parametrize(("name", "field"), [("ec2", "resources.image"), ("sagemaker", "environment.container.image")])
def test_a_line_names_the_image_that_the_provider_takes(
    name: str, field: str, no_pip: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def only_newer(tag: str, *, offline: bool) -> AgentArchive:
        if tag.startswith("cp310"):
            return build_archive(tag, offline=True)
        return AgentArchive(tag, "0" * 64, Path(), 1)

    monkeypatch.setattr(agent_bundle, "build_archive", only_newer)
    machines = TargetMachines(object(), registry.capabilities(name), (), offline=True)  # type: ignore[arg-type]
    spec = Spec(name="x", run="x", resources=Resources(provider=name))
    _, (line,) = pack_agents(machines, spec)
    assert line.endswith(f"; choose another {field}, with Python 3.11 or newer")


# ── Into the store ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_it_is_sent_once_and_never_under_a_name_that_was_given_up(tmp_path: Path) -> None:
    moment = [datetime.now(timezone.utc)]
    store: Store = MemoryStore(lambda: moment[0])
    path = tmp_path / "a.tar.gz"
    path.write_bytes(b"agent")
    built = AgentArchive(HERE, "ab" * 32, path, 5)
    assert send(store, built) == built.digest
    key = keys.bundle(built.digest)
    first = store.head(key)
    assert send(store, built) == built.digest
    assert store.head(key) == first
    store.create(keys.collected(keys.BUNDLES, built.digest), b"")
    assert send(store, built) == f"{built.digest}-2"
    assert store.head(keys.bundle(f"{built.digest}-2")) is not None
