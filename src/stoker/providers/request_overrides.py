"""What a job merges into a cloud's request, part by part, and what it may not reach."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def merged(params: Mapping[str, Any], overrides: Mapping[str, Any], identities: Mapping[str, str]) -> dict[str, Any]:
    """Overrides win, part by part. A list replaces a list, save those whose members have a name of their own: by the
    list's name, `identities` says which field that is. A member that has none is added."""
    result = dict(params)
    for key, value in overrides.items():
        before = result.get(key)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            result[key] = merged(before, value, identities)
        elif key in identities and isinstance(before, list) and isinstance(value, list):
            result[key] = _merged_list(before, value, identities[key], identities)
        else:
            result[key] = value
    return result


def reaches(overrides: Mapping[str, Any], path: str) -> bool:
    """Whether an override changes what this dotted path names, or takes away what is around it."""
    name, _, below = path.partition(".")
    if name not in overrides:
        return False
    inner = overrides[name]
    return not below or not isinstance(inner, Mapping) or reaches(inner, below)


def _merged_list(before: list[Any], after: list[Any], identity: str, identities: Mapping[str, str]) -> list[Any]:
    result = list(before)
    for each in after:
        name = each.get(identity)
        same = [n for n, one in enumerate(result) if name is not None and one.get(identity) == name]
        if same:
            result[same[0]] = merged(result[same[0]], each, identities)
        else:
            result.append(each)
    return result
