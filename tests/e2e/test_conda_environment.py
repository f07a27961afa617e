"""conda, mamba and micromamba by their exact command lines: none of them can be had here, so a small program stands in
for each. It notes how it was called, makes a prefix, and shows the channel's password wherever it can."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from harness import EXAMPLES, World
from test_secrets_nowhere import found_in

from stoker import client
from stoker.model.errors import UserError

PASSWORD = "hunter2/Zm9v+bar='x\" &9"
FILE = "name: train\nchannels:\n  - conda-forge\ndependencies:\n  - python=3.12\n"

# The stand-in. What is expanded in a condarc, conda and micromamba expand alike.
PROGRAM = """\
#!{python}
import json, os, sys
from pathlib import Path

words = sys.argv[1:]
if words == ["--version"]:
    print("{name} 9.9")
    raise SystemExit
value = lambda option: words[words.index(option) + 1]
prefix = Path(value("--prefix"))
rules = Path(os.environ["CONDARC"]).read_text() if "CONDARC" in os.environ else ""
told = {{
    "words": words,
    "file": Path(value("--file")).read_text(),
    "folder": os.getcwd(),
    "condarc": rules,
    "yes": os.environ.get("CONDA_ALWAYS_YES"),
}}
with open({journal!r}, "a") as journal:
    journal.write(json.dumps(told) + "\\n")
channel = os.path.expandvars(rules)
print("solving with", channel)
if "broken" in told["file"]:
    raise SystemExit("PackagesNotFoundError: broken")
(prefix / "bin").mkdir(parents=True)
(prefix / "conda-meta").mkdir()
(prefix / "bin/python").symlink_to({python!r})
(prefix / "conda-meta/history").write_text(channel)
packages = Path(os.environ.get("CONDA_PKGS_DIRS", prefix / "pkgs"))
packages.mkdir(parents=True)
(packages / "urls.txt").write_text(channel if "CONDA_PKGS_DIRS" in os.environ else "")
"""
TRAIN = "import os, shutil\nprint('prefix', os.environ['CONDA_PREFIX'], 'python', shutil.which('python'), flush=True)\n"


class Stand:
    def __init__(self, world: World, name: str) -> None:
        self.folder = world.root / "bin"
        self.folder.mkdir()
        self._journal = world.truth / "conda"
        program = self.folder / name
        program.write_text(PROGRAM.format(python=sys.executable, name=name, journal=str(self._journal)))
        program.chmod(0o755)

    @property
    def told(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self._journal.read_text().splitlines()]


@pytest.fixture
def stand(world: World, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Stand:
    made = Stand(world, request.param)
    monkeypatch.setenv("PATH", str(made.folder), prepend=":")
    for name in ("CONDA_EXE", "MAMBA_EXE", "CONDARC"):
        monkeypatch.delenv(name, raising=False)
    world.write(TRAIN)
    (world.code / "environment.yml").write_text(FILE)
    return made


def prefix_of(world: World) -> Path:
    (made,) = [path for path in (world.home / "environments").iterdir() if (path / "conda-meta").exists()]
    return made


@pytest.mark.parametrize(
    ("stand", "words"),
    [
        ("conda", ["env", "create", "--quiet", "--file", "{file}", "--prefix", "{prefix}"]),
        ("mamba", ["env", "create", "--quiet", "--file", "{file}", "--prefix", "{prefix}"]),
        ("micromamba", ["create", "--yes", "--quiet", "--file", "{file}", "--prefix", "{prefix}"]),
    ],
    indirect=["stand"],
)
def test_the_exact_command_line(world: World, stand: Stand, words: list[str]) -> None:
    job = world.submit(environment={"conda": "environment.yml"})
    assert world.ended(job).phase == "succeeded", world.story(job)
    prefix = prefix_of(world)
    (told,) = stand.told
    (file,) = [word for word in told["words"] if str(word).endswith("environment.yml")]  # type: ignore[attr-defined]
    assert told["words"] == [word.format(file=file, prefix=prefix) for word in words]
    assert told["file"] == FILE and told["condarc"] == "" and told["yes"] == "true"
    assert f"prefix {prefix} python {prefix}/bin/python" in world.lines(job)
    # The second time it is there.
    job = world.submit(environment={"conda": "environment.yml"})
    assert world.ended(job).phase == "succeeded", world.story(job)
    assert len(stand.told) == 1
    assert "[stoker] environment.yml: its environment exists already" in world.lines(job)


@pytest.mark.parametrize("stand", ["conda", "micromamba"], indirect=True)
def test_a_channel_whose_password_is_nowhere(world: World, stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPANY_TOKEN", PASSWORD)
    channel = {"url": "https://jane@packages.example/conda", "secret": "env:COMPANY_TOKEN"}
    job = world.submit(environment={"conda": "environment.yml", "conda_channel": channel})
    assert world.ended(job).phase == "succeeded", world.story(job)
    (told,) = stand.told
    place = "https://${STOKER_CONDA_USER}:${STOKER_CONDA_PASSWORD}@packages.example/conda"
    assert told["condarc"] == f"channels: #!final\n  - {place}\ndefault_channels: #!final\n  - {place}\n"
    assert told["file"] == "name: train\ndependencies:\n  - python=3.12\n"
    assert ("--rc-file" in told["words"]) == (stand.folder / "micromamba").exists()  # type: ignore[operator]
    assert "jane:***@packages.example" in world.printed(job).decode()
    assert "jane:***@packages.example" in (prefix_of(world) / "conda-meta/history").read_text()
    assert found_in(world.root, PASSWORD) == []
    assert not list(world.home.glob("nodes/*/*/.conda")), "its packages are left on the disk"
    assert not list(world.home.glob("nodes/*/*/code/.stoker-*"))


@pytest.mark.parametrize("stand", ["conda"], indirect=True)
def test_the_example(world: World, stand: Stand) -> None:
    shutil.copytree(EXAMPLES / "conda", world.code, dirs_exist_ok=True)
    ran = world.cli("run")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"in {prefix_of(world)}" in ran.stdout


@pytest.mark.parametrize("stand", ["conda"], indirect=True)
def test_a_failure_names_the_file(world: World, stand: Stand) -> None:
    (world.code / "environment.yml").write_text(FILE + "  - broken\n")
    summary = world.run(environment={"conda": "environment.yml"})
    assert summary.phase == "failed"
    told = "environment.conda: environment.yml cannot be installed: PackagesNotFoundError: broken"
    assert told in summary.reason


@pytest.mark.parametrize("stand", ["conda"], indirect=True)
def test_no_conda_at_all(world: World, stand: Stand, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    job = world.submit(detach=False, environment={"conda": "environment.yml"})
    (stand.folder / "conda").unlink()
    with pytest.raises(UserError, match=r"^environment.conda: there is no conda, .* on this computer; install one"):
        world.submit(environment={"conda": "environment.yml"})
    # One that goes later ends the job.
    summary = client.wait(job, world.url)
    assert summary.phase == "failed"
    assert (
        "environment.conda: there is no conda, mamba or micromamba on this machine; choose an image" in summary.reason
    )


@pytest.mark.parametrize("stand", ["conda"], indirect=True)
def test_a_file_that_is_not_there(world: World, stand: Stand) -> None:
    (world.code / "environment.yml").unlink()
    with pytest.raises(UserError, match=r"environment.conda: environment.yml is not in the code folder; name an"):
        world.submit(environment={"conda": "environment.yml"})
