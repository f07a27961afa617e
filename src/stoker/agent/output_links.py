"""Choose the links that are kept among the outputs of a node: those that lead to a stored file or folder.

A link has no object in the store. The node's exit names it with its target, and `stoker pull` makes it again.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from stoker.store.checkpoint_manifests import safe_path
from stoker.store.link_targets import leads_to_stored, safe_link
from stoker.store.node_facts import MOST_LINKS


class FoundLink(NamedTuple):
    """A link on this machine, and its target as it is written."""

    place: Path
    target: str


# A folder that outputs are taken from, and what comes before the paths of its files in the stored tree.
Root = tuple[Path, str]


def choose_links(
    found: Mapping[str, FoundLink], roots: Sequence[Root], stored: Collection[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the targets of the links that are kept, and why the others are not, both by stored path.

    `found` are the links on this machine by stored path; `stored` are the paths of the stored files.
    """
    targets: dict[str, str] = {}
    refused: dict[str, str] = {}
    for path, link in sorted(found.items()):
        target = _stored_target(path, link, roots)
        if target is None:
            refused[path] = "a link out of the folder"
        else:
            targets[path] = target
    folders = {str(parent) for path in stored for parent in PurePosixPath(path).parents}
    kept: dict[str, str] = {}
    for path, target in targets.items():
        if not leads_to_stored(path, targets, stored, folders):
            refused[path] = "a link to nothing" if not found[path].place.exists() else "a link to what is not kept"
        elif len(kept) == MOST_LINKS:
            refused[path] = f"more than {MOST_LINKS} links"
        else:
            kept[path] = target
    return kept, refused


def _stored_target(path: str, link: FoundLink, roots: Sequence[Root]) -> str | None:
    """Return the link's target in the stored tree, relative to its folder there; None if it leads out of the roots."""
    segments = link.target.split("/")
    names = [number for number, segment in enumerate(segments) if segment not in ("", ".", "..")]
    if names and ".." in segments[names[0] :]:
        # The name before `..` may be a link itself: then `..` starts from elsewhere.
        target = os.path.realpath(link.place)
    else:
        target = posixpath.normpath(posixpath.join(link.place.parent, link.target))
    for folder, prefix in sorted(roots, key=lambda root: -len(root[0].parts)):
        if target == str(folder) or target.startswith(f"{folder}/"):
            named = posixpath.normpath(posixpath.join(prefix, os.path.relpath(target, folder)))
            relative = posixpath.relpath(named, posixpath.dirname(path) or ".")
            return relative if safe_path(path) and safe_link(path, relative) else None
    return None
