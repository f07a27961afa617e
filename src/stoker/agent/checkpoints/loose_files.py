"""Find files that a script which uses `stoker.train` wrote into the checkpoint folder without it.

As soon as a script asks for a commit, only what it saves in a block of `train.checkpoint` becomes a checkpoint. Other
files of the folder, such as a `best.pt` beside the saves, are in none: they are kept as outputs, and the job's log says
so once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from stoker.agent.checkpoints.commit_queue import CommitQueue
from stoker.agent.checkpoints.folder_snapshot import File, Files, Signature, top_folder_of
from stoker.agent.checkpoints.requested_commits import CommittedSave
from stoker.agent.checkpoints.save_protocol import MARKER
from stoker.agent.checkpoints.sync_options import SyncOptions

# The shortest time between two looks; it is longer where a look would take more than this share of a core.
_LOOK_S = 30.0
_CPU_SHARE = 0.01
_MAX_NAMED = 3


class LooseFiles:
    """The loose files of one checkpoint folder. `committed` gives the newest commit of each save of this attempt."""

    def __init__(
        self, options: SyncOptions, queue: CommitQueue, committed: Callable[[], Mapping[str, CommittedSave]]
    ) -> None:
        self._options = options
        self._queue = queue
        self._committed = committed
        # The folder as it was restored, and what the store has of it where that is not known.
        self.restored: Mapping[str, Signature] = {}
        self.stored_sizes: Mapping[str, int] = {}
        self._look_at = float("-inf")
        self._seen: frozenset[str] = frozenset()
        self._said = False

    def find(self) -> Files:
        """Return the files of the folder that are in no save of the script, and that it did not find there.

        A file that the script adds to a save, or changes in it, after the save was committed, is loose, too.
        """
        saves, committed = self._queue.saves(), self._committed()
        view = self._options.view
        files = view.scan()
        not_new = {path for path, file in files.items() if self._is_restored(file)}
        # Packed code, or files of others.
        not_new |= {path for path, file in files.items() if view.selection.was_there(view.folder, file)}

        def is_in_save(file: File) -> bool:
            name = top_folder_of(file.path)
            if name not in saves:
                return False
            save = committed.get(name)
            if save is not None and save.number == saves[name]:
                return _is_same(save.files.get(file.path), file)
            # A restored save is complete; any other waits, or was passed over.
            return f"{name}/{MARKER}" not in not_new

        return {
            path: file for path, file in files.items() if not file.link and path not in not_new and not is_in_save(file)
        }

    def report_if_due(self) -> None:
        """Say once in the job's log which files are loose.

        A file counts when it is seen twice: before, it may be on its way elsewhere.
        """
        now = self._options.monotonic()
        if self._said or now < self._look_at:
            return
        began_s = time.thread_time()
        found = frozenset(path for path in self.find() if not self._options.is_output(path))
        self._look_at = now + max(_LOOK_S, (time.thread_time() - began_s) / _CPU_SHARE)
        stay, self._seen = sorted(found & self._seen), found
        if stay:
            self._said = True
            folder = self._options.folder.name
            more = f" and {len(stay) - _MAX_NAMED} more" if len(stay) > _MAX_NAMED else ""
            named = ", ".join(f"{folder}/{path}" for path in stay[:_MAX_NAMED])
            self._options.say(
                f"in no checkpoint: {named}{more}. The script uses train.checkpoint, and only what it writes in such a "
                "block is restored; other files of this folder are kept as outputs when the attempt ends"
            )

    def _is_restored(self, file: File) -> bool:
        return self.stored_sizes.get(file.path) == file.size or _is_same(self.restored.get(file.path), file)


def _is_same(known: Signature | None, file: File) -> bool:
    """Return True if the file was not written since. ctime is not compared: hard links and renames change it."""
    return known is not None and known[:4] == file.signature[:4]
