"""Files of packages: which are read, what they include, and when they install parts of the code itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.agent.environment import read_requirements
from stoker.model.errors import UserError
from stoker.model.spec import Environment, Spec
from stoker.submit.requirements_file import RequirementsChoice, choose_requirements

LOCK = """\
[[package]]
name = "mine"
source = { editable = "." }

[[package]]
name = "numpy"
source = { registry = "https://index.test/simple" }
"""


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("requirements.txt", "requirements"),
        ("deps/requirements-gpu.txt", "requirements"),
        ("pyproject.toml", "project"),
        ("uv.lock", "uv-lock"),
        ("pylock.toml", "pylock"),
        ("pylock.gpu.toml", "pylock"),
    ],
)
def test_kinds(name: str, kind: str) -> None:
    assert read_requirements.kind_of(name) == kind


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("poetry.lock", "poetry export -o requirements.txt"),
        ("Pipfile.lock", "pipenv requirements > requirements.txt"),
        ("pdm.lock", "pdm export -f requirements -o requirements.txt"),
        ("environment.yml", "set environment.conda: environment.yml"),
        ("setup.py", "give requirements*.txt, pyproject.toml, uv.lock or pylock.toml"),
    ],
)
def test_what_cannot_be_read_is_refused_with_what_to_do(name: str, advice: str) -> None:
    with pytest.raises(UserError) as refused:
        read_requirements.kind_of(name)
    assert str(refused.value).startswith("environment.requirements: ")
    assert advice in str(refused.value)


def test_everything_that_is_included_counts(tmp_path: Path) -> None:
    write(
        tmp_path,
        requirements_txt="numpy\n-r deps/base.txt # shared\n--constraint=pins.txt\n-r https://host/other.txt\n",
        deps__base_txt="-c ../pins.txt\n\\\n-rmore.txt\n",
        deps__more_txt="-r base.txt\nrequests\n",
        pins_txt="numpy==2\n",
        uv_toml="[pip]\n",
        pyproject_toml="[project]\n",
    )
    found = read_requirements.read(tmp_path, "./requirements.txt")
    assert set(found.files) == {"requirements.txt", "deps/base.txt", "deps/more.txt", "pins.txt"}
    assert not found.local
    assert set(found.settings) == {"uv.toml"}
    write(tmp_path, pyproject_toml="[tool.uv]\nindex-url = 'x'\n")
    assert set(read_requirements.read(tmp_path, "requirements.txt").settings) == {"uv.toml", "pyproject.toml"}


@pytest.mark.parametrize(
    ("text", "local"),
    [
        ("-e .", True),
        ("--editable=./libs/mine", True),
        ("./libs/mine", True),
        ("libs/mine[extra] ; python_version > '3'", True),
        ("mine @ file:///srv/mine", True),
        ("--find-links wheels", True),
        ("--find-links=wheels", True),
        ("-f wheels", True),
        ("-fwheels", True),
        ("--no-index --find-links wheels", True),
        ("-i https://host/simple --find-links wheels", True),
        ("--index-url ./simple", True),
        ("--index-url file:///srv/simple", True),
        ("-e./libs/mine", True),
        ("libs/mine", True),
        ("mine@./libs/mine", True),
        ("mine[extra]@./libs/mine", True),
        ("mine @ libs/mine", True),
        ("mine@ file:libs/mine", True),
        ("mine @ file:libs/mine", True),
        ("mine@file://${PWD}/libs/mine", True),
        ("mine @ ${PLACE}", True),
        ("mine @ git+file:///srv/mine", True),
        ("mine-1-py3-none-any.whl", True),
        ("mine-1.tar.gz --hash=sha256:0", True),
        ("mine-1-py3-none-any.whl#sha256=0", True),
        ("--some-new-option here", True),
        ("-e git+https://host/mine.git#egg=mine", False),
        ("mine @ https://host/mine.whl", False),
        ("--find-links https://host/wheels", False),
        ("--index-url https://host/simple", False),
        ("numpy>=2 # ./not/this", False),
        ("libs", False),
        ("-fhttps://host/wheels", False),
        ("--no-index --find-links https://host/wheels", False),
        ("--extra-index-url=https://${TOKEN}@host/simple --pre", False),
        ("--only-binary :all: --trusted-host host", False),
        ("mine@https://host/mine.whl ; python_version > '3'", False),
        ("mine @ git+ssh://git@host/mine.git@v1", False),
        ("numpy[all]==2.* ; sys_platform == 'linux' --hash=sha256:0 --hash=sha256:1", False),
    ],
)
def test_what_installs_parts_of_the_code(tmp_path: Path, text: str, local: bool) -> None:
    write(tmp_path, requirements_txt=f"{text}\n", libs__mine__setup_py="")
    assert read_requirements.read(tmp_path, "requirements.txt").local is local


PROJECT = """\
[project]
name = "p"
version = "1"
readme = "README.md"
authors = [{name = "Jane", email = "jane@mine.example"}]
dependencies = ["numpy<2", "other @ https://host/other.whl", %s]

[tool.uv]
constraint-dependencies = ["scipy<2"]
find-links = ["https://host/wheels"]

[tool.uv.build-backend]
module-root = "libs"
"""


@pytest.mark.parametrize(
    ("text", "local"),
    [
        ("", False),
        ('"mine @ file:///${PROJECT_ROOT}/wheels/mine-1-py3-none-any.whl"', True),
        ('"mine@./libs/mine"', True),
        ('"mine[x] @ libs/mine"', True),
        ("'mine @ {root:uri}/libs/mine'", True),
    ],
)
def test_what_a_project_needs_of_the_code(tmp_path: Path, text: str, local: bool) -> None:
    write(tmp_path, pyproject_toml=PROJECT % text, libs__mine__setup_py="", README_md="")
    found = read_requirements.read(tmp_path, "pyproject.toml")
    assert (found.local, found.local_settings) == (local, False)


@pytest.mark.parametrize("name", ["pyproject.toml", "requirements.txt"])
@pytest.mark.parametrize(
    ("file", "text", "local"),
    [
        ("pyproject.toml", "[tool.uv]\nfind-links = [\n  'wheels',\n]\n", True),
        ("pyproject.toml", '[tool.uv.pip]\nfind-links = ["./wheels"]\n', True),
        ("pyproject.toml", '[[tool.uv.index]]\nname = "ours"\nurl = "./wheels"\nformat = "flat"\n', True),
        ("uv.toml", 'find-links = ["wheels"]\n', True),
        ("uv.toml", '[[index]]\nurl = "file:///srv/wheels"\n', True),
        ("uv.toml", '[[index]]\nurl = "https://host/simple"\n# find-links = ["wheels"]\n', False),
        ("pyproject.toml", '[tool.other]\nfolder = "wheels"\n[tool.uv]\nenvironments = ["a == \'b\'"]\n', False),
    ],
)
def test_where_uv_is_told_to_look_in_the_code(tmp_path: Path, name: str, file: str, text: str, local: bool) -> None:
    write(tmp_path, requirements_txt="mine\n", pyproject_toml=PROJECT % "", wheels__mine_whl="")
    with (tmp_path / file).open("a") as opened:
        opened.write(text.replace("[tool.uv]\n", "[tool.uv.pip]\n"))
    found = read_requirements.read(tmp_path, name)
    assert (found.local, found.local_settings) == (False, local)


@pytest.mark.parametrize("name", ["uv.lock", "pylock.toml"])
@pytest.mark.parametrize(
    ("text", "local"),
    [
        ('source = { registry = "https://host/simple" }\nwheels = [{ url = "https://host/a.whl" }]\n', False),
        ('source = { registry = "wheels" }\nwheels = [{ path = "a.whl" }]\n', True),
        ('archive = { path = "libs/a.tar.gz" }\n', True),
        ('source = { git = "https://host/a.git?rev=1" }\n', False),
        ('source = { git = "file:///srv/a.git?rev=1" }\n', True),
    ],
)
def test_what_a_lock_names_of_the_code(tmp_path: Path, name: str, text: str, local: bool) -> None:
    write(tmp_path, pyproject_toml="[project]\n")
    (tmp_path / name).write_text(text)
    assert read_requirements.read(tmp_path, name).local is local


def test_a_lock_counts_with_its_project(tmp_path: Path) -> None:
    write(tmp_path, uv_lock=LOCK, pyproject_toml="[project]\n")
    found = read_requirements.read(tmp_path, "uv.lock")
    assert set(found.files) == {"uv.lock", "pyproject.toml"}
    # The project itself is not installed.
    assert not found.local
    write(tmp_path, uv_lock=LOCK + '[[package]]\nname = "inner"\nsource = { directory = "libs/inner" }\n')
    assert read_requirements.read(tmp_path, "uv.lock").local


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("missing.txt", "", "there is no missing.txt in the code folder"),
        ("../requirements.txt", "", "is not inside the code folder"),
        ("/etc/requirements.txt", "", "is not inside the code folder"),
        (
            "requirements.txt",
            "-r gone.txt",
            "there is no gone.txt in the code folder, which requirements.txt includes",
        ),
        ("requirements.txt", "-r ../up.txt", "includes ../up.txt, which is not inside the code folder"),
        ("uv.lock", "", "there is no pyproject.toml in the code folder, the project of uv.lock"),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, name: str, text: str, problem: str) -> None:
    if "/" not in name and name != "missing.txt":
        (tmp_path / name).write_text(text)
    with pytest.raises(UserError) as refused:
        read_requirements.read(tmp_path, name)
    assert problem in str(refused.value)


# ── Choosing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def spec(**wishes: object) -> Spec:
    return Spec(name="j", run="true", environment=Environment(**wishes))  # type: ignore[arg-type]


def test_requirements_at_the_root_are_found_and_announced(tmp_path: Path) -> None:
    write(tmp_path, requirements_txt="numpy\n")
    chosen = choose_requirements(spec(), tmp_path, {"requirements.txt"})
    assert chosen.spec.environment.requirements == "requirements.txt"
    # It is part of the plan, and nothing to be warned of.
    assert chosen.warnings == ()
    assert chosen.notes == (
        "requirements.txt is installed before the training starts (environment.requirements: none skips it)",
    )


def test_what_was_named_is_not_announced(tmp_path: Path) -> None:
    write(tmp_path, requirements_txt="numpy\n", deps__gpu_txt="scipy\n")
    chosen = choose_requirements(spec(requirements="deps/gpu.txt"), tmp_path, {"deps/gpu.txt"})
    assert chosen == RequirementsChoice(spec(requirements="deps/gpu.txt"))


@pytest.mark.parametrize(
    "wishes", [{"requirements": "none"}, {"conda": "environment.yml"}], ids=["refused", "conda has its own"]
)
def test_nothing_is_found_where_nothing_is_wanted(tmp_path: Path, wishes: dict[str, str]) -> None:
    write(tmp_path, requirements_txt="numpy\n")
    asked = spec(**wishes)
    assert choose_requirements(asked, tmp_path, {"requirements.txt"}) == RequirementsChoice(asked)


def test_a_file_that_is_not_packed_is_not_found_by_itself(tmp_path: Path) -> None:
    write(tmp_path, requirements_txt="numpy\n")
    chosen = choose_requirements(spec(), tmp_path, set())
    assert (chosen.spec, chosen.notes) == (spec(), ())
    # Whoever wrote it may think that it is.
    (line,) = chosen.warnings
    assert line.startswith("requirements.txt is left out of the packed code") and "!requirements.txt" in line
    (tmp_path / "requirements.txt").unlink()
    assert choose_requirements(spec(), tmp_path, set()) == RequirementsChoice(spec())


@pytest.mark.parametrize("packed", [set(), {"requirements.txt"}])
def test_a_file_that_was_named_must_be_packed_with_what_it_includes(tmp_path: Path, packed: set[str]) -> None:
    write(tmp_path, requirements_txt="-r base.txt\n", base_txt="numpy\n")
    with pytest.raises(UserError, match=r"is left out of the packed code .* add `!\S+` to .stokerignore"):
        choose_requirements(spec(requirements="requirements.txt"), tmp_path, packed)


def test_a_lock_keeps_nothing_of_the_image(tmp_path: Path) -> None:
    write(tmp_path, pylock_toml="")
    with pytest.raises(UserError, match=r"environment.system_packages: pylock.toml names every package"):
        choose_requirements(spec(requirements="pylock.toml", system_packages=True), tmp_path, {"pylock.toml"})


def test_a_folder_of_that_name_is_no_file_of_requirements(tmp_path: Path) -> None:
    write(tmp_path, requirements_txt="-r more.txt\n")
    (tmp_path / "more.txt").mkdir()
    for name, why in (("more.txt", ""), ("requirements.txt", ", which requirements.txt includes")):
        with pytest.raises(UserError) as refused:
            read_requirements.read(tmp_path, name)
        start = "environment.requirements: more.txt cannot be read (Is a directory)"
        assert str(refused.value).startswith(start)
        assert bool(why) is (str(refused.value) != start)


@pytest.mark.parametrize("word", ["libs/" + "x" * 300, "libs/a\0b"])
def test_a_word_that_no_file_can_be_called_is_no_path(tmp_path: Path, word: str) -> None:
    (tmp_path / "libs").mkdir()
    write(tmp_path, requirements_txt=f"{word}\n")
    assert not read_requirements.read(tmp_path, "requirements.txt").local


@pytest.mark.parametrize(
    ("text", "local"),
    [
        ('[project]\nname = "x"\ndynamic = ["dependencies"]\n', True),
        ('[tool.uv.sources]\nmine = { path = "libs/mine" }\n', True),
        ('[project]\nname = "x"\ndynamic = ["version"]\ndependencies = ["numpy"]\n', False),
    ],
)
def test_a_project_whose_requirements_stand_elsewhere_needs_the_code(tmp_path: Path, text: str, local: bool) -> None:
    write(tmp_path, pyproject_toml=text)
    assert read_requirements.read(tmp_path, "pyproject.toml").local is local
