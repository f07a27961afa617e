"""What is read from YAML, `--set` and Python, and where it is said to come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.jobfile.settings_tree import (
    Layer,
    SettingNode,
    assignments,
    layer_of,
    merge_layers,
    plain,
    read_layer,
    scalar,
)
from stoker.model.errors import SpecError


def read(text: str | bytes) -> dict[str, object]:
    return plain(read_layer(text, "f.yaml").root)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e-4", 3e-4),
        ("3.0e-4", 3e-4),
        ("1E5", 1e5),
        (".5", 0.5),
        ("12", 12),
        ("-3", -3),
        ("010", 10),
        ("1:30", "1:30"),
        ("190:20:30", "190:20:30"),
        ("yes", "yes"),
        ("no", "no"),
        ("on", "on"),
        ("off", "off"),
        ("true", True),
        ("False", False),
        ("~", None),
        ("", None),
        ("null", None),
        ("2024-01-01", "2024-01-01"),
        (".inf", ".inf"),
        ("1e999", "1e999"),
        ("1_000", "1_000"),
        ("0x10", "0x10"),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_unquoted_scalars(text: str, value: object) -> None:
    found = read(f"a: {text}\n")["a"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("text", ["'3e-4'", '"12"', "'true'", '"null"', "!!str 12"])
def test_quoted_things_stay_text(text: str) -> None:
    assert isinstance(read(f"a: {text}\n")["a"], str)


def test_a_scalar_keeps_how_it_was_written() -> None:
    root = read_layer("a: 1.10\n", "f.yaml").root
    assert isinstance(root.value, dict)
    assert root.value["a"].value == 1.1
    assert root.value["a"].text == "1.10"


def test_origins_name_the_line_of_the_key() -> None:
    root = read_layer("a: 1\nb:\n  c:\n    - 1\n", "f.yaml").root
    assert isinstance(root.value, dict)
    inner = root.value["b"].value
    assert isinstance(inner, dict)
    assert str(root.value["b"].origin) == "f.yaml:2"
    assert str(inner["c"].origin) == "f.yaml:3"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "f.yaml:3: a: is written twice; first in line 1"),
        ("x:\n  a: 1\n  a: 2\n", "f.yaml:3: a: is written twice; first in line 2"),
        ("- 1\n", "f.yaml:1: expected fields such as `run: python train.py`, found a list"),
        ("hello\n", "f.yaml:1: expected fields such as `run: python train.py`, found text 'hello'"),
        ("a: 1\n\tb: 2\n", "f.yaml:2: not valid YAML: indent with spaces; YAML does not allow tabs"),
        ("a: [1\n", "f.yaml:2: not valid YAML: "),
        ("run: echo a: b\n", "f.yaml:1: not valid YAML: mapping values are not allowed here (put text"),
        ("a: 1\n---\nb: 2\n", "f.yaml:2: not valid YAML: holds more than one document"),
        ("a: !foo 1\n", "f.yaml:1: the tag !foo is not allowed"),
        ("a: !!python/object:os.system x\n", "f.yaml:1: the tag !!python/object:os.system is not allowed"),
        ("? [1]\n: 2\n", "f.yaml:1: expected a name before the colon"),
        ("a: &x [*x]\n", "f.yaml:1: refers to itself"),
        ("a: *nobody\n", "f.yaml:1: not valid YAML: found undefined alias"),
        ("[" * 5000, "f.yaml: is nested too deeply"),
        (b"a: \xff\n", "f.yaml: is not text in UTF-8"),
        ("a: \x01\n", "f.yaml: not valid YAML: special characters are not allowed"),
    ],
)
def test_bad_files_say_where_and_what_in_one_line(text: str | bytes, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        read_layer(text, "f.yaml")
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_aliases_cannot_fill_the_memory() -> None:
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    with pytest.raises(SpecError, match="repeats itself too often"):
        read_layer("\n".join(lines), "f.yaml")


def test_merge_keys() -> None:
    text = "base: &b {x: 1, y: 2}\nother: {<<: *b, y: 3}\nmany: {<<: [{x: 9}, *b]}\n"
    assert read(text)["other"] == {"x": 1, "y": 3}
    assert read(text)["many"] == {"x": 9, "y": 2}


def test_empty_files_say_nothing() -> None:
    assert read("") == {}
    assert read("# only a comment\n") == {}
    assert read(b"\xef\xbb\xbfa: 1\n") == {"a": 1}


def test_layers_merge_deeply_and_the_later_wins() -> None:
    earlier = read_layer("a: {x: 1, y: [1, 2]}\nb: 1\n", "one.yaml", shared=True)
    later = read_layer("a: {y: [3]}\nc: 4\n", "two.yaml")
    root = merge_layers([earlier, later])
    assert plain(root) == {"a": {"x": 1, "y": [3]}, "b": 1, "c": 4}
    assert isinstance(root.value, dict)
    assert root.value["b"].origin.shared
    assert str(root.value["c"].origin) == "two.yaml:2"


def test_an_empty_section_changes_nothing_and_a_null_takes_back() -> None:
    first = read_layer("a: {x: 1}\n", "one.yaml")
    assert plain(merge_layers([first, read_layer("a:\n", "two.yaml")])) == {"a": {"x": 1}}
    assert plain(merge_layers([first, read_layer("a: null\n", "two.yaml")])) == {"a": None}


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("nodes=2", {"nodes": 2}),
        ("resources.spot=true", {"resources": {"spot": True}}),
        ("params.lr=3e-4", {"params": {"lr": 3e-4}}),
        ("params.model.lr=1", {"params": {"model.lr": 1}}),
        ("inputs.val.mode=mount", {"inputs": {"val": {"mode": "mount"}}}),
        ("resources.machine=[a, b]", {"resources": {"machine": ["a", "b"]}}),
        ("env.X='12'", {"env": {"X": "12"}}),
        ("run=echo a: b", {"run": "echo a: b"}),
        ("run=x=1 y", {"run": "x=1 y"}),
        ("metrics.loss=[lL]oss=(.*)", {"metrics": {"loss": "[lL]oss=(.*)"}}),
        ("resources.region=", {"resources": {"region": None}}),
    ],
)
def test_assignments(text: str, tree: object) -> None:
    assert plain(assignments([text]).root) == tree


@pytest.mark.parametrize("text", ["nodes", "=3", "a..b=1", ".a=1", ""])
def test_assignments_that_are_none(text: str) -> None:
    with pytest.raises(SpecError, match="write it as field=value"):
        assignments([text])


def test_later_assignments_win() -> None:
    layer = assignments(["a.x=1", "a.y=2", "a.x=3"])
    assert plain(layer.root) == {"a": {"x": 3, "y": 2}}


def test_python_values() -> None:
    np = pytest.importorskip("numpy")
    layer = layer_of(
        {"a": np.float64(0.5), "b": np.int64(3), "c": Path("x/y"), "d": (1, 2), "e": None, "f": {"g": None}}, "Job"
    )
    assert plain(layer.root) == {"a": 0.5, "b": 3, "c": "x/y", "d": [1, 2], "f": {"g": None}}
    assert isinstance(layer.root.value, dict)
    assert type(layer.root.value["a"].value) is float


def test_python_values_that_no_file_could_hold() -> None:
    with pytest.raises(SpecError, match=r"Job: a\.b: expected text, a number, a list or a mapping, found a set"):
        layer_of({"a": {"b": {1}}}, "Job")
    with pytest.raises(SpecError, match="Job: a: expected text as names, found 1"):
        layer_of({"a": {1: 2}}, "Job")
    assert plain(layer_of({"a": float("inf")}, "Job").root) == {"a": "inf"}


def test_a_layer_knows_its_source() -> None:
    assert read_layer("", "f.yaml").source == "f.yaml"
    assert isinstance(Layer(SettingNode({}, read_layer("", "x").root.origin)).source, str)
    assert scalar("3e-4") == 0.0003
