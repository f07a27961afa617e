"""Find links in a folder that lead out of it: a container must see their targets too."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stoker.agent.container.engine import FIELD
from stoker.agent.runtime import BindMount
from stoker.model.errors import SetupFailed

# Limit of files and folders that are scanned, for all inputs together: more would take minutes.
MAX_SCANNED = 500_000
# Each target is a mount.
MAX_TARGETS = 64
# The image has its own: a link to one of these refers to the image.
_SYSTEM = ("bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "run", "sbin", "sys", "usr")
_SYSTEM_ITSELF = ("/", "/home", "/opt", "/root", "/tmp", "/var")


@dataclass
class LinkTargets:
    """The targets of links. `visible` are the paths in the container that are mounted already."""

    visible: Sequence[str]
    mounts: list[BindMount] = field(default_factory=list)
    # False: the scan stopped at its limit.
    complete: bool = True
    _scanned: int = 0

    def follow(self, folder: Path) -> None:
        """Add the targets of all links below a folder, and below those targets.

        Raises SetupFailed if there are too many.
        """
        todo = [str(folder)]
        while todo and self.complete:
            path = todo.pop()
            for link in self._links(path):
                mount = self._needed_mount(link)
                if mount is None:
                    continue
                if len(self.mounts) == MAX_TARGETS:
                    raise SetupFailed(
                        f"inputs: more than {MAX_TARGETS} links lead out of {folder}, such as {link} to "
                        f"{mount.target}, which the container does not see; make the folder that they lead to an "
                        f"input, or one of {FIELD}.run.volumes",
                        user=True,
                    )
                # Targets inside this one are visible with it.
                self.mounts = [other for other in self.mounts if not _within(other.target, mount.target)]
                self.mounts.append(mount)
                # Scanned at its path in the container, because links in it are relative to that path.
                if mount.source.is_dir():
                    todo.append(mount.target)

    def _links(self, folder: str) -> Iterator[str]:
        todo = [folder]
        while todo:
            path = todo.pop()
            try:
                with os.scandir(path) as entries:
                    for entry in entries:
                        self._scanned += 1
                        if self._scanned > MAX_SCANNED:
                            self.complete = False
                            return
                        if entry.is_symlink():
                            yield entry.path
                        elif entry.is_dir(follow_symlinks=False):
                            todo.append(entry.path)
            except OSError:
                continue  # A file, or a folder that this user may not read: then the training may not either.

    def _needed_mount(self, link: str) -> BindMount | None:
        """Return the mount that a link needs; None if its target is visible already or does not exist."""
        path = Path(link)
        try:
            target = os.path.normpath(path.parent / path.readlink())
            source = path.resolve(strict=True)
        except (OSError, RuntimeError):
            return None  # The link is broken on this machine too.
        parts = Path(target).parts
        if target in _SYSTEM_ITSELF or parts[1] in _SYSTEM:
            return None
        known = (*self.visible, *(mount.target for mount in self.mounts))
        return None if any(_within(target, other) for other in known) else BindMount(source, target, read_only=True)


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")
