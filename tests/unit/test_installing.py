"""Packages are installed with the real uv, from an index on loopback, on Pythons that have something already."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest
from uv import find_uv_bin

from stoker.agent.config import NodeConfig, NodePaths
from stoker.agent.enclosure import Command, Host
from stoker.agent.environment import cache, processor, shelf
from stoker.agent.environment.archive import take_listing
from stoker.agent.environment.conda import Conda
from stoker.agent.environment.making import Making
from stoker.agent.environment.packages import Packages
from stoker.agent.environment.steps import Steps
from stoker.agent.environment.uv import Change, read_changes
from stoker.agent.node import Node
from stoker.agent.prepare import SetupFailed
from stoker.processes import TRAINING, make_group
from stoker.spec import Code, Environment, Spec, Submission
from stoker.store import open_store
from stoker.testing.package_index import PackageIndex, make_wheel, package_index

T = TypeVar("T")

WHEELS = (
    make_wheel("torch", "2.4.0", requires=["numpy"], scripts={"torchrun": "torch:main"}),
    make_wheel("torch", "2.5.0", requires=["numpy"], scripts={"torchrun": "torch:main"}),
    make_wheel("numpy", "1.0"),
    make_wheel("numpy", "2.0"),
    # Newer ones ask for more than the image has: that is no reason to replace it.
    make_wheel("lightning", "1.0", requires=["torch>=2.4"]),
    make_wheel("lightning", "2.0", requires=["torch>=2.5"]),
    make_wheel("fresh", "1.0", requires=["numpy>=2"]),
    make_wheel("click", "8.0"),
)
# As an image has it, and no index: https://download.pytorch.org has such versions.
TORCH = make_wheel(
    "torch",
    "2.4.0+cu121",
    requires=["numpy"],
    scripts={"torchrun": "torch:main"},
    files={
        "torch.py": b"import sys\n__version__ = '2.4.0+cu121'\n"
        b"def main():\n    import lightning\n    print('torchrun', sys.prefix, lightning.__version__)\n"
    },
)


class CloudMachine:
    """It goes away when its job is over."""


class LocalMachine(CloudMachine):
    """It stays, and what was installed on it."""

    def __init__(self, environments: Path) -> None:
        self.environments = environments


@pytest.fixture(scope="module")
def index() -> Iterator[PackageIndex]:
    with package_index(*WHEELS) as served:
        yield served


def uv(*arguments: str, index: PackageIndex, cache: Path) -> None:
    settings = {"UV_DEFAULT_INDEX": index.url, "UV_CACHE_DIR": str(cache), "UV_NO_CONFIG": "1"}
    subprocess.run([find_uv_bin(), *arguments], env=os.environ | settings, check=True, capture_output=True)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory, index: PackageIndex) -> Path:
    """A Python with a PyTorch of its own: a virtual environment, as /opt/pytorch is on AWS's images."""
    root = tmp_path_factory.mktemp("image")
    (root / TORCH.filename).write_bytes(TORCH.data)
    uv("venv", f"--python={sys.executable}", str(root / "opt"), index=index, cache=root / "cache")
    python = str(root / "opt/bin/python")
    uv(
        "pip",
        "install",
        f"--python={python}",
        str(root / TORCH.filename),
        "numpy==1.0",
        index=index,
        cache=root / "cache",
    )
    return Path(python)


class Bench:
    """A machine, what it is asked for, and what it says."""

    def __init__(self, root: Path, index: PackageIndex, python: Path) -> None:
        self.root = root
        self.index = index
        self.python = python
        self.local = True
        self.digest = "c" * 64
        self.said: list[str] = []
        self.code = root / "node/code"
        self.code.mkdir(parents=True)
        self.setup: str | None = None
        self.check: Callable[[], None] = lambda: None
        self.making: Making | None = None
        # What the job sets besides.
        self.env: dict[str, str] = {}

    @property
    def environments(self) -> Path:
        return self.root / "environments"

    def write(self, name: str, text: str) -> None:
        (self.code / name).parent.mkdir(parents=True, exist_ok=True)
        (self.code / name).write_text(text)

    def command(self, argv: tuple[str, ...]) -> Command:
        env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("UV_", "PIP_", "VIRTUAL_", "PYTHON"))
        }
        env |= {
            "PATH": f"{self.python.parent}{os.pathsep}/usr/bin:/bin",
            "UV_DEFAULT_INDEX": self.index.url,
            "UV_CACHE_DIR": str(self.root / "cache"),
            **self.env,
        }
        return Command(argv, env, self.code)

    def node(self) -> Node:
        config = NodeConfig((self.root / "store").as_uri(), "test", "job-abcd", 2, 0, 1, "i-1")
        machine = LocalMachine(self.environments) if self.local else CloudMachine()
        made = Node(config, NodePaths(self.root / "node"), open_store(config.store), machine, "work/x")  # type: ignore[arg-type]
        # Nothing but what is told to people.
        object.__setattr__(made, "say", self.said.append)
        return made

    def install(self, requirements: str | None = "requirements.txt", **wishes: object) -> dict[str, str]:
        """Install, as a set-up does. Answers the variables of the training."""
        wanted = Environment(requirements=requirements, **wishes)  # type: ignore[arg-type]
        with self._set_up(wanted) as (node, submission, steps):
            assert self.making is not None
            return Packages(node, submission, steps, self.command, _ask, self.making).make()

    def make_conda(self, name: str) -> dict[str, str]:
        with self._set_up(Environment(conda=name)) as (node, submission, steps):
            assert self.making is not None
            return Conda(node, submission, steps, self.command, self.making, lambda *_: "").make().environ

    @contextmanager
    def _set_up(self, wishes: Environment) -> Iterator[tuple[Node, Submission, Steps]]:
        self.said.clear()
        node = self.node()
        spec = Spec(name="job", run="true", setup=self.setup, environment=wishes)
        submission = Submission("job-abcd", spec, "me", code=Code(self.digest, 1, 1))
        host = Host(make_group(TRAINING, f"install-{os.getpid()}", sessions=self.root / "sessions"))
        log = self.root / "node/train.log"
        try:
            steps = Steps(host, log, self.said.append, self.check, pauses_s=(0.0, 0.0))
            self.making = Making(node, submission, steps, _ask, self.check)
            yield node, submission, steps
        finally:
            host.close()

    def settle(self) -> None:
        """Until everything is kept."""
        assert self.making is not None
        self.making.settle(lambda: float("inf"))

    def leave(self) -> None:
        """As when the agent has ended."""
        assert self.making is not None
        for held in self.making._held:
            held.release()

    def runs(self, environ: dict[str, str], *argv: str) -> str:
        """What a program says in this environment."""
        env = self.command(()).env | environ
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, cwd=self.code)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def version(self, environ: dict[str, str], module: str) -> str:
        return self.runs(environ, "python", "-c", f"import {module}; print({module}.__version__)")


def _ask(question: Callable[[], T]) -> T:
    return question()


@pytest.fixture
def bench(tmp_path: Path, index: PackageIndex, image: Path) -> Bench:
    return Bench(tmp_path, index, image)


# ── What is made, and what is not ─────────────────────────────────────────────────────────────────────────────────────


def test_nothing_is_made_where_everything_is_installed(bench: Bench) -> None:
    bench.write("requirements.txt", "torch>=2.4\nnumpy<2\n")
    before = len(bench.index.requests)
    assert bench.install() == {}
    assert bench.said == [
        f"requirements.txt: everything is installed already in {bench.python}, so no environment is made"
    ]
    assert len(bench.index.requests) == before, "somebody was asked for what is there"
    assert [path.name for path in bench.environments.iterdir()] == []


def test_an_environment_of_its_own_sees_nothing_of_the_image(bench: Bench) -> None:
    bench.write("requirements.txt", "lightning\n")
    environ = bench.install()
    assert bench.version(environ, "torch") == "2.5.0"
    assert bench.version(environ, "lightning") == "2.0"
    folder = Path(environ["VIRTUAL_ENV"])
    assert folder.parent == bench.environments
    assert environ["PATH"].split(os.pathsep)[:2] == [f"{folder}/bin", str(bench.python.parent)]
    # The image is as it was.
    assert bench.version({}, "torch") == "2.4.0+cu121"


def test_the_image_has_a_framework_that_is_not_seen(bench: Bench) -> None:
    bench.write("requirements.txt", "click\n")
    bench.install()
    told = "environment.system_packages: true keeps what the image has"
    line = f"requirements.txt: {bench.python} has torch 2.4.0+cu121, which its environment does not see; {told}"
    assert bench.said[-1] == line
    # Told each time, not only when it is made.
    bench.install()
    assert bench.said == ["requirements.txt: its environment is there already", line]


def test_system_packages_keep_the_images_own_pytorch(bench: Bench) -> None:
    bench.write("requirements.txt", "lightning\n")
    environ = bench.install(system_packages=True)
    assert bench.version(environ, "torch") == "2.4.0+cu121"
    assert bench.version(environ, "lightning") == "1.0", "what needs another PyTorch was chosen"
    assert bench.said[-1] == f"requirements.txt: kept of what {bench.python} has: torch 2.4.0+cu121, numpy 1.0"
    installed = {path.name for path in Path(environ["VIRTUAL_ENV"]).glob("lib/*/site-packages/*.dist-info")}
    assert installed == {"lightning-1.0.dist-info"}
    # The image's torchrun would start the image's Python, which has no lightning.
    assert bench.runs(environ, "torchrun") == f"torchrun {environ['VIRTUAL_ENV']} 1.0"


def test_what_is_replaced_is_told_and_no_more_is_than_must_be(bench: Bench) -> None:
    bench.write("requirements.txt", "fresh\nlightning\n")
    environ = bench.install(system_packages=True)
    assert bench.version(environ, "numpy") == "2.0"
    assert bench.version(environ, "torch") == "2.4.0+cu121"
    assert bench.version(environ, "lightning") == "1.0"
    assert bench.said[-2:] == [
        f"requirements.txt: replaced of what {bench.python} has: numpy 1.0 → 2.0",
        f"requirements.txt: kept of what {bench.python} has: torch 2.4.0+cu121",
    ]
    assert bench.version({}, "numpy") == "1.0"


def test_a_framework_that_has_to_go_is_replaced_and_told(bench: Bench) -> None:
    bench.write("requirements.txt", "torch>=2.5\n")
    environ = bench.install(system_packages=True)
    assert bench.version(environ, "torch") == "2.5.0"
    assert f"requirements.txt: replaced of what {bench.python} has: torch 2.4.0+cu121 → 2.5.0" in bench.said


def test_system_packages_of_a_python_that_is_no_environment(bench: Bench) -> None:
    plain = Path(getattr(sys, "_base_executable", sys.executable))
    if subprocess.run([plain, "-c", "import pip"], check=False, capture_output=True).returncode:
        pytest.skip(f"{plain} has no package to keep")
    bench.python = plain
    bench.write("requirements.txt", "fresh\npip\n")
    environ = bench.install(system_packages=True, python=str(plain))
    assert bench.version(environ, "fresh") == "1.0"
    assert bench.version(environ, "pip") == bench.version({}, "pip")
    assert "include-system-site-packages = true" in (Path(environ["VIRTUAL_ENV"]) / "pyvenv.cfg").read_text()


def test_pip_installs_into_the_environment_and_not_into_its_base(bench: Bench) -> None:
    bench.local = False
    bench.write("requirements.txt", "lightning==1.0\n")
    environ = bench.install()
    bench.runs(environ, "pip", "install", "--quiet", "click")
    assert bench.version(environ, "click") == "8.0"
    assert not list(bench.python.parent.parent.glob("lib/*/site-packages/click*"))


# ── Every kind of file ────────────────────────────────────────────────────────────────────────────────────────────────

PROJECT = """\
[project]
name = "mine"
version = "1"
requires-python = ">=3.10"
dependencies = ["lightning<2"]
"""


def test_a_project_has_its_dependencies_installed(bench: Bench) -> None:
    bench.write("pyproject.toml", PROJECT)
    environ = bench.install("pyproject.toml")
    assert (bench.version(environ, "lightning"), bench.version(environ, "torch")) == ("1.0", "2.5.0")


@pytest.mark.parametrize("name", ["uv.lock", "pylock.toml"])
def test_a_lock_says_what_is_installed(bench: Bench, name: str) -> None:
    bench.write("pyproject.toml", PROJECT.replace("lightning<2", "lightning<2', 'torch<2.5").replace("'", '"'))
    env = dict(bench.command(()).env)
    subprocess.run([find_uv_bin(), "lock"], cwd=bench.code, env=env, check=True, capture_output=True)
    if name == "pylock.toml":
        export = [find_uv_bin(), "export", "-q", "--no-emit-project", "--format=pylock.toml", "-o", name]
        subprocess.run(export, cwd=bench.code, env=env, check=True, capture_output=True)
    # Only the lock counts.
    bench.write("pyproject.toml", PROJECT)
    environ = bench.install(name)
    assert bench.version(environ, "torch") == "2.4.0"
    assert bench.install(name) == environ
    assert bench.said[0] == f"{name}: its environment is there already"


def test_parts_of_the_code_are_installed_as_they_are(bench: Bench) -> None:
    """Not as links to a folder that is gone with its node."""
    made = make_wheel("inner", "3.0")
    (bench.code / made.filename).write_bytes(made.data)
    bench.write("requirements.txt", f"./{made.filename}\n")
    environ = bench.install()
    (bench.code / made.filename).unlink()
    assert bench.version(environ, "inner") == "3.0"


# ── Again ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_it_is_made_once(bench: Bench) -> None:
    bench.write("requirements.txt", "click\n")
    first = bench.install()
    before = len(bench.index.requests)
    assert bench.install() == first
    assert len(bench.index.requests) == before
    bench.write("requirements.txt", "click # changed\n")
    assert bench.install() != first


def test_a_set_up_that_may_change_it_has_one_of_its_own(bench: Bench) -> None:
    bench.write("requirements.txt", "click\n")
    bench.setup = "pip install lightning"
    environ = bench.install()
    assert Path(environ["VIRTUAL_ENV"]).is_relative_to(bench.root / "node")


@pytest.mark.parametrize("requirements", [None, "none", "requirements.txt"])
@pytest.mark.parametrize("named", [True, False])
def test_a_set_up_changes_nobodys_python(bench: Bench, requirements: str | None, named: bool) -> None:
    """With nothing to install, and with everything there already."""
    bench.write("requirements.txt", "torch\n")
    bench.setup = "pip install lightning"
    base = bench.python
    if named:
        bench.python = Path("/usr/bin/python3")
    environ = bench.install(requirements, **({"python": str(base)} if named else {}))
    folder = Path(environ["VIRTUAL_ENV"])
    assert folder.is_relative_to(bench.root / "node") and not list(bench.environments.glob("*.lock"))
    assert bench.version(environ, "torch") == "2.4.0+cu121", "what the Python has is not seen"
    before = take_listing(base.parent.parent).dump()
    settings = {"PIP_INDEX_URL": bench.index.url, "PIP_CONFIG_FILE": os.devnull, "PIP_USER": "1"}
    said = bench.runs({**settings, **environ}, "pip", "install", "--no-cache-dir", "lightning<2")
    assert "torch" not in said.partition("Successfully installed")[2], "what is there was installed again"
    assert bench.runs(environ, "python", "-c", "import lightning; print(lightning.__file__)").startswith(str(folder))
    assert bench.runs(environ, "torchrun") == f"torchrun {folder} 1.0"
    assert take_listing(base.parent.parent).dump() == before
    # Made anew each time: nobody knows what an earlier one was left in.
    assert bench.install(requirements, **({"python": str(base)} if named else {})) == environ
    assert not list(folder.glob("lib/*/site-packages/lightning*"))


def test_a_set_up_on_a_python_that_is_no_environment(bench: Bench) -> None:
    plain = Path(getattr(sys, "_base_executable", sys.executable))
    bench.setup = "pip install fresh"
    bench.python = plain
    environ = bench.install(None)
    settings = {"PIP_INDEX_URL": bench.index.url, "PIP_CONFIG_FILE": os.devnull}
    bench.runs({**settings, **environ}, "pip", "install", "--no-cache-dir", "--no-deps", "fresh")
    there = bench.runs(environ, "python", "-c", "import fresh; print(fresh.__file__)")
    assert there.startswith(str(bench.root / "node"))
    # Programs are found in the order that they were found in.
    assert environ["PATH"] == f"{environ['VIRTUAL_ENV']}/bin:{bench.command(()).env['PATH']}"


def test_a_set_up_that_changes_nobodys_python_needs_no_environment(bench: Bench) -> None:
    assert bench.install(None) == {}
    bench.setup = "make"
    bench.local = False
    assert bench.install(None) == {}
    bench.local = True
    (bench.root / "bin").mkdir()
    (bench.root / "bin/sh").symlink_to("/bin/sh")
    bench.env = {"PATH": str(bench.root / "bin")}
    assert bench.install(None) == {}
    (said,) = bench.said
    assert said.startswith("setup has no environment of its own: environment.python: there is no python on this")


def test_the_next_machine_restores_it(bench: Bench) -> None:
    bench.local = False
    bench.write("requirements.txt", "lightning\n")
    environ = bench.install()
    bench.runs(environ, "python", "-c", "import lightning, torch")
    bench.settle()
    assert "is kept in the store for the next time" in bench.said[-1]
    shutil.rmtree(bench.environments)
    before = len(bench.index.requests)
    assert bench.install() == environ
    assert bench.said[0] == "running restore of requirements.txt"
    assert "requirements.txt: restored from the store (0 MB)" in bench.said
    assert len(bench.index.requests) == before
    assert bench.version(environ, "lightning") == "2.0"
    # Compiled by the first training, and good for the second.
    (compiled,) = Path(environ["VIRTUAL_ENV"]).glob("lib/*/site-packages/__pycache__/lightning.*.pyc")
    made_at = compiled.stat().st_mtime_ns
    bench.runs(environ, "python", "-c", "import lightning")
    assert compiled.stat().st_mtime_ns == made_at


def test_a_damaged_copy_is_told_made_anew_and_replaced(bench: Bench) -> None:
    bench.local = False
    bench.write("requirements.txt", "lightning\n")
    environ = bench.install()
    bench.settle()
    kept = bench.root / "store/work/environments"
    (largest,) = sorted(kept.glob("*/" + "?" * 64), key=lambda path: path.stat().st_size)[-1:]
    largest.write_bytes(largest.read_bytes()[:-5])
    shutil.rmtree(bench.environments)
    assert bench.install() == environ
    told = "requirements.txt: the environment that was kept cannot be used: a part of it is not what was kept"
    assert f"{told}; it is made anew" in bench.said
    assert bench.version(environ, "lightning") == "2.0"
    bench.settle()
    shutil.rmtree(bench.environments)
    assert bench.install() == environ
    assert "requirements.txt: restored from the store (0 MB)" in bench.said


def test_a_copy_whose_python_does_not_run_is_made_anew(bench: Bench) -> None:
    bench.local = False
    bench.write("requirements.txt", "lightning\n")
    environ = bench.install()
    bench.settle()
    # Kept under the right name, and made for another processor.
    folder = Path(environ["VIRTUAL_ENV"])
    (folder / "bin/python").unlink()
    (folder / "bin/python").write_bytes(b"\x7fELF of another kind")
    (folder / "bin/python").chmod(0o755)
    cached = cache.Cache(open_store((bench.root / "store").as_uri()), "job-abcd")
    found = cached.find(folder.name)
    assert found is not None
    cached.discard(cache.Damaged("", *cached.names(found)))
    assert cached.keep(folder.name, found.kept.platform, folder, take_listing(folder))
    shutil.rmtree(bench.environments)
    assert bench.install() == environ
    assert any("its Python does not run here; it is made anew" in line for line in bench.said)
    assert bench.version(environ, "lightning") == "2.0"


# ── Changed by a training ─────────────────────────────────────────────────────────────────────────────────────────────

CHANGED = "requirements.txt: its environment was changed after it was made"


@pytest.mark.parametrize("local", [True, False])
def test_what_a_training_installed_is_not_there_for_the_next_job(bench: Bench, local: bool) -> None:
    bench.local = local
    bench.write("requirements.txt", "numpy==1.0\n")
    environ = bench.install(python=sys.executable)
    bench.settle()
    bench.runs(environ, "pip", "install", "--quiet", "numpy==2.0", "click")
    assert bench.version(environ, "numpy") == "2.0"
    bench.leave()
    assert bench.install(python=sys.executable) == environ
    assert bench.said[0] == f"{CHANGED}, so it is made anew"
    restored = "requirements.txt: restored from the store (0 MB)" in bench.said
    assert restored is not local
    assert bench.version(environ, "numpy") == "1.0"
    assert not list(Path(environ["VIRTUAL_ENV"]).glob("lib/*/site-packages/click*"))
    bench.leave()
    bench.install(python=sys.executable)
    assert bench.said[0] == "requirements.txt: its environment is there already"


def test_what_somebody_else_trains_with_is_left_to_them(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf, "_LOOKED_S", 0.2)
    bench.write("requirements.txt", "numpy==1.0\n")
    theirs = bench.install(python=sys.executable)
    bench.runs(theirs, "pip", "install", "--quiet", "numpy==2.0")
    ours = bench.install(python=sys.executable)
    assert bench.said[0] == f"{CHANGED}, and is in use, so this node gets its own"
    assert Path(ours["VIRTUAL_ENV"]).is_relative_to(bench.root / "node")
    assert (bench.version(ours, "numpy"), bench.version(theirs, "numpy")) == ("1.0", "2.0")


def test_one_of_a_nodes_own_is_not_kept_for_others(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its programs name another place than its key says."""
    monkeypatch.setattr(shelf, "_LOOKED_S", 0.2)
    bench.local = False
    bench.write("requirements.txt", "numpy==1.0\n")
    theirs = bench.install(python=sys.executable)
    bench.runs(theirs, "pip", "install", "--quiet", "numpy==2.0")
    bench.install(python=sys.executable)
    bench.settle()
    assert not any("is kept in the store" in line for line in bench.said)


# ── Settings of uv's own ──────────────────────────────────────────────────────────────────────────────────────────────


def test_what_variables_say_counts(bench: Bench, tmp_path: Path) -> None:
    bench.write("requirements.txt", "lightning\n")
    first = bench.install()
    assert bench.version(first, "lightning") == "2.0"
    pins = tmp_path / "pins.txt"
    pins.write_text("lightning<2\n")
    bench.env = {"UV_CONSTRAINT": str(pins)}
    second = bench.install()
    assert bench.version(second, "lightning") == "1.0"
    pins.write_text("lightning>1\n")
    assert bench.version(bench.install(), "lightning") == "2.0"
    # How it is fetched is nothing to what is fetched.
    bench.env = {"UV_HTTP_TIMEOUT": "99", "UV_CONCURRENT_DOWNLOADS": "2"}
    assert bench.install() == first


def test_what_the_users_own_settings_say_counts(bench: Bench, tmp_path: Path) -> None:
    bench.write("requirements.txt", "lightning\n")
    bench.env = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    assert bench.version(bench.install(), "lightning") == "2.0"
    (tmp_path / "config/uv").mkdir(parents=True)
    (tmp_path / "config/uv/uv.toml").write_text('exclude-newer = "2001-01-01"\nresolution = "lowest"\n')
    with pytest.raises(SetupFailed, match=r"no versions? of lightning"):
        bench.install()


def test_a_package_of_the_code_is_never_taken_for_an_older_one(bench: Bench) -> None:
    bench.write("requirements.txt", "--no-index --find-links wheels\ninner\n")
    for number in ("1", "2"):
        made = make_wheel("inner", "3.0", files={"inner.py": f"__version__ = '{number}'\n".encode()})
        (bench.code / "wheels").mkdir(exist_ok=True)
        (bench.code / "wheels" / made.filename).write_bytes(made.data)
        bench.digest = number * 64
        # Each job has its own folder, and uv knows wheels by their place.
        shutil.rmtree(bench.root / "cache", ignore_errors=True)
        assert bench.version(bench.install(), "inner") == number


def test_code_for_another_processor_is_not_restored(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.write("requirements.txt", "click\n")
    first = bench.install()
    monkeypatch.setattr(processor, "level", lambda: "v9")
    assert bench.install() != first


# ── What goes wrong ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_package_that_is_nowhere_is_named(bench: Bench) -> None:
    bench.write("requirements.txt", "no-such-package\n")
    with pytest.raises(SetupFailed) as failure:
        bench.install()
    assert failure.value.user
    told = "environment.requirements: requirements.txt cannot be installed: No solution found when resolving"
    assert str(failure.value).startswith(told) and "no-such-package was not found" in str(failure.value)
    # Nothing of it stays, and nothing is taken for whole.
    assert not [path for path in bench.environments.iterdir() if path.is_dir()]
    with pytest.raises(SetupFailed):
        bench.install()


@pytest.mark.parametrize("system_packages", [False, True])
def test_an_index_that_does_not_answer_is_the_machines_fault(bench: Bench, system_packages: bool) -> None:
    bench.write("requirements.txt", "lightning\n")
    bench.env = {"UV_DEFAULT_INDEX": "http://jane:hunter2@127.0.0.1:1/simple/", "UV_HTTP_RETRIES": "0"}
    with pytest.raises(SetupFailed) as failure:
        bench.install(system_packages=system_packages)
    assert not failure.value.user
    away = "http://127.0.0.1:1/simple/lightning/ does not answer (Connection refused)"
    # With the image's own packages in mind it is found out beforehand, without a step.
    named = "environment.requirements" if system_packages else "requirements.txt"
    assert bench.said.count(f"{named}: {away}; trying again in 0 s") == 2
    what = "" if system_packages else " requirements.txt cannot be installed:"
    assert str(failure.value) == f"environment.requirements:{what} {away}"
    assert not [path for path in bench.environments.iterdir() if path.is_dir()]


def test_an_index_that_answers_late_is_waited_for(bench: Bench) -> None:
    bench.write("requirements.txt", "lightning\n")
    bench.env = {"UV_HTTP_RETRIES": "0"}
    bench.index.failing = 2
    assert bench.version(bench.install(), "lightning") == "2.0"
    assert any("does not answer (503 Service Unavailable); trying again" in line for line in bench.said)


def test_a_channel_that_answers_late_is_waited_for(bench: Bench) -> None:
    """conda refuses a prefix that is there: what a failed try left is taken away."""
    (bench.root / "bin").mkdir()
    program = bench.root / "bin/conda"
    program.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = --version ]; then echo conda 9.9; exit; fi\n'
        'while [ "$1" != --prefix ]; do shift; done\n'
        'mkdir "$2" || exit 7\n'
        f"if [ ! -e {bench.root}/asked ]; then touch {bench.root}/asked\n"
        'echo "CondaHTTPError: HTTP 000 CONNECTION FAILED for url <https://host/noarch/repodata.json>"; exit 1; fi\n'
        'mkdir "$2/conda-meta"\n'
    )
    program.chmod(0o755)
    bench.env = {"PATH": f"{bench.root}/bin:/usr/bin:/bin"}
    bench.write("environment.yml", "dependencies: [python]\n")
    assert (Path(bench.make_conda("environment.yml")["CONDA_PREFIX"]) / "conda-meta").is_dir()
    away = "https://host/noarch/repodata.json does not answer (HTTP 000 CONNECTION FAILED)"
    assert f"environment.yml: {away}; trying again in 0 s" in bench.said


def test_a_mistake_in_the_file_is_told_with_its_place(bench: Bench) -> None:
    bench.write("requirements.txt", "click\nnumpy==\n")
    with pytest.raises(SetupFailed) as failure:
        bench.install()
    assert failure.value.user
    said = "Couldn't parse requirement in `requirements.txt` at position 6: Unexpected end of version specifier"
    assert str(failure.value).startswith(f"environment.requirements: requirements.txt cannot be installed: {said}")


def test_a_file_that_is_gone_is_named(bench: Bench) -> None:
    with pytest.raises(SetupFailed, match=r"environment.requirements: there is no gone.txt in the code folder"):
        bench.install("gone.txt")


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ("3.99", "environment.python: there is no Python '3.99' on this machine; there are "),
        ("vision", "environment.python: there is no Python 'vision' on this machine; there are "),
        ("/opt/none/bin/python", "environment.python: there is no Python '/opt/none/bin/python' on this machine"),
        ("/bin/false", "environment.python: /bin/false does not run on this machine"),
    ],
)
def test_a_python_that_is_not_there(bench: Bench, wanted: str, told: str) -> None:
    bench.local = False
    with pytest.raises(SetupFailed) as failure:
        bench.install(None, python=wanted)
    assert failure.value.user
    assert str(failure.value).startswith(told)
    assert "\n" not in str(failure.value)


def test_a_python_by_its_version_is_what_python_means(bench: Bench, tmp_path: Path) -> None:
    bench.local = False
    programs = tmp_path / "programs"
    programs.mkdir()
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    plain = getattr(sys, "_base_executable", sys.executable)
    (programs / f"python{version}").symlink_to(plain)
    bench.python = programs / "python"
    environ = bench.install(None, python=version)
    assert bench.runs(environ, "python", "-c", "import sys; print(sys.version_info[:2])") == str(sys.version_info[:2])


@pytest.mark.parametrize("other", [True, False])
def test_a_python_of_this_computer_is_what_python_means_where_nothing_is_installed(
    bench: Bench, tmp_path: Path, other: bool
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "mine").symlink_to(getattr(sys, "_base_executable", sys.executable))
    if other:
        # As where `/usr/bin/python3.11` is named, and `/usr/bin/python` is another one.
        (programs / "python").write_text("#!/bin/sh\necho other\n")
        (programs / "python").chmod(0o755)
    environ = bench.install(None, python=str(programs / "mine"))
    for name in ("python", "python3"):
        # The link is the node's own, and leads to the one that was named.
        link = bench.root / "node/bin" / name
        assert bench.runs(environ, name, "-c", "import sys; print(sys.executable)") == str(link)
        assert link.samefile(programs / "mine")
    # One that is called `python` needs nothing, and nobody is asked.
    (programs / "python").unlink(missing_ok=True)
    (programs / "python").symlink_to(programs / "mine")
    assert bench.install(None, python=str(programs / "python")) == {}


def test_a_python_by_the_name_of_its_conda_environment(bench: Bench, tmp_path: Path) -> None:
    bench.local = False
    folder = tmp_path / "conda/envs/vision/bin"
    folder.mkdir(parents=True)
    (tmp_path / "conda/bin").mkdir()
    shutil.copy("/bin/true", tmp_path / "conda/bin/conda")
    (folder / "python").symlink_to(getattr(sys, "_base_executable", sys.executable))
    bench.python = tmp_path / "conda/bin/python"
    environ = bench.install(None, python="vision")
    assert environ["PATH"].startswith(str(folder))


def test_being_told_to_go_ends_an_installation(bench: Bench) -> None:
    class Told(Exception):
        pass

    def check() -> None:
        if any(line == "running requirements.txt" for line in bench.said):
            raise Told

    bench.check = check
    bench.write("requirements.txt", "lightning\n")
    with pytest.raises(Told):
        bench.install()
    bench.check = lambda: None
    environ = bench.install()
    assert bench.version(environ, "lightning") == "2.0"


def test_what_uv_says_that_it_changed() -> None:
    text = "Resolved 5 packages\n - torch==2.4.0\n + torch==2.5.0 (from file:///x)\n + mine @ file:///y\n ~ a-b==1\n"
    assert read_changes(text) == (
        Change("-", "torch", "2.4.0"),
        Change("+", "torch", "2.5.0"),
        Change("+", "mine", None),
        Change("~", "a-b", "1"),
    )
