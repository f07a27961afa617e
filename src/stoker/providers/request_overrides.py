"""Merge a job's overrides into a request to a cloud, and detect overrides of protected fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def merge_overrides(
    params: Mapping[str, Any], overrides: Mapping[str, Any], identities: Mapping[str, str]
) -> dict[str, Any]:
    """Merge overrides into params, field by field; overrides win.

    A list replaces a list, except for lists in `identities`: it maps the name of a list to the field that identifies
    its members. Members with the same identity are merged; a member with a new identity, or with none, is appended.
    """
    result = dict(params)
    for key, value in overrides.items():
        before = result.get(key)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            result[key] = merge_overrides(before, value, identities)
        elif key in identities and isinstance(before, list) and isinstance(value, list):
            result[key] = _merged_list(before, value, identities[key], identities)
        else:
            result[key] = value
    return result


def reaches(overrides: Mapping[str, Any], path: str) -> bool:
    """Return True if an override changes the field at this dotted path, or removes an object around it."""
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
            result[same[0]] = merge_overrides(result[same[0]], each, identities)
        else:
            result.append(each)
    return result
