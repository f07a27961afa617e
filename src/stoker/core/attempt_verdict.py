"""Judge how a finished attempt ended and whether another follows: a list of rules, the first match decides. Pure.

Faults of the cloud or the machine never count against the user. Failures of the script do, and restart only as often as
the spec says. Every verdict names its rule and its reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import takewhile

from stoker.core.attempt_evidence import AttemptEvidence
from stoker.core.health_rules import OWN_STALL_RULE
from stoker.core.poisoned_checkpoints import IMPORTED, poisoned_among
from stoker.core.policy_rules import PREFIX
from stoker.core.safe_regex import compile_pattern
from stoker.core.saved_work import attempts_of, checkpoint_title, describe_saved_work
from stoker.model.log_entries import AttemptOutcome, Closed
from stoker.model.node_facts import Exit
from stoker.model.policy import FailureRule

_DISK_FULL = re.compile(r"No space left on device|Disk quota exceeded", re.IGNORECASE)
# How launchers report SIGKILL, and no other signal.
_KILLED = re.compile(r"-9\b|\b9\b|\bSIGKILL\b|\bKilled\b")
# As much of the end of a log as an agent reports.
_TAIL_CHARS = 16 * 1024
# A longer line of the log is cut where a reason quotes it.
_MOST_QUOTED = 160
DISK_ADVICE = "make room on its disk, or ask for a larger one with resources.disk"

# Outcomes that say nothing about the script: any checkpoint it saved by then counts as progress.
_FROM_OUTSIDE: frozenset[AttemptOutcome] = frozenset({"reclaimed", "lost", "abandoned"})
# Outcomes before which an attempt may have saved, or lost unsaved work.
_SAVING: frozenset[AttemptOutcome] = frozenset({"lost", "infrastructure", "abandoned", "stopped", "limit"})
# Outcomes whose restart does not count against the user's retries.
RESTARTING: frozenset[AttemptOutcome] = frozenset({"reclaimed", "lost", "infrastructure", "abandoned", "dry"})


@dataclass(frozen=True)
class Verdict:
    """How an attempt ended. `restart`: another attempt follows. `counted`: it counts against `retry.user_errors`."""

    outcome: AttemptOutcome
    rule: str
    reason: str
    restart: bool
    counted: bool = False


def closed_entry(evidence: AttemptEvidence, verdict: Verdict) -> Closed:
    """Build the `closed` entry from the verdict and the facts behind it."""
    failure = evidence.failure or (evidence.left[0] if evidence.left else None)
    waste = evidence.waste
    if waste is not None and verdict.outcome == "succeeded":
        waste = replace(waste, lost_s=0.0)  # The results of the last training are in its outputs.
    return Closed(
        claim=evidence.claim.number,
        outcome=verdict.outcome,
        rule=verdict.rule,
        restart=verdict.restart,
        counted=verdict.counted,
        trained_s=evidence.trained_s,
        step=evidence.step,
        restored_from=evidence.restored_from,
        checkpoint=evidence.checkpoint,
        saved_step=evidence.saved_step,
        progressed=_made_progress(evidence, verdict),
        at_startup=evidence.at_startup and verdict.outcome == "failed",
        loaded=evidence.loaded and evidence.restored_from is not None,
        suspects_checkpoint=evidence.suspects_checkpoint and verdict.outcome == "failed",
        exit_code=_status(failure),
        tail=failure.tail if failure is not None and verdict.outcome != "succeeded" else (),
        waste=waste,
    )


def judge(evidence: AttemptEvidence) -> Verdict:
    """Judge a finished attempt by the first matching rule. Restarts without progress are limited."""
    for rule in RULES:
        found = rule(evidence)
        if found is not None:
            return _without_loops(evidence, _with_saved_work(evidence, found))
    raise AssertionError("the last rule matches everything")


# ── The rules, in order ───────────────────────────────────────────────────────────────────────────────────────────────


def _finished(evidence: AttemptEvidence) -> Verdict | None:
    if all(found is not None and found.outcome == "succeeded" for found in evidence.exits):
        where = f" on all {evidence.claim.nodes} nodes" if evidence.claim.nodes > 1 else ""
        return Verdict("succeeded", "finished", f"the training finished{where}", restart=False)
    return None


def _partial(evidence: AttemptEvidence) -> Verdict | None:
    named = len(evidence.claim.launched or ())
    if named < evidence.claim.nodes:
        return Verdict("dry", "partial-gang", f"only {named} of {evidence.claim.nodes} machines came", restart=True)
    return None


def _stopped(evidence: AttemptEvidence) -> Verdict | None:
    if evidence.state.stop is not None:
        return Verdict("stopped", "stop", f"stopped by {evidence.state.stop.by}", restart=False)
    return None


def _limit(evidence: AttemptEvidence) -> Verdict | None:
    drain = evidence.claim.drain
    if drain is not None and drain.outcome == "limit":
        return Verdict("limit", drain.rule, drain.reason, restart=False)
    for found in evidence.left:
        if found.why == "limit":
            return Verdict("limit", "max_runtime", found.reason or "max_runtime is reached", restart=False)
    return None


def _dry(evidence: AttemptEvidence) -> Verdict | None:
    """The cloud accepted the launch, searched for machines, and found none."""
    return Verdict("dry", "no-capacity", evidence.dry, restart=True) if evidence.dry and not evidence.left else None


def _reclaimed(evidence: AttemptEvidence) -> Verdict | None:
    if not evidence.noticed:
        return None
    step = f" at step {evidence.step}" if evidence.step is not None else ""
    return Verdict("reclaimed", "notice", f"reclaimed after a notice{step}", restart=True)


def _boot_failed(evidence: AttemptEvidence) -> Verdict | None:
    """The machine reports why it could not start an agent. Once may be an accident; twice in a row is the image, the
    network or a permission, and a third machine would only cost money."""
    failed_boot = next((found for found in evidence.left if found.why == "boot"), None)
    if failed_boot is None:
        return None
    tried = [claim.closed for claim in evidence.state.since_opened() if claim.closed and claim.attempt is not None]
    if tried and tried[-1].rule == "boot-failed":
        return Verdict("failed", "boot-failed", f"{failed_boot.reason}; twice in a row", restart=False)
    return Verdict("infrastructure", "boot-failed", failed_boot.reason, restart=True)


def _lost(evidence: AttemptEvidence) -> Verdict | None:
    missing = [rank for rank, found in enumerate(evidence.exits) if found is None]
    if not missing:
        return None
    drain = evidence.claim.drain
    if not any(evidence.heartbeats):
        return Verdict("lost", "boot", "the machine was gone before it reported anything", restart=True)
    if drain is not None and len(missing) == evidence.claim.nodes:
        return Verdict(drain.outcome, drain.rule, drain.reason, restart=drain.outcome in RESTARTING)
    which = "the machine" if evidence.claim.nodes == 1 else f"the machine of {_ranks_text(missing)}"
    return Verdict("lost", "gone", f"{which} is gone, and nothing says how its training ended", restart=True)


def _ranks_text(ranks: Sequence[int]) -> str:
    """`node 1`, `nodes 1, 3`."""
    return f"node{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _disk_too_small(evidence: AttemptEvidence) -> Verdict | None:
    """A disk too small for the job's packages is as small on the next machine, so a restart does not help."""
    for found in evidence.left:
        full = "disk-full" in found.evidence or _DISK_FULL.search("\n".join((found.reason, *found.tail)))
        if found.why == "setup" and found.outcome == "failed" and full:
            reason = found.reason if "resources.disk" in found.reason else f"{found.reason}; {DISK_ADVICE}"
            return Verdict("failed", "no-room", reason, restart=False)
    return None


def _by_failure_rule(evidence: AttemptEvidence) -> Verdict | None:
    """The policy's failure rules take precedence over the rules below."""
    for rule in evidence.diagnoses:
        assert rule.failure is not None
        for found in evidence.left:
            if found.outcome == "failed" and matches_failure(rule.failure, found.tail, _status(found), found.evidence):
                what = f"policy {rule.name}: {found.reason or 'the command failed'}"
                if rule.action == "restart":
                    return Verdict("infrastructure", f"{PREFIX}{rule.name}", what, restart=True)
                return Verdict("failed", f"{PREFIX}{rule.name}", what, restart=False, counted=True)
    return None


def matches_failure(diagnosis: FailureRule, tail: Sequence[str], status: int | None, evidence: Sequence[str]) -> bool:
    """Return whether everything that the rule names is present."""
    if diagnosis.log is not None and not _says("\n".join(tail)[-_TAIL_CHARS:], diagnosis.log):
        return False
    if diagnosis.exit_code is not None and diagnosis.exit_code != status:
        return False
    return diagnosis.evidence is None or diagnosis.evidence in evidence


@lru_cache(maxsize=1024)
def _says(tail: str, pattern: str) -> bool:
    """Return whether the end of a log matches. Cached, because every pass asks again."""
    return compile_pattern(pattern).search(tail) is not None


def _infrastructure(evidence: AttemptEvidence) -> Verdict | None:
    for found in evidence.left:
        if found.why == "agent":
            return Verdict("infrastructure", "agent", found.reason or "the agent crashed", restart=True)
        if found.outcome == "infrastructure":
            return Verdict("infrastructure", found.why, found.reason or "the machine failed", restart=True)
    return _excused(evidence)


def _excused(evidence: AttemptEvidence) -> Verdict | None:
    """Blame the machine if logs or machines say so. The earliest failure that is not a consequence of another rank's
    decides."""
    failures = evidence.failures
    if not failures:
        return None
    primary = [cause for _, cause in failures if cause is None or cause.blame != "peer"]
    # A rank that names a cause counts before one that names none.
    cause = next((each for each in primary if each is not None), None) if primary else failures[0][1]
    if cause is None or cause.blame == "script":
        return None
    if cause.name == "killed":
        reason = cause.line
        if cause.blame == "peer":
            how = "killed from outside (SIGKILL)" if _KILLED.search(cause.line) else "ended from outside"
            reason = f"a process of the training was {how}"
    elif cause.name in (fact for found, _ in failures for fact in found.evidence):
        reason = f"the machine reported {cause.name}"
    else:
        reason = f"the log ends with a {cause.name} error"
    return Verdict("infrastructure", cause.name, reason, restart=True)


def _left_early(evidence: AttemptEvidence) -> Verdict | None:
    """No rank failed: the attempt waited too long, or was asked to leave."""
    if evidence.failure is not None:
        return None
    waited = any(found.why == "waited" for found in evidence.left)
    reason = "waited too long for the attempt before it to leave" if waited else "was asked to leave before it finished"
    drain = evidence.claim.drain
    if drain is not None and (drain.rule == OWN_STALL_RULE or drain.rule.startswith(PREFIX)):
        return Verdict(drain.outcome, drain.rule, drain.reason, restart=True)
    if drain is not None:
        reason = drain.reason
    return Verdict("abandoned", "waited" if waited else "left", reason, restart=True)


def _unrestorable(evidence: AttemptEvidence) -> Verdict | None:
    """Checkpoints exist and none can be restored. Starting over would throw work away, so a person decides."""
    for found in evidence.left:
        if found.why == "restore":
            return Verdict("failed", "restore", found.reason or "no checkpoint could be restored", restart=False)
    return None


def _bad_checkpoint(evidence: AttemptEvidence) -> Verdict | None:
    """The attempt failed on its restored checkpoint. Try that once more, then the checkpoint before it."""
    failure, key = evidence.failure, evidence.restored_from
    if failure is None or key is None or not evidence.suspects_checkpoint or key.startswith(IMPORTED):
        return None
    before = [claim.closed for claim in evidence.state.claims if claim.closed]
    if any(closed.loaded and closed.restored_from == key for closed in before):
        return None
    lately = {claim.closed.restored_from for claim in evidence.state.since_opened() if claim.closed}
    given_up = poisoned_among(before, evidence.settings).checkpoints & lately
    failures = 1 + sum(1 for closed in before if closed.suspects_checkpoint and closed.restored_from == key)
    if len(given_up - {key}) >= evidence.settings.most_poisoned:
        return None
    if failures >= evidence.settings.poison_after and not failure.older_checkpoints:
        return None
    in_a_row = takewhile(lambda closed: closed.rule == "checkpoint", reversed(before))
    if sum(1 for _ in in_a_row) >= evidence.settings.poison_after * (evidence.settings.most_poisoned + 1):
        return None  # Too many such failures in a row, whichever checkpoints they restored.
    title = checkpoint_title(key, attempts_of(evidence.state))
    return Verdict(
        "failed", "checkpoint", f"failed on checkpoint {title} before any progress{_times(evidence, failures)}", True
    )


def _times(evidence: AttemptEvidence, failures: int) -> str:
    """Say how often a checkpoint has failed, and what follows."""
    if failures < evidence.settings.poison_after:
        return f"; after {evidence.settings.poison_after} such failures it is passed over"
    return f", {failures} times: it is passed over from now on"


def _user_error(evidence: AttemptEvidence) -> Verdict | None:
    failure = evidence.failure
    if failure is None:
        return None
    what = _with_error(failure.reason or f"the command exited with {_status(failure)}", evidence)
    closes = [claim.closed for claim in evidence.state.since_opened() if claim.closed]
    spent = sum(1 for closed in closes if closed.counted)
    if spent >= evidence.spec.retry.user_errors:
        return _resumed(evidence, what, closes)
    if evidence.at_startup and closes and closes[-1].counted and closes[-1].at_startup:
        return Verdict("failed", "user-error", f"{what}; it failed twice right after its start", False, counted=True)
    return Verdict(
        "failed", "user-error", f"{what}; retry {spent + 1} of {evidence.spec.retry.user_errors}", True, True
    )


def _with_error(what: str, evidence: AttemptEvidence) -> str:
    """Add the line of the log that names the script's error, such as the last line of a traceback.

    A reason of several parts names an error already: one that the script wrote to a file, or that the set-up reports.
    """
    failure, cause = evidence.failures[0]
    if failure.why != "finished" or cause is None or cause.blame != "script" or ": " in what:
        return what
    line = " ".join(cause.line.split())
    return f"{what}: {line if len(line) <= _MOST_QUOTED else line[: _MOST_QUOTED - 1] + '…'}" if line else what


def _resumed(evidence: AttemptEvidence, what: str, closes: Sequence[Closed]) -> Verdict:
    """No rule explains the failure. After long training the job resumes from its last checkpoint, a limited number of
    times."""
    retry = evidence.spec.retry
    done = sum(1 for closed in closes if closed.rule == "resumed")
    by = f" ({evidence.resumed_by})" if evidence.resumed_by else ""
    if evidence.trained_s < retry.min_runtime_s or evidence.checkpoint is None or done >= retry.resumes:
        used_up = f"; it was resumed {done} of {retry.resumes} times{by}" if done else ""
        return Verdict("failed", "user-error", f"{what}{used_up}", restart=False, counted=True)
    reason = f"{what}; it had trained for long: resume {done + 1} of {retry.resumes}{by}"
    return Verdict("failed", "resumed", reason, restart=True)


def _otherwise(_case: AttemptEvidence) -> Verdict | None:
    return Verdict("lost", "unexplained", "the attempt ended and no rule recognises how", restart=True)


RULES: tuple[Callable[[AttemptEvidence], Verdict | None], ...] = (
    _finished,
    _partial,
    _stopped,
    _limit,
    _dry,
    _reclaimed,
    _boot_failed,
    _lost,
    _by_failure_rule,
    _disk_too_small,
    _infrastructure,
    _left_early,
    _unrestorable,
    _bad_checkpoint,
    _user_error,
    _otherwise,
)


def _with_saved_work(evidence: AttemptEvidence, found: Verdict) -> Verdict:
    """Add what the store has of the attempt: always after a reclaim, otherwise only if nothing was saved."""
    saved_work = (
        describe_saved_work(evidence)
        if found.outcome == "reclaimed" or (found.outcome in _SAVING and not evidence.saved)
        else ""
    )
    return replace(found, reason=f"{found.reason}; {saved_work}") if saved_work else found


def _without_loops(evidence: AttemptEvidence, found: Verdict) -> Verdict:
    """End the job after too many restarts in a row without progress."""
    if not found.restart or _made_progress(evidence, found) or found.outcome == "dry":
        return found
    in_a_row = 1
    reclaims_only = found.outcome == "reclaimed"
    for claim in reversed(evidence.state.since_opened()):
        if claim.closed is None or claim.attempt is None:
            continue
        if claim.closed.progressed:
            break
        in_a_row += 1
        reclaims_only = reclaims_only and claim.closed.outcome == "reclaimed"
    most = (
        evidence.settings.most_reclaims_without_progress if reclaims_only else evidence.settings.most_without_progress
    )
    if in_a_row < most:
        return found
    return replace(found, restart=False, reason=f"{found.reason}; {in_a_row} attempts in a row made no progress")


def _made_progress(evidence: AttemptEvidence, found: Verdict) -> bool:
    """Return whether the attempt made progress. An attempt ended from outside that saved anything counts as progress,
    unless a rule drained it for a stall first."""
    drain = evidence.claim.drain
    from_outside = found.outcome in _FROM_OUTSIDE and (drain is None or drain.outcome in _FROM_OUTSIDE)
    return evidence.progressed or (evidence.saved and from_outside)


def _status(found: Exit | None) -> int | None:
    """The exit status as a shell reports it."""
    if found is None:
        return None
    return 128 + found.signal if found.signal is not None else found.code
