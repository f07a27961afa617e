"""What the pages show to be copied works: job files parse, Python compiles and uses names that exist."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import re
from collections.abc import Iterator

import pytest
import yaml
from pages import DOCS, GENERATED, ROOT, Block, all_blocks, page_files, spans

import stoker
from stoker import client, train
from stoker.agent.training_environment import CONTRACT
from stoker.core.summary import Summary
from stoker.jobfile import layer_of, parse_job, read_layer, resolve
from stoker.jobfile.field_table import walk
from stoker.model.errors import SpecError
from stoker.model.policy import SUBJECTS
from stoker.model.spec import Spec
from stoker.policy.policy_file import parse_policy, subject_key
from stoker.providers import registry

FIELDS = {name for name, _ in walk()}
SECTIONS = {name.partition(".")[0] for name in FIELDS if "." in name}
BLOCKS = all_blocks()


def job_files() -> Iterator[tuple[str, str]]:
    for block in BLOCKS:
        if block.language == "yaml":
            tree = yaml.safe_load(block.text)
            if isinstance(tree, dict) and next(iter(tree), None) in FIELDS:
                yield str(block), block.text
    for path in sorted((ROOT / "examples").rglob("*.yaml")):
        yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


def check_job_file(text: str) -> Spec:
    """Parse it; what `local` is to run, it must honour as well. A few fields alone get something to run."""
    layers = [layer_of({"run": "true"}, "a page"), read_layer(text, "a page")]
    spec = parse_job(layers)
    return resolve(layers, registry.capabilities).spec if spec.resources.provider == "local" else spec


@pytest.mark.parametrize("text", [pytest.param(text, id=where) for where, text in job_files()])
def test_a_job_file_in_a_page_is_one(text: str) -> None:
    check_job_file(text)


def test_job_files_are_found_and_bad_ones_refused() -> None:
    assert len(list(job_files())) > 12
    for bad in ("run: x\ncheckpoint: {keep: 3}\n", "nodes: two\n", "resources: {image: x}\n"):
        with pytest.raises(SpecError):
            check_job_file(bad)


POLICIES = [block for block in BLOCKS if block.language == "yaml" and block.text.startswith("rules:")]


@pytest.mark.parametrize("block", POLICIES, ids=str)
def test_a_policy_in_a_page_is_one(block: Block) -> None:
    assert parse_policy(block.text.encode(), str(block)).rules


def test_every_subject_of_a_rule_is_in_its_page() -> None:
    page = (DOCS / "governance.md").read_text(encoding="utf-8")
    rows = {row.partition("`")[2].partition(":")[0]: row for row in page.splitlines() if row.startswith("| `")}
    for subject, actions in SUBJECTS.items():
        told = re.findall(r"`([a-z-]+)`", rows[subject_key(subject)].rpartition(" | ")[2])
        assert tuple(told) == actions, subject


def test_every_yaml_block_is_a_job_file() -> None:
    """There is no other YAML in the pages: one that begins with a word we do not know has rotted."""
    known = {where for where, _ in job_files()} | {str(block) for block in POLICIES}
    assert [str(block) for block in BLOCKS if block.language == "yaml" and str(block) not in known] == []


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "python"], ids=str)
def test_python_in_a_page_compiles(block: Block) -> None:
    tree = ast.parse(block.text)
    modules = {"train": train, "client": client, "stoker": stoker}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            assert hasattr(modules[node.value.id], node.attr), f"{block}: {node.value.id}.{node.attr}"
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "stoker":
            module = importlib.import_module(node.module or "")
            for name in node.names:
                assert hasattr(module, name.name) or importlib.import_module(f"{node.module}.{name.name}"), block
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "summary":
            assert node.attr in {field.name for field in dataclasses.fields(Summary)}, f"{block}: {node.attr}"


def test_fields_that_are_spoken_of_exist() -> None:
    wrong = []
    for path in page_files():
        for where, span in spans(path):
            name = span.partition(":")[0].strip()
            if re.fullmatch(r"[a-z_]+(\.[a-z_0-9]+)+", name) and name.partition(".")[0] in SECTIONS:
                known = name in FIELDS or name.endswith((".yaml", ".py", ".md"))
                wrong += [] if known else [f"{where} {name}"]
    assert wrong == []


def test_variables_that_are_spoken_of_exist() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    for extra in ("scripts/isolated.sh", "tests/conftest.py"):
        source += (ROOT / extra).read_text(encoding="utf-8")
    promised = {name for names, _ in CONTRACT for name in names.split(", ")}
    for path in page_files():
        for name in set(re.findall(r"\bSTOKER_[A-Z_]+\b", path.read_text(encoding="utf-8"))):
            assert name in promised or name in source, f"{path.name}: {name}"


@pytest.mark.parametrize("name", sorted(GENERATED))
def test_generated_pages_are_there(name: str) -> None:
    assert (DOCS / name).is_file()
