"""Detect that a script trains and its checkpoint folder stays empty, and find files elsewhere that look like saves."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from stoker.agent.checkpoints.folder_snapshot import Selection
from stoker.agent.checkpoints.sync import SyncStatus
from stoker.agent.output_files import Baseline
from stoker.core.governor_settings import DEFAULT as POLICY
from stoker.core.saved_work import nothing_saved_yet

# The first search, without a message: if the machine is lost later, its heartbeat has the paths.
_FIRST_S = 15.0
# How often files are searched for while there is no checkpoint.
_AGAIN_S = 60.0
# Disk and processor are for the training: a search ends after so much time, or so many names.
_LOOK_S = 0.5
_MOST_NAMES = 20_000
_DEEPEST = 6
_MOST_FOUND = 5
# The clock of a file system may lag behind the machine's.
_SLACK_S = 2.0

# fmt: off
_ENDINGS = (
    ".bin", ".ckpt", ".h5", ".hdf5", ".keras", ".msgpack", ".npz", ".orbax", ".pdparams", ".pt", ".pth", ".safetensors",
)
# fmt: on
_FOLDERS = ("checkpoint-", "checkpoint_", "ckpt-", "ckpt_", "global_step")
# Folders that hold files of others.
_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "venv", "env", "wandb", "mlruns"})


class MissingSaves:
    """Watches one attempt. `check` is quick and may be called often; the search runs in a thread of its own.

    `say` writes to the job's log. `shown` is the folder's name in the job file. Files of `baseline` were there before
    the training, such as a dataset that came with the code. `selection` tells checkpoints from other files beside them.
    """

    def __init__(
        self,
        code: Path,
        folder: Path,
        shown: str,
        say: Callable[[str], None],
        baseline: Baseline | None = None,
        selection: Selection | None = None,
    ) -> None:
        self._code = code
        self._folder = folder
        self._baseline = baseline or Baseline()
        self._selection = selection or Selection()
        self._shown = shown
        self._say = say
        self._since = time.time()
        self._said = False
        self._next_s = _FIRST_S
        self._thread: threading.Thread | None = None
        # Recent files that look like saves, relative to the code.
        self.elsewhere: tuple[str, ...] = ()
        self.warning: str | None = None

    def check(self, status: SyncStatus, trained_s: float, *, noticed: bool = False, leaving: bool = False) -> None:
        """Search for saves if one is due.

        `noticed`: the machine may be taken soon, so the warning comes at once. `leaving`: the training ends now; the
        caller reports what was saved afterwards.
        """
        if status.last is not None or status.files:
            self.warning, self.elsewhere = None, ()
            return
        due = trained_s >= self._next_s or leaving or (noticed and not self._said)
        if not due or (self._thread is not None and self._thread.is_alive()):
            return
        self._next_s = max(trained_s, self._next_s) + _AGAIN_S
        warns = (noticed or trained_s >= POLICY.empty_folder_s) and not leaving
        self._thread = threading.Thread(target=self._search, args=(trained_s, warns), name="missing-saves", daemon=True)
        self._thread.start()

    def conclude(self, trained_s: float) -> None:
        """Search for the last time, when the training is over. The caller reports the result."""
        self.settle()
        if not self.elsewhere:
            self._search(trained_s, warns=False)
        self.warning = None

    def settle(self, timeout_s: float = 2 * _LOOK_S) -> None:
        """Wait for a search that is running."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _search(self, trained_s: float, warns: bool) -> None:
        self.elsewhere = find_saves(self._code, self._folder, self._since - _SLACK_S, self._baseline, self._selection)
        if not warns:
            return
        self.warning = nothing_saved_yet(self._shown, trained_s, self.elsewhere)
        if not self._said:
            self._said = True
            self._say(f"warning: {self.warning}")


def find_saves(
    code: Path, folder: Path, since: float, baseline: Baseline | None = None, selection: Selection | None = None
) -> tuple[str, ...]:
    """Return files and folders below `code`, written since then, that look like saves and are none yet: newest first.

    Checkpoints in `folder` and unchanged files of `baseline` are no results.

    The search is bounded in time and in names, and may miss files. Follows no link. Never raises.
    """
    until_s = time.monotonic() + _LOOK_S
    found: dict[str, float] = {}
    left = _MOST_NAMES
    pending = [(str(code), 0)]
    kept = os.path.realpath(folder)
    known = baseline.files if baseline is not None else {}
    before = {path.rpartition("/")[0] for path in known}
    takes = selection.takes if selection is not None else lambda _path: True
    while pending and left > 0 and time.monotonic() < until_s:
        place, depth = pending.pop(0)
        try:
            with os.scandir(place) as entries:
                for entry in entries:
                    left -= 1
                    if left <= 0 or time.monotonic() >= until_s:
                        break
                    if entry.is_dir(follow_symlinks=False):
                        if _is_save_folder(entry, since) and entry.path not in before:
                            found[entry.path + "/"] = entry.stat(follow_symlinks=False).st_mtime
                        elif depth < _DEEPEST and _is_searched(entry, kept):
                            pending.append((entry.path, depth + 1))
                    elif entry.name.lower().endswith(_ENDINGS) and entry.is_file(follow_symlinks=False):
                        status = entry.stat(follow_symlinks=False)
                        own = known.get(entry.path) == (status.st_size, status.st_mtime_ns)
                        if status.st_mtime >= since and not own and not _is_checkpoint(entry.path, kept, takes):
                            found[entry.path] = status.st_mtime
        except OSError:
            continue
    newest = sorted(found, key=lambda path: found[path], reverse=True)[:_MOST_FOUND]
    return tuple(os.path.relpath(path, code) + ("/" if path.endswith("/") else "") for path in newest)


def _is_save_folder(entry: os.DirEntry[str], since: float) -> bool:
    return entry.name.lower().startswith(_FOLDERS) and entry.stat(follow_symlinks=False).st_mtime >= since


def _is_checkpoint(path: str, folder: str, takes: Callable[[str], bool]) -> bool:
    """Return whether a file is a checkpoint in the checkpoint folder."""
    inside = os.path.relpath(os.path.realpath(path), folder)
    return not inside.startswith("../") and takes(inside)


def _is_searched(entry: os.DirEntry[str], kept: str) -> bool:
    return not entry.name.startswith(".") and entry.name not in _SKIPPED and os.path.realpath(entry.path) != kept
