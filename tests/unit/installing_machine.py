"""A machine that installs packages with the real uv, from an index on loopback, on a Python that has some already."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest
from uv import find_uv_bin

from stoker.agent.environment.build import EnvironmentBuilder
from stoker.agent.environment.conda import Conda
from stoker.agent.environment.install_packages import Packages
from stoker.agent.environment.steps import SetupSteps
from stoker.agent.node import AgentNode
from stoker.agent.runtime import Command, HostRuntime
from stoker.model.node_config import NodeConfig, NodePaths
from stoker.model.spec import Environment, Spec
from stoker.model.submission import Code, Submission
from stoker.processes import TRAINING, make_group
from stoker.secrets.fetch_secrets import fetch
from stoker.store.base import open_store
from tests.support.package_index import PackageIndex, make_wheel, package_index

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
        self.making: EnvironmentBuilder | None = None
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

    def node(self) -> AgentNode:
        config = NodeConfig((self.root / "store").as_uri(), "test", "job-abcd", 2, 0, 1, "i-1")
        machine = LocalMachine(self.environments) if self.local else CloudMachine()
        made = AgentNode(config, NodePaths(self.root / "node"), open_store(config.store), machine, "work/x")  # type: ignore[arg-type]
        # Nothing but what is told to people.
        object.__setattr__(made, "say", self.said.append)
        return made

    def install(self, requirements: str | None = "requirements.txt", **wishes: object) -> dict[str, str]:
        """Install, as a set-up does. Answers the variables of the training."""
        wanted = Environment(requirements=requirements, **wishes)  # type: ignore[arg-type]
        with self._set_up(wanted) as making:
            return Packages(making, self.command, _fetch).make()

    def make_conda(self, name: str) -> dict[str, str]:
        with self._set_up(Environment(conda=name)) as making:
            return Conda(making, self.command, lambda *_: "").make().environ

    @contextmanager
    def _set_up(self, wishes: Environment) -> Iterator[EnvironmentBuilder]:
        self.said.clear()
        node = self.node()
        spec = Spec(name="job", run="true", setup=self.setup, environment=wishes)
        submission = Submission("job-abcd", spec, "me", code=Code(self.digest, 1, 1))
        host = HostRuntime(make_group(TRAINING, f"install-{os.getpid()}", sessions=self.root / "sessions"))
        log = self.root / "node/train.log"
        try:
            steps = SetupSteps(host, log, self.said.append, self.check, pauses_s=(0.0, 0.0))
            self.making = EnvironmentBuilder(node, submission, steps, _ask, self.check)
            yield self.making
        finally:
            host.close()

    def wait_for_uploads(self) -> None:
        """Until everything is kept."""
        assert self.making is not None
        self.making.wait_for_uploads(lambda: float("inf"))

    def leave(self) -> None:
        """As when the agent has ended."""
        assert self.making is not None
        for held in self.making._locks:
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


def _fetch(field: str, reference: str) -> str:
    return fetch(field, reference, os.environ)


@pytest.fixture
def bench(tmp_path: Path, index: PackageIndex, image: Path) -> Bench:
    return Bench(tmp_path, index, image)
