"""Groups of jobs that share a budget or a limit: one for each value of a tag, or for each combination of the values of
several tags. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote, unquote

# The group of jobs without the tag: they share one budget, otherwise their cost would count nowhere.
NO_VALUE = ""


def tags_of_groups(by: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """The tags whose values make the groups; none: all jobs are one group."""
    if by is None:
        return ()
    return (by,) if isinstance(by, str) else by


def group_of(by: str | tuple[str, ...] | None, tags: Mapping[str, str]) -> str:
    """The group of a job with these tags: the value of the tag. Of several tags, their values, each escaped."""
    names = tags_of_groups(by)
    if len(names) == 1:
        return tags.get(names[0], NO_VALUE)
    values = [quote(tags.get(name, NO_VALUE), safe="") for name in names]
    return "/".join(values) if any(values) else NO_VALUE


def values_of_group(by: str | tuple[str, ...] | None, group: str) -> dict[str, str]:
    """The tags that the jobs of a group share, without those that they lack."""
    names = tags_of_groups(by)
    if len(names) == 1:
        return {names[0]: group} if group else {}
    return {name: unquote(part) for name, part in zip(names, group.split("/"), strict=False) if part}


def group_text(by: str | tuple[str, ...] | None, group: str) -> str:
    """The group for people: `team=nlp`, `team=nlp and project=x`, `jobs without team`; empty for all jobs."""
    names = tags_of_groups(by)
    if not names:
        return ""
    values = values_of_group(by, group)
    missing = [name for name in names if name not in values]
    given = " and ".join(f"{name}={value}" for name, value in values.items())
    if not given:
        return f"jobs without {' and '.join(missing)}"
    return f"{given} without {' and '.join(missing)}" if missing else given
