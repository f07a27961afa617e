"""An installation that cannot be: whose fault it is, what is tried again, and what is left."""

from __future__ import annotations

from pathlib import Path

import installing_machine
import pytest
from installing_machine import Bench

from stoker.model.errors import SetupFailed

pytestmark = pytest.mark.slow

# Fixtures that all tests of installing share.
index, image, bench = installing_machine.index, installing_machine.image, installing_machine.bench


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


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("torch==9.9\n", "there is no version of torch==9.9"),
        ("lightning\nnumpy<2\nfresh\n", "fresh"),
        ("click\nno-such-package\n", "no-such-package was not found"),
    ],
)
def test_what_has_no_solution_fails_on_top_of_an_image_too(bench: Bench, text: str, why: str) -> None:
    """Also where the image has a package of that name: the training would run on another version than it asks for."""
    bench.local = False
    bench.write("requirements.txt", text)
    for _ in range(2):
        with pytest.raises(SetupFailed) as failure:
            bench.install()
        told = "environment.requirements: requirements.txt cannot be installed: No solution found when resolving"
        assert failure.value.user and str(failure.value).startswith(told) and why in str(failure.value)
        assert any("its packages go on top of" in line for line in bench.said)


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
