"""What is committed, and when: saves the script asked for, a folder that settled, or a folder that follows rank 0's."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from stoker.agent.checkpoints.blobs import BlobSender, Outgoing, Unstable
from stoker.agent.checkpoints.commit_choice import Choice
from stoker.agent.checkpoints.commit_requests import CommitQueue, CommitRequest
from stoker.agent.checkpoints.folder_snapshot import File, Files, copy_stable, scan
from stoker.agent.checkpoints.folder_watcher import FolderWatch
from stoker.agent.checkpoints.manifest_writer import Draft, Publisher
from stoker.agent.checkpoints.whole_units import TrainingEnd
from stoker.agent.confinement import Confinement
from stoker.model.keys import safe_name
from stoker.model.node_facts import BlobRef
from stoker.store.checkpoint_manifests import Stored
from stoker.store.checkpoints import save_of

# The folder is scanned at most this often, and so that scanning takes about 1 % of a core.
LOOK_S = 0.5
# Until it has committed something: in which order a program writes its files shows what one save is.
_FIRST_LOOK_S = 0.1
MAX_LOOK_S = 60.0
LOOK_SHARE = 0.01
# With little time left it may be more.
_HURRIED_SHARE = 0.2
# A save is nearly there when what is left of it is this many times less than what the newest has to send.
_NEARLY = 4


class RequestedCommits:
    """Saves made with `stoker.train.checkpoint`, in order.

    If the store is slower than the script, older saves are passed over for newer ones; the last never is. Sharded saves
    must be passed over alike on every rank, or no save would ever be complete: of those that wait, the one with the
    roundest number goes first, so that ranks of different speed meet.

    `hurry` gives the seconds that are left, once they are counted: see `first_to_go`.
    """

    def __init__(
        self,
        queue: CommitQueue,
        folder: Path,
        sender: BlobSender,
        publisher: Publisher,
        *,
        rank: int,
        nodes: int,
        keep: int,
        hurry: Callable[[], float | None],
        confinement: Confinement | None = None,
    ) -> None:
        self._queue = queue
        self._confinement = confinement
        self._folder = folder
        self._sender = sender
        self._publisher = publisher
        self._rank = rank
        self._nodes = nodes
        self._keep = keep
        self._hurry = hurry
        self.waiting: list[CommitRequest] = []
        # The newest save that waits, and its size: it does not change, so it is measured once.
        self._measured = (0, 0)
        self.files = 0
        self.skipped = 0

    def advance(self, *, final: bool) -> bool:
        """Commit one save, or find that one need not be. False: there is nothing to do."""
        self.waiting = self._queue.waiting()
        for request in self.waiting:
            if self._rank and not request.sharded:
                self._queue.answer(request, key=None, note="not sharded: rank 0's is the one that counts")
        self.waiting = [request for request in self.waiting if not self._rank or request.sharded]
        if not self.waiting:
            return False
        request = self._pick(final=final)
        held = self._queue.holds(request)
        if held is None and not final:
            return False
        if not held:
            self._pass_over([request], "replaced or removed before it was committed")
            return True
        self._commit(request, final=final)
        return True

    def unsynced_bytes(self) -> int:
        """What would be lost now: the newest save that waits."""
        if not self.waiting:
            return 0
        newest = self.waiting[-1]
        if self._measured[0] != newest.sequence:
            files = self._scan(newest)
            self._measured = (newest.sequence, sum(file.size for file in files))
        return self._measured[1]

    def _commit(self, request: CommitRequest, *, final: bool) -> None:
        root = self._folder / request.name
        files = self._scan(request)
        self.files = len(files)
        total = sum(file.size for file in files)

        others: dict[int, int] = {}

        def proceed() -> bool:
            if final or self._hurry() is None:
                return True
            waiting = self._queue.waiting()
            if all(other.sequence <= request.sequence for other in waiting):
                return True
            if any(other.sharded for other in waiting):
                # Ranks decide alike: the newest goes first, unless this one is nearly there.
                return self._sender.bytes_left * 2 < total
            # What the others have to send does not change meanwhile.
            others.update(
                (other.sequence, self._bytes_to_send(other)) for other in waiting if other.sequence not in others
            )
            others[request.sequence] = self._sender.bytes_left
            return self._first(waiting, others).sequence == request.sequence

        outgoing = [Outgoing(file._replace(path=f"{request.name}/{file.path}"), root / file.path) for file in files]
        blobs = self._sender.send(outgoing, proceed)
        if not self._queue.holds(request):
            raise Unstable(request.name)
        manifest = self._publisher.manifest(
            request.name,
            self._publisher.ordinal_of(request.sequence),
            tuple(blobs.values()),
            ranks=tuple(range(self._nodes)) if request.sharded else (0,),
            step=request.step,
            generation=request.generation,
        )
        self._publisher.publish(Draft(manifest, partial(self._committed, request, final)))

    def _pick(self, *, final: bool) -> CommitRequest:
        if self._hurry() is None or any(request.sharded for request in self.waiting):
            return pick(self.waiting, final=final)
        return self._first(self.waiting, {one.sequence: self._bytes_to_send(one) for one in self.waiting})

    def _first(self, waiting: list[CommitRequest], left: Mapping[int, int]) -> CommitRequest:
        sizes = [left[request.sequence] for request in waiting]
        return waiting[first_to_go(sizes, self._sender.bytes_per_s, self._hurry() or 0.0)]

    def _bytes_to_send(self, request: CommitRequest) -> int:
        return self._sender.bytes_to_send(self._scan(request))

    def _scan(self, request: CommitRequest) -> Collection[File]:
        return scan(self._folder / request.name, (), self._confinement).values()

    def _committed(self, request: CommitRequest, final: bool, key: str) -> None:
        self._queue.answer(request, key=key)
        self._sender.forget_sent()
        older = [
            other
            for other in self._queue.waiting()
            # At the end the other ranks may have no newer one than this.
            if other.sequence < request.sequence and not (final and other.sharded)
        ]
        self._pass_over(older, f"{request.name} is newer")
        self.waiting = self._queue.waiting()
        self._queue.tidy(self._keep)

    def _pass_over(self, requests: Iterable[CommitRequest], note: str) -> None:
        for request in requests:
            self._queue.answer(request, key=None, note=note)
            self.skipped += 1


def pick(waiting: list[CommitRequest], *, final: bool) -> CommitRequest:
    """Which save goes first."""
    sharded = [request for request in waiting if request.sharded]
    if final or not sharded:
        return waiting[-1]
    return max(sharded, key=lambda one: (one.generation & -one.generation, one.sequence))


def first_to_go(left: Sequence[int], bytes_per_s: float | None, seconds: float) -> int:
    """Which of the saves that wait, oldest first, goes first when seconds count. `left` is what each still has to send.

    The newest, if there is time for it; before it one that is nearly there, since that is soon a place to resume from,
    and the promised time may be less. If there is no time for the newest, the newest that there is time for; if for
    none, the one with the least to send.
    """
    newest = len(left) - 1
    nearly = next((n for n in reversed(range(newest)) if left[n] * _NEARLY <= left[newest]), newest)
    if bytes_per_s is None:
        return nearly
    possible = bytes_per_s * seconds
    if left[nearly] + left[newest] <= possible:
        return nearly
    fitting = [n for n, size in enumerate(left) if size <= possible]
    return max(fitting) if fitting else min(range(len(left)), key=lambda n: (left[n], -n))


class FolderCommits:
    """The whole folder of a script that knows nothing of Stoker, committed when it settles.

    `ranks` gives the ranks that take part; `end` how the training ended.
    """

    def __init__(
        self,
        watch: FolderWatch,
        folder: Path,
        scratch: Path,
        sender: BlobSender,
        publisher: Publisher,
        *,
        ranks: Callable[[], tuple[int, ...]],
        end: Callable[[], TrainingEnd],
        spacing_s: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._watch = watch
        self._folder = folder
        self._scratch = scratch
        self._sender = sender
        self._publisher = publisher
        self._ranks = ranks
        self._end = end
        self._spacing_s = spacing_s
        self._monotonic = monotonic
        self._look_at = self._not_before = float("-inf")
        self._look_share, self._least_s = LOOK_SHARE, _FIRST_LOOK_S
        self._pressed = False

    @property
    def files(self) -> int:
        return len(self._watch.files)

    def hurry(self) -> None:
        """From now on seconds count: look often, and leave no time between commits."""
        self._pressed, self._look_share, self._spacing_s = True, _HURRIED_SHARE, 0.0
        self._look_at = self._not_before = float("-inf")

    def unsynced_bytes(self) -> int:
        return self._watch.dirty_bytes

    def advance(self, *, final: bool) -> bool:
        """Commit the folder if there is something new that is whole. False: there is not."""
        # Only what was looked at just now: since then, a save may have begun.
        if not self.look(now=final) or (not final and self._monotonic() < self._not_before):
            return False
        choice = self._choose_final() if final else self._watch.choose()
        if choice is None or (choice.carried and self._ranks() != (0,)):
            # With several ranks it is all or nothing: the others cannot know which part of it is an older save.
            return False
        blobs = self._send(choice)
        if {path: blob.digest for path, blob in blobs.items()} == {
            path: blob.digest for path, blob in self._watch.last.items()
        }:
            # Touched, or written again with the same bytes.
            self._watch.committed_now(choice, self._watch.last)
            return False
        ordinal = self._publisher.next_ordinal()
        manifest = self._publisher.manifest(
            name_of({path: file for path, file in choice.files.items() if path not in choice.streams}, ordinal),
            ordinal,
            tuple(blobs.values()),
            ranks=self._ranks(),
            generation=-ordinal,
        )
        self._publisher.publish(Draft(manifest, lambda _key: self._committed(choice, blobs)))
        return True

    def _choose_final(self) -> Choice | None:
        """The folder as it is; with little time left first as it was before its newest save began, where that is new.

        All of that has to be sent anyway, and is sooner a place to resume from. Not where several ranks take part: the
        others could not know which of the two they join.
        """
        choice = self._watch.choose_final(self._end())
        if choice is None or choice.kept or not self._pressed or self._ranks() != (0,):
            return choice
        while (earlier := self._watch.before_newest(choice)) is not None:
            choice = earlier
        return choice

    def look(self, *, now: bool = False) -> bool:
        """Scan the folder if it is time to; whether it was."""
        if not now and self._monotonic() < self._look_at:
            # Which process writes what is seen more often: one that dies closes its file half written.
            self._watch.poll(self._look_share)
            return False
        began = time.thread_time()
        self._watch.look()
        cost_s = (time.thread_time() - began) / self._look_share
        self._look_at = self._monotonic() + min(max(self._least_s, cost_s), MAX_LOOK_S)
        return True

    def _committed(self, choice: Choice, blobs: Mapping[str, BlobRef]) -> None:
        self._watch.committed_now(choice, blobs)
        self._sender.forget_sent()
        self._sender.forget_files([file.signature for file in self._watch.files.values()])
        self._not_before, self._least_s = self._monotonic() + self._spacing_s, LOOK_S

    def _send(self, choice: Choice) -> dict[str, BlobRef]:
        copies, members = self._scratch / "copies", self._watch.history.members
        try:
            outgoing = [self._outgoing(file, choice, copies) for file in choice.files.values()]
            self._check_closed(choice, members)
            # What stays as it was is older than what is new.
            blobs = choice.carried | self._sender.send(outgoing)
            if not all(kept.is_intact() for kept in choice.kept.values()):
                raise Unstable("written while it was sent")
            return blobs
        finally:
            shutil.rmtree(copies, ignore_errors=True)

    def _outgoing(self, file: File, choice: Choice, copies: Path) -> Outgoing:
        source, kept = self._folder / file.path, choice.kept.get(file.path)
        if kept is not None:
            return Outgoing(file, kept.path, kept.copied_ns)
        if file.path not in choice.copies or file.link is not None:
            return Outgoing(file, source)
        copies.mkdir(parents=True, exist_ok=True)
        target = copies / str(sum(1 for _ in copies.iterdir()))
        begun_ns = time.time_ns()
        try:
            stable = copy_stable(source, file, target)
        except FileNotFoundError:
            stable = False
        if not stable:
            raise Unstable(file.path)
        return Outgoing(file, target, begun_ns)

    def _check_closed(self, choice: Choice, members: frozenset[int]) -> None:
        """After copying: no file was opened again, and no process died, which would have closed a half-written one.

        What was not copied is checked when it is sent.
        """
        copies = choice.copies - choice.streams
        if not copies:
            return
        writing = self._watch.open_now()
        if writing.files.keys() & copies:
            raise Unstable("opened while it was copied")
        if not members <= writing.members:
            raise Unstable("a process ended while it was copied")


class FollowingCommits(FolderCommits):
    """The folder of another rank than 0: committed when it settles after rank 0 committed a save it takes part in."""

    def __init__(self, *args: object, rank: int, follow_s: float, **options: object) -> None:
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self._rank = rank
        self._follow_s = follow_s
        self._follow_at = float("-inf")
        self._hurried = self._sent_ahead = False

    def advance(self, *, final: bool) -> bool:
        looked = self.look(now=final)
        if final and not self._hurried:
            self._hurried, self._follow_at, self._follow_s = True, float("-inf"), LOOK_S
        if not looked or not self._watch.files or self._monotonic() < self._follow_at:
            return False
        self._follow_at = self._monotonic() + self._follow_s
        leader = self._leader()
        joins = leader is not None
        choice = self._watch.choose_final(self._end(), anyway=joins) if final else self._watch.settled()
        if choice is None or choice.held:
            # A part of an older save under the name of rank 0's would make one checkpoint of two saves.
            return False
        if leader is None or leader.manifest is None:
            if final and not self._sent_ahead:
                # Rank 0 is still at it. What takes long can be done meanwhile.
                self._send(choice)
                self._sent_ahead = True
            return False
        blobs = self._send(choice)
        manifest = self._publisher.manifest(
            leader.place.name,
            self._publisher.next_ordinal(),
            tuple(blobs.values()),
            ranks=leader.manifest.ranks,
            generation=leader.manifest.generation,
        )
        self._publisher.publish(Draft(manifest, lambda _key: self._committed(choice, blobs)))
        return True

    def look_again(self) -> None:
        """Ask for rank 0's commits in the next round, however short ago that was."""
        self._follow_at = float("-inf")

    def _leader(self) -> Stored | None:
        """Rank 0's newest commit of this attempt, if this rank takes part in it and has not committed its own."""
        stored = self._publisher.read()
        led = [item for item in stored if item.place.rank == 0 and item.manifest is not None]
        newest = max(led, key=lambda item: item.place, default=None)
        if newest is None or newest.manifest is None or self._rank not in newest.manifest.ranks:
            return None
        mine = {save_of(item) for item in stored if item.place.rank == self._rank}
        return None if save_of(newest) in mine else newest


def name_of(files: Files, ordinal: int) -> str:
    """The name of the newest thing at the top of the folder, without its ending, if it can stand in a key."""
    newest = max(files.values(), key=lambda file: (file.signature.modified_ns, file.path), default=None)
    if newest is None:
        return f"auto-{ordinal}"
    top, separator, _ = newest.path.partition("/")
    name = top if separator else Path(top).stem
    name = "".join(letter if safe_name(f"a{letter}") else "-" for letter in name).lstrip(".")[:100]
    return name if safe_name(name) else f"auto-{ordinal}"
