"""Reading one field's value in the form that people write it.

Each reader takes what was written and the field's dotted name, and gives the canonical value or raises
SpecError in one line: where, which field, what was expected and what was found.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from stoker.core.safe_regex import MOST_EXPRESSIONS, Pattern, PatternError, compile_pattern
from stoker.jobfile import value_forms
from stoker.jobfile.document import Node, describe, plain
from stoker.model import channel_address, dlc_images, docker_flags, secret_refs
from stoker.model.command_line import number_text
from stoker.model.errors import SpecError
from stoker.model.policy import KINDS
from stoker.model.spec import SUBMITTER, Scalar

Reader = Callable[[Node, str], Any]

_NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")
_NAME_RULE = "a name of lower-case letters, digits and `-`, at most 40, a letter first"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_VARIABLE_RULE = "letters, digits and `_`, not beginning with a digit"
_PARAM = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_PARAM_RULE = "letters, digits, `_`, `.` and `-`, a letter first"
_LABEL = re.compile(r"[^\s=]{1,128}")
_LABEL_RULE = "without spaces and `=`, at most 128 long"
_SECRET = re.compile(secret_refs.PATTERN)
# For what has no name of its own that a variable could share.
_REFERENCE = re.compile(secret_refs.NAMELESS_PATTERN)
# Each is a channel of its own, that every governor looks after.
_MOST_ADDRESSES = 10
# A name that ends in `-` would tell apt to remove the package.
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]*[a-z0-9+.](?::[a-z0-9-]+)?(?:[=/][A-Za-z0-9.+:~-]+)?")
# https://pkg.go.dev/github.com/distribution/reference: a registry, a path in lower case, a tag, a digest.
_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*(?::[0-9]+)?"
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"(?:{_HOST}/)?{_PART}(?:/{_PART})*(?::\w[\w.-]{{0,127}})?(?:@[a-z0-9+._-]+:[0-9a-f]{{32,}})?", re.A
)
_COMMENTS = re.compile(r"^\s*#.*$", re.MULTILINE)

# What a computer's own whole numbers hold.
_MOST_WHOLE = 10**18

_EMPTY_COMMAND = "is empty; say what to run, such as `run: python train.py`"
# YAML 1.1 took these for true and false, and many people still do.
# Where there is one layer, a null takes nothing back. It would make a rule wider than whoever wrote it meant.
NULL = "says nothing; leave it out"
_SWITCHES = {"yes": "true", "on": "true", "no": "false", "off": "false"}


def wrong(node: Node, path: str, wanted: str, advice: str = "") -> SpecError:
    if not advice and isinstance(node.value, str) and wanted in ("a number", "a whole number"):
        advice = "write it without quotes" if re.fullmatch(r"-?[\d.]+", node.value) else ""
    ending = f"; {advice}" if advice else ""
    return node.origin.error(path, f"expected {wanted}, found {describe(node)}{ending}")


def text(node: Node, path: str) -> str:
    if not isinstance(node.value, str):
        raise wrong(node, path, "text", _quote(node))
    if not node.value.strip():
        raise node.origin.error(path, "is empty; leave it out or write something")
    return _without_nul(node, path)


def boolean(node: Node, path: str) -> bool:
    if isinstance(node.value, bool):
        return node.value
    switch = _SWITCHES.get(str(node.value).lower())
    raise wrong(node, path, "true or false", f"write {switch}" if switch else "")


def whole(node: Node, path: str) -> int:
    if isinstance(node.value, int) and not isinstance(node.value, bool):
        if abs(node.value) > _MOST_WHOLE:
            raise wrong(node, path, "a whole number of at most 18 digits")
        return node.value
    raise wrong(node, path, "a whole number")


def number(node: Node, path: str) -> float:
    if isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
        try:
            return float(node.value)
        except OverflowError:
            raise wrong(node, path, "a number that is not beyond all bounds") from None
    raise wrong(node, path, "a number")


def check_unit(node: Node, path: str) -> None:
    """Raise SpecError for a duration that is a number alone. Nothing is nothing in every unit."""
    bare = re.fullmatch(r"\d+(\.\d+)?", str(node.value).strip())
    if bare and float(bare[0]) and not isinstance(node.value, bool):
        raise node.origin.error(path, f"{bare[0]} is seconds; write {bare[0]}s or {bare[0]}h")


def words(node: Node, path: str) -> tuple[str, ...]:
    if isinstance(node.value, tuple):
        return tuple(text(part, f"{path}[{index}]") for index, part in enumerate(node.value))
    if isinstance(node.value, str):
        return (text(node, path),)
    raise wrong(node, path, "text or a list of texts", _quote(node))


def _paths(node: Node, path: str) -> str | tuple[str, ...]:
    """One text, or a list of them that is not empty."""
    if isinstance(node.value, str):
        return text(node, path)
    found = words(node, path)
    if not found:
        raise node.origin.error(path, "is an empty list; name a folder or a pattern, or leave it out")
    return found


def params(node: Node, path: str) -> dict[str, Scalar]:
    found: dict[str, Scalar] = {}
    for key, dotted, child in _items(node, path, _PARAM, _PARAM_RULE, nulls=True):
        if isinstance(child.value, (dict, tuple)):
            raise wrong(child, dotted, "a single value", "put it in quotes to pass it as text")
        found[key] = _without_nul(child, dotted) if isinstance(child.value, str) else child.value
    return found


def written(node: Node | None) -> dict[str, str]:
    """How the numbers among the params were written, where that is not how they print."""
    parts = node.value if node is not None and isinstance(node.value, dict) else {}
    return {
        key: child.text
        for key, child in parts.items()
        if child.text is not None
        and isinstance(child.value, (int, float))
        and not isinstance(child.value, bool)
        and child.text != number_text(child.value)
    }


def _version(node: Node, path: str) -> str:
    # `python: 3.10` is a number to YAML; what was written still knows better.
    if isinstance(node.value, (int, float)) and not isinstance(node.value, bool) and node.text is not None:
        return node.text
    return text(node, path)


def _name(node: Node, path: str) -> str:
    if isinstance(node.value, str) and _NAME.fullmatch(node.value):
        return node.value
    raise wrong(node, path, _NAME_RULE)


def _zones(node: Node, path: str) -> tuple[str, ...]:
    zones = words(node, path)
    return () if zones == ("any",) else zones


def _spot(node: Node, path: str) -> str:
    if isinstance(node.value, bool):
        return "only" if node.value else "never"
    if node.value == "prefer":
        return "prefer"
    switch = {**_SWITCHES, "only": "true", "never": "false"}.get(str(node.value).lower())
    raise wrong(node, path, "true, false or prefer", f"write {switch}" if switch else "")


def _command(node: Node, path: str) -> str | tuple[str, ...]:
    if isinstance(node.value, tuple):
        argv = tuple(_word(part, f"{path}[{index}]") for index, part in enumerate(node.value))
        if not argv or not argv[0].strip():
            raise node.origin.error(path, _EMPTY_COMMAND)
        return argv
    if not isinstance(node.value, str):
        raise wrong(node, path, "text for bash, or a list of words")
    if not _COMMENTS.sub("", node.value).strip():
        raise node.origin.error(path, _EMPTY_COMMAND)
    return _without_nul(node, path)


def _word(node: Node, path: str) -> str:
    value = node.value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return node.text if node.text is not None else number_text(value)
    if not isinstance(value, str):
        raise wrong(node, path, "text", _quote(node))
    return _without_nul(node, path)


def _env(node: Node, path: str) -> dict[str, str]:
    items = _items(node, path, _VARIABLE, _VARIABLE_RULE)
    return {key: _as_written(child, dotted) for key, dotted, child in items}


def _tags(node: Node, path: str) -> dict[str, str]:
    found = {}
    for key, dotted, child in _items(node, path, _LABEL, _LABEL_RULE):
        if key == SUBMITTER:
            raise child.origin.error(dotted, "is what Stoker records at submission; give the tag another name")
        found[key] = _as_written(child, dotted)
    return found


def _as_written(node: Node, path: str) -> str:
    """Text, or a number as it was written. A bool is refused: nobody knows whether `True` or `true` was meant."""
    value = node.value
    if isinstance(value, str):
        return _without_nul(node, path)
    if isinstance(value, bool):
        shown = node.text or str(value).lower()
        raise node.origin.error(path, f'expected text, found {shown}; put it in quotes: "{shown}"')
    if isinstance(value, (int, float)):
        return node.text if node.text is not None else number_text(value)
    raise wrong(node, path, "text", 'for an empty text write ""' if value is None else "")


def _secrets(node: Node, path: str) -> dict[str, str]:
    found = {}
    for key, dotted, child in _items(node, path, _VARIABLE, _VARIABLE_RULE):
        if not isinstance(child.value, str) or not _SECRET.fullmatch(child.value):
            # What stands there may be the secret itself, so it is not repeated.
            wanted = f"env, {secret_refs.expected()}"
            raise child.origin.error(dotted, f"expected {wanted}; the secret itself never belongs here")
        found[key] = child.value
    return found


def _reference(node: Node, path: str) -> str:
    if isinstance(node.value, str) and _REFERENCE.fullmatch(node.value):
        return node.value
    # What stands there may be the secret itself, so it is not repeated.
    raise node.origin.error(path, f"expected {secret_refs.expected()}; the secret itself never belongs here")


def _address(node: Node, path: str) -> str:
    if not isinstance(node.value, str):
        raise wrong(node, path, "an address, such as sns:arn:aws:sns:… or https://…")
    try:
        channel_address.kind_of(node.value)
    except ValueError as error:
        # It may hold a key, so it is not repeated.
        raise node.origin.error(path, str(error)) from None
    return node.value


def _addresses(node: Node, path: str) -> tuple[str, ...]:
    parts = node.value if isinstance(node.value, tuple) else (node,)
    if len(parts) > _MOST_ADDRESSES:
        raise node.origin.error(path, f"at most {_MOST_ADDRESSES} addresses; a chat or a topic reaches many people")
    found = []
    for index, part in enumerate(parts):
        where = f"{path}[{index}]" if part is not node else path
        found.append(_address(part, where))
        if channel_address.inside(found[-1]):
            raise part.origin.error(where, "is inside a cloud's machines, where no governor sends anything for a job")
    return tuple(dict.fromkeys(found))


def _events(node: Node, path: str) -> tuple[str, ...]:
    found = words(node, path)
    for index, name in enumerate(found):
        if name not in KINDS:
            close = get_close_matches(name, KINDS, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are: {', '.join(KINDS)}"
            raise node.origin.error(f"{path}[{index}]", f"there is no event {name!r}; {hint}")
    return found


def _packages(node: Node, path: str) -> tuple[str, ...]:
    found = words(node, path)
    for index, name in enumerate(found):
        if not _PACKAGE.fullmatch(name):
            problem = f"{name!r} is not the name of a Debian package; write one such as libgl1 or libgl1=1.6.0-1"
            raise node.origin.error(f"{path}[{index}]", problem)
    return found


def _image(node: Node, path: str) -> str:
    found = text(node, path)
    problem = dlc_images.problem(found)
    if problem is None and not _IMAGE.fullmatch(found):
        cased = " (names are in lower case)" if _IMAGE.fullmatch(found.lower()) else ""
        example = "pytorch/pytorch:2.5.1-cuda12.4-cudnn9-runtime"
        problem = f"{found!r} is not the name of an image{cased}; write one such as {example}"
    if problem is not None:
        raise node.origin.error(path, problem)
    return found


def _flags(node: Node, path: str) -> dict[str, Any]:
    node = _deeply_kept(node)
    found = _mapping(node, path)
    for name, value in found.items():
        problem = docker_flags.problem(name, value)
        if problem is not None:
            child = node.value[name] if isinstance(node.value, dict) else node
            raise child.origin.error(f"{path}.{name}", problem)
    return found


def _kept(parts: dict[str, Node]) -> dict[str, Node]:
    """Without what an explicit null takes back. A key with nothing behind it is somebody's mistake, and stays."""
    return {key: part for key, part in parts.items() if part.value is not None or part.nothing}


def _deeply_kept(node: Node) -> Node:
    if not isinstance(node.value, dict):
        return node
    return replace(node, value={key: _deeply_kept(part) for key, part in _kept(node.value).items()})


def _regexes(node: Node, path: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, dotted, child in _items(node, path, _LABEL, _LABEL_RULE):
        found[key] = text(child, dotted)
        pattern = _compiled(child, dotted, found[key])
        if pattern.groups != 1 and len(pattern.names) != 1:
            advice = "expected exactly one group (or one named group) for the value, as in 'loss=([0-9.]+)'"
            raise child.origin.error(dotted, f"{advice}; found {pattern.groups}")
    if len(found) > MOST_EXPRESSIONS:
        raise node.origin.error(path, f"has {len(found)} expressions; use at most {MOST_EXPRESSIONS}")
    return found


def _regex(node: Node, path: str) -> str:
    found = text(node, path)
    _compiled(node, path, found)
    return found


def _compiled(node: Node, path: str, pattern: str) -> Pattern:
    try:
        return compile_pattern(pattern)
    except PatternError as error:
        raise node.origin.error(path, str(error)) from None


def _wanted(node: Node, path: str) -> dict[str, tuple[str, ...]]:
    """Values of tags: `any`, some of them, or `/patterns/`."""
    found = {}
    for key, dotted, child in _items(node, path, _LABEL, _LABEL_RULE, nulls=True):
        if child.value is None:
            raise child.origin.error(dotted, f"{NULL}, or write `any`, values, or a pattern between slashes")
        parts = child.value if isinstance(child.value, tuple) else (child,)
        found[key] = tuple(_as_written(part, dotted) for part in parts)
        if not found[key]:
            raise child.origin.error(dotted, "is empty; write `any`, values, or a pattern between slashes")
        for value in found[key]:
            if len(value) > 1 and value[0] == value[-1] == "/":
                _compiled(child, dotted, value[1:-1])
    return found


def _label(node: Node, path: str) -> str:
    found = text(node, path)
    if not _LABEL.fullmatch(found):
        raise wrong(node, path, f"the name of a tag, {_LABEL_RULE}")
    return found


def _percent(node: Node, path: str) -> float:
    if str(node.value).strip() == "1":
        raise node.origin.error(path, "1 may be 1% or 100%; write which")
    share: float = _formed(value_forms.read_percent, value_forms.PERCENT_HELP)(node, path)
    return share


def _mapping(node: Node, path: str) -> dict[str, Any]:
    if not isinstance(node.value, dict):
        raise wrong(node, path, "a mapping")
    value: dict[str, Any] = plain(node)
    return value


def _formed(read: Callable[[Any], Any], wanted: str) -> Reader:
    def reader(node: Node, path: str) -> Any:
        if isinstance(node.value, bool) or not isinstance(node.value, (str, int, float)):
            raise wrong(node, path, wanted)
        try:
            return read(node.value)
        except (ValueError, OverflowError):
            raise wrong(node, path, wanted) from None

    return reader


def items(node: Node, path: str) -> Iterator[tuple[str, str, Node]]:
    """The names, dotted names and values of a mapping of inputs."""
    return _items(node, path, re.compile(r"[A-Za-z][A-Za-z0-9_-]*"), "letters, digits, `_` and `-`, a letter first")


def _items(
    node: Node, path: str, names: re.Pattern[str], rule: str, *, nulls: bool = False
) -> Iterator[tuple[str, str, Node]]:
    """`nulls`: null is a value here, and does not take anything back."""
    if not isinstance(node.value, dict):
        raise wrong(node, path, "a mapping of names to values")
    parts = node.value if nulls else _kept(node.value)
    for key, child in parts.items():
        if not names.fullmatch(key):
            raise child.origin.error(f"{path}.{key}", f"a name here is {rule}")
        yield key, f"{path}.{key}", child


def _without_nul(node: Node, path: str) -> str:
    assert isinstance(node.value, str)
    if "\0" in node.value:
        raise node.origin.error(path, "holds a NUL character, which no command line or variable can")
    return node.value


def _quote(node: Node) -> str:
    return "put it in quotes" if isinstance(node.value, (bool, int, float)) else ""


FORMS: dict[str, Reader] = {
    "duration": _formed(value_forms.read_duration, value_forms.DURATION_HELP),
    "size": _formed(value_forms.read_size, value_forms.SIZE_HELP),
    "gpus": _formed(value_forms.read_gpus, value_forms.GPUS_HELP),
    "at-least": _formed(value_forms.read_at_least, value_forms.AT_LEAST_HELP),
    "percent": _percent,
    "date": _formed(value_forms.read_date, value_forms.DATE_HELP),
    "spot": _spot,
    "words": words,
    "zones": _zones,
    "version": _version,
    "name": _name,
    "label": _label,
    "paths": _paths,
    "command": _command,
    "params": params,
    "env": _env,
    "tags": _tags,
    "secrets": _secrets,
    "reference": _reference,
    "address": _address,
    "addresses": _addresses,
    "events": _events,
    "packages": _packages,
    "image": _image,
    "flags": _flags,
    "regex": _regex,
    "regexes": _regexes,
    "wanted": _wanted,
    "mapping": _mapping,
}

TYPES: dict[Any, Reader] = {str: text, bool: boolean, int: whole, float: number, tuple[str, ...]: words}
