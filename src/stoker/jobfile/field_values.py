"""Read values that are written in a form of their own: commands, secrets, addresses, images, patterns.

FORMS and TYPES name the reader of every field; `plain_values` has the contract of readers.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Any

from stoker.core.safe_regex import MAX_EXPRESSIONS, PatternError, SafePattern, compile_pattern
from stoker.jobfile import value_forms
from stoker.jobfile.plain_values import (
    NULL,
    SWITCHES,
    Reader,
    as_written,
    boolean,
    checked_text,
    drop_nulls_deeply,
    formed,
    mapping,
    named_items,
    number,
    quote_advice,
    text,
    whole,
    words,
    wrong,
)
from stoker.jobfile.settings_tree import SettingNode
from stoker.model import channel_address, dlc_images, docker_flags, secret_refs
from stoker.model.command_line import number_text
from stoker.model.policy import EVENT_KINDS
from stoker.model.spec import SUBMITTER_TAG, Scalar

NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")
_NAME_RULE = "a name of lower-case letters, digits and `-`, at most 40, a letter first"
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_VARIABLE_RULE = "letters, digits and `_`, not beginning with a digit"
PARAM = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_PARAM_RULE = "letters, digits, `_`, `.` and `-`, a letter first"
_LABEL = re.compile(r"[^\s=]{1,128}")
_LABEL_RULE = "without spaces and `=`, at most 128 long"
_SECRET = re.compile(secret_refs.PATTERN)
# For a field without a name of its own that a variable could share.
_REFERENCE = re.compile(secret_refs.NAMELESS_PATTERN)
# Each address is a channel that every governor serves.
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

_EMPTY_COMMAND = "is empty; say what to run, such as `run: python train.py`"


def _paths(node: SettingNode, path: str) -> str | tuple[str, ...]:
    """A text, or a list of texts that is not empty."""
    if isinstance(node.value, str):
        return text(node, path)
    found = words(node, path)
    if not found:
        raise node.origin.error(path, "is an empty list; name a folder or a pattern, or leave it out")
    return found


def params(node: SettingNode, path: str) -> dict[str, Scalar]:
    found: dict[str, Scalar] = {}
    for key, dotted, child in named_items(node, path, PARAM, _PARAM_RULE, nulls=True):
        if isinstance(child.value, (dict, tuple)):
            raise wrong(child, dotted, "a single value", "put it in quotes to pass it as text")
        found[key] = checked_text(child, dotted) if isinstance(child.value, str) else child.value
    return found


def params_as_written(node: SettingNode | None) -> dict[str, str]:
    """The texts of those numbers among the params that print differently from how they were written."""
    parts = node.value if node is not None and isinstance(node.value, dict) else {}
    return {
        key: child.text
        for key, child in parts.items()
        if child.text is not None
        and isinstance(child.value, (int, float))
        and not isinstance(child.value, bool)
        and child.text != number_text(child.value)
    }


def _version(node: SettingNode, path: str) -> str:
    # YAML reads `python: 3.10` as the number 3.1; the written text is still right.
    if isinstance(node.value, (int, float)) and not isinstance(node.value, bool) and node.text is not None:
        return node.text
    return text(node, path)


def _name(node: SettingNode, path: str) -> str:
    if isinstance(node.value, str) and NAME.fullmatch(node.value):
        return node.value
    raise wrong(node, path, _NAME_RULE)


def _names(node: SettingNode, path: str) -> tuple[str, ...]:
    """A name in a cloud, or a list of them. A text with several is the name of nothing, and clouds do not say why."""
    found = words(node, path)
    joined = next((each for each in found if "," in each), None)
    if joined is not None:
        several = ", ".join(part.strip() for part in joined.split(",") if part.strip())
        raise node.origin.error(path, f"{joined!r} is one text; write several names as a list: [{several}]")
    return found


def _zones(node: SettingNode, path: str) -> tuple[str, ...]:
    zones = _names(node, path)
    return () if zones == ("any",) else zones


def _regions(node: SettingNode, path: str) -> str | tuple[str, ...]:
    """The name of a region, or a list of several. A list of one is that one."""
    found = _names(node, path) if isinstance(node.value, (tuple, str)) else (text(node, path),)
    if not found:
        raise node.origin.error(path, "is empty; leave it out, or name a region")
    if len(set(found)) < len(found):
        raise node.origin.error(path, f"names {next(each for each in found if found.count(each) > 1)} twice")
    return found if len(found) > 1 else found[0]


def _spot(node: SettingNode, path: str) -> str:
    if isinstance(node.value, bool):
        return "only" if node.value else "never"
    if node.value == "prefer":
        return "prefer"
    switch = {**SWITCHES, "only": "true", "never": "false"}.get(str(node.value).lower())
    raise wrong(node, path, "true, false or prefer", f"write {switch}" if switch else "")


def _command(node: SettingNode, path: str) -> str | tuple[str, ...]:
    if isinstance(node.value, tuple):
        argv = tuple(_word(part, f"{path}[{index}]") for index, part in enumerate(node.value))
        if not argv or not argv[0].strip():
            raise node.origin.error(path, _EMPTY_COMMAND)
        return argv
    if not isinstance(node.value, str):
        raise wrong(node, path, "text for bash, or a list of words")
    if not _COMMENTS.sub("", node.value).strip():
        raise node.origin.error(path, _EMPTY_COMMAND)
    return checked_text(node, path)


def _word(node: SettingNode, path: str) -> str:
    value = node.value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return node.text if node.text is not None else number_text(value)
    if not isinstance(value, str):
        raise wrong(node, path, "text", quote_advice(node))
    return checked_text(node, path)


def _env(node: SettingNode, path: str) -> dict[str, str]:
    items = named_items(node, path, VARIABLE, _VARIABLE_RULE)
    return {key: as_written(child, dotted) for key, dotted, child in items}


def _tags(node: SettingNode, path: str) -> dict[str, str]:
    found = {}
    for key, dotted, child in named_items(node, path, _LABEL, _LABEL_RULE):
        if key == SUBMITTER_TAG:
            raise child.origin.error(dotted, "is what Stoker records at submission; give the tag another name")
        found[key] = as_written(child, dotted)
    return found


def _secrets(node: SettingNode, path: str) -> dict[str, str]:
    found = {}
    for key, dotted, child in named_items(node, path, VARIABLE, _VARIABLE_RULE):
        if not isinstance(child.value, str) or not _SECRET.fullmatch(child.value):
            # The value may be the secret itself, so the message does not repeat it.
            wanted = f"env, {secret_refs.expected()}"
            raise child.origin.error(dotted, f"expected {wanted}; the secret itself never belongs here")
        found[key] = child.value
    return found


def _reference(node: SettingNode, path: str) -> str:
    if isinstance(node.value, str) and _REFERENCE.fullmatch(node.value):
        return node.value
    # The value may be the secret itself, so the message does not repeat it.
    raise node.origin.error(path, f"expected {secret_refs.expected()}; the secret itself never belongs here")


def _address(node: SettingNode, path: str) -> str:
    if not isinstance(node.value, str):
        raise wrong(node, path, "an address, such as sns:arn:aws:sns:… or https://…")
    try:
        channel_address.address_kind(node.value)
    except ValueError as error:
        # The address may hold a key, so the message does not repeat it.
        raise node.origin.error(path, str(error)) from None
    return node.value


def _addresses(node: SettingNode, path: str) -> tuple[str, ...]:
    parts = node.value if isinstance(node.value, tuple) else (node,)
    if len(parts) > _MOST_ADDRESSES:
        raise node.origin.error(path, f"at most {_MOST_ADDRESSES} addresses; a chat or a topic reaches many people")
    found = []
    for index, part in enumerate(parts):
        where = f"{path}[{index}]" if part is not node else path
        found.append(_address(part, where))
        if channel_address.is_forbidden_target(found[-1]):
            raise part.origin.error(
                where, "is an address inside a cloud's machines, where governors send nothing for a job"
            )
    return tuple(dict.fromkeys(found))


def _events(node: SettingNode, path: str) -> tuple[str, ...]:
    found = words(node, path)
    for index, name in enumerate(found):
        if name not in EVENT_KINDS:
            close = get_close_matches(name, EVENT_KINDS, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are: {', '.join(EVENT_KINDS)}"
            raise node.origin.error(f"{path}[{index}]", f"there is no event {name!r}; {hint}")
    return found


def _packages(node: SettingNode, path: str) -> tuple[str, ...]:
    found = words(node, path)
    for index, name in enumerate(found):
        if not _PACKAGE.fullmatch(name):
            problem = f"{name!r} is not the name of a Debian package; write one such as libgl1 or libgl1=1.6.0-1"
            raise node.origin.error(f"{path}[{index}]", problem)
    return found


def _image(node: SettingNode, path: str) -> str:
    found = text(node, path)
    problem = dlc_images.problem(found)
    if problem is None and dlc_images.parse(found) is None and not _IMAGE.fullmatch(found):
        cased = " (names are in lower case)" if _IMAGE.fullmatch(found.lower()) else ""
        example = "pytorch/pytorch:2.5.1-cuda12.4-cudnn9-runtime"
        problem = f"{found!r} is not the name of an image{cased}; write one such as {example}"
    if problem is not None:
        raise node.origin.error(path, problem)
    return found


def _flags(node: SettingNode, path: str) -> dict[str, Any]:
    node = drop_nulls_deeply(node)
    found = mapping(node, path)
    for name, value in found.items():
        problem = docker_flags.problem(name, value)
        if problem is not None:
            child = node.value[name] if isinstance(node.value, dict) else node
            raise child.origin.error(f"{path}.{name}", problem)
    return found


def _regexes(node: SettingNode, path: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, dotted, child in named_items(node, path, _LABEL, _LABEL_RULE):
        found[key] = text(child, dotted)
        pattern = _compiled(child, dotted, found[key])
        if pattern.groups != 1 and len(pattern.names) != 1:
            advice = "expected exactly one group (or one named group) for the value, as in 'loss=([0-9.]+)'"
            raise child.origin.error(dotted, f"{advice}; found {pattern.groups}")
    if len(found) > MAX_EXPRESSIONS:
        raise node.origin.error(path, f"has {len(found)} expressions; use at most {MAX_EXPRESSIONS}")
    return found


def _regex(node: SettingNode, path: str) -> str:
    found = text(node, path)
    _compiled(node, path, found)
    return found


def _compiled(node: SettingNode, path: str, pattern: str) -> SafePattern:
    try:
        return compile_pattern(pattern)
    except PatternError as error:
        raise node.origin.error(path, str(error)) from None


def _wanted(node: SettingNode, path: str) -> dict[str, tuple[str, ...]]:
    """Values of tags: `any`, some of them, or `/patterns/`."""
    found = {}
    for key, dotted, child in named_items(node, path, _LABEL, _LABEL_RULE, nulls=True):
        if child.value is None:
            raise child.origin.error(dotted, f"{NULL}, or write `any`, values, or a pattern between slashes")
        parts = child.value if isinstance(child.value, tuple) else (child,)
        found[key] = tuple(as_written(part, dotted) for part in parts)
        if not found[key]:
            raise child.origin.error(dotted, "is empty; write `any`, values, or a pattern between slashes")
        for value in found[key]:
            if len(value) > 1 and value[0] == value[-1] == "/":
                _compiled(child, dotted, value[1:-1])
    return found


def _patterns(node: SettingNode, path: str) -> tuple[str, ...]:
    """Names, and patterns of names: with `*`, or between slashes."""
    found = words(node, path)
    for value in found:
        if len(value) > 1 and value[0] == value[-1] == "/":
            _compiled(node, path, value[1:-1])
    return found


def _label(node: SettingNode, path: str) -> str:
    found = text(node, path)
    if not _LABEL.fullmatch(found):
        raise wrong(node, path, f"the name of a tag, {_LABEL_RULE}")
    return found


def _labels(node: SettingNode, path: str) -> str | tuple[str, ...]:
    """The name of a tag, or a list of several."""
    if not isinstance(node.value, tuple):
        return _label(node, path)
    found = tuple(_label(part, f"{path}[{index}]") for index, part in enumerate(node.value))
    if not found:
        raise node.origin.error(path, "is empty; leave it out, or name a tag")
    if len(set(found)) < len(found):
        raise node.origin.error(path, f"names {next(each for each in found if found.count(each) > 1)} twice")
    return found if len(found) > 1 else found[0]


def _percent(node: SettingNode, path: str) -> float:
    if str(node.value).strip() == "1":
        raise node.origin.error(path, "1 may be 1% or 100%; write which")
    share: float = formed(value_forms.read_percent, value_forms.PERCENT_HELP)(node, path)
    return share


FORMS: dict[str, Reader] = {
    "duration": formed(value_forms.read_duration, value_forms.DURATION_HELP),
    "size": formed(value_forms.read_size, value_forms.SIZE_HELP),
    "gpus": formed(value_forms.read_gpus, value_forms.GPUS_HELP),
    "at-least": formed(value_forms.read_at_least, value_forms.AT_LEAST_HELP),
    "percent": _percent,
    "date": formed(value_forms.read_date, value_forms.DATE_HELP),
    "spot": _spot,
    "words": _names,
    "regions": _regions,
    "zones": _zones,
    "version": _version,
    "name": _name,
    "labels": _labels,
    "patterns": _patterns,
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
    "mapping": mapping,
}

TYPES: dict[Any, Reader] = {str: text, bool: boolean, int: whole, float: number, tuple[str, ...]: words}
