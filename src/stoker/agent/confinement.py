"""Keep what the agent reads for a container inside the folders that the container may write to.

A link that a process in a container makes names a path of the container. The agent runs outside, where the same path is
another file, such as /etc/shadow of the machine. So for jobs in containers no link is followed out of those folders.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class Confinement:
    """The folders that a container writes to: `anchors`.

    The outermost of them are mounts there: the container can replace what lies below one, but not the folder itself.

    `say` tells the user, once, which link is left out.
    """

    def __init__(self, anchors: Iterable[Path], say: Callable[[str], None]) -> None:
        self._anchors = tuple(anchors)
        self._say = say
        self._lock = threading.Lock()
        self._said = False

    def open(self, folder: Path) -> int:
        """A handle on a folder, reached without following a link below its anchor. Raises OSError."""
        anchor = min((one for one in self._anchors if folder.is_relative_to(one)), key=lambda one: len(one.parts))
        handle = os.open(anchor, _FOLDER)
        for name in folder.relative_to(anchor).parts:
            try:
                inner = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=handle)
            except NotADirectoryError:
                self._leave_out_folder(handle, name, folder)
                raise
            finally:
                os.close(handle)
            handle = inner
        return handle

    def leave_out(self, path: str, target: str) -> None:
        """Tell the user that the link at `path` is not followed."""
        with self._lock:
            said, self._said = self._said, True
        if not said:
            self._say(
                f"warning: {path} is left out: it is a link to {target}, outside the folders that the container shares "
                "with its machine; let the script write the file itself. This is said once for all such links"
            )

    def _leave_out_folder(self, parent: int, name: str, folder: Path) -> None:
        try:
            target = os.readlink(name, dir_fd=parent)
        except OSError:
            return  # A file, not a link.
        self.leave_out(folder.name, target)
