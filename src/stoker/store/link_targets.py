"""Check where links of a stored folder lead. Pure: nothing is looked up on a disk."""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Mapping
from pathlib import PurePosixPath

from stoker.store.checkpoint_manifests import safe_path

# Chains of links: as many as Linux follows.
_MOST_HOPS = 40


def safe_link(path: str, target: str) -> bool:
    """Return whether a link at `path` stays inside the folder: relative, with `..` only at its beginning, and not above
    the folder.

    `..` after a name is refused: the name may itself be a link, and then `..` starts from elsewhere.
    """
    segments = target.split("/")
    ups = next((number for number, segment in enumerate(segments) if segment != ".."), len(segments))
    rest = "/".join(segments[ups:])
    return ups <= path.count("/") and (safe_path(rest) or (rest == "" and ups > 0))


def leads_to_stored(path: str, links: Mapping[str, str], files: Collection[str], folders: Collection[str]) -> bool:
    """Return whether the link at `path` leads to one of these files or folders, directly or through other links.

    `links` are the targets by path; every link is safe (`safe_link`). `files` and `folders` are the stored ones.
    """
    for _ in range(_MOST_HOPS):
        above = (path, *map(str, PurePosixPath(path).parents))
        link = next((each for each in above if each in links), None)
        if link is None:
            return path in files or path in folders
        path = posixpath.normpath(posixpath.join(posixpath.dirname(link), links[link], path[len(link) + 1 :]))
    return False
