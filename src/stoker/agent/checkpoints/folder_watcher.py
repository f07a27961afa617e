"""Watch a checkpoint folder that a script writes to, and choose what of it can be committed.

A script that knows nothing of Stoker gives no sign when a save is whole. So the folder is watched: it is *settled* when
nothing was written for a while and no process has a file of it open for writing. Where that never comes about, files
that change are copied in a quiet moment, and what is being written is left out.

**A save is never mixed.** What lies in one top-level folder is one unit, and so are the plain files beside the folders.
A unit that is not whole stays as it was in the last commit, or is left out if it was not in it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path

from stoker.agent.checkpoints.commit_choice import Choice, before_newest, from_copies
from stoker.agent.checkpoints.file_numbers import newest_of_each_kind
from stoker.agent.checkpoints.folder_snapshot import (
    File,
    Files,
    Selection,
    Signature,
    leave_out,
    signature_of,
    unit_of,
)
from stoker.agent.checkpoints.format_check import UNKNOWN, FormatCheck, check_format
from stoker.agent.checkpoints.save_copies import OpenNow, SaveCopies
from stoker.agent.checkpoints.save_cycles import SaveCycles
from stoker.agent.checkpoints.save_shape import TICK_NS, SaveShapes
from stoker.agent.checkpoints.whole_units import Held, TrainingEnd, UnitJudge, describe
from stoker.agent.checkpoints.write_history import WriteHistory
from stoker.model.node_facts import BlobRef
from stoker.processes import OpenFile, Writing

log = logging.getLogger(__name__)

# A folder that has been changing for so long is committed from copies …
BUSY_S = 30.0
# … made when no file was touched for this long, several ticks of the clock that files are stamped with; if such a
# moment does not come for as long again, of any file that is closed.
CALM_S = 0.25
# … or sooner, if a save is shown to be whole and changed no more bytes than this.
_CALM_BYTES = 256 * 1024 * 1024
# … and nothing was written for a few ticks of that clock.
_REST_S = 3 * TICK_NS / 1e9
# Looking at the folder before the training is told must not keep it waiting longer than this.
_MARK_S = 1.0


class FolderWatch:
    """Remembers when each file was seen to change. Commits are one thread's; `look`, `mark` and `poll` may be others'.

    `writing` gives the files under the folder that are open for writing, and by which processes.
    """

    def __init__(
        self,
        folder: Path,
        writing: Callable[[], Writing],
        *,
        settle_s: float,
        busy_s: float = BUSY_S,
        monotonic: Callable[[], float] = time.monotonic,
        check: Callable[[Path], FormatCheck] = check_format,
        selection: Selection | None = None,
    ) -> None:
        self._folder = folder
        self._selection = selection or Selection()
        self._writing = writing
        self._settle_s = settle_s
        self._busy_s = busy_s
        self._foreign: Mapping[str, Signature] = {}
        self._monotonic = monotonic
        self._check_file = check
        self._lock = threading.RLock()
        self.files: Files = {}
        # What the last commit holds: how its files looked in the folder, and as what they are kept.
        self.committed: dict[str, Signature] = {}
        self.last: dict[str, BlobRef] = {}
        self._cycles = SaveCycles()
        self.shapes = SaveShapes(self._cycles.shape)
        self.history = WriteHistory(settle_s, patience_s=busy_s)
        self._dirty: Files = {}
        self.dirty_bytes = 0
        self._dirty_since: float | None = None
        self._checks: dict[Signature, FormatCheck] = {}
        self._warned: set[Signature] = set()
        # The newest sentence about what is held back; None: nothing is.
        self.held_back: str | None = None
        self._look_cost_s = self._poll_at = 0.0
        # Copies of the last whole save, where they are made; the logs, as of the last look.
        self.copies: SaveCopies | None = None
        self._logs: Collection[str] = ()
        self._committed_as_of = float("-inf")

    def keep_copies(self, scratch: Path) -> None:
        """From now on keep a copy of the last whole save, for a program that saves faster than this settles."""
        self.copies = SaveCopies(
            self._folder,
            scratch,
            scan=lambda: self._selection.scan(self._folder),
            open_now=self.open_now,
            logs=lambda: self._logs,
            takes=self._selection.takes,
            committed=lambda: self.committed,
            longest_s=self._settle_s / 2,
            monotonic=self._monotonic,
        )
        self.copies.start()

    def drop_copies(self) -> None:
        """Keep no copies any more."""
        copies, self.copies = self.copies, None
        if copies is not None:
            copies.drop()

    # ── Looking ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def look(self) -> None:
        """Scan the folder. Raises nothing: what cannot be read is not there."""
        with self._lock:
            began_s = time.monotonic()
            now = self._monotonic()
            found = self._selection.scan(self._folder)
            self._look_cost_s = time.monotonic() - began_s
            self.files = {path: file for path, file in found.items() if self._foreign.get(path) != file.signature}
            self.history.note_files(self.files, now)
            self._compare()
            if self._dirty:
                self._note_open()
            since = now if self._dirty_since is None else self._dirty_since
            self._dirty_since = since if self._dirty else None
            history = self.history
            self._logs = history.logs()
            skip = history.open.keys() | self._logs | history.died_open()
            self._cycles.note(self.files, skip, lambda path: self._check(path).state == "whole")

    def mark(self) -> None:
        """Remember the folder as it is just before the training is told to end."""
        if not self._lock.acquire(timeout=_MARK_S):
            return
        try:
            if self._look_cost_s < _MARK_S:
                self.look()
            self._note_open()
            self.history.set_mark()
        finally:
            self._lock.release()

    def poll(self, share: float) -> None:
        """See which files are open now, without a scan; so often that it takes this share of a core."""
        if time.monotonic() < self._poll_at or not self._lock.acquire(blocking=False):
            return
        try:
            began_s = time.monotonic()
            self._note_open()
            took_s = time.monotonic() - began_s
            self._poll_at = time.monotonic() + took_s * (1 / share - 1)
        finally:
            self._lock.release()

    def set_foreign(self, foreign: Mapping[str, Signature]) -> None:
        """These files are not this rank's to commit, as long as they look like this."""
        self._foreign = foreign
        self.files = {path: file for path, file in self.files.items() if path not in foreign}
        self._compare()

    def dirty(self) -> dict[str, File]:
        """The files that were not in the last commit as they were when last looked at."""
        return self._dirty

    def open_now(self) -> OpenNow:
        """The files that are open for writing this moment, relative to the folder, and the processes there are."""
        writing = self._writing()
        files = {path: file for path, file in self._relative(writing).items() if self._selection.takes(path)}
        return OpenNow(files, writing.members)

    # ── Choosing ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def settled(self) -> Choice | None:
        """The folder as it is, if nothing moves in it. Logs that are held open are copied."""
        with self._lock:
            streams = self.history.streams()
            files, judge = dict(self.files), self._judge(streams)
            if self._moving(streams) or self.history.since_removed_s < self._settle_s:
                return None
            if judge.unfinished():
                return None
        return self._without_broken(Choice(files, frozenset(streams), {}, frozenset(streams)), judge)

    def choose(self) -> Choice | None:
        """What to commit now; None when there is nothing new or nothing whole.

        What grows in a log alone is no reason to commit; neither is a file that was removed, since a script may
        remove its old save before it writes the new one.
        """
        streams = self.history.streams()
        news = self.dirty().keys() - streams
        if not news:
            return None
        choice = self.settled() or self._choose_calm(streams)
        if choice is None and self._dirty_s() >= self._settle_s:
            choice = self._choose_kept(streams)
        choice = choice or self._choose_busy(streams)
        return choice if choice is not None and (choice.kept or news & choice.files.keys()) else None

    def _choose_kept(self, logs: Collection[str]) -> Choice | None:
        """The last whole save, from its copies, if it is newer than the last commit."""
        save = self.copies.newest() if self.copies is not None else None
        if save is None or save.taken_at <= self._committed_as_of:
            return None
        with self._lock:
            grown = {path: file for path, file in self.files.items() if path in logs}
            return from_copies(save, self._folder, self.committed, self.last, grown)

    def _choose_calm(self, streams: set[str]) -> Choice | None:
        """Copies of a save that its shape shows to be whole, of a program that leaves no time to settle.

        Only small ones, which are copied in no time: large ones wait for longer.
        """
        with self._lock:
            hot = self._moving(streams)
            # The shape says that the save has ended; a few ticks of the clock show that its files did.
            if self._dirty_s() < self._settle_s or self.dirty_bytes > _CALM_BYTES or self._calm_s(hot) < _REST_S:
                return None
            judge = self._judge(streams)
            waits = judge.unfinished() or judge.being_removed() or judge.unproven(hot, self._cycles.shrank)
            if waits or self.history.open.keys() - streams:
                return None
            choice = Choice(dict(self.files), frozenset((hot | streams) & self.files.keys()), {}, frozenset(streams))
        return self._without_broken(choice, judge)

    def _dirty_s(self) -> float:
        return 0.0 if self._dirty_since is None else self.history.looked_at - self._dirty_since

    def _calm_s(self, hot: Collection[str]) -> float:
        """For how long none of these was written. The time that a file says may be of another clock, or set at will."""
        looked_at = self.history.looked_at
        calm_s = self.copies.calm_s(looked_at) if self.copies is not None else None
        if calm_s is None:
            calm_s = min((looked_at - self.history.changed_at[path] for path in hot), default=0.0)
            calm_s = min(calm_s, self.history.since_removed_s)
        return calm_s if hot else 0.0

    def _choose_busy(self, streams: set[str]) -> Choice | None:
        with self._lock:
            looked_at = self.history.looked_at
            waited_s = self._dirty_s()
            if waited_s < self._busy_s:
                return None
            hot = self._moving(streams)
            if not hot:
                # Nothing moves. A save that lacks files is waited for, and then committed as it lies there.
                return None
            closed = hot - self.history.open.keys() - self.history.died_open() - self.history.shaken()
            calm_s = min((looked_at - self.history.changed_at[path] for path in closed), default=CALM_S)
            if min(calm_s, self.history.since_removed_s) < CALM_S and waited_s < 2 * self._busy_s:
                return None
            judge = self._judge(streams)
            blocked = hot - closed
            waits = judge.unfinished() | judge.being_removed()
            blocked |= {path for path in self.files if unit_of(path) in waits}
            blocked |= self._written_since(blocked) - streams
            files, carried = leave_out(self.files, blocked, self.last)
            copies = frozenset((closed | streams) & files.keys())
        return self._without_broken(Choice(files, copies, carried, frozenset(streams)), judge)

    def _written_since(self, blocked: Collection[str]) -> set[str]:
        """New files at the top that were written after these saves began: a `latest.json` may refer to one of them."""
        units = {unit_of(path) for path in blocked}
        begun_ns = min(
            (f.signature.modified_ns for path, f in self._dirty.items() if unit_of(path) in units), default=0
        )
        top = {path: file for path, file in self._dirty.items() if not unit_of(path)}
        return {path for path, file in top.items() if units and file.signature.modified_ns > begun_ns}

    def choose_final(self, end: TrainingEnd, *, anyway: bool = False) -> Choice | None:
        """What to commit when the training has ended. None when there is nothing new, unless it is wanted `anyway`."""
        self.history.end()
        if self.copies is not None:
            self.copies.finish()
        logs = self.history.logs()
        held = self._judge(logs).at_end(end)
        self._tell(held)
        choice = self._leave_units(Choice(dict(self.files), frozenset(), {}, frozenset(logs)), held)
        kept = self._choose_kept(logs) if held else None
        news = self._dirty.keys() & choice.files.keys() - logs
        if kept is not None and all(kept.files.get(path) == choice.files[path] for path in news):
            # What is held back was whole a save ago, and all else that is new was there.
            return replace(kept, copies=frozenset(), held=choice.held)
        return choice if anyway or self.dirty().keys() & choice.files.keys() else None

    def before_newest(self, choice: Choice) -> Choice | None:
        """A final choice without the newest save, if the folder was like that before the save began; None: unknown."""
        return before_newest(choice, self._dirty, self.last)

    def committed_now(self, choice: Choice, blobs: Mapping[str, BlobRef]) -> None:
        """A commit is done."""
        with self._lock:
            forms = {path: form for path, file in choice.files.items() if (form := self._form(file))}
            self.shapes.learn(blobs, self.last, choice.streams, forms, choice.files)
            self.history.committed(choice.files.keys())
            self.committed = {path: self.committed[path] for path in choice.carried if path in self.committed} | {
                path: file.signature for path, file in choice.files.items()
            }
            self.last = dict(blobs)
            self._committed_as_of = min(choice.as_of, self.history.looked_at)
            self._compare()
            self._dirty_since = self._monotonic() if self._dirty else None
            present = {file.signature for file in self.files.values()}
            self._checks = {seen: check for seen, check in self._checks.items() if seen in present}

    def forget_rest(self, since_ns: int) -> None:
        """After a restart of the agent: files last written before this time were quiet when the training died."""
        for path, file in self.files.items():
            if file.signature.modified_ns < since_ns:
                self.history.changed_at[path] = float("-inf")

    def learn_restored(self, before: Mapping[str, BlobRef], *, read: bool = True) -> None:
        """Take `last` for the save that the next ones are compared with. `before` is the commit before it, if known.

        `read`: its files lie in the folder.
        """
        forms = {path: form for path in self.last if read and path in self.files and (form := self._check(path).form)}
        self.shapes.learn(self.last if before else newest_of_each_kind(self.last), before, (), forms)

    # ── Parts ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _judge(self, logs: Collection[str]) -> UnitJudge:
        changed = [path for path in self._dirty if path not in logs]
        return UnitJudge(dict(self.files), changed, self.history, self.shapes, self._check, logs)

    def _moving(self, streams: Collection[str]) -> set[str]:
        """Files that may be half written now. A process that saves and ends is no accident if its file is whole."""
        hot = self.history.hot(streams) | (self.history.shaken() - set(streams))
        rest = (hot & self.history.died_open()) - self.history.changed_lately()
        return hot - {path for path in rest if self._check(path).state == "whole"}

    def _without_broken(self, choice: Choice, judge: UnitJudge) -> Choice:
        held = judge.broken()
        self._tell(held)
        return self._leave_units(choice, held)

    def _leave_units(self, choice: Choice, held: Mapping[str, Held]) -> Choice:
        """The choice without these units as they are."""
        if not held:
            return choice
        blocked = [path for path in choice.files if unit_of(path) in held]
        files, carried = leave_out(choice.files, blocked, self.last)
        return replace(
            choice,
            files=files,
            copies=choice.copies & files.keys(),
            carried=choice.carried | carried,
            held=tuple(held[unit] for unit in sorted(held)),
        )

    def _tell(self, held: Mapping[str, Held]) -> None:
        self.held_back = describe(held) if held else None
        for found in held.values():
            file = self.files.get(found.path)
            if file is not None and found.path in self._dirty and file.signature not in self._warned:
                self._warned.add(file.signature)
                log.warning("%s", describe({found.unit: found}))

    def _check(self, path: str) -> FormatCheck:
        file = self.files.get(path)
        if file is None or file.link is not None:
            return UNKNOWN
        known = self._checks.get(file.signature)
        if known is None:
            known = self._check_file(self._folder / path)
            if signature_of(self._folder / path, file) != file.signature:
                # It changed while it was read. Sending it will notice, too.
                return UNKNOWN
            self._checks[file.signature] = known
        return known

    def _form(self, file: File) -> str:
        known = self._checks.get(file.signature)
        return known.form if known is not None else ""

    def _compare(self) -> None:
        self._dirty = {path: file for path, file in self.files.items() if self.committed.get(path) != file.signature}
        self.dirty_bytes = sum(file.size for file in self._dirty.values())

    def _note_open(self) -> None:
        self.history.note_open(*self.open_now(), self._signature_now)

    def _signature_now(self, path: str) -> Signature | None:
        try:
            return Signature.of((self._folder / path).stat())
        except OSError:
            return None

    def _relative(self, writing: Writing) -> dict[str, OpenFile]:
        found = {}
        for path, file in writing.files.items():
            try:
                found[path.relative_to(self._folder).as_posix()] = file
            except ValueError:
                continue
        return found
