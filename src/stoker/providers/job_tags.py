"""The check of a job's own tags, for every cloud."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from stoker.model.errors import UserError


def check_tags(cloud: str, tags: Mapping[str, str], most: int, problem: Callable[[str, str], str | None]) -> None:
    """Raise UserError for more tags than `most`, and for one about whose name and value `problem` has an answer."""
    if len(tags) > most:
        raise UserError(f"tags: {cloud} takes {most} beside Stoker's own, found {len(tags)}")
    for key, value in tags.items():
        found = problem(key, value)
        if found:
            raise UserError(f"tags.{key}: {found}")
