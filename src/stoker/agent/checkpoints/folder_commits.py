"""Commit the folder of a script that does not use `stoker.train`: when it settles, or following rank 0's commits."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from stoker.agent.checkpoints.blobs import BlobSender, FileUnstable, OutgoingFile
from stoker.agent.checkpoints.commit_chooser import CommitChooser
from stoker.agent.checkpoints.commit_contents import CommitContents
from stoker.agent.checkpoints.folder_snapshot import File, Files, copy_stable
from stoker.agent.checkpoints.folder_watcher import FolderWatch
from stoker.agent.checkpoints.manifest_writer import ManifestDraft, ManifestWriter
from stoker.agent.checkpoints.sync_options import SyncOptions
from stoker.agent.checkpoints.whole_saves import TrainingEnd
from stoker.model.key_segments import is_safe_name
from stoker.model.node_facts import BlobRef
from stoker.store.checkpoint_manifests import StoredManifest
from stoker.store.checkpoints import save_of

# The shortest time between two scans of the folder; it is longer where scanning would take more than this share of a
# core.
SCAN_S = 0.5
SCAN_CPU_SHARE = 0.01
# Before the first commit: the order in which a program writes its files shows what one save is.
_FIRST_SCAN_S = 0.1
MAX_SCAN_S = 60.0
# The share with little time left.
_HURRIED_CPU_SHARE = 0.2


class FolderCommits:
    """Commits the whole folder when it settles. `end` gives how the training ended."""

    def __init__(
        self,
        options: SyncOptions,
        watch: FolderWatch,
        chooser: CommitChooser,
        sender: BlobSender,
        manifests: ManifestWriter,
        end: Callable[[], TrainingEnd],
    ) -> None:
        self._options = options
        self._watch, self._chooser = watch, chooser
        self._sender, self._manifests = sender, manifests
        self._end = end
        self._spacing_s = options.effective_spacing_s
        self._monotonic = options.monotonic
        self._scan_at = self._not_before = float("-inf")
        self._cpu_share, self._scan_every_s = SCAN_CPU_SHARE, _FIRST_SCAN_S
        self._hurried = False

    @property
    def files(self) -> int:
        return len(self._watch.files)

    def hurry(self) -> None:
        """Scan often from now on, and leave no time between commits."""
        self._hurried, self._cpu_share, self._spacing_s = True, _HURRIED_CPU_SHARE, 0.0
        self._scan_at = self._not_before = float("-inf")

    def unsynced_bytes(self) -> int:
        return self._watch.dirty.size_bytes

    def advance(self, *, final: bool) -> bool:
        """Commit the folder if there is something new that is whole. Return False if there is not."""
        # Nothing is chosen without a scan in the same round: a save may have begun since an older scan.
        if not self.scan_if_due(now=final) or (not final and self._monotonic() < self._not_before):
            return False
        contents = self._choose_final() if final else self._chooser.choose()
        if contents is None or (contents.carried and self._options.saving_ranks() != (0,)):
            # With several ranks it is all or nothing: the others cannot know which part of it is an older save.
            return False
        blobs = self._send(contents)
        ranks = self._options.saving_ranks()
        if contents.carried and ranks != (0,):
            # Another rank got its first files while this one sent.
            return False
        last = self._watch.last_commit.blobs
        if {path: blob.digest for path, blob in blobs.items()} == {path: blob.digest for path, blob in last.items()}:
            # The files were touched, or written again with the same bytes.
            self._watch.note_commit(contents, last)
            return False
        ordinal = self._manifests.next_ordinal()
        manifest = self._manifests.manifest(
            name_of({path: file for path, file in contents.files.items() if path not in contents.logs}, ordinal),
            ordinal,
            tuple(blobs.values()),
            ranks=ranks,
            generation=-ordinal,
            pause_s=self._watch.longest_pause_s(blobs),
        )
        self._manifests.publish(ManifestDraft(manifest, lambda _key: self._note_commit(contents, blobs)))
        return True

    def _choose_final(self) -> CommitContents | None:
        """Choose the folder as it is; with little time left, first as it was before its newest save began.

        All of the earlier state has to be sent anyway, and it is sooner a checkpoint to resume from. Not where several
        ranks take part: the others could not know which of the two they join.
        """
        contents = self._chooser.choose_final(self._end())
        if contents is None or contents.copies or not self._hurried or self._options.saving_ranks() != (0,):
            return contents
        while (earlier := self._chooser.before_newest(contents)) is not None:
            contents = earlier
        return contents

    def scan_if_due(self, *, now: bool = False) -> bool:
        """Scan the folder if it is time to, or `now`. Return True if it was scanned."""
        if not now and self._monotonic() < self._scan_at:
            # Open files are polled more often: a process that dies closes its file half written.
            self._watch.poll_open_files(self._cpu_share)
            return False
        began = time.thread_time()
        self._watch.scan()
        cost_s = (time.thread_time() - began) / self._cpu_share
        self._scan_at = self._monotonic() + min(max(self._scan_every_s, cost_s), MAX_SCAN_S)
        return True

    def _note_commit(self, contents: CommitContents, blobs: Mapping[str, BlobRef]) -> None:
        self._watch.note_commit(contents, blobs)
        self._sender.forget_sent()
        self._sender.forget_files([file.signature for file in self._watch.files.values()])
        self._not_before, self._scan_every_s = self._monotonic() + self._spacing_s, SCAN_S

    def _send(self, contents: CommitContents) -> dict[str, BlobRef]:
        """Make the contents durable, and return its blobs, oldest first."""
        copies, members = self._options.scratch / "copies", self._watch.history.members
        try:
            outgoing = [self._outgoing(file, contents, copies) for file in contents.files.values()]
            self._check_closed(contents, members)
            # Carried parts come first: they are older than new files.
            blobs = contents.carried | self._sender.send(outgoing)
            if not all(copy.is_intact() for copy in contents.copies.values()):
                raise FileUnstable("written while it was sent")
            return blobs
        finally:
            shutil.rmtree(copies, ignore_errors=True)

    def _outgoing(self, file: File, contents: CommitContents, copies: Path) -> OutgoingFile:
        source, copy = self._options.folder / file.path, contents.copies.get(file.path)
        if copy is not None:
            return OutgoingFile(file, copy.path, copy.copied_ns)
        if file.path not in contents.to_copy or file.link is not None:
            return OutgoingFile(file, source)
        copies.mkdir(parents=True, exist_ok=True)
        target = copies / str(sum(1 for _ in copies.iterdir()))
        begun_ns = time.time_ns()
        try:
            stable = copy_stable(source, file, target)
        except FileNotFoundError:
            stable = False
        if not stable:
            raise FileUnstable(file.path)
        return OutgoingFile(file, target, begun_ns)

    def _check_closed(self, contents: CommitContents, members: frozenset[int]) -> None:
        """Check after copying that no file was opened again and no process died, which closes half-written files.

        Files that were not copied are checked when they are sent.
        """
        copied = contents.to_copy - contents.logs
        if not copied:
            return
        open_files = self._watch.view.open_files()
        if open_files.files.keys() & copied:
            raise FileUnstable("opened while it was copied")
        if not members <= open_files.members:
            raise FileUnstable("a process ended while it was copied")


class FollowingCommits(FolderCommits):
    """Commits the folder of a rank other than 0, when it settles after rank 0 committed a save it takes part in."""

    _follow_at = float("-inf")
    _is_final = _sent_ahead = False

    def advance(self, *, final: bool) -> bool:
        scanned = self.scan_if_due(now=final)
        if final and not self._is_final:
            self._is_final, self._follow_at = True, float("-inf")
        if not scanned or not self._watch.files or self._monotonic() < self._follow_at:
            return False
        self._follow_at = self._monotonic() + (SCAN_S if final else self._options.follow_s)
        leader = self._leader()
        joins = leader is not None
        chooser = self._chooser
        contents = chooser.choose_final(self._end(), even_if_unchanged=joins) if final else chooser.choose_settled()
        if contents is None or contents.left_out:
            # A part of an older save under the name of rank 0's save would make one checkpoint of two saves.
            return False
        if leader is None or leader.manifest is None:
            if final and not self._sent_ahead:
                # Rank 0 has not committed yet. Sending takes long, and can be done meanwhile.
                self._send(contents)
                self._sent_ahead = True
            return False
        blobs = self._send(contents)
        manifest = self._manifests.manifest(
            leader.place.name,
            self._manifests.next_ordinal(),
            tuple(blobs.values()),
            ranks=leader.manifest.ranks,
            generation=leader.manifest.generation,
        )
        self._manifests.publish(ManifestDraft(manifest, lambda _key: self._note_commit(contents, blobs)))
        return True

    def ask_at_once(self) -> None:
        """Read rank 0's commits in the next round, however recently they were read."""
        self._follow_at = float("-inf")

    def _leader(self) -> StoredManifest | None:
        """Return rank 0's newest commit of this attempt, if this rank takes part and has not committed its part."""
        stored = self._manifests.read()
        led = [item for item in stored if item.place.rank == 0 and item.manifest is not None]
        newest = max(led, key=lambda item: item.place, default=None)
        if newest is None or newest.manifest is None or self._options.rank not in newest.manifest.ranks:
            return None
        own = {save_of(item) for item in stored if item.place.rank == self._options.rank}
        return None if save_of(newest) in own else newest


def name_of(files: Files, ordinal: int) -> str:
    """Name a commit after its newest file or folder at the top, without extension, if that is valid in a key."""
    newest = max(files.values(), key=lambda file: (file.signature.modified_ns, file.path), default=None)
    if newest is None:
        return f"auto-{ordinal}"
    top, separator, _ = newest.path.partition("/")
    name = top if separator else Path(top).stem
    name = "".join(letter if is_safe_name(f"a{letter}") else "-" for letter in name).lstrip(".")[:100]
    return name if is_safe_name(name) else f"auto-{ordinal}"
