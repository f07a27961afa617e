"""Commit one save of several ranks whose script does not use `stoker.train`.

Each rank sees its own folder alone, and no file says to which save of another rank it belongs. So the ranks agree:

1. Rank 0's folder has settled. Rank 0 proposes a save.
2. Each other rank chooses its part, the settled folder as it is now, and answers; or it answers that it has no files.
3. All have answered and, for as long as ranks may be apart after that, rank 0's folder stays the same: the save is
   agreed. A rank that answered with its next save was ahead of rank 0, which would have begun that save by then.
4. All send their parts. Rank 0 commits and names the ranks; each of them then commits its part under the same token.

A part that changes before it is sent is dropped. Then the save stays incomplete, and the one before it counts.

After the end of its training rank 0 waits for no answer. It states how long before its end it wrote last; another rank
joins if the same is true of it. These are durations: no clock of one machine is compared with that of another.

Why: docs/decisions/ranks-agree-on-a-save.md.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace

from stoker.agent.checkpoints.commit_contents import CommitContents
from stoker.agent.checkpoints.file_numbers import newest_names
from stoker.agent.checkpoints.folder_commits import FolderCommits
from stoker.agent.checkpoints.folder_snapshot import Files, Signature
from stoker.model.gang_messages import SaveAnswer, SaveProposal
from stoker.model.node_facts import BlobRef
from stoker.store.checkpoint_manifests import IMPORTED, parse_key
from stoker.store.checkpoints import list_checkpoints

log = logging.getLogger(__name__)

# A rank that had no files at an earlier save is waited for no longer than this: a heartbeat that takes longer is taken
# for the silence of a lost node. The others are waited for.
ANSWER_PATIENCE_S = 300.0
# A save that waits for a rank is reported after this time.
_SAY_AFTER_S = 60.0
# At the end of its training rank 0 waits this long for a word of ranks that have said nothing yet.
END_PATIENCE_S = 10.0
# Most names in a proposal.
_NAMES = 20
_TOKEN_BITS = 48


@dataclass
class SavePart:
    """This rank's part of a save. `blobs` are None until it is sent."""

    token: int
    contents: CommitContents
    ranks: tuple[int, ...] = (0,)
    blobs: dict[str, BlobRef] | None = None


@dataclass(frozen=True)
class _OpenProposal:
    token: int
    saved: Mapping[str, Signature]
    at: float


class LeadingCommits(FolderCommits):
    """Commits the folder of rank 0 when the other ranks have their parts of the same save, or have no files."""

    # The proposal that is being answered, the agreed save, and the token of the last one that was committed.
    _proposed: _OpenProposal | None = None
    _part: SavePart | None = None
    _committed = 0
    # The answers that are complete: the token, the ranks that have a part, and since when.
    _answered: tuple[int, tuple[int, ...], float] | None = None
    # The token for which the folder was scanned when it was time to agree.
    _checked = 0
    _waiting_for: tuple[int, ...] = ()
    # When the last commit was begun, the token of the proposal that was made for it, and whether it was sent before.
    _final_at: float | None = None
    _ended_token = 0
    _sent_ahead = _is_waiting = False

    @property
    def is_waiting(self) -> bool:
        return self._is_waiting

    @property
    def held_back(self) -> str | None:
        if not self._waiting_for:
            return super().held_back
        return f"the save is not committed: no part of it is known of rank {', '.join(map(str, self._waiting_for))}"

    def advance(self, *, final: bool) -> bool:
        """Propose a save, or commit one that is agreed. Return False if nothing was committed."""
        if self._part is not None:
            return self._commit_part(self._part)
        if final:
            return self._advance_final()
        proposed, missing = self._proposed, self._missing()
        is_due = proposed is not None and not missing and self._is_time_to_agree(proposed)
        check_now = is_due and proposed is not None and proposed.token != self._checked
        if not self._may_choose(now=check_now):
            return False
        if proposed is not None and is_due:
            self._checked = proposed.token
        contents = self._chooser.choose()
        if contents is None:
            return False
        is_settled = self._is_settled(contents)
        is_same = proposed is not None and proposed.saved == saved_files(contents)
        if proposed is None or (is_settled and not is_same):
            # Also where the others had no files: they may have got their first ones since they answered.
            self._propose(contents)
            return False
        if missing or not is_due:
            return False
        if not self._savers():
            return self._commit_alone(self._dated(contents))
        if not is_settled:
            # The other ranks could not know which part of it is an older save.
            return False
        self._part = SavePart(proposed.token, self._dated(contents), (0, *self._savers()))
        return self._commit_part(self._part)

    def _is_settled(self, contents: CommitContents) -> bool:
        """Return True if the contents are the whole folder, at rest."""
        is_whole = not (contents.carried or contents.left_out) and contents.files.keys() == self._watch.files.keys()
        return is_whole and not (contents.copies or contents.to_copy - contents.logs)

    def _propose(self, contents: CommitContents, *, ended: bool = False) -> None:
        gang, history = self._options.gang, self._watch.history
        if gang is None:
            return
        saved = saved_files(contents)
        last = max((history.changed_at[path] for path in saved), default=history.scanned_at)
        token = secrets.randbits(_TOKEN_BITS) + 1
        self._proposed = _OpenProposal(token, saved, self._monotonic())
        newest = tuple(sorted(newest_names(saved).values()))[:_NAMES]
        quiet_s = (self.ended_at if ended else history.scanned_at) - last
        gang.propose(SaveProposal(token, round(quiet_s, 3), newest, self._committed, ended))

    def _is_time_to_agree(self, proposed: _OpenProposal) -> bool:
        """Return True if all have answered for so long that rank 0 would have begun its next save if another rank had.

        Call it only when all have answered.
        """
        savers = self._savers()
        if self._answered is None or self._answered[:2] != (proposed.token, savers):
            self._answered = (proposed.token, savers, self._monotonic())
        return not savers or self._monotonic() - self._answered[2] >= self._options.effective_settle_s

    def _missing(self) -> tuple[int, ...]:
        """Return the ranks that have not answered the proposal, and of which nothing is known."""
        proposed = self._proposed
        if proposed is None:
            self._waiting_for = ()
            return ()
        waited_s = self._monotonic() - proposed.at
        answers = self._answers()
        missing = []
        for rank in range(1, self._options.nodes):
            answer = answers.get(rank)
            silent = answer is not None and not answer.saves and waited_s >= ANSWER_PATIENCE_S
            if not silent and (answer is None or answer.token != proposed.token):
                missing.append(rank)
        self._waiting_for = tuple(missing) if waited_s >= _SAY_AFTER_S else ()
        return tuple(missing)

    def _savers(self) -> tuple[int, ...]:
        """Return the other ranks that hold their part of the proposed save."""
        token = self._proposed.token if self._proposed is not None else None
        return tuple(sorted(rank for rank, one in self._answers().items() if one.saves and one.token == token))

    def _answers(self) -> Mapping[int, SaveAnswer]:
        answers = self._options.gang.answers() if self._options.gang is not None else {}
        return {rank: answer for rank, answer in answers.items() if 0 < rank < self._options.nodes}

    def _commit_alone(self, contents: CommitContents) -> bool:
        blobs = self._send(contents)
        alone = not self._missing() and not self._savers()
        self._proposed = None
        # Another rank may have got its first files while this one sent.
        return alone and self._commit(contents, blobs)

    def _commit_part(self, part: SavePart) -> bool:
        self.scan_if_due(now=True)
        contents = as_now(part.contents, self._watch.files)
        if contents is None:
            log.info("an agreed save changed before it was sent")
            self._part = self._proposed = None
            return False
        done = self._commit(contents, self._send(contents), part.ranks, part.token)
        self._part = self._proposed = None
        return done

    def _commit_written(self, token: int) -> None:
        if token:
            self._committed, self._part, self._proposed = token, None, None

    # ── After the training has ended ──────────────────────────────────────────────────────────────────────────────────

    def _advance_final(self) -> bool:
        self._waiting_for, self._is_waiting = (), False
        if self._final_at is None:
            self._final_at = self._monotonic()
        self.scan_if_due(now=True)
        contents = self._choose_final()
        if contents is None:
            return False
        contents = self._dated(contents)
        if self._unknown_at_end() and self._monotonic() - self._final_at < END_PATIENCE_S:
            # All trainings end at about the same time. Sending takes long, and can be done meanwhile.
            self._is_waiting = True
            if not self._sent_ahead:
                self._send(contents)
                self._sent_ahead = True
            return False
        ranks = self._ranks_at_end()
        if ranks == (0,):
            return self._commit(contents, self._send(contents))
        if self._options.gang is None or contents.carried or contents.left_out:
            # The other ranks could not know which save they join.
            return False
        if self._proposed is None or self._ended_token != self._proposed.token:
            self._propose(contents, ended=True)
            assert self._proposed is not None
            self._ended_token = self._proposed.token
        return self._commit(contents, self._send(contents), ranks, self._ended_token)

    def _is_alone_at_end(self) -> bool:
        return self._ranks_at_end() == (0,)

    def _ranks_at_end(self) -> tuple[int, ...]:
        """Return rank 0, and all ranks that may have files. A rank that turns out to have none commits an empty part.

        Raises StoreError.
        """
        options = self._options
        others = range(1, options.nodes)
        if options.gang is None:
            # This agent was restarted: the save before shows which ranks take part.
            stored = list_checkpoints(options.store, options.job, trust=options.trust)
            ranks = [one.manifests[0].ranks for one in stored if one.place.claim != IMPORTED]
            return ranks[-1] if ranks else (0, *others)
        unknown = self._unknown_at_end()
        return (0, *sorted(unknown | {rank for rank, answer in self._answers().items() if answer.saves}))

    def _unknown_at_end(self) -> set[int]:
        """Return the ranks that have said nothing, and may have had a part in the restored checkpoint."""
        options = self._options
        if options.gang is None:
            return set()
        unknown = set(range(1, options.nodes)) - self._answers().keys()
        restored = parse_key(options.restored.key) if options.restored is not None else None
        if options.restored is not None and restored is not None and restored.claim != IMPORTED:
            unknown &= {part.rank for part in options.restored.files}
        return unknown


def saved_files(contents: CommitContents) -> dict[str, Signature]:
    """The files of a save without logs, which say nothing about it."""
    return {path: file.signature for path, file in contents.files.items() if path not in contents.logs}


def as_now(contents: CommitContents, files: Files) -> CommitContents | None:
    """Return the contents with their logs as they are now; None if another file has changed or is gone."""
    if any(
        path not in files or files[path].signature != signature for path, signature in saved_files(contents).items()
    ):
        return None
    present = {path: files[path] for path in contents.files if path in files}
    return replace(contents, files=present, to_copy=contents.to_copy & present.keys())
