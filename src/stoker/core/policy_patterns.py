"""The pattern language of the policy, the same for tags, submitters, providers, regions, machines and images. Pure.

| written | matches |
|---|---|
| `any` | every value |
| `g5.*`, `us-?ast-1`, `[ab]*` | `*` any characters, `?` one, `[ab]` one of these |
| `/g5[.](2|4)xlarge/` | a regular expression that matches the whole value |
| anything else | itself |
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from stoker.core.safe_regex import compile_pattern
from stoker.model.policy import ANY, TagValues
from stoker.model.spec import LOCAL_SUBMITTER, SUBMITTER_TAG

_WILD = frozenset("*?[")


def matches(wanted: str, value: str) -> bool:
    """Return whether a value is what is written. A value always matches itself."""
    if wanted in (ANY, value):
        return True
    expression = regex_of(wanted)
    if expression is not None:
        return compile_pattern(expression).fullmatch(value) is not None
    return fnmatchcase(value, wanted)


def matches_any(wanted: Iterable[str], value: str) -> bool:
    return any(matches(each, value) for each in wanted)


def matches_value(wanted: TagValues, value: str) -> bool:
    """Return whether a tag's value is one of the wanted ones."""
    return matches_any(wanted, value)


def matches_tag(name: str, wanted: TagValues, value: str) -> bool:
    """Return whether the value of this tag is one of the wanted ones. Submitters obey `is_submitter`."""
    if name == SUBMITTER_TAG:
        return any(each == ANY or is_submitter(each, value) for each in wanted)
    return matches_value(wanted, value)


def is_submitter(wanted: str, value: str) -> bool:
    """Return whether a submitter matches.

    `*@corp.com` is not the user of a computer that is called so: only `*` alone and names that begin with `os:` are.
    """
    if value.startswith(LOCAL_SUBMITTER) and wanted != "*" and not wanted.lstrip("/^").startswith(LOCAL_SUBMITTER):
        return False
    return wanted != ANY and matches(wanted, value)


def is_pattern(wanted: str) -> bool:
    """Return whether other values than the written one may match."""
    return wanted == ANY or regex_of(wanted) is not None or bool(_WILD & set(wanted))


def is_one_value(wanted: TagValues) -> bool:
    """Return whether exactly one value matches."""
    return len(wanted) == 1 and not is_pattern(wanted[0])


def regex_of(wanted: str) -> str | None:
    """The regular expression between slashes, if the text is one."""
    return wanted[1:-1] if len(wanted) > 1 and wanted[0] == wanted[-1] == "/" else None
