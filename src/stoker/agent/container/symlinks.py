"""Links in a folder of this machine that lead out of it: what they lead to has to be seen in a container, too."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stoker.agent.container.engine import FIELD
from stoker.agent.runtime import Mount
from stoker.model.errors import SetupFailed

# So many files and folders are looked at, of all inputs together: more would be worth minutes.
MOST_LOOKED_AT = 500_000
# Each one is a mount.
MOST_TARGETS = 64
# The image's own. What a link means there, it means in the image.
_SYSTEM = ("bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "run", "sbin", "sys", "usr")
_SYSTEM_ITSELF = ("/", "/home", "/opt", "/root", "/tmp", "/var")


@dataclass
class Leads:
    """What links lead to. `seen` are the places in the container that somebody has filled already."""

    seen: Sequence[str]
    mounts: list[Mount] = field(default_factory=list)
    # False: there is more than was looked at.
    whole: bool = True
    _looked_at: int = 0

    def follow(self, folder: Path) -> None:
        """Of all links below a folder, and below what they lead to.

        Raises SetupFailed where there are too many.
        """
        todo = [str(folder)]
        while todo and self.whole:
            place = todo.pop()
            for link in self._links(place):
                mount = self._lead(link)
                if mount is None:
                    continue
                if len(self.mounts) == MOST_TARGETS:
                    raise SetupFailed(
                        f"inputs: more than {MOST_TARGETS} links lead out of {folder}, such as {link} to "
                        f"{mount.target}, which the container does not see; make the folder that they lead to an "
                        f"input, or one of {FIELD}.run.volumes",
                        user=True,
                    )
                # What lies in it is seen with it.
                self.mounts = [other for other in self.mounts if not _within(other.target, mount.target)]
                self.mounts.append(mount)
                # Under the name by which it is found there: that is what links in it are relative to.
                if mount.source.is_dir():
                    todo.append(mount.target)

    def _links(self, folder: str) -> Iterator[str]:
        todo = [folder]
        while todo:
            place = todo.pop()
            try:
                with os.scandir(place) as entries:
                    for entry in entries:
                        self._looked_at += 1
                        if self._looked_at > MOST_LOOKED_AT:
                            self.whole = False
                            return
                        if entry.is_symlink():
                            yield entry.path
                        elif entry.is_dir(follow_symlinks=False):
                            todo.append(entry.path)
            except OSError:
                continue  # A file, or what this user may not look into, and then the training may not, either.

    def _lead(self, link: str) -> Mount | None:
        """What has to be seen for a link to be of use; None where nothing is missing, or nothing is there."""
        place = Path(link)
        try:
            target = os.path.normpath(place.parent / place.readlink())
            source = place.resolve(strict=True)
        except (OSError, RuntimeError):
            return None  # It leads nowhere here, either.
        parts = Path(target).parts
        if target in _SYSTEM_ITSELF or parts[1] in _SYSTEM:
            return None
        known = (*self.seen, *(mount.target for mount in self.mounts))
        return None if any(_within(target, other) for other in known) else Mount(source, target, read_only=True)


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")
