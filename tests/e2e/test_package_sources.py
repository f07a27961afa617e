"""Where packages come from on `local`: a private index whose password is nowhere, wheels without an index, and apt."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import EXAMPLES, World, until
from test_secrets_nowhere import arguments, found_in

from stoker import client
from stoker.model.errors import UserError
from tests.support.package_index import PackageIndex, make_wheel, package_index

PASSWORD = "hunter2/Zm9v+bar='x\" &9"
WHEELS = (
    make_wheel("alpha", "1.0", requires=("beta",)),
    make_wheel("beta", "1.0"),
    make_wheel("gamma", "3.0"),
)
TRAIN = """\
import os, alpha, beta
print("alpha", alpha.__version__, "beta", beta.__version__, flush=True)
print("variables:", sorted(name for name in os.environ if "INDEX" in name or "TOKEN" in name), flush=True)
print(dict(os.environ), flush=True)
"""


@pytest.fixture(autouse=True)
def own_cache(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that nobody else has, and none of this computer's own sources."""
    monkeypatch.setenv("UV_CACHE_DIR", str(world.root / "uv-cache"))
    for name in ("UV_FIND_LINKS", "PIP_FIND_LINKS", "UV_DEFAULT_INDEX"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def private(monkeypatch: pytest.MonkeyPatch) -> Iterator[PackageIndex]:
    monkeypatch.setenv("COMPANY_TOKEN", PASSWORD)
    with package_index(*WHEELS, password=PASSWORD, user="jane") as served:
        yield served


class Watching:
    """Looks at the arguments of every process, again and again, for a text that must not be there."""

    def __init__(self, text: str) -> None:
        self.seen: list[bytes] = []
        self._text = os.fsencode(text)
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._enough.wait(0.01):
            self.seen += [words for words in arguments().values() if self._text in words]

    def __enter__(self) -> Watching:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self._thread.join()


def test_a_private_index_whose_password_is_nowhere(world: World, private: PackageIndex) -> None:
    world.write(TRAIN)
    (world.code / "requirements.txt").write_text("alpha\n")
    address = private.url.replace("//", "//jane@")
    with Watching(PASSWORD) as watching:
        summary = world.run(
            environment={"index": {"url": address, "secret": "env:COMPANY_TOKEN"}},
            setup='pip install gamma; echo "pip asks $PIP_INDEX_URL with $UV_INDEX_STOKER_PASSWORD"; env | sort',
        )
    assert summary.phase == "succeeded", world.story(summary.id)
    printed = world.printed(summary.id).decode()
    assert "alpha 1.0 beta 1.0\n" in printed
    assert "pip asks *** with ***\n" in printed
    # Only what is set up is told of it.
    assert "variables: []\n" in printed
    assert private.refused == 0
    assert "/files/gamma-3.0-py3-none-any.whl" in private.requests
    assert not watching.seen
    assert found_in(world.root, PASSWORD) == []


def test_a_wrong_password_is_told_without_it(
    world: World, private: PackageIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPANY_TOKEN", f"not-{PASSWORD}")
    world.write(TRAIN)
    (world.code / "requirements.txt").write_text("alpha\n")
    summary = world.run(environment={"index": {"url": private.url, "secret": "env:COMPANY_TOKEN"}})
    assert summary.phase == "failed"
    assert "environment.requirements: requirements.txt cannot be installed: " in summary.reason
    assert "401 Unauthorized" in summary.reason
    assert any("401 Unauthorized" in line for line in world.lines(summary.id))
    assert found_in(world.root, PASSWORD) == []


def test_a_password_that_is_not_exported(world: World) -> None:
    world.write(TRAIN)
    with pytest.raises(UserError, match=r"environment.index.secret: COMPANY_TOKEN is not set in your environment"):
        world.submit(environment={"index": {"url": "https://packages.example", "secret": "env:COMPANY_TOKEN"}})


@pytest.mark.parametrize("kind", ["requirements.txt", "uv.lock"])
def test_wheels_are_gathered_at_submission_and_no_index_is_asked_later(
    world: World, private: PackageIndex, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.write(TRAIN)
    index = {"url": private.url.replace("//", "//jane@"), "secret": "env:COMPANY_TOKEN"}
    if kind == "uv.lock":
        lock(world.code, private)
    else:
        (world.code / "requirements.txt").write_text("alpha\n")
    job = world.submit(environment={"wheels": "pack", "requirements": kind, "index": index})
    asked = len(private.requests)
    summary = world.ended(job)
    assert summary.phase == "succeeded", world.story(job)
    assert "alpha 1.0 beta 1.0" in world.lines(job)
    assert len(private.requests) == asked
    assert len(list((world.folder / "wheels").iterdir())) == 2
    assert found_in(world.root, PASSWORD) == []
    # A clone needs neither the folder nor the index.
    (world.code / "requirements.txt").unlink(missing_ok=True)
    clone = client.clone(job, store=world.url, detach=True)
    assert world.ended(clone).phase == "succeeded", world.story(clone)
    assert len(private.requests) == asked
    assert not list(world.home.glob("nodes/*/*/wheels/*")), "what was installed from is left on the disk"


def lock(code: Path, index: PackageIndex) -> None:
    from stoker.model.spec import PackageIndex as Source
    from stoker.submit import wheels

    (code / "pyproject.toml").write_text(
        '[project]\nname = "p"\nversion = "1"\nrequires-python = ">=3.10"\ndependencies = ["alpha"]\n'
    )
    access = wheels._Access(Source(index.url.replace("//", "//jane@"), "env:COMPANY_TOKEN"))
    ran = access.uv("lock", cwd=code)
    assert ran.returncode == 0, ran.stderr


def test_the_example_of_wheels(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(EXAMPLES / "wheels", world.code, dirs_exist_ok=True)
    module = b"def naturalsize(size):\n    return f'{size / 1e6:.1f} MB'\n"
    with package_index(make_wheel("humanize", "4.9", files={"humanize.py": module})) as index:
        monkeypatch.setenv("UV_DEFAULT_INDEX", index.url)
        ran = world.cli("run")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "read 3.0 MB with a package out of the store" in ran.stdout


def test_the_example_of_apt(world: World) -> None:
    shutil.copytree(EXAMPLES / "apt", world.code, dirs_exist_ok=True)
    planned = world.cli("run", "--dry-run", "--store", "s3://bucket/team")
    assert planned.returncode == 0, planned.stdout + planned.stderr
    (world.code / "stoker.yaml").write_text("run: python3 train.py\nenvironment: {apt: [no-such-package]}\n")
    refused = world.cli("run")
    assert refused.returncode == 2 and "which Stoker never changes: no-such-package" in refused.stderr


def test_the_plan_tells_what_wheels_weigh(world: World, private: PackageIndex) -> None:
    world.write(TRAIN)
    (world.code / "requirements.txt").write_text("alpha\n")
    (world.code / "stoker.yaml").write_text(
        "name: packed\nrun: python train.py\n"
        f"environment: {{wheels: pack, index: {{url: '{private.url}', secret: 'env:COMPANY_TOKEN'}}}}\n"
    )
    dry = world.cli("run", "--dry-run")
    assert "environment.wheels: the run itself gathers them, for 3." in dry.stderr
    private.user = "__token__"
    ran = world.cli("run")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "wheels: 2 files, " in ran.stderr


def test_packages_without_a_wheel_stop_the_submission(world: World, private: PackageIndex) -> None:
    private.add(make_wheel("delta", "1.0", tag="cp27-cp27m-win32"))
    world.write(TRAIN)
    (world.code / "requirements.txt").write_text("delta\n")
    with pytest.raises(UserError, match=r"environment.wheels: there is no wheel of delta for Python 3\.\d+ on"):
        world.submit(
            environment={
                "wheels": "pack",
                "index": {"url": private.url.replace("//", "//jane@"), "secret": "env:COMPANY_TOKEN"},
            }
        )
    assert not list(world.store.list("jobs/"))


def test_this_computer_is_not_changed_for_apt(world: World) -> None:
    world.write("print('trained')\n")
    with pytest.raises(UserError) as failure:
        world.submit(environment={"apt": ["no-such-package-anywhere"]})
    assert "environment.apt: not installed on this computer, which Stoker never changes" in str(failure.value)
    assert not list(world.store.list("jobs/"))
    if not Path("/usr/bin/dpkg-query").exists():
        return
    job = world.submit(environment={"apt": ["dpkg"]})
    assert world.ended(job).phase == "succeeded", world.story(job)
    until(lambda: "installed already: dpkg" in world.lines(job), "the step is in the log")
