"""The package as a person meets it at a prompt: complete, cheap to import, and helpful about wrong names."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import stoker
from stoker import Job, client, train
from stoker.model.errors import UserError
from stoker.model.resources import Resources
from stoker.model.spec import Spec


def test_every_name_is_there_and_dir_shows_it() -> None:
    assert set(dir(stoker)) == set(stoker.__all__)
    for name in stoker.__all__:
        assert getattr(stoker, name) is not None
    assert all(
        callable(getattr(stoker, name)) for name in ("submit", "wait", "jobs", "logs", "metrics", "checkpoints", "pull")
    )


def test_type_checkers_and_editors_see_the_same_names() -> None:
    tree = ast.parse(Path(stoker.__file__).read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    seen = {alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen - {"Any", "ModuleType"} == set(stoker.__all__) - {"__version__"}


def test_a_subpackage_of_the_same_name_does_not_take_a_functions_place() -> None:
    """`stoker.submit` is a function whatever else was imported."""
    for name in ("submit", "compare", "logs", "checkpoints"):
        try:
            importlib.import_module(f"stoker.{name}")
        except ModuleNotFoundError:
            continue
        assert callable(getattr(stoker, name)), name
    code = "import stoker.client, stoker; print(callable(stoker.submit), callable(stoker.wait))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "True True\n", done.stderr


def test_importing_the_package_imports_nothing_else() -> None:
    code = "import sys; before = set(sys.modules); import stoker; dir(stoker); print(set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True)
    assert "stoker." not in done.stdout and "typing" not in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: Job(resource={"spot": True}), "Job(resource=…): unknown field; did you mean resources?"),  # type: ignore[call-arg]
        (lambda: Job(gpus="A100:8"), "Job(gpus=…): unknown field; did you mean resources.gpus?"),  # type: ignore[call-arg]
        (lambda: Spec(resource={}), "Spec(resource=…): unknown field; did you mean resources?"),  # type: ignore[call-arg]
        (lambda: Resources(gpu=1), "Resources(gpu=…): unknown field; did you mean gpus?"),  # type: ignore[call-arg]
        (lambda: train.checkpoint("x", stpe=1), "checkpoint(stpe=…): there is no such argument; did you mean step?"),  # type: ignore[call-arg]
        (lambda: train.wait_durable(timeouts=1), "did you mean timeout?"),  # type: ignore[call-arg]
        (lambda: Job(script="x.py"), "Job(script=…): unknown field; did you mean run?"),  # type: ignore[call-arg]
        (lambda: Job("python train.py"), "name the field, such as Job(run='python train.py')"),  # type: ignore[misc]
        (
            lambda: stoker.submit(Job(run="x"), stor="x"),
            "submit(stor=…): there is no such argument; did you mean store?",
        ),  # type: ignore[call-arg]
        (lambda: stoker.wait("x", timout=3), "wait(timout=…): there is no such argument; did you mean timeout?"),  # type: ignore[call-arg]
        (lambda: stoker.jobs(tag="a=b"), "jobs(tag=…): there is no such argument; did you mean tags?"),  # type: ignore[call-arg]
        (lambda: client.interrupt("x", grace=3), "did you mean grace_s?"),  # type: ignore[call-arg]
        (lambda: Job(run="x", resources={"gpu": 1}).spec(), "resources.gpu: unknown field; did you mean gpus?"),
    ],
)
def test_a_wrong_keyword_names_the_nearest(call: Callable[[], object], told: str) -> None:
    with pytest.raises(UserError) as raised:
        call()
    assert told in str(raised.value) and "\n" not in str(raised.value)


def test_a_wrong_keyword_is_a_type_error_as_everywhere_else() -> None:
    with pytest.raises(TypeError):
        Job(resource={})  # type: ignore[call-arg]


def test_signatures_are_those_that_were_written() -> None:
    assert list(inspect.signature(stoker.submit).parameters) == ["job", "store", "sets", "detach"]
    assert "resources" in inspect.signature(Job).parameters


def test_a_wrong_name_names_the_nearest() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'sumbit'; did you mean submit\?"):
        stoker.sumbit  # noqa: B018


def test_every_exported_name_is_there() -> None:
    root = Path(stoker.__file__).parent
    exporting = [
        path
        for path in root.rglob("*.py")
        for node in ast.parse(path.read_bytes()).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    assert len(exporting) > 10
    for path in exporting:
        name = ".".join(path.relative_to(root.parent).with_suffix("").parts).removesuffix(".__init__")
        module = importlib.import_module(name)
        assert [one for one in module.__all__ if not hasattr(module, one)] == [], name
