"""The environment that a machine's image brings: it is found, used, kept as it is, and told."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import installing_machine
import pytest
from installing_machine import Bench, uv
from noticing_machine import Here

from stoker.agent import main
from stoker.agent.environment import python as python_module
from stoker.agent.environment.image_environments import image_path
from stoker.agent.environment.python import Python, activate
from stoker.model.errors import SetupFailed
from stoker.model.spec import Container
from tests.support.package_index import PackageIndex, make_wheel

# Fixtures that all tests of installing share.
index, image, bench = installing_machine.index, installing_machine.image, installing_machine.bench

SYSTEM = "/usr/local/bin:/usr/bin:/bin"


# ── Which one comes first on the PATH ─────────────────────────────────────────────────────────────────────────────────


def brings(root: Path, name: str, framework: str | None = None) -> str:
    """Lay an environment into an image; answer its folder of programs."""
    folder = root / name
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/python").touch(0o755)
    if framework:
        (folder / "lib/python3.12/site-packages" / framework).mkdir(parents=True)
    return str(folder / "bin")


@pytest.mark.parametrize(
    "name",
    [
        # "python_location | /opt/pytorch/bin/python": the DLAMI's release notes, such as
        # https://docs.aws.amazon.com/dlami/latest/devguide/aws-deep-learning-ami-gpupt29oss-ul2404-2026-01-08.html
        "opt/pytorch",
        "opt/conda/envs/pytorch",
        "opt/conda",
        "opt/tensorflow",
        # https://awsdocs-neuron.readthedocs-hosted.com/en/latest/dlami/index.html
        "opt/aws_neuronx_venv_pytorch_2_9",
        "opt/aws_neuron_venv_pytorch",
    ],
)
def test_the_images_environment_comes_first(tmp_path: Path, name: str) -> None:
    expected = brings(tmp_path, name, "torch")
    assert image_path(SYSTEM, tmp_path) == f"{expected}:{SYSTEM}"


def test_the_one_with_a_framework_comes_before_others(tmp_path: Path) -> None:
    conda, torch = brings(tmp_path, "opt/conda"), brings(tmp_path, "opt/conda/envs/pytorch", "torch")
    assert image_path(f"{conda}:{SYSTEM}", tmp_path) == f"{torch}:{conda}:{SYSTEM}"
    empty = tmp_path / "other"
    base, bare = brings(empty, "opt/conda", "jax"), brings(empty, "opt/pytorch")
    assert image_path(SYSTEM, empty) == f"{base}:{bare}:{SYSTEM}"


def test_the_images_own_choice_comes_before_other_environments(tmp_path: Path) -> None:
    """An image whose profile activates an environment means that one."""
    mine, torch = brings(tmp_path, "srv/mine", "torch"), brings(tmp_path, "opt/pytorch", "torch")
    assert image_path(f"{mine}:{SYSTEM}", tmp_path) == f"{mine}:{torch}:{SYSTEM}"


def test_stokers_own_python_is_no_environment(tmp_path: Path) -> None:
    """Its folder ends the PATH, for images that have only a `python3`."""
    own = brings(tmp_path, "opt/stoker")
    assert image_path(f"{SYSTEM}:{own}", tmp_path) == f"{SYSTEM}:{own}"
    conda = brings(tmp_path, "opt/conda")
    assert image_path(f"{SYSTEM}:{own}", tmp_path) == f"{conda}:{SYSTEM}:{own}"


def test_of_several_for_neuron_the_newest_for_training_comes_first(tmp_path: Path) -> None:
    names = ("_2_9", "_2_10", "_2_10_nxd_inference", "_inference_vllm_0_13", "_2_8_nxd_training")
    found = {name: brings(tmp_path, f"opt/aws_neuronx_venv_pytorch{name}", "torch") for name in names}
    assert image_path(SYSTEM, tmp_path) == f"{found['_2_10']}:{found['_2_9']}:{SYSTEM}"


def test_a_plain_image_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "opt/pytorch/bin").mkdir(parents=True)  # Without a Python.
    assert image_path(SYSTEM, tmp_path) == SYSTEM


class Own(Here):
    """A person's computer, whose environments stay."""

    environments = Path("/environments")


def test_a_persons_own_conda_is_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "image_path", lambda search: f"/opt/conda/bin:{search}")
    monkeypatch.setenv("PATH", SYSTEM)
    main._use_image_environment(Own())
    assert os.environ["PATH"] == SYSTEM
    main._use_image_environment(Here())
    assert os.environ["PATH"] == f"/opt/conda/bin:{SYSTEM}"


# ── Any Python of an image ────────────────────────────────────────────────────────────────────────────────────────────


def test_what_a_python_is_asked_runs_under_python_3_6() -> None:
    tree = ast.parse(python_module._ASK, feature_version=(3, 6))
    assert "importlib.metadata" not in {ast.unparse(each) for each in ast.walk(tree) if isinstance(each, ast.expr)}
    imported = {each.name for node in ast.walk(tree) if isinstance(node, ast.Import) for each in node.names}
    assert imported <= {"configparser", "glob", "importlib.util", "json", "os", "platform", "site", "sys", "sysconfig"}


def test_console_commands_are_read_without_importing_anything(tmp_path: Path) -> None:
    entries = {
        "torch-2.4.dist-info": "[console_scripts]\ntorchrun = torch.run:main\n50% = a:b\n[other]\nx = y:z\n",
        "torch_old.egg-info": "[console_scripts]\ntorchrun=torch.old:main\nCaSe=torch:Case\n",
        "broken-1.dist-info": "no section\n",
    }
    for folder, text in entries.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "entry_points.txt").write_text(text)
    code = f"import sys; sys.path[:] = [{str(tmp_path)!r}] + sys.path\n{python_module._ASK}"
    said = subprocess.run([sys.executable, "-I", "-S", "-c", code, "scripts"], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    found = python_module._read(said.stdout.strip().partition(" ")[2]).scripts
    assert found == {"torchrun": "torch.run:main", "50%": "a:b", "CaSe": "torch:Case"}


@pytest.mark.parametrize(
    ("path", "frameworks", "expected"),
    [
        ("/opt/pytorch/bin/python", {"torch": "2.9.0"}, True),
        ("/opt/conda/bin/python", {}, True),
        ("/usr/bin/python3", {"torch": "2.9.0"}, True),
        ("/usr/bin/python3", {}, False),
        ("/usr/local/bin/python3.12", {}, False),
    ],
)
def test_which_pythons_an_image_brings_for_training(path: str, frameworks: dict[str, str], expected: bool) -> None:
    base = Python(path, "3.12.3", "", "", "", True, True, (), frameworks, {}, (), "")
    assert base.is_of_image is expected
    assert base.title == f"Python 3.12.3{' with torch 2.9.0' if frameworks else ''} ({path})"


# ── Packages go on top of it ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def cloud(bench: Bench) -> Bench:
    """A machine of a cloud, booted from an image with PyTorch."""
    bench.local = False
    return bench


@pytest.mark.slow
def test_packages_go_on_top_of_what_the_image_has(cloud: Bench) -> None:
    cloud.write("requirements.txt", "lightning\nfresh\n")
    before = contents(cloud.python.parent.parent)
    environ = cloud.install()
    assert cloud.version(environ, "torch") == "2.4.0+cu121", "the image's PyTorch is not found"
    assert cloud.version(environ, "lightning") == "1.0"
    top = f"requirements.txt: its packages go on top of Python {sys.version.split()[0]} with torch 2.4.0+cu121 "
    advice = "environment.system_packages: false makes a clean environment"
    assert cloud.said[0] == f"{top}({cloud.python}); {advice}"
    told = [
        f"requirements.txt: replaced of what {cloud.python} has: numpy 1.0 → 2.0",
        f"requirements.txt: kept of what {cloud.python} has: torch 2.4.0+cu121",
    ]
    assert [line for line in cloud.said if " of what " in line] == told
    for name in ("python", "python3", "pip", "torchrun"):
        assert cloud.runs(environ, "sh", "-c", f"command -v {name}") == f"{environ['VIRTUAL_ENV']}/bin/{name}"
    assert contents(cloud.python.parent.parent) == before, "the image's own environment was changed"
    # Told by each attempt, also where the environment is there already.
    assert cloud.install() == environ
    assert [line for line in cloud.said if " of what " in line] == told and top in cloud.said[0]


@pytest.mark.slow
def test_a_clean_environment_is_one_word_away(cloud: Bench) -> None:
    # All of it is installed in the image, and none of that is wanted.
    cloud.write("requirements.txt", "torch>=2.4\n")
    environ = cloud.install(system_packages=False)
    assert cloud.version(environ, "torch") == "2.5.0"
    assert not any("on top of" in line for line in cloud.said)


@pytest.fixture
def unreadable(cloud: Bench, tmp_path: Path) -> Path:
    """An image's Python that has PyTorch, and a package whose metadata uv cannot read."""
    opt = tmp_path / "broken"
    shutil.copytree(cloud.python.parent.parent, opt, symlinks=True)
    cloud.python = opt / "bin/python"
    (site,) = opt.glob("lib/python*/site-packages")
    package = site / "old-1.x.y.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: old\nVersion: 1.x.y\n")
    return package


@pytest.mark.slow
def test_an_image_whose_packages_cannot_be_read_gives_a_clean_environment(cloud: Bench, unreadable: Path) -> None:
    cloud.write("requirements.txt", "lightning\n")
    environ = cloud.install()
    assert (cloud.version(environ, "torch"), cloud.version(environ, "lightning")) == ("2.5.0", "2.0")
    title = f"Python {sys.version.split()[0]} with torch 2.4.0+cu121 ({cloud.python})"
    told = "requirements.txt: a clean environment is made, because uv cannot read"
    assert cloud.said[0].startswith(f"{told} {title}: ")
    assert str(unreadable) in cloud.said[0] and not any("on top of" in line for line in cloud.said)
    # The user who insists is told why it cannot be.
    with pytest.raises(SetupFailed) as failure:
        cloud.install(system_packages=True)
    assert failure.value.user and str(failure.value).startswith("environment.system_packages: Failed to read metadata")


@pytest.mark.slow
def test_a_container_and_a_persons_computer_are_as_they_were(cloud: Bench) -> None:
    cloud.write("requirements.txt", "lightning\n")
    assert cloud.version(cloud.install(container=Container("pytorch/pytorch:2.4")), "torch") == "2.5.0"
    cloud.local = True
    assert cloud.version(cloud.install(), "torch") == "2.5.0"


@pytest.mark.slow
def test_sagemakers_container_is_the_image_of_its_machine(cloud: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """SageMaker installs requirements.txt on top of what its image has."""
    monkeypatch.setattr(installing_machine.CloudMachine, "contained", True, raising=False)
    cloud.write("requirements.txt", "lightning\n")
    environ = cloud.install(container=Container("pytorch-training:2.4"))
    assert cloud.version(environ, "torch") == "2.4.0+cu121"


@pytest.mark.slow
def test_a_lock_names_every_package_and_keeps_none(cloud: Bench) -> None:
    project = '[project]\nname = "mine"\nversion = "1"\nrequires-python = ">=3.10"\ndependencies = ["click"]\n'
    cloud.write("pyproject.toml", project)
    env = dict(cloud.command(()).env)
    subprocess.run([installing_machine.find_uv_bin(), "lock"], cwd=cloud.code, env=env, check=True, capture_output=True)
    assert "/environments/" in cloud.install("uv.lock")["VIRTUAL_ENV"]
    assert cloud.said[-1].endswith("has torch 2.4.0+cu121, which the environment does not see")


@pytest.mark.slow
def test_an_environment_depends_on_what_the_image_has(cloud: Bench, tmp_path: Path, index: PackageIndex) -> None:
    """Images change below one name: `dlami/pytorch` is another one every week."""
    cloud.python = an_image(tmp_path, index, "torch==2.4.0", "numpy==1.0")
    cloud.write("requirements.txt", "lightning\nclick\n")
    first = cloud.install()
    uv("pip", "install", f"--python={cloud.python}", "torch==2.5.0", index=index, cache=tmp_path / "cache")
    second = cloud.install()
    assert first["VIRTUAL_ENV"] != second["VIRTUAL_ENV"]
    assert (cloud.version(second, "torch"), cloud.version(second, "lightning")) == ("2.5.0", "2.0")


@pytest.mark.slow
def test_what_was_built_for_a_replaced_framework_is_told(cloud: Bench, tmp_path: Path, index: PackageIndex) -> None:
    vision = make_wheel("torchvision", "0.19", requires=["numpy", "torch==2.4.0"])
    (tmp_path / vision.filename).write_bytes(vision.data)
    cloud.python = an_image(tmp_path, index, "torch==2.4.0", "numpy==1.0", str(tmp_path / vision.filename))
    cloud.write("requirements.txt", "torch==2.5.0\n")
    environ = cloud.install()
    assert cloud.version(environ, "torch") == "2.5.0"
    assert f"requirements.txt: replaced of what {cloud.python} has: torch 2.4.0 → 2.5.0" in cloud.said
    misfit = "requirements.txt: torchvision 0.19 was built for torch 2.4.0, and may not work with 2.5.0; "
    assert f"{misfit}add torchvision to the requirements if the training uses it" in cloud.said


def contents(folder: Path) -> dict[str, int]:
    """Its files and their times, without what Python compiles."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {str(path): path.stat().st_mtime_ns for path in files}


def an_image(root: Path, index: PackageIndex, *packages: str) -> Path:
    python = root / "opt/pytorch/bin/python"
    uv("venv", f"--python={sys.executable}", str(python.parent.parent), index=index, cache=root / "cache")
    uv("pip", "install", f"--python={python}", *packages, index=index, cache=root / "cache")
    return python


# ── Jobs that install nothing ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("requirements", [None, "none", "requirements.txt"])
def test_a_job_that_installs_nothing_is_told_which_python_it_has(cloud: Bench, requirements: str | None) -> None:
    cloud.write("requirements.txt", "torch\n")
    environ = cloud.install(requirements)
    assert cloud.version(environ, "torch") == "2.4.0+cu121"
    title = f"Python {sys.version.split()[0]} with torch 2.4.0+cu121 ({cloud.python})"
    assert title in cloud.said[0]
    # An environment without pip is followed by another environment's pip on the PATH.
    other = cloud.root / "other"
    other.mkdir()
    (other / "pip").write_text("#!/bin/sh\necho another environment\n")
    (other / "pip").chmod(0o755)
    path = environ["PATH"].replace("/usr/bin", f"{other}:/usr/bin")
    where = cloud.runs({"PATH": path}, "pip", "--version")
    assert f"(python {sys.version_info[0]}.{sys.version_info[1]})" in where


@pytest.mark.slow
def test_a_job_on_a_plain_image_hears_nothing_of_pythons(cloud: Bench) -> None:
    cloud.python = Path("/usr/bin/python3")
    assert cloud.install(None) == {} and cloud.said == []
    (cloud.root / "bin").mkdir()
    (cloud.root / "bin/sh").symlink_to("/bin/sh")
    cloud.env = {"PATH": str(cloud.root / "bin")}
    assert cloud.install(None) == {} and cloud.said == [], "a job without Python needs none"


def test_the_images_environment_is_active(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    base = Python(f"{tmp_path}/bin/python", "3.12.3", "", "", "", True, True, (), {}, {}, ("-m", "pip"), "/usr/bin")
    path = f"{tmp_path}/links{os.pathsep}{tmp_path}/bin{os.pathsep}/usr/bin"
    assert activate(base, tmp_path / "links") == {"PATH": path, "VIRTUAL_ENV": str(tmp_path)}
    assert (tmp_path / "links/pip").read_text() == f'#!/bin/sh\nexec {tmp_path}/bin/python -m pip "$@"\n'
    # A pip of its own is left alone.
    (tmp_path / "bin/pip").touch()
    assert activate(base, tmp_path / "links") == {"VIRTUAL_ENV": str(tmp_path)}
    conda = replace(base, environment=False)
    assert activate(conda, tmp_path / "links") == {}
    (tmp_path / "conda-meta").mkdir()
    found = activate(conda, tmp_path / "links")
    assert found == {"CONDA_PREFIX": str(tmp_path), "CONDA_DEFAULT_ENV": tmp_path.name}
