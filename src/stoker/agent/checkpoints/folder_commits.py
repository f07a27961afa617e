"""Commit the folder of a script that does not use `stoker.train`, when it settles."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from stoker.agent.checkpoints.blobs import BlobSender, FileUnstable, OutgoingFile
from stoker.agent.checkpoints.commit_chooser import CommitChooser
from stoker.agent.checkpoints.commit_contents import CommitContents
from stoker.agent.checkpoints.file_copies import FileCopier, FileCopy
from stoker.agent.checkpoints.folder_snapshot import File, Files, copy_stable, signature_of
from stoker.agent.checkpoints.folder_watcher import FolderWatch
from stoker.agent.checkpoints.manifest_writer import ManifestDraft, ManifestWriter
from stoker.agent.checkpoints.sync_options import SyncOptions
from stoker.agent.checkpoints.whole_saves import TrainingEnd
from stoker.model.key_segments import is_safe_name
from stoker.model.node_facts import BlobRef
from stoker.store.base import FileChanged

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
    """Commits the whole folder when it settles.

    `end` gives how the training ended, `seconds_left` the time until the deadline, once there is one. Files are held
    while they are sent, so a program that renames new files into their places loses no commit to a slow store. Where it
    writes into the files themselves, the next commit is made from copies.
    """

    def __init__(
        self,
        options: SyncOptions,
        watch: FolderWatch,
        chooser: CommitChooser,
        sender: BlobSender,
        manifests: ManifestWriter,
        end: Callable[[], TrainingEnd],
        seconds_left: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._options = options
        self._watch, self._chooser = watch, chooser
        self._sender, self._manifests = sender, manifests
        self._end = end
        self._seconds_left = seconds_left
        self._copier = FileCopier(options.folder, options.scratch / "held")
        # A file was written while it was sent: from now on changed files are copied first.
        self._overtaken = False
        self._spacing_s = options.effective_spacing_s
        self._monotonic = options.monotonic
        self._scan_at = self._not_before = float("-inf")
        self._cpu_share, self._scan_every_s = SCAN_CPU_SHARE, _FIRST_SCAN_S
        self._hurried = False

    @property
    def files(self) -> int:
        return len(self._watch.files)

    @property
    def may_join(self) -> bool:
        """True if rank 0 may commit a save that this rank has a part in."""
        return False

    @property
    def is_waiting(self) -> bool:
        """True while the last commit waits for a word of other ranks."""
        return False

    @property
    def held_back(self) -> str | None:
        """Why a save is not committed; None if it is not held back."""
        return self._chooser.held_back

    @property
    def ended_at(self) -> float:
        """When the training was signalled to end, or ended, by this node's clock; infinity before."""
        history = self._watch.history
        ended_at = history.ended_at if history.ended_at is not None else float("inf")
        return ended_at if history.pre_signal is None else min(ended_at, history.pre_signal.at)

    def hurry(self) -> None:
        """Scan often from now on, and leave no time between commits."""
        self._hurried, self._cpu_share, self._spacing_s = True, _HURRIED_CPU_SHARE, 0.0
        self._scan_at = self._not_before = float("-inf")

    def unsynced_bytes(self) -> int:
        return self._watch.dirty.size_bytes

    def advance(self, *, final: bool) -> bool:
        """Commit the folder if there is something new that is whole. Return False if there is not."""
        if not (self.scan_if_due(now=True) if final else self._may_choose()):
            return False
        contents = self._choose_final() if final else self._chooser.choose()
        if contents is None:
            return False
        contents = self._dated(contents)
        return self._commit(contents, self._send(contents))

    def _dated(self, contents: CommitContents) -> CommitContents:
        """Record when the save was begun, as it is known now: while it is sent, the next one may begin."""
        return replace(contents, begun_at=self._chooser.saved_at(contents))

    def decline(self) -> None:
        """Tell the other ranks that this one has no part in saves of the folder."""

    def _may_choose(self, *, now: bool = False) -> bool:
        """Scan the folder if it is time to, or `now`. Return True if a commit may be chosen.

        Nothing is chosen without a scan in the same round: a save may have begun since an older scan.
        """
        return self.scan_if_due(now=now) and self._monotonic() >= self._not_before

    def _commit(
        self, contents: CommitContents, blobs: dict[str, BlobRef], ranks: tuple[int, ...] = (0,), token: int = 0
    ) -> bool:
        """Write the manifest. `token` identifies a save of several ranks. Return False if nothing is new."""
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
            generation=-(token or ordinal),
            pause_s=self._watch.longest_pause_s(blobs),
        )

        def on_written(_key: str) -> None:
            self._note_commit(contents, blobs)
            self._commit_written(token)

        self._manifests.publish(ManifestDraft(manifest, on_written, self._chooser.saved_at(contents)))
        return True

    def _choose_final(self) -> CommitContents | None:
        """Choose the folder as it is; with little time left, first as it was before its newest save began.

        All of the earlier state has to be sent anyway, and it is sooner a checkpoint to resume from. Not where several
        ranks take part: the others could not know which of the two they join.
        """
        contents = self._chooser.choose_final(self._end())
        if contents is None or contents.copies or not self._hurried or not self._is_alone_at_end():
            return contents
        while (earlier := self._chooser.before_newest(contents)) is not None:
            contents = earlier
        return contents

    def _is_alone_at_end(self) -> bool:
        """Return whether no other rank has a part in the last commit."""
        return True

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

    def _commit_written(self, token: int) -> None:
        """Called when the manifest of a save with this token is in the store; 0 for a save of this rank alone."""

    def _note_commit(self, contents: CommitContents, blobs: Mapping[str, BlobRef]) -> None:
        self._watch.note_commit(contents, blobs)
        self._sender.forget_sent()
        self._sender.forget_files([file.signature for file in self._watch.files.values()])
        self._not_before, self._scan_every_s = self._monotonic() + self._spacing_s, SCAN_S

    def _send(self, contents: CommitContents, proceed: Callable[[], bool] = lambda: True) -> dict[str, BlobRef]:
        """Make the contents durable, and return its blobs, oldest first. `proceed` is asked before each file."""
        copies, members = self._options.scratch / "copies", self._watch.history.members
        try:
            contents = self._with_copies(contents) if self._overtaken else contents
            outgoing = [self._outgoing(file, contents, copies) for file in contents.files.values()]
            self._check_closed(contents, members)
            # Carried parts come first: they are older than new files.
            return contents.carried | self._send_held(outgoing, contents.copies, proceed)
        finally:
            shutil.rmtree(copies, ignore_errors=True)

    def _with_copies(self, contents: CommitContents) -> CommitContents:
        """Copy all files that the store lacks before they are sent, if the disk has room."""
        lacking = [
            file
            for path, file in contents.files.items()
            if file.link is None and path not in contents.copies and not self._sender.has(file)
        ]
        if not self._copier.has_room(sum(file.size for file in lacking)):
            return contents
        return replace(contents, to_copy=contents.to_copy | {file.path for file in lacking})

    def _send_held(
        self, outgoing: Sequence[OutgoingFile], copies: Mapping[str, FileCopy], proceed: Callable[[], bool]
    ) -> dict[str, BlobRef]:
        """Send the files, and hold those that would be read from the folder meanwhile."""
        in_folder = [
            one.file
            for one in outgoing
            if one.copied_ns is None and one.file.link is None and not self._sender.has(one.file)
        ]
        try:
            held = self._copier.hold_all(in_folder, may_link=False) or {}
        except (FileChanged, FileNotFoundError):
            raise FileUnstable("changed before it was sent") from None
        total = sum(one.file.size for one in outgoing)

        def is_worth_it() -> bool:
            if self._seconds_left() is None or self._sender.bytes_left * 4 <= total:
                return True
            # With little time left the newest save goes first, unless this one is nearly sent.
            return not self._is_replaced(in_folder)

        try:
            blobs = self._sender.send(
                [_from_copy(one, held.get(one.file.path)) for one in outgoing], lambda: proceed() and is_worth_it()
            )
            if not all(copy.is_intact() for copy in (*copies.values(), *held.values())):
                raise FileUnstable("written while it was sent")
        except FileUnstable:
            self._overtaken = True
            raise
        return blobs

    def _is_replaced(self, files: Collection[File]) -> bool:
        return any(signature_of(self._options.folder / file.path, file) != file.signature for file in files)

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


def _from_copy(one: OutgoingFile, copy: FileCopy | None) -> OutgoingFile:
    return one if copy is None else OutgoingFile(one.file, copy.path, copy.copied_ns)


def name_of(files: Files, ordinal: int) -> str:
    """Name a commit after its newest file or folder at the top, without extension, if that is valid in a key."""
    newest = max(files.values(), key=lambda file: (file.signature.modified_ns, file.path), default=None)
    if newest is None:
        return f"auto-{ordinal}"
    top, separator, _ = newest.path.partition("/")
    name = top if separator else Path(top).stem
    name = "".join(letter if is_safe_name(f"a{letter}") else "-" for letter in name).lstrip(".")[:100]
    return name if is_safe_name(name) else f"auto-{ordinal}"
