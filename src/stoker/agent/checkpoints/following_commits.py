"""Commit the part that a rank other than 0 has in a save of several ranks: see `gang_commits`."""

from __future__ import annotations

import logging
from typing import Any

from stoker.agent.checkpoints.commit_contents import CommitContents
from stoker.agent.checkpoints.file_numbers import generation_of, newest_names, role_of
from stoker.agent.checkpoints.folder_commits import SCAN_S, FolderCommits
from stoker.agent.checkpoints.gang_commits import SavePart, as_now, saved_files
from stoker.agent.checkpoints.manifest_writer import ManifestDraft
from stoker.model.gang_messages import SaveAnswer, SaveProposal
from stoker.store.checkpoint_manifests import StoredManifest

log = logging.getLogger(__name__)

# How far apart ranks may write the same save, with the time until a heartbeat of another rank is read.
SKEW_S = 20.0
# A rank that wrote nothing for so many saves in a row is taken for one that does not write at every save.
_IDLE_SAVES = 2


class FollowingCommits(FolderCommits):
    """Commits the folder of a rank other than 0 as its part of the saves that rank 0 proposes."""

    _part: SavePart | None = None
    # The last proposal that was seen, and when it was seen first.
    _seen, _seen_at = 0, float("-inf")
    _last_answer: SaveAnswer | None = None
    # How many saves in a row this rank wrote nothing for.
    _idle_saves = 0
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
        history, saved = self._watch.history, saved_files(contents)
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
        if proposal.ended or self._is_final:
            # No part will come any more. A rank that was seen not to write at every save has none to come.
            return later_s > SKEW_S and self._idle_saves >= _IDLE_SAVES
        # It wrote nothing for this save: its part may come late, or it does not write at every save.
        return later_s > SKEW_S and self._monotonic() - self._seen_at >= self._options.busy_s

    def _commit_part(self, part: SavePart, *, final: bool) -> bool:
        if part.blobs is None:
            self.scan_if_due(now=True)
            contents = as_now(part.contents, self._watch.files)
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
        if self._options.rank not in leader.manifest.ranks:
            # This rank got its first files while that save was committed.
            self._drop("rank 0 has committed the save without this rank")
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
        is_idle = not self._watch.dirty.files.keys() & saved_files(part.contents).keys()
        self._idle_saves = self._idle_saves + 1 if is_idle else 0
        contents, blobs, saved_at = part.contents, part.blobs, self._chooser.saved_at(part.contents)
        self._part = None
        self._manifests.publish(ManifestDraft(manifest, lambda _key: self._note_commit(contents, blobs), saved_at))
        return True

    def _drop(self, reason: str) -> None:
        log.info("this rank's part of a save is dropped: %s", reason)
        self._part = None

    def _leader(self, token: int) -> StoredManifest | None:
        """Return rank 0's commit of the save with this token."""
        for item in self._manifests.read():
            manifest = item.manifest
            if item.place.rank == 0 and manifest is not None and manifest.generation == -token:
                return item
        return None


def _is_open(part: SavePart, proposal: SaveProposal | None) -> bool:
    """Return whether the save of this part is still proposed, or is the last one that rank 0 committed."""
    return proposal is None or part.token in (proposal.token, proposal.committed)
