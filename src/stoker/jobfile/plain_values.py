"""Read plain values of a job file: texts, numbers, lists and mappings.

Each reader takes the node that was written and the field's dotted name. It returns the canonical value, or raises
SpecError in one line: the place, the field, the expected and the found value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from stoker.jobfile.settings_tree import SettingNode, describe, plain
from stoker.model.command_line import number_text
from stoker.model.errors import SpecError

Reader = Callable[[SettingNode, str], Any]

INPUT_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
# The largest whole number, which fits into 64 bits.
_MOST_WHOLE = 10**18
# In a file that is the only layer, a null takes nothing back: it would make a rule wider than its author meant.
NULL = "says nothing; leave it out"
# YAML 1.1 read these as true and false, and many people still do.
SWITCHES = {"yes": "true", "on": "true", "no": "false", "off": "false"}


def wrong(node: SettingNode, path: str, wanted: str, advice: str = "") -> SpecError:
    """The error for a value that is not what was `wanted`."""
    if not advice and isinstance(node.value, str) and wanted in ("a number", "a whole number"):
        advice = "write it without quotes" if re.fullmatch(r"-?[\d.]+", node.value) else ""
    ending = f"; {advice}" if advice else ""
    return node.origin.error(path, f"expected {wanted}, found {describe(node)}{ending}")


def text(node: SettingNode, path: str) -> str:
    """A text that is not empty."""
    if not isinstance(node.value, str):
        raise wrong(node, path, "text", quote_advice(node))
    if not node.value.strip():
        raise node.origin.error(path, "is empty; leave it out or write something")
    return checked_text(node, path)


def boolean(node: SettingNode, path: str) -> bool:
    if isinstance(node.value, bool):
        return node.value
    switch = SWITCHES.get(str(node.value).lower())
    raise wrong(node, path, "true or false", f"write {switch}" if switch else "")


def whole(node: SettingNode, path: str) -> int:
    """A whole number."""
    if isinstance(node.value, int) and not isinstance(node.value, bool):
        if abs(node.value) > _MOST_WHOLE:
            raise wrong(node, path, "a whole number of at most 18 digits")
        return node.value
    raise wrong(node, path, "a whole number")


def number(node: SettingNode, path: str) -> float:
    if isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
        try:
            return float(node.value)
        except OverflowError:
            raise wrong(node, path, "a number of a size that a computer can hold") from None
    raise wrong(node, path, "a number")


def check_unit(node: SettingNode, path: str) -> None:
    """Raise SpecError for a duration without a unit. Zero needs none."""
    bare = re.fullmatch(r"\d+(\.\d+)?", str(node.value).strip())
    if bare and float(bare[0]) and not isinstance(node.value, bool):
        raise node.origin.error(path, f"{bare[0]} is seconds; write {bare[0]}s or {bare[0]}h")


def words(node: SettingNode, path: str) -> tuple[str, ...]:
    """A text, or a list of texts."""
    if isinstance(node.value, tuple):
        return tuple(text(part, f"{path}[{index}]") for index, part in enumerate(node.value))
    if isinstance(node.value, str):
        return (text(node, path),)
    raise wrong(node, path, "text or a list of texts", quote_advice(node))


def as_written(node: SettingNode, path: str) -> str:
    """Text, or a number as it was written. A bool is refused: it may mean the text `True` or `true`."""
    value = node.value
    if isinstance(value, str):
        return checked_text(node, path)
    if isinstance(value, bool):
        shown = node.text or str(value).lower()
        raise node.origin.error(path, f'expected text, found {shown}; put it in quotes: "{shown}"')
    if isinstance(value, (int, float)):
        return node.text if node.text is not None else number_text(value)
    raise wrong(node, path, "text", 'for an empty text write ""' if value is None else "")


def mapping(node: SettingNode, path: str) -> dict[str, Any]:
    """A mapping as plain Python values."""
    if not isinstance(node.value, dict):
        raise wrong(node, path, "a mapping")
    value: dict[str, Any] = plain(node)
    return value


def formed(read: Callable[[Any], Any], wanted: str) -> Reader:
    """A reader of a scalar in a written form, such as a duration. `wanted` describes the form."""

    def reader(node: SettingNode, path: str) -> Any:
        if isinstance(node.value, bool) or not isinstance(node.value, (str, int, float)):
            raise wrong(node, path, wanted)
        try:
            return read(node.value)
        except (ValueError, OverflowError):
            raise wrong(node, path, wanted) from None

    return reader


def input_items(node: SettingNode, path: str) -> Iterator[tuple[str, str, SettingNode]]:
    """The names, dotted names and values of the job's inputs."""
    return named_items(node, path, INPUT_NAME, "letters, digits, `_` and `-`, a letter first")


def named_items(
    node: SettingNode, path: str, names: re.Pattern[str], rule: str, *, nulls: bool = False
) -> Iterator[tuple[str, str, SettingNode]]:
    """The names, dotted names and values of a mapping whose names match `names`, which `rule` describes.

    `nulls`: a null is a value here, and takes nothing back.
    """
    if not isinstance(node.value, dict):
        raise wrong(node, path, "a mapping of names to values")
    parts = node.value if nulls else drop_nulls(node.value)
    for key, child in parts.items():
        if not names.fullmatch(key):
            raise child.origin.error(f"{path}.{key}", f"a name here is {rule}")
        yield key, f"{path}.{key}", child


def drop_nulls(parts: dict[str, SettingNode]) -> dict[str, SettingNode]:
    """The parts without explicit nulls, which take back a value. A key without a value is a mistake, and stays."""
    return {key: part for key, part in parts.items() if part.value is not None or part.nothing}


def drop_nulls_deeply(node: SettingNode) -> SettingNode:
    """The node without explicit nulls at any depth."""
    if not isinstance(node.value, dict):
        return node
    return replace(node, value={key: drop_nulls_deeply(part) for key, part in drop_nulls(node.value).items()})


def checked_text(node: SettingNode, path: str) -> str:
    """The text. Raises SpecError where it holds a NUL character."""
    assert isinstance(node.value, str)
    if "\0" in node.value:
        raise node.origin.error(path, "holds a NUL character, which no command line or variable can")
    return node.value


def quote_advice(node: SettingNode) -> str:
    """The advice for a scalar that should be a text."""
    return "put it in quotes" if isinstance(node.value, (bool, int, float)) else ""
