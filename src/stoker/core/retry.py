"""How an attempt that is over ended, and whether another follows: a list of rules, the first match decides.

What the cloud or the machine did is never counted against the user; what the script did is, and restarts only as often
as the spec says. Every verdict names its rule and gives its reason in words.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import takewhile

from stoker.core.attempt_evidence import Case
from stoker.core.governor_settings import Policy
from stoker.core.health_rules import OWN
from stoker.core.policy_rules import PREFIX
from stoker.core.safe_regex import compile_pattern
from stoker.core.saved_work import attempts_of, checkpoint_title, kept_of
from stoker.model.job_state import JobState
from stoker.model.log_entries import AttemptOutcome, Closed
from stoker.model.node_facts import Exit
from stoker.model.policy import Diagnosis

# Checkpoints brought in by `resume_from` are kept under claim 0. A person named them: they are never given up on.
IMPORTED = "00000000/"

_DISK_FULL = re.compile(r"No space left on device|Disk quota exceeded", re.IGNORECASE)
# How launchers tell of SIGKILL, and of no other signal.
_KILLED = re.compile(r"-9\b|\b9\b|\bSIGKILL\b|\bKilled\b")
# As much of a log's end as an agent tells.
_TAIL_CHARS = 16 * 1024
ROOM = "make room on its disk, or ask for a larger one with resources.disk"

# Ends that say nothing about the script: whatever it saved by then is taken for progress.
_FROM_OUTSIDE: frozenset[AttemptOutcome] = frozenset({"reclaimed", "lost", "abandoned"})
# Ends before which an attempt may have had the time to save, or lost what it had not saved.
_SAVING: frozenset[AttemptOutcome] = frozenset({"lost", "infrastructure", "abandoned", "stopped", "limit"})
# Outcomes after which the next attempt is free of charge for the user.
RESTARTING: frozenset[AttemptOutcome] = frozenset({"reclaimed", "lost", "infrastructure", "abandoned", "dry"})


@dataclass(frozen=True)
class Verdict:
    """How it ended. `restart`: another attempt follows."""

    outcome: AttemptOutcome
    rule: str
    reason: str
    restart: bool
    counted: bool = False


def judge(case: Case) -> Closed:
    """The `closed` entry for an attempt that is over; its reason is in `verdict(case).reason`."""
    return closing(case, verdict(case))


def closing(case: Case, found: Verdict) -> Closed:
    """What the log keeps of a verdict and of the facts it rests on."""
    failure = case.failure or (case.left[0] if case.left else None)
    waste = case.waste
    if waste is not None and found.outcome == "succeeded":
        waste = replace(waste, lost_s=0.0)  # What it trained last is in what it made.
    return Closed(
        claim=case.claim.number,
        outcome=found.outcome,
        rule=found.rule,
        restart=found.restart,
        counted=found.counted,
        trained_s=case.trained_s,
        step=case.step,
        restored_from=case.restored_from,
        checkpoint=case.checkpoint,
        saved_step=case.saved_step,
        progressed=_led_somewhere(case, found),
        at_startup=case.at_startup and found.outcome == "failed",
        loaded=case.loaded and case.restored_from is not None,
        suspects_checkpoint=case.suspects_checkpoint and found.outcome == "failed",
        exit_code=_status(failure),
        tail=failure.tail if failure is not None and found.outcome != "succeeded" else (),
        waste=waste,
    )


def verdict(case: Case) -> Verdict:
    """The first rule that matches decides; restarts that lead nowhere are ended."""
    for rule in RULES:
        found = rule(case)
        if found is not None:
            return _without_loops(case, _with_kept(case, found))
    raise AssertionError("the last rule matches everything")


def poisoned(state: JobState, policy: Policy) -> frozenset[str]:
    """The keys of checkpoints on which too many attempts failed, of those from which no attempt ever got further.

    With them what such attempts committed: a claim's number and a slash stand for all of its checkpoints. They hold
    what was restored, and no save. Remembered for as long as the job lasts: `resume` goes on from none of them unless a
    person chooses it.
    """
    return _poisoned([claim.closed for claim in state.claims if claim.closed], policy)


def _poisoned(closes: Sequence[Closed], policy: Policy) -> frozenset[str]:
    loaded = {closed.restored_from for closed in closes if closed.loaded}
    failures = Counter(closed.restored_from for closed in closes if closed.suspects_checkpoint)
    copies = {f"{closed.claim:08d}/" for closed in closes if closed.suspects_checkpoint and closed.checkpoint}
    return frozenset(
        key
        for key, count in failures.items()
        if key is not None and count >= policy.poison_after and key not in loaded and not key.startswith(IMPORTED)
    ).union(copies)


# ── The rules, in order ───────────────────────────────────────────────────────────────────────────────────────────────


def _finished(case: Case) -> Verdict | None:
    if all(found is not None and found.outcome == "succeeded" for found in case.exits):
        where = f" on all {case.claim.nodes} nodes" if case.claim.nodes > 1 else ""
        return Verdict("succeeded", "finished", f"the training finished{where}", restart=False)
    return None


def _partial(case: Case) -> Verdict | None:
    named = len(case.claim.launched or ())
    if named < case.claim.nodes:
        return Verdict("dry", "partial-gang", f"only {named} of {case.claim.nodes} machines came", restart=True)
    return None


def _stopped(case: Case) -> Verdict | None:
    if case.state.stop is not None:
        return Verdict("stopped", "stop", f"stopped by {case.state.stop.by}", restart=False)
    return None


def _limit(case: Case) -> Verdict | None:
    drain = case.claim.drain
    if drain is not None and drain.outcome == "limit":
        return Verdict("limit", drain.rule, drain.reason, restart=False)
    for found in case.left:
        if found.why == "limit":
            return Verdict("limit", "max_runtime", found.reason or "max_runtime is reached", restart=False)
    return None


def _dry(case: Case) -> Verdict | None:
    """The cloud took the launch, looked for machines, and found none."""
    return Verdict("dry", "no-capacity", case.dry, restart=True) if case.dry and not case.left else None


def _reclaimed(case: Case) -> Verdict | None:
    if not case.noticed:
        return None
    step = f" at step {case.step}" if case.step is not None else ""
    return Verdict("reclaimed", "notice", f"reclaimed after a notice{step}", restart=True)


def _boot_failed(case: Case) -> Verdict | None:
    """The machine says itself why it could not start an agent. Once may be an accident; twice is the image, the
    network or a permission, and a third machine would only cost money."""
    told = next((found for found in case.left if found.why == "boot"), None)
    if told is None:
        return None
    tried = [claim.closed for claim in case.state.since_opened() if claim.closed and claim.attempt is not None]
    if tried and tried[-1].rule == "boot-failed":
        return Verdict("failed", "boot-failed", f"{told.reason}; twice in a row", restart=False)
    return Verdict("infrastructure", "boot-failed", told.reason, restart=True)


def _lost(case: Case) -> Verdict | None:
    missing = [rank for rank, found in enumerate(case.exits) if found is None]
    if not missing:
        return None
    drain = case.claim.drain
    if not any(case.heartbeats):
        return Verdict("lost", "boot", "the machine was gone before it reported anything", restart=True)
    if drain is not None and len(missing) == case.claim.nodes:
        return Verdict(drain.outcome, drain.rule, drain.reason, restart=drain.outcome in RESTARTING)
    which = "the machine" if case.claim.nodes == 1 else f"the machine of {_ranks_text(missing)}"
    return Verdict("lost", "gone", f"{which} is gone, and nothing says how its training ended", restart=True)


def _ranks_text(ranks: Sequence[int]) -> str:
    """`node 1`, `nodes 1, 3`."""
    return f"node{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _no_room(case: Case) -> Verdict | None:
    """A disk that is too small for what the job installs is as small on the next machine."""
    for found in case.left:
        full = "disk-full" in found.evidence or _DISK_FULL.search("\n".join((found.reason, *found.tail)))
        if found.why == "setup" and found.outcome == "failed" and full:
            told = found.reason if "resources.disk" in found.reason else f"{found.reason}; {ROOM}"
            return Verdict("failed", "no-room", told, restart=False)
    return None


def _diagnosed(case: Case) -> Verdict | None:
    """What the house knows better than the rules below."""
    for rule in case.diagnoses:
        assert rule.failure is not None
        for found in case.left:
            if found.outcome == "failed" and told_by(rule.failure, found.tail, _status(found), found.evidence):
                what = f"policy {rule.name}: {found.reason or 'the command failed'}"
                if rule.action == "restart":
                    return Verdict("infrastructure", f"{PREFIX}{rule.name}", what, restart=True)
                return Verdict("failed", f"{PREFIX}{rule.name}", what, restart=False, counted=True)
    return None


def told_by(diagnosis: Diagnosis, tail: Sequence[str], status: int | None, evidence: Sequence[str]) -> bool:
    """Whether all that it names is there."""
    if diagnosis.log is not None and not _says("\n".join(tail)[-_TAIL_CHARS:], diagnosis.log):
        return False
    if diagnosis.exit_code is not None and diagnosis.exit_code != status:
        return False
    return diagnosis.evidence is None or diagnosis.evidence in evidence


@lru_cache(maxsize=1024)
def _says(tail: str, pattern: str) -> bool:
    """Whether the end of a log matches. Remembered, since every pass asks again."""
    return compile_pattern(pattern).search(tail) is not None


def _infrastructure(case: Case) -> Verdict | None:
    for found in case.left:
        if found.why == "agent":
            return Verdict("infrastructure", "agent", found.reason or "the agent crashed", restart=True)
        if found.outcome == "infrastructure":
            return Verdict("infrastructure", found.why, found.reason or "the machine failed", restart=True)
    return _excused(case)


def _excused(case: Case) -> Verdict | None:
    """What the logs and the machines say of the failures. The earliest that is no other rank's consequence decides."""
    failures = case.failures
    if not failures:
        return None
    primary = [cause for _, cause in failures if cause is None or cause.blame != "peer"]
    # A rank that says nothing tells less than one that names its cause.
    cause = next((each for each in primary if each is not None), None) if primary else failures[0][1]
    if cause is None or cause.blame == "script":
        return None
    if cause.name == "killed":
        told = cause.line
        if cause.blame == "peer":
            how = "killed from outside (SIGKILL)" if _KILLED.search(cause.line) else "ended from outside"
            told = f"a process of the training was {how}"
    elif cause.name in (fact for found, _ in failures for fact in found.evidence):
        told = f"the machine reported {cause.name}"
    else:
        told = f"the log ends with a {cause.name} error"
    return Verdict("infrastructure", cause.name, told, restart=True)


def _left_early(case: Case) -> Verdict | None:
    """Nobody failed: it waited too long, or was asked to go."""
    if case.failure is not None:
        return None
    waited = any(found.why == "waited" for found in case.left)
    reason = "waited too long for the attempt before it to leave" if waited else "was asked to leave before it finished"
    drain = case.claim.drain
    if drain is not None and (drain.rule == OWN or drain.rule.startswith(PREFIX)):
        return Verdict(drain.outcome, drain.rule, drain.reason, restart=True)
    if drain is not None:
        reason = drain.reason
    return Verdict("abandoned", "waited" if waited else "left", reason, restart=True)


def _unrestorable(case: Case) -> Verdict | None:
    """There are checkpoints and none can be restored. Beginning anew would throw work away: a person decides."""
    for found in case.left:
        if found.why == "restore":
            return Verdict("failed", "restore", found.reason or "no checkpoint could be restored", restart=False)
    return None


def _bad_checkpoint(case: Case) -> Verdict | None:
    """It failed on what it restored. Try once more, then the checkpoint before it."""
    failure, key = case.failure, case.restored_from
    if failure is None or key is None or not case.suspects_checkpoint or key.startswith(IMPORTED):
        return None
    before = [claim.closed for claim in case.state.claims if claim.closed]
    if any(closed.loaded and closed.restored_from == key for closed in before):
        return None
    lately = {claim.closed.restored_from for claim in case.state.since_opened() if claim.closed}
    given_up = _poisoned(before, case.policy) & lately
    failures = 1 + sum(1 for closed in before if closed.suspects_checkpoint and closed.restored_from == key)
    if len(given_up - {key}) >= case.policy.most_poisoned:
        return None
    if failures >= case.policy.poison_after and not failure.older_checkpoints:
        return None
    in_a_row = takewhile(lambda closed: closed.rule == "checkpoint", reversed(before))
    if sum(1 for _ in in_a_row) >= case.policy.poison_after * (case.policy.most_poisoned + 1):
        return None  # Whatever they restored.
    title = checkpoint_title(key, attempts_of(case.state))
    return Verdict(
        "failed", "checkpoint", f"failed on checkpoint {title} before any progress{_times(case, failures)}", True
    )


def _times(case: Case, failures: int) -> str:
    """Which failure on a checkpoint this is, and what follows from it."""
    if failures < case.policy.poison_after:
        return f"; after {case.policy.poison_after} such failures it is passed over"
    return f", {failures} times: it is passed over from now on"


def _user_error(case: Case) -> Verdict | None:
    failure = case.failure
    if failure is None:
        return None
    what = failure.reason or f"the command exited with {_status(failure)}"
    closes = [claim.closed for claim in case.state.since_opened() if claim.closed]
    spent = sum(1 for closed in closes if closed.counted)
    if spent >= case.spec.retry.user_errors:
        return _resumed(case, what, closes)
    if case.at_startup and closes and closes[-1].counted and closes[-1].at_startup:
        return Verdict("failed", "user-error", f"{what}; it failed twice right after its start", False, counted=True)
    return Verdict("failed", "user-error", f"{what}; retry {spent + 1} of {case.spec.retry.user_errors}", True, True)


def _resumed(case: Case, what: str, closes: Sequence[Closed]) -> Verdict:
    """Nothing explains it. Where much was trained by then, it goes on from its last checkpoint, a few times."""
    retry = case.spec.retry
    done = sum(1 for closed in closes if closed.rule == "resumed")
    by = f" ({case.resumed_by})" if case.resumed_by else ""
    if case.trained_s < retry.min_runtime_s or case.checkpoint is None or done >= retry.resumes:
        used_up = f"; it was resumed {done} of {retry.resumes} times{by}" if done else ""
        return Verdict("failed", "user-error", f"{what}{used_up}", restart=False, counted=True)
    told = f"{what}; it had trained for long: resume {done + 1} of {retry.resumes}{by}"
    return Verdict("failed", "resumed", told, restart=True)


def _otherwise(_case: Case) -> Verdict | None:
    return Verdict("lost", "unexplained", "the attempt ended and no rule recognises how", restart=True)


RULES: tuple[Callable[[Case], Verdict | None], ...] = (
    _finished,
    _partial,
    _stopped,
    _limit,
    _dry,
    _reclaimed,
    _boot_failed,
    _lost,
    _diagnosed,
    _no_room,
    _infrastructure,
    _left_early,
    _unrestorable,
    _bad_checkpoint,
    _user_error,
    _otherwise,
)


def _with_kept(case: Case, found: Verdict) -> Verdict:
    """A reclaim says what is in the store; what else ended from outside says so where nothing of it is."""
    kept = kept_of(case) if found.outcome == "reclaimed" or (found.outcome in _SAVING and not case.saved) else ""
    return replace(found, reason=f"{found.reason}; {kept}") if kept else found


def _without_loops(case: Case, found: Verdict) -> Verdict:
    """Restarts are free only while they lead somewhere."""
    if not found.restart or _led_somewhere(case, found) or found.outcome == "dry":
        return found
    in_a_row = 1
    reclaims_only = found.outcome == "reclaimed"
    for claim in reversed(case.state.since_opened()):
        if claim.closed is None or claim.attempt is None:
            continue
        if claim.closed.progressed:
            break
        in_a_row += 1
        reclaims_only = reclaims_only and claim.closed.outcome == "reclaimed"
    most = case.policy.most_reclaims_without_progress if reclaims_only else case.policy.most_without_progress
    if in_a_row < most:
        return found
    return replace(found, restart=False, reason=f"{found.reason}; {in_a_row} attempts in a row made no progress")


def _led_somewhere(case: Case, found: Verdict) -> bool:
    """Whether the attempt brought the job further. What ended by no doing of its own gets the benefit of the doubt;
    what a rule has ended for standing still does not, though some of its machines had to be taken from it."""
    drain = case.claim.drain
    from_outside = found.outcome in _FROM_OUTSIDE and (drain is None or drain.outcome in _FROM_OUTSIDE)
    return case.progressed or (case.saved and from_outside)


def _status(found: Exit | None) -> int | None:
    """The exit status as a shell would tell it."""
    if found is None:
        return None
    return 128 + found.signal if found.signal is not None else found.code
