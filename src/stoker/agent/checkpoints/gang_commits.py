"""Commit one save of several ranks whose script does not use `stoker.train`.

Each rank sees its own folder alone, and no file says to which save of another rank it belongs. So the ranks agree:

1. Rank 0's folder has settled. Rank 0 proposes a save.
2. Each other rank chooses its part, the settled folder as it is now, and answers; or it answers that it has no files.
3. All have answered and rank 0's folder is still the same: the save is agreed. When each rank chose its part, rank 0's
   folder was in the state that is committed, and had been for a while.
4. All send their parts. Rank 0 commits and names the ranks; each of them then commits its part under the same token.

A part that changes before it is sent is dropped. Then the save stays incomplete, and the one before it counts.

After the end of its training rank 0 waits for no answer. It states how long before its end it wrote last; another rank
joins if the same is true of it. These are durations: no clock of one machine is compared with that of another.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from stoker.agent.checkpoints.commit_contents import CommitContents
from stoker.agent.checkpoints.file_numbers import generation_of, newest_names, role_of
from stoker.agent.checkpoints.folder_commits import SCAN_S, FolderCommits
from stoker.agent.checkpoints.folder_snapshot import Files, Signature
from stoker.agent.checkpoints.manifest_writer import ManifestDraft
from stoker.model.node_facts import BlobRef, SaveAnswer, SaveProposal
from stoker.store.checkpoint_manifests import IMPORTED, StoredManifest, parse_key
from stoker.store.checkpoints import list_checkpoints

log = logging.getLogger(__name__)

# How far apart ranks may write the same save, with the time until a heartbeat of another rank is read.
SKEW_S = 20.0
# A rank that had no files at an earlier save is waited for no longer than this. The others are waited for.
ANSWER_PATIENCE_S = 60.0
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
    # The token for which the folder was scanned when all had answered.
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
        all_answered = proposed is not None and not missing
        check_now = all_answered and proposed is not None and proposed.token != self._checked
        if not self._may_choose(now=check_now):
            return False
        if proposed is not None and all_answered:
            self._checked = proposed.token
        contents = self._chooser.choose()
        if contents is None:
            return False
        is_settled = not (contents.carried or contents.left_out or contents.copies or contents.to_copy - contents.logs)
        is_same = proposed is not None and proposed.saved == _saved(contents)
        if proposed is None or (is_settled and not is_same and (missing or self._savers())):
            self._propose(contents)
            return False
        if missing:
            return False
        if not self._savers():
            return self._commit_alone(self._dated(contents))
        if not is_settled:
            # The other ranks could not know which part of it is an older save.
            return False
        self._part = SavePart(proposed.token, self._dated(contents), (0, *self._savers()))
        return self._commit_part(self._part)

    def _propose(self, contents: CommitContents, *, ended: bool = False) -> None:
        gang, history = self._options.gang, self._watch.history
        if gang is None:
            return
        saved = _saved(contents)
        last = max((history.changed_at[path] for path in saved), default=history.scanned_at)
        token = secrets.randbits(_TOKEN_BITS) + 1
        self._proposed = _OpenProposal(token, saved, self._monotonic())
        newest = tuple(sorted(newest_names(saved).values()))[:_NAMES]
        quiet_s = (self.ended_at if ended else history.scanned_at) - last
        gang.propose(SaveProposal(token, round(quiet_s, 3), newest, self._committed, ended))

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
        self._waiting_for = tuple(missing) if waited_s >= ANSWER_PATIENCE_S else ()
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
        contents = _as_now(part.contents, self._watch.files)
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


class FollowingCommits(FolderCommits):
    """Commits the folder of a rank other than 0 as its part of the saves that rank 0 proposes."""

    _part: SavePart | None = None
    # The last proposal that was seen, and when it was seen first.
    _seen, _seen_at = 0, float("-inf")
    _last_answer: SaveAnswer | None = None
    # This rank's last write, and since when rank 0 has proposed saves to which this rank wrote nothing.
    _idle: tuple[float, float] | None = None
    _follow_at = float("-inf")
    _is_final = _sent_ahead = False

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        # Proposals that need no answer any more. A heartbeat that lands late may bring one back.
        self._done: set[int] = set()

    @property
    def may_join(self) -> bool:
        return self._options.gang is not None and (bool(self._watch.files) or self._part is not None)

    def advance(self, *, final: bool) -> bool:
        """Answer a proposal, or commit this rank's part. Return False if nothing was committed."""
        # Read before the manifests: a save that rank 0 has passed over is never committed.
        gang = self._options.gang
        if gang is None:
            # This agent was restarted: no save of rank 0 is known to belong to the folder.
            return False
        proposal = gang.proposal()
        is_new = proposal is not None and proposal.token != self._seen
        scanned = self.scan_if_due(now=final or is_new)
        if proposal is not None and is_new:
            self._seen, self._seen_at = proposal.token, self._monotonic()
        if final and not self._is_final:
            self._is_final, self._follow_at = True, float("-inf")
            if not self._watch.files and self._last_answer is None:
                self._answer(SaveAnswer(0, False))
        if self._watch.files and (self._last_answer is None or not self._last_answer.saves):
            self._answer(SaveAnswer(0, True))
        if self._part is not None and not _is_open(self._part, proposal):
            self._drop("rank 0 has proposed another one")
        if self._part is None and proposal is not None and scanned and proposal.token not in self._done:
            self._part = self._choose_part(proposal, final=final)
        if self._part is not None:
            return self._commit_part(self._part, final=final)
        if final and not self._sent_ahead and self._watch.files:
            # Rank 0 has not committed yet. Sending takes long, and can be done meanwhile.
            contents = self._chooser.choose_final(self._end())
            if contents is not None and not contents.left_out:
                self._send(contents)
                self._sent_ahead = True
        return False

    def decline(self) -> None:
        """Answer that this rank has no part: its script uses `stoker.train`."""
        proposal = self._options.gang.proposal() if self._options.gang is not None else None
        if proposal is not None and proposal.token not in self._done:
            self._part = None
            self._done.add(proposal.token)
            self._answer(SaveAnswer(proposal.token, False))

    def ask_at_once(self) -> None:
        """Read rank 0's commits in the next round, however recently they were read."""
        self._follow_at = float("-inf")

    def _answer(self, answer: SaveAnswer) -> None:
        gang = self._options.gang
        assert gang is not None
        self._last_answer = answer
        if not answer.token:
            # It has files now: an open proposal needs another answer.
            self._done.discard(self._seen)
        gang.answer(answer)

    def _choose_part(self, proposal: SaveProposal, *, final: bool) -> SavePart | None:
        """Choose this rank's part and answer. None: it has no files, or they are not known to be of that save."""
        contents: CommitContents | None = CommitContents({}, frozenset(), {}, frozenset())
        if self._watch.files:
            chooser = self._chooser
            contents = chooser.choose_final(self._end(), even_if_unchanged=True) if final else chooser.choose_settled()
            if contents is None or contents.left_out or not self._belongs(contents, proposal):
                return None
        elif not proposal.ended:
            self._done.add(proposal.token)
            self._answer(SaveAnswer(proposal.token, False))
            return None
        elif not final:
            return None
        assert contents is not None
        self._done.add(proposal.token)
        self._answer(SaveAnswer(proposal.token, bool(self._watch.files)))
        return SavePart(proposal.token, self._dated(contents))

    def _belongs(self, contents: CommitContents, proposal: SaveProposal) -> bool:
        """Return whether the folder, as it is, is taken for this rank's part of the proposed save."""
        history, saved = self._watch.history, _saved(contents)
        mine = newest_names(saved)
        pairs = [(mine[role_of(name)], name) for name in proposal.newest if role_of(name) in mine]
        if any(generation_of(own) != generation_of(other) for own, other in pairs):
            return False
        new = newest_names(saved.keys() & self._watch.dirty.files.keys()).values()
        if any(own in new for own, _ in pairs):
            # Both have just written the save of the same number.
            return True
        last = max((history.changed_at[path] for path in saved), default=float("-inf"))
        seen_at = min(self._seen_at, self.ended_at) if proposal.ended else self._seen_at
        later_s = seen_at - last - proposal.quiet_s
        if later_s <= SKEW_S and not (proposal.ended and later_s < -SKEW_S):
            return True
        # It wrote nothing for this save: its part may come late, or it does not write at every save. Once its training
        # has ended, no part will come: then it joins only if it was seen before that it does not write at every save.
        if self._idle is None or self._idle[0] != last:
            self._idle = (last, self._seen_at)
        until = self._seen_at if proposal.ended or self._is_final else self._monotonic()
        return later_s > SKEW_S and until - self._idle[1] >= self._options.busy_s

    def _commit_part(self, part: SavePart, *, final: bool) -> bool:
        if part.blobs is None:
            self.scan_if_due(now=True)
            contents = _as_now(part.contents, self._watch.files)
            if contents is None:
                self._drop("it changed before it was sent")
                return False
            gang = self._options.gang
            part.contents = contents
            part.blobs = self._send(contents, lambda: gang is None or _is_open(part, gang.proposal()))
        if self._monotonic() < self._follow_at:
            return False
        self._follow_at = self._monotonic() + (SCAN_S if final else self._options.follow_s)
        leader = self._leader(part.token)
        if leader is None or leader.manifest is None:
            return False
        if any(self._sender.upload_of(blob.digest) != blob.upload for blob in part.blobs.values()):
            # They were pruned meanwhile.
            part.blobs = None
            return False
        manifest = self._manifests.manifest(
            leader.place.name,
            self._manifests.next_ordinal(),
            tuple(part.blobs.values()),
            ranks=leader.manifest.ranks,
            generation=leader.manifest.generation,
            pause_s=self._watch.longest_pause_s(part.blobs),
        )
        contents, blobs, saved_at = part.contents, part.blobs, self._chooser.saved_at(part.contents)
        self._part = None
        self._manifests.publish(ManifestDraft(manifest, lambda _key: self._note_commit(contents, blobs), saved_at))
        return True

    def _drop(self, reason: str) -> None:
        log.info("this rank's part of a save is dropped: %s", reason)
        self._part = None

    def _leader(self, token: int) -> StoredManifest | None:
        """Return rank 0's commit of the save with this token, if this rank takes part."""
        for item in self._manifests.read():
            manifest = item.manifest
            if item.place.rank == 0 and manifest is not None and manifest.generation == -token:
                return item if self._options.rank in manifest.ranks else None
        return None


def _is_open(part: SavePart, proposal: SaveProposal | None) -> bool:
    """Return whether the save of this part is still proposed, or is the last one that rank 0 committed."""
    return proposal is None or part.token in (proposal.token, proposal.committed)


def _saved(contents: CommitContents) -> dict[str, Signature]:
    """The files of a save without logs, which say nothing about it."""
    return {path: file.signature for path, file in contents.files.items() if path not in contents.logs}


def _as_now(contents: CommitContents, files: Files) -> CommitContents | None:
    """Return the contents with their logs as they are now; None if another file has changed or is gone."""
    if any(path not in files or files[path].signature != signature for path, signature in _saved(contents).items()):
        return None
    present = {path: files[path] for path in contents.files if path in files}
    return replace(contents, files=present, to_copy=contents.to_copy & present.keys())
