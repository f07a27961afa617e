"""Commit the saves that a script made with `stoker.train.checkpoint`."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial

from stoker.agent.checkpoints.blobs import BlobSender, FileUnstable, OutgoingFile
from stoker.agent.checkpoints.commit_queue import CommitQueue, CommitRequest
from stoker.agent.checkpoints.file_copies import FileCopier, FileCopy
from stoker.agent.checkpoints.folder_snapshot import File, Files, Signature, placed, scan
from stoker.agent.checkpoints.manifest_writer import ManifestDraft, ManifestWriter
from stoker.agent.checkpoints.save_protocol import MARKER
from stoker.agent.checkpoints.sync_options import SyncOptions
from stoker.agent.checkpoints.unreadable_files import FileUnreadable, UnreadableSaves, closed_folder
from stoker.model.node_facts import BlobRef
from stoker.store.base import FileChanged

# A save is nearly sent when the newest save has this many times more left to send.
_NEARLY = 4


@dataclass(frozen=True)
class CommittedSave:
    """A save that was committed: its number, and its files by path in the checkpoint folder."""

    number: int
    files: Mapping[str, Signature]


class RequestedCommits:
    """Commits requested saves in order.

    If the store is slower than the script, older saves are passed over for newer ones; the last save never is. One save
    is held while it is sent: it becomes a checkpoint even if the script replaces or removes it meanwhile. A save with a
    file that cannot be read waits, and older ones go before it.

    Sharded saves must be passed over alike on every rank, or no save would ever be complete: of those that wait, the
    one with the roundest number goes first, so that ranks of different speed meet.

    `seconds_left` gives the time until the deadline, once there is one: see `first_to_go`.
    """

    def __init__(
        self,
        options: SyncOptions,
        queue: CommitQueue,
        sender: BlobSender,
        manifests: ManifestWriter,
        seconds_left: Callable[[], float | None],
    ) -> None:
        self._options = options
        self._queue = queue
        self._sender = sender
        self._manifests = manifests
        self._seconds_left = seconds_left
        self.waiting: list[CommitRequest] = []
        # The sequence number and size of the newest waiting save: a save does not change, so it is measured once.
        self._measured = (0, 0)
        # Commits that could not be answered, such as on a full disk, by sequence number. They are not made again.
        self._unanswered: dict[int, str] = {}
        self._copier = FileCopier(options.folder, options.scratch / "held")
        # The newest commit of each save.
        self.committed: dict[str, CommittedSave] = {}
        self.unreadable = UnreadableSaves(options.monotonic, options.say)
        self._said_overtaken = False
        self.files = 0
        self.skipped = 0

    def advance(self, *, final: bool) -> bool:
        """Commit one save, or pass over one. Return False if there is nothing to do."""
        self.waiting = self._find_waiting(final=final)
        for request in self.waiting:
            if not self._takes_part(request):
                self._queue.answer(request, key=None, note="not sharded: rank 0's is the one that counts")
        self.waiting = [request for request in self.waiting if self._takes_part(request)]
        if not self.waiting:
            self._answer_commits(final=final)
            return False
        gone = self._queue.gone(self.waiting)
        if gone:
            self._pass_over(gone, "replaced or removed before it was committed")
            self.waiting = [request for request in self.waiting if request not in gone]
            self.unreadable.forget({request.sequence for request in gone})
        readable = self._readable(self.waiting)
        if not readable:
            self._answer_commits(final=final)
            return bool(gone)
        request = self._pick(readable, final=final)
        try:
            in_folder = self._queue.in_folder(request)
            if in_folder is None and not final:
                return bool(gone)
            if not in_folder:
                self._pass_over([request], "replaced or removed before it was committed")
                return True
            self._commit(request, final=final)
        except FileUnreadable as error:
            self.unreadable.note(request.sequence, request.name, error, final=final)
        return True

    def is_done(self) -> bool:
        """Return True if final rounds have nothing more to commit: the saves that still wait cannot be read."""
        return all(self.unreadable.is_given_up(request.sequence) for request in self.waiting)

    def uncommitted(self) -> Files:
        """Return the files of the newest save that waits."""
        if not self.waiting:
            return {}
        newest = self.waiting[-1]
        files = placed(newest.name, self._scan(newest))
        return {file.path: file for file in files if not file.link}

    def _readable(self, waiting: Iterable[CommitRequest]) -> list[CommitRequest]:
        """Return the requests without those whose save could not be read lately."""
        return [request for request in waiting if self.unreadable.is_due(request.sequence)]

    def _takes_part(self, request: CommitRequest) -> bool:
        return request.sharded or self._options.rank == 0

    def unsynced_bytes(self) -> int:
        """Return the size of the newest waiting save, which would be lost now."""
        if not self.waiting:
            return 0
        newest = self.waiting[-1]
        if self._measured[0] != newest.sequence:
            files = self._scan(newest)
            self._measured = (newest.sequence, sum(file.size for file in files))
        return self._measured[1]

    def _commit(self, request: CommitRequest, *, final: bool) -> None:
        files = placed(request.name, self._scan(request))
        unkept = next((file for file in files if file.problem), None)
        if unkept is not None:
            raise FileUnreadable(unkept.path, unkept.problem, may_pass=False)
        self.files = len(files)
        total = sum(file.size for file in files)
        held = self._hold(request, files)
        holds_all = held is not None and self._queue.has_all_files(request)
        if not self._queue.in_folder(request):
            raise FileUnstable(request.name)
        if not any(file.path == f"{request.name}/{MARKER}" for file in files):
            raise closed_folder(request.name)

        bytes_left: dict[int, int] = {}

        def proceed() -> bool:
            if final or self._seconds_left() is None:
                return True
            waiting = self._readable(self._find_waiting(final=final))
            if all(other.sequence <= request.sequence for other in waiting):
                return True
            if any(other.sharded for other in waiting):
                # Ranks decide alike: the newest save goes first, unless this one is nearly sent.
                return self._sender.bytes_left * 2 < total
            # The amounts that the other saves have to send do not change meanwhile.
            bytes_left.update(
                (other.sequence, self._bytes_to_send(other)) for other in waiting if other.sequence not in bytes_left
            )
            bytes_left[request.sequence] = self._sender.bytes_left
            return self._first(waiting, bytes_left).sequence == request.sequence

        try:
            blobs = self._send(files, held or {}, proceed)
            if not holds_all and not self._queue.in_folder(request):
                raise FileUnstable(request.name)
        except FileUnstable:
            if not holds_all and not self._queue.in_folder(request):
                self._note_overtaken(request)
            raise
        manifest = self._manifests.manifest(
            request.name,
            self._manifests.ordinal_of(request.sequence),
            tuple(blobs.values()),
            ranks=tuple(range(self._options.nodes)) if request.sharded else (0,),
            step=request.step,
            generation=request.generation,
        )
        draft = ManifestDraft(manifest, partial(self._note_commit, request, files, final), self._saved_at(files))
        self._manifests.publish(draft)

    def _hold(self, request: CommitRequest, files: Collection[File]) -> dict[str, FileCopy] | None:
        """Hold the files of the save. None: that is not possible, and the script must leave the save where it is."""
        try:
            return self._copier.hold_all([file for file in files if file.link is None], may_link=True)
        except (FileChanged, FileNotFoundError):
            raise FileUnstable(request.name) from None

    def _send(
        self, files: Iterable[File], held: Mapping[str, FileCopy], proceed: Callable[[], bool]
    ) -> dict[str, BlobRef]:
        folder = self._options.folder
        outgoing = [
            OutgoingFile(file, copy.path, copy.copied_ns)
            if (copy := held.get(file.path)) is not None
            else OutgoingFile(file, folder / file.path)
            for file in files
        ]
        blobs = self._sender.send(outgoing, proceed)
        if not all(copy.is_intact() for copy in held.values()):
            raise FileUnstable("written while it was sent")
        return blobs

    def _note_overtaken(self, request: CommitRequest) -> None:
        """Say once that saves are lost because the script replaces them before the store has taken them."""
        if not self._said_overtaken:
            self._said_overtaken = True
            self._options.say(
                f"warning: the save {request.name} was replaced or removed before the store had taken it, and is in no "
                "checkpoint: to hold it meanwhile takes free disk of twice its size, and that no file was added to it "
                "after its block. Save less often, or under other names"
            )

    def _pick(self, waiting: list[CommitRequest], *, final: bool) -> CommitRequest:
        if self._seconds_left() is None or any(request.sharded for request in waiting):
            return pick(waiting, final=final)
        return self._first(waiting, {one.sequence: self._bytes_to_send(one) for one in waiting})

    def _first(self, waiting: list[CommitRequest], bytes_left: Mapping[int, int]) -> CommitRequest:
        sizes = [bytes_left[request.sequence] for request in waiting]
        return waiting[first_to_go(sizes, self._sender.bytes_per_s, self._seconds_left() or 0.0)]

    def _bytes_to_send(self, request: CommitRequest) -> int:
        return self._sender.bytes_to_send(self._scan(request))

    def _scan(self, request: CommitRequest) -> Collection[File]:
        folder = self._options.folder / request.name
        return scan(folder, (), self._options.confinement, closed_folders=True).values()

    def _find_waiting(self, *, final: bool) -> list[CommitRequest]:
        newest = max(self._unanswered, default=0)
        return [
            request
            for request in self._queue.waiting()
            if request.sequence not in self._unanswered and not self._is_passed(request, newest, final=final)
        ]

    def _is_passed(self, request: CommitRequest, newest: int, *, final: bool) -> bool:
        """Return True if a request is passed over for the commit of request `newest`."""
        # At the end the other ranks may have no newer save than this one.
        return request.sequence < newest and not (final and request.sharded)

    def _saved_at(self, files: Collection[File]) -> float:
        """Return when the first file of a save was finished, by the monotonic clock.

        Both the files' times and the present time are this machine's. A file that was copied may have an old time: the
        time of an older checkpoint is a bound (`ManifestWriter`).
        """
        first_ns = min((file.signature.modified_ns for file in files), default=time.time_ns())
        return self._options.monotonic() - max(0.0, (time.time_ns() - first_ns) / 1e9)

    def _note_commit(self, request: CommitRequest, files: Iterable[File], final: bool, key: str) -> None:
        self._unanswered[request.sequence] = key
        present = self._queue.saves()
        self.committed = {name: save for name, save in self.committed.items() if name in present}
        self.committed[request.name] = CommittedSave(request.number, {file.path: file.signature for file in files})
        self.unreadable.forget_through(request.sequence)
        self._sender.forget_sent()
        self._answer(request, final=final)

    def _answer(self, request: CommitRequest, *, final: bool) -> None:
        """Answer a request that was committed, and all that it is newer than. Raises OSError."""
        self._queue.answer(request, key=self._unanswered[request.sequence])
        del self._unanswered[request.sequence]
        older = [other for other in self._queue.waiting() if self._is_passed(other, request.sequence, final=final)]
        self._pass_over(older, f"{request.name} is newer")
        self.waiting = self._find_waiting(final=final)
        self._queue.remove_old_saves(self._options.kept)

    def _answer_commits(self, *, final: bool) -> None:
        """Answer commits that could not be answered before. At the end no script reads the answers any more."""
        for request in self._queue.waiting():
            if request.sequence in self._unanswered:
                with suppress(OSError) if final else nullcontext():
                    self._answer(request, final=final)

    def _pass_over(self, requests: Iterable[CommitRequest], note: str) -> None:
        for request in requests:
            self._queue.answer(request, key=None, note=note)
            self.skipped += 1


def pick(waiting: list[CommitRequest], *, final: bool) -> CommitRequest:
    """Pick the save that goes first: the newest, or of sharded saves the one with the roundest number."""
    sharded = [request for request in waiting if request.sharded]
    if final or not sharded:
        return waiting[-1]
    return max(sharded, key=lambda one: (one.generation & -one.generation, one.sequence))


def first_to_go(bytes_left: Sequence[int], bytes_per_s: float | None, seconds: float) -> int:
    """Return the index of the save that goes first before a deadline.

    `bytes_left` is what each save still has to send, oldest save first. The newest goes first, if there is time for it;
    before it one that is nearly sent, since that is soon a checkpoint to resume from, and the promised time may turn
    out shorter. If there is no time for the newest, the newest that there is time for; if there is time for none, the
    one with the least to send.
    """
    newest = len(bytes_left) - 1
    nearly = next((n for n in reversed(range(newest)) if bytes_left[n] * _NEARLY <= bytes_left[newest]), newest)
    if bytes_per_s is None:
        return nearly
    possible = bytes_per_s * seconds
    if bytes_left[nearly] + bytes_left[newest] <= possible:
        return nearly
    fitting = [n for n, size in enumerate(bytes_left) if size <= possible]
    return max(fitting) if fitting else min(range(len(bytes_left)), key=lambda n: (bytes_left[n], -n))
