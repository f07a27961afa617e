"""The schema and the reference page are generated, committed and true."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from stoker.jobfile import parse_job, read_layer, template
from stoker.jobfile.field_table import walk
from stoker.jobfile.reference import EXAMPLE, PAGE, SCHEMA, reference_markdown, schema_json
from stoker.jobfile.schema import json_schema
from stoker.model.errors import SpecError

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(("name", "text"), [(PAGE, reference_markdown()), (SCHEMA, schema_json())])
def test_what_is_committed_is_what_is_generated(name: str, text: str) -> None:
    committed = (DOCS / name).read_text(encoding="utf-8")
    assert committed == text, "run: python -m stoker.jobfile.reference docs"


def test_the_page_has_every_field() -> None:
    page = reference_markdown()
    for _, info in walk():
        assert f"| `{info.key}` |" in page
        assert info.doc.replace("|", "\\|") in page


def valid(text: str) -> bool:
    return Draft202012Validator(json_schema()).is_valid(_numbers(yaml.safe_load(text)))


def _numbers(tree: Any) -> Any:
    # Editors read YAML 1.2, where 3e-4 is a number.
    if isinstance(tree, dict):
        return {key: _numbers(value) for key, value in tree.items()}
    return 3e-4 if tree == "3e-4" else tree


def test_the_schema_is_one_and_takes_the_example() -> None:
    Draft202012Validator.check_schema(json_schema())
    errors = list(Draft202012Validator(json_schema()).iter_errors(_numbers(yaml.safe_load(EXAMPLE))))
    assert errors == []


@pytest.mark.parametrize(
    "text",
    [
        "run: x\nresources: {gpu: 1}\n",
        "run: x\nwhat: 1\n",
        "nodes: 1\n",
        "run: x\nnodes: 0\n",
        "run: x\nnodes: two\n",
        "run: x\nlimits: {max_runtime: soon}\n",
        "run: x\nlimits: {max_runtime: 0}\n",
        "run: x\nlimits: {max_cost: 0}\n",
        "run: x\nresources: {spot: maybe}\n",
        "run: x\nresources: {disk: 200}\n",
        "run: x\nresources: {cpus: 0}\n",
        "run: x\nsecrets: {A: hunter2}\n",
        "run: x\nenv: {A: true}\n",
        "run: x\nparams: {a: [1]}\n",
        "run: x\nname: Not A Name\n",
        "run: x\ninputs: {a: {mode: copy}}\n",
        "run: x\ninputs: {a: {from: b, mode: fast}}\n",
        "run: x\nenvironment: {container: {}}\n",
        "run: []\n",
    ],
)
def test_schema_and_parser_refuse_the_same(text: str) -> None:
    assert not valid(text)
    with pytest.raises(SpecError):
        parse_job([read_layer(text, "stoker.yaml")])


@pytest.mark.parametrize(
    "text",
    [
        "run: x\n",
        "run: [python, train.py, 3]\n",
        "run: x\nresources:\nlimits:\n",
        "run: x\nresources: {spot: true, machine: a, cpus: 8, gpus: 8, zones: [a]}\n",
        "run: x\nlimits: {max_runtime: 90, stall: 1h 30m}\nretry: {on_demand_after: null}\n",
        "run: x\nparams: {a: null, b: true, c: 1.5, d: text}\n",
        template(),
    ],
)
def test_schema_and_parser_take_the_same(text: str) -> None:
    assert valid(text)
    parse_job([read_layer(text, "stoker.yaml")])


def test_the_schema_describes_every_field() -> None:
    def described(schema: dict[str, Any]) -> None:
        for part in schema.get("properties", {}).values():
            assert part["description"]
            for choice in part.get("anyOf", [part]):
                described(choice)

    described(json_schema())
    assert json.loads(schema_json()) == json_schema()
