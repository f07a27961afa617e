"""References, written and generated, say what the code says."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
from pathlib import Path
from types import FunctionType, ModuleType
from typing import get_args

import pytest
from pages import DOCS, ROOT

import stoker
from stoker import client, train
from stoker.core import attempt_verdict, decide, failure_patterns, maintain_claim, next_claim
from stoker.governor import apply
from stoker.jobfile.field_table import fields_of
from stoker.model import keys
from stoker.model.log_entries import Event, Opaque, Phase
from stoker.model.resources import LocalResources
from stoker.providers import base
from stoker.providers.base import Provider


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def write_docs() -> ModuleType:
    spec = importlib.util.spec_from_file_location("write_docs", ROOT / "scripts" / "write_docs.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("name", "text"), write_docs().pages().items(), ids=list(write_docs().pages()))
def test_generated_pages_are_up_to_date(name: str, text: str) -> None:
    assert page(name) == text, "run: make docs"


def documented(heading: str) -> dict[str, str]:
    """The names in the first column of the table under `| heading | |`, with what stands in brackets behind them."""
    rows = page("python-api.md").partition(f"| `{heading}` | |\n")[2].partition("\n\n")[0].splitlines()[1:]
    cells = [cell for row in rows for cell in re.findall(r"`([^`]+)`", row.split(" | ")[0])]
    return {name: arguments for cell in cells for name, _, arguments in [cell.partition("(")]}


@pytest.mark.parametrize(
    ("heading", "module"), [("stoker.train", train), ("stoker.client", client), ("stoker", stoker)], ids=str
)
def test_every_public_name_is_documented(heading: str, module: ModuleType) -> None:
    names = set(module.__all__) - {"__version__"}
    assert set(documented(heading)) == names


@pytest.mark.parametrize(("heading", "module"), [("stoker.train", train), ("stoker.client", client)], ids=str)
def test_signatures_are_those_of_the_code(heading: str, module: ModuleType) -> None:
    for name, told in documented(heading).items():
        if not told:
            continue
        signature = inspect.signature(getattr(module, name))
        parameters = [param.replace(annotation=inspect.Parameter.empty) for param in signature.parameters.values()]
        plain = str(inspect.Signature(parameters)).replace("'", '"')
        assert f"({told}" == plain, f"{heading}.{name}"


def rule_names() -> set[str]:
    """Every rule by which a claim or a job is closed, as written in the code."""
    found: set[object] = {pattern.name for pattern in failure_patterns.PATTERNS if pattern.blame != "script"}
    for module in (attempt_verdict, decide, maintain_claim, next_claim, apply):
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(node, ast.keyword) and node.arg == "rule" and isinstance(node.value, ast.Constant):
                found.add(node.value.value)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Verdict":
                found |= {part.value for part in ast.walk(node.args[1]) if isinstance(part, ast.Constant)}
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "_close":
                found |= {part.value for part in node.args[3:4] if isinstance(part, ast.Constant)}
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "rule":
                found |= {part.value for part in node.args if isinstance(part, ast.Constant)}
    return {name for name in found if isinstance(name, str)}


def test_every_rule_is_in_the_table() -> None:
    names = rule_names()
    assert {"finished", "notice", "user-error", "max_wait", "no-capacity", "nccl", "waited"} <= names
    text = page("how-it-works.md")
    assert sorted(name for name in names if f"`{name}`" not in text) == []


def test_the_table_of_rules_is_in_the_order_of_the_rules() -> None:
    """The first match decides, so the order is part of the meaning."""
    rows = page("how-it-works.md").partition("<!-- rules -->\n")[2].partition("\n\n")[0].splitlines()[2:]
    told = [re.findall(r"`([^`]+)`", row.split(" | ")[0]) for row in rows]
    order = {name: number for number, names in enumerate(told) for name in names}
    numbers = []
    for rule in attempt_verdict.RULES:
        source = ast.parse(inspect.getsource(rule))
        verdicts = [
            node.args[1]
            for node in ast.walk(source)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Verdict"
        ]
        names = {part.value for node in verdicts for part in ast.walk(node) if isinstance(part, ast.Constant)}
        if any(isinstance(part, ast.Name) and part.id == "PREFIX" for node in verdicts for part in ast.walk(node)):
            names = {"policy:<name>"}
        numbers.append(min(order[name] for name in names if isinstance(name, str) and name in order))
    assert numbers == sorted(numbers)


def test_every_kind_of_entry_is_explained() -> None:
    text = page("how-it-works.md")
    kinds = [kind.kind for kind in get_args(Event) if kind is not Opaque]
    assert len(kinds) > 8
    assert [kind for kind in kinds if f"`{kind}`" not in text] == []


def test_every_kind_of_key_is_in_the_layout() -> None:
    text = page("governing.md")
    key_list = [
        keys.spec("<job>"),
        keys.code("<digest>"),
        keys.index_prefix("<job>"),
        keys.removed("<job>"),
        keys.governor("<id>"),
        keys.blobs("<job>") + "<rank>/<digest>",
        keys.checkpoints("<job>") + "<claim>/",
        keys.log_prefix("<job>"),
        keys.ACTIVE + "<job>",
        keys.DEFAULTS,
    ]
    assert [key for key in key_list if f"`{key}" not in text] == []
    for name in ("heartbeat", "notice", "exit", "log/<n>", "metrics/<n>", "outputs/<claim>"):
        assert name in text


def test_every_setting_of_the_simulated_market_is_explained() -> None:
    assert [key for key in fields_of(LocalResources) if f"`{key}`" not in page("spot.md")] == []


def test_every_phase_is_named() -> None:
    assert [phase for phase in get_args(Phase) if f"`{phase}`" not in page("python-api.md")] == []


def test_every_method_of_a_provider_is_explained() -> None:
    methods = [name for name, value in vars(Provider).items() if inspect.isfunction(value) and not name.startswith("_")]
    assert len(methods) >= 6
    assert [name for name in methods if f"| `{name}(" not in page("write-a-provider.md")] == []


def test_every_optional_protocol_of_a_provider_is_explained_with_methods_that_exist() -> None:
    text = page("write-a-provider.md")
    protocols = {name: found for name, found in vars(base).items() if re.match(r"(Supports|Has|RunsIn)[A-Z]", name)}
    rows = dict(re.findall(r"^\| `((?:Supports|Has|RunsIn)\w+)` \| (.+?) \|", text, re.MULTILINE))
    assert len(protocols) >= 15 and rows.keys() == protocols.keys()
    for name, found in protocols.items():
        members = {key for key, value in vars(found).items() if isinstance(value, FunctionType | property)}
        assert set(re.findall(r"`(\w+)", rows[name])) == {key for key in members if not key.startswith("_")}


def test_every_method_of_a_provider_that_is_named_exists_with_these_arguments() -> None:
    contract = page("write-a-provider.md").split("In short:", 1)[1].split("## A whole one")[0]
    protocols = [
        found for found in vars(base).values() if isinstance(found, type) and getattr(found, "_is_protocol", False)
    ]
    named = re.findall(r"`([a-z_]+)\(([^)`]*)\)`", contract)
    assert len(named) >= 17
    for name, arguments in named:
        (method,) = [vars(found)[name] for found in protocols if name in vars(found)]
        assert arguments.replace("*", "").split(", ") == list(inspect.signature(method).parameters)[1:]


def test_the_folders_of_tests_are_in_contributing() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    folders = [path for path in (ROOT / "tests").iterdir() if any(path.glob("test_*.py"))]
    assert [path.name for path in folders if f"{path.name}/" not in text] == []
    targets = re.findall(r"^([a-z]+):", Path(ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert [target for target in targets if target not in ("help", "clean") and f"`make {target}" not in text] == []
