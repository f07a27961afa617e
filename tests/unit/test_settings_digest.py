"""What uv, pip and conda are told by variables and by settings of the user's own is part of what an environment is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stoker.agent.environment import variables
from stoker.agent.environment.variables import CONDA_FILES, UV_FILES, digest_settings
from stoker.agent.runtime import Command


class Place:
    """A computer with a home of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.code = root / "node/code"
        self.code.mkdir(parents=True)
        self.home = root / "home"
        self.home.mkdir()

    def digest(self, *, code: str = "c", here: bool = True, secrets: tuple[str, ...] = (), **env: str) -> str:
        given = {"HOME": str(self.home), "XDG_CONFIG_DIRS": str(self.root / "etc"), **env}
        command = Command(("uv",), given, self.code, dict.fromkeys(secrets, "hunter2"))
        return digest_settings(command, code, (*UV_FILES, *CONDA_FILES), read_files=here)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        *(
            "UV_CONSTRAINT",
            "UV_DEFAULT_INDEX",
            "UV_EXTRA_INDEX_URL",
            "UV_EXCLUDE_NEWER",
            "UV_OVERRIDE",
            "UV_FIND_LINKS",
        ),
        *("UV_TORCH_BACKEND", "UV_INDEX_STRATEGY", "UV_PRERELEASE", "UV_LINK_MODE", "UV_SOME_NEW_WORD"),
        *("PIP_INDEX_URL", "PIP_CONSTRAINT", "CONDA_CHANNELS", "CONDA_OVERRIDE_CUDA", "MAMBA_CHANNELS", "CONDARC"),
        *("CC", "CXX", "CFLAGS", "CXXFLAGS", "LDFLAGS", "TORCH_CUDA_ARCH_LIST", "CUDA_HOME", "CMAKE_ARGS"),
    ],
)
def test_what_counts(place: Place, name: str) -> None:
    assert len({place.digest(), place.digest(**{name: "a"}), place.digest(**{name: "b"})}) == 3


@pytest.mark.parametrize(
    "name",
    [
        *(
            "UV_CACHE_DIR",
            "UV_NO_CACHE",
            "UV_HTTP_TIMEOUT",
            "UV_CONCURRENT_BUILDS",
            "UV_NO_PROGRESS",
            "UV_INDEX_A_PASSWORD",
        ),
        *("UV_INDEX_A_USERNAME", "UV_PYTHON_INSTALL_DIR", "UV_RUN_RECURSION_DEPTH", "UV", "UV_PUBLISH_TOKEN"),
        *("PIP_CACHE_DIR", "PIP_NO_INPUT", "PIP_DISABLE_PIP_VERSION_CHECK", "PIP_RETRIES", "PIP_LOG"),
        *("CONDA_PREFIX", "CONDA_PREFIX_1", "CONDA_SHLVL", "CONDA_PROMPT_MODIFIER", "CONDA_EXE", "MAMBA_ROOT_PREFIX"),
        *("CONDA_PKGS_DIRS", "LR", "WANDB_PROJECT", "XLA_FLAGS", "CCACHE"),
    ],
)
def test_what_does_not_count(place: Place, name: str) -> None:
    assert place.digest() == place.digest(**{name: "a"})


def test_who_asks_does_not_count(place: Place) -> None:
    """Tokens expire, and another one gets the same packages."""
    first, second = "https://jane:one@host/simple", "https://two@host/simple"
    assert place.digest(UV_DEFAULT_INDEX=first) == place.digest(UV_DEFAULT_INDEX=second)
    assert place.digest(UV_DEFAULT_INDEX=first) != place.digest(UV_DEFAULT_INDEX="https://host/other")


def test_of_secrets_the_names_count_alone(place: Place) -> None:
    assert place.digest(secrets=("UV_DEFAULT_INDEX",)) not in (place.digest(), place.digest(UV_DEFAULT_INDEX="hunter2"))
    assert place.digest(secrets=("HF_TOKEN",)) == place.digest()


@pytest.mark.parametrize("where", ["node/code/pins.txt", "elsewhere.txt"])
def test_a_file_that_is_named_counts_with_what_is_in_it(place: Place, where: str) -> None:
    file = place.root / where
    word = "pins.txt" if file.is_relative_to(place.code) else str(file)
    found = set()
    for text in ("a<1\n", "a<2\n"):
        file.write_text(text)
        found.add(place.digest(UV_CONSTRAINT=f"other.txt {word}"))
    assert len(found) == 2


def test_a_folder_that_is_named_counts_with_its_packages(place: Place) -> None:
    folder = place.root / "wheels"
    folder.mkdir()
    found = {place.digest(UV_FIND_LINKS=str(folder))}
    (folder / "a-1-py3-none-any.whl").write_text("1")
    found.add(place.digest(UV_FIND_LINKS=str(folder)))
    (folder / "a-1-py3-none-any.whl").write_text("22")
    found.add(place.digest(UV_FIND_LINKS=f"file://{folder}"))
    found.add(place.digest(UV_FIND_LINKS=str(folder)))
    assert len(found) == 4
    (folder / "notes.txt").write_text("3")
    assert place.digest(UV_FIND_LINKS=str(folder)) in found
    # A folder of the code is what the code is: its times are those of its unpacking.
    (place.code / "wheels").mkdir()
    assert place.digest(UV_FIND_LINKS="wheels", code="c") != place.digest(UV_FIND_LINKS="wheels", code="d")
    (place.code / "wheels/b.whl").touch()
    assert place.digest(UV_FIND_LINKS="wheels", code="c") == place.digest(UV_FIND_LINKS="wheels", code="c")


@pytest.mark.parametrize(
    "file", ["home/.config/uv/uv.toml", "etc/uv/uv.toml", "node/uv.toml", "home/.condarc", "home/.config/pip/pip.conf"]
)
def test_settings_of_the_users_own(place: Place, file: str) -> None:
    before, contained = place.digest(), place.digest(here=False)
    (place.root / file).parent.mkdir(parents=True, exist_ok=True)
    (place.root / file).write_text('index-url = "https://jane:one@host/simple"\n')
    first = place.digest()
    assert first != before
    (place.root / file).write_text('index-url = "https://two@host/simple"\n')
    assert place.digest() == first
    # A container has its own.
    assert place.digest(here=False) == contained
    wheels = place.root / "wheels"
    wheels.mkdir()
    (place.root / file).write_text(f'find-links = ["{wheels}"]\n')
    named = place.digest()
    (wheels / "a.whl").touch()
    assert place.digest() != named


def test_names_that_cannot_be_files(place: Place) -> None:
    assert place.digest(UV_CONSTRAINT="x" * 5000) != place.digest()
    assert place.digest(UV_CONSTRAINT=os.fsdecode(b"\xff\xfe")) != place.digest()


@pytest.mark.parametrize(
    ("files", "places"),
    [
        (UV_FILES, {"/home/.config/uv/uv.toml", "/xdg/uv/uv.toml", "/etc/uv/uv.toml"}),
        (
            CONDA_FILES,
            {
                *("/home/.config/pip/pip.conf", "/home/.pip/pip.conf", "/xdg/pip/pip.conf", "/etc/pip.conf"),
                *("/home/.condarc", "/home/.conda/.condarc", "/home/.conda/condarc", "/home/.config/conda/.condarc"),
                *("/home/.config/conda/condarc", "/etc/conda/.condarc", "/etc/conda/condarc"),
                *("/opt/conda/.condarc", "/opt/conda/condarc"),
            },
        ),
    ],
    ids=["uv", "conda and pip"],
)
def test_settings_are_looked_for_where_the_tools_look(
    monkeypatch: pytest.MonkeyPatch, files: tuple[str, ...], places: set[str]
) -> None:
    looked: list[str] = []
    monkeypatch.setattr(variables, "_read", lambda path: looked.append(str(path)))

    def look(**env: str) -> set[str]:
        looked.clear()
        digest_settings(Command(("uv",), env, Path("/project/code")), "c", files, read_files=True)
        return set(looked)

    above = {f"{folder}/{name}" for folder in ("/project", "") for name in ("uv.toml", "pyproject.toml")}
    assert places | above <= look(HOME="/home", XDG_CONFIG_DIRS="/xdg:/more")
    # Where nothing is set.
    monkeypatch.setenv("HOME", "/home")
    assert {place.replace("/xdg/", "/etc/xdg/") for place in places} | above <= look()
    moved = {place.replace("/home/.config/", "/config/") for place in places if place.startswith("/home/.config")}
    assert moved <= look(HOME="/home", XDG_CONFIG_HOME="/config")


def test_a_package_that_is_named_itself_counts_by_its_size_and_time(place: Place) -> None:
    wheel = place.root / "a-1-py3-none-any.whl"
    wheel.write_text("1")
    os.utime(wheel, ns=(1, 1))
    found = {place.digest(UV_CONSTRAINT=str(wheel))}
    os.utime(wheel, ns=(2, 2))
    found.add(place.digest(UV_CONSTRAINT=str(wheel)))
    wheel.write_text("22")
    os.utime(wheel, ns=(2, 2))
    found.add(place.digest(UV_CONSTRAINT=str(wheel)))
    assert len(found) == 3


def test_settings_that_may_not_be_read_do_not_count(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    (place.home / ".condarc").write_text("offline: true\n")

    def refuse(*_: object, **__: object) -> str:
        raise PermissionError

    before = place.digest(here=False)
    monkeypatch.setattr(Path, "read_text", refuse)
    assert place.digest() == before
    # Nor does a file that is named.
    without = place.digest(UV_CONSTRAINT="pins.txt")
    (place.code / "pins.txt").touch()
    assert place.digest(UV_CONSTRAINT="pins.txt") == without
