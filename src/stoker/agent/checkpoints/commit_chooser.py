"""Choose what of a watched checkpoint folder is committed, and when.

The folder is *settled* when nothing was written for a while and no process has a file of it open for writing. Where
that never happens, changed files are copied in a quiet moment, and files that are being written are left out.

**A save is never mixed.** The files in one top-level folder are one unit, and so are the plain files beside the
folders. A unit that is not whole is committed as it was in the last commit, or left out if it was not in it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path

from stoker.agent.checkpoints.commit_contents import CommitContents, before_newest, from_copies
from stoker.agent.checkpoints.file_numbers import newest_generation
from stoker.agent.checkpoints.folder_snapshot import Signature, top_folder_of, without_units
from stoker.agent.checkpoints.folder_watcher import FolderWatch
from stoker.agent.checkpoints.save_copies import SaveCopies
from stoker.agent.checkpoints.save_shape import TICK_NS
from stoker.agent.checkpoints.whole_saves import SaveJudge, TrainingEnd, UnitLeftOut, describe

log = logging.getLogger(__name__)

# A folder that has been changing for this long is committed from copies …
BUSY_S = 30.0
# … that are made when no file was touched for this long, which is several ticks of the clock that stamps files. If no
# such moment comes for as long again, any closed file is copied.
CALM_S = 0.25
# A save that is shown to be whole is copied sooner, if it changed no more bytes than this …
_CALM_BYTES = 256 * 1024 * 1024
# … and nothing was written for a few ticks of that clock.
_REST_S = 3 * TICK_NS / 1e9


class CommitChooser:
    """Chooses commits of one watched folder, for the thread that commits. `say` writes to the job's log."""

    def __init__(
        self,
        watch: FolderWatch,
        *,
        settle_s: float,
        busy_s: float,
        monotonic: Callable[[], float] = time.monotonic,
        say: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self._watch = watch
        self._say = say
        self._settle_s = settle_s
        self._busy_s = busy_s
        self._monotonic = monotonic
        # Copies of the last whole save, where they are made.
        self.copies: SaveCopies | None = None
        # The newest sentence about units that are left out; None: there are none.
        self.held_back: str | None = None
        # A unit is left out because a file cannot be read now, and may be readable later.
        self.disk_fails = False
        self._warned: set[Signature] = set()

    def start_copies(self, scratch: Path) -> None:
        """Keep a copy of the last whole save from now on, for a program that saves faster than its folder settles."""
        watch = self._watch
        self.copies = SaveCopies(
            watch.view,
            scratch,
            logs=lambda: watch.logs,
            committed=lambda: watch.last_commit.signatures,
            max_quiet_s=self._settle_s / 2,
            monotonic=self._monotonic,
        )
        self.copies.start()

    def drop_copies(self) -> None:
        """Stop copying, and free the copies."""
        copies, self.copies = self.copies, None
        if copies is not None:
            copies.drop()

    # ── While the training runs ───────────────────────────────────────────────────────────────────────────────────────

    def choose(self) -> CommitContents | None:
        """Choose what to commit now; None when nothing is new or nothing is whole.

        A log that grew is no reason to commit. Neither is a removed file, since a script may remove its old save
        before it writes the new one.
        """
        open_logs = self._watch.history.open_logs()
        news = self._watch.dirty.files.keys() - open_logs
        if not news:
            return None
        contents = self.choose_settled() or self._choose_calm(open_logs)
        if contents is None and self._watch.dirty_s >= self._settle_s:
            contents = self._choose_copied(open_logs)
        contents = contents or self._choose_busy(open_logs)
        return contents if contents is not None and (contents.copies or news & contents.files.keys()) else None

    def choose_settled(self) -> CommitContents | None:
        """Choose the folder as it is, if nothing in it is moving. Logs that are held open are copied."""
        watch = self._watch
        with watch.lock:
            open_logs = watch.history.open_logs()
            files, judge = dict(watch.files), self._judge(open_logs)
            if self._moving(open_logs) or watch.history.since_removed_s < self._settle_s:
                return None
            if judge.unfinished():
                return None
        return self._without_broken(CommitContents(files, frozenset(open_logs), {}, frozenset(open_logs)), judge)

    def _choose_copied(self, logs: Collection[str]) -> CommitContents | None:
        """Choose the last whole save from its copies, if it is newer than the last commit."""
        watch = self._watch
        save = self.copies.newest() if self.copies is not None else None
        if save is None or save.taken_at <= watch.last_commit.as_of:
            return None
        with watch.lock:
            log_files = {path: file for path, file in watch.files.items() if path in logs}
            last = watch.last_commit
            return from_copies(save, watch.view.folder, last.signatures, last.blobs, log_files)

    def _choose_calm(self, open_logs: set[str]) -> CommitContents | None:
        """Choose copies of a save that its shape shows to be whole, for a program that leaves no time to settle.

        Only small saves, which are copied quickly; large ones wait longer.
        """
        watch = self._watch
        with watch.lock:
            moving = self._moving(open_logs)
            # The shape shows that the save has ended; a few ticks of the clock show that its files have.
            too_large = watch.dirty.size_bytes > _CALM_BYTES
            if watch.dirty_s < self._settle_s or too_large or self._calm_s(moving) < _REST_S:
                return None
            judge = self._judge(open_logs)
            waits = judge.unfinished() or judge.being_removed() or judge.unproven(moving, watch.cycles.shrank)
            if waits or watch.history.open.keys() - open_logs:
                return None
            to_copy = frozenset((moving | open_logs) & watch.files.keys())
            contents = CommitContents(dict(watch.files), to_copy, {}, frozenset(open_logs))
        return self._without_broken(contents, judge)

    def _calm_s(self, moving: Collection[str]) -> float:
        """How long none of these files has been written, by this process's clock.

        A file's own time stamp may be of another clock, or set to any value.
        """
        if not moving:
            return 0.0
        history = self._watch.history
        calm_s = self.copies.calm_s(history.scanned_at) if self.copies is not None else None
        if calm_s is not None:
            return calm_s
        unwritten_s = min(history.scanned_at - history.changed_at[path] for path in moving)
        return min(unwritten_s, history.since_removed_s)

    def _choose_busy(self, open_logs: set[str]) -> CommitContents | None:
        """Choose copies of the closed files of a folder that has been changing for long."""
        watch, history = self._watch, self._watch.history
        with watch.lock:
            waited_s = watch.dirty_s
            if waited_s < self._busy_s:
                return None
            moving = self._moving(open_logs)
            if not moving:
                # The folder is quiet, but a save lacks files: these are waited for, then the folder is committed as
                # it is.
                return None
            closed = moving - history.open.keys() - history.writer_died_holding() - history.maybe_cut_off()
            calm_s = min((history.scanned_at - history.changed_at[path] for path in closed), default=CALM_S)
            if min(calm_s, history.since_removed_s) < CALM_S and waited_s < 2 * self._busy_s:
                return None
            judge = self._judge(open_logs)
            blocked = moving - closed
            waits = judge.unfinished() | judge.being_removed()
            blocked |= {path for path in watch.files if top_folder_of(path) in waits}
            blocked |= self._written_since(blocked) - open_logs
            files, carried = without_units(watch.files, blocked, watch.last_commit.blobs)
            to_copy = frozenset((closed | open_logs) & files.keys())
        return self._without_broken(CommitContents(files, to_copy, carried, frozenset(open_logs)), judge)

    def _written_since(self, blocked: Collection[str]) -> set[str]:
        """Find new files at the top that were written after the blocked saves began.

        A `latest.json` among them may refer to one of these saves.
        """
        dirty = self._watch.dirty.files
        units = {top_folder_of(path) for path in blocked}
        begun_ns = min(
            (f.signature.modified_ns for path, f in dirty.items() if top_folder_of(path) in units), default=0
        )
        top = {path: file for path, file in dirty.items() if not top_folder_of(path)}
        return {path for path, file in top.items() if units and file.signature.modified_ns > begun_ns}

    # ── After the training has ended ──────────────────────────────────────────────────────────────────────────────────

    def choose_final(self, end: TrainingEnd, *, even_if_unchanged: bool = False) -> CommitContents | None:
        """Choose what to commit after the training has ended.

        None when nothing is new, unless `even_if_unchanged` is set.
        """
        watch = self._watch
        if self.copies is not None:
            self.copies.finish()
        logs = watch.history.logs()
        left_out = self._judge(logs).at_end(end)
        self._report(left_out)
        contents = self._leave_out(CommitContents(dict(watch.files), frozenset(), {}, frozenset(logs)), left_out)
        copied = self._choose_copied(logs) if left_out else None
        dirty = watch.dirty.files
        news = dirty.keys() & contents.files.keys() - logs
        if copied is not None and all(copied.files.get(path) == contents.files[path] for path in news):
            # The units that are left out were whole one save ago, and that save has all other new files.
            return replace(copied, to_copy=frozenset(), left_out=contents.left_out)
        return contents if even_if_unchanged or dirty.keys() & contents.files.keys() else None

    def saved_at(self, contents: CommitContents) -> float:
        """Return when the newest save in the contents was begun, by the monotonic clock: what the training did since
        then is in no checkpoint. Later than the truth only by what was written out of sight."""
        if contents.begun_at is not None:
            return contents.begun_at
        watch = self._watch
        with watch.lock:
            news = watch.dirty.files.keys() & contents.files.keys() - contents.logs
            span = watch.history.save_span(newest_generation(news), watch.longest_pause_s(news))
        if span is None:
            return watch.history.scanned_at
        return self.copies.burst_begin(*span) if self.copies is not None else span[0]

    def before_newest(self, contents: CommitContents) -> CommitContents | None:
        """Remove the newest save from a final commit, if the folder is known to have been in that state."""
        return before_newest(contents, self._watch.dirty.files, self._watch.last_commit.blobs)

    # ── Parts ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _judge(self, logs: Collection[str]) -> SaveJudge:
        watch = self._watch
        changed = [path for path in watch.dirty.files if path not in logs]
        return SaveJudge(
            dict(watch.files),
            changed,
            watch.history,
            watch.shapes,
            watch.cycles.companions,
            watch.last_commit.begun,
            watch.check,
            logs,
        )

    def _moving(self, open_logs: Collection[str]) -> set[str]:
        """Find files that may be half written now.

        A whole file whose writer ended and that has rested since is excluded: processes that save and end are normal.
        """
        history = self._watch.history
        moving = history.unsettled(open_logs) | (history.maybe_cut_off() - set(open_logs))
        rested = (moving & history.writer_died_holding()) - history.changed_lately()
        return moving - {path for path in rested if self._watch.check(path).state == "whole"}

    def _without_broken(self, contents: CommitContents, judge: SaveJudge) -> CommitContents:
        left_out = judge.broken()
        self._report(left_out)
        return self._leave_out(contents, left_out)

    def _leave_out(self, contents: CommitContents, left_out: Mapping[str, UnitLeftOut]) -> CommitContents:
        """Replace the units that are left out by their state in the last commit."""
        if not left_out:
            return contents
        blocked = [path for path in contents.files if top_folder_of(path) in left_out]
        files, carried = without_units(contents.files, blocked, self._watch.last_commit.blobs)
        return replace(
            contents,
            files=files,
            to_copy=contents.to_copy & files.keys(),
            carried=contents.carried | carried,
            left_out=tuple(left_out[unit] for unit in sorted(left_out)),
        )

    def _report(self, left_out: Mapping[str, UnitLeftOut]) -> None:
        """Set `held_back` and `disk_fails`, and log a warning for each file once."""
        self.held_back = describe(left_out) if left_out else None
        self.disk_fails = any(self._watch.check(unit.path).may_pass for unit in left_out.values())
        for unit in left_out.values():
            file = self._watch.files.get(unit.path)
            if file is not None and unit.path in self._watch.dirty.files and file.signature not in self._warned:
                self._warned.add(file.signature)
                warning = describe({unit.unit: unit})
                log.warning("%s", warning)
                if self._watch.check(unit.path).unreadable:
                    # Unlike a save that is not whole yet, this does not pass by itself.
                    self._say(warning)
