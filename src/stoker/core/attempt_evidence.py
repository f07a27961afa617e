"""What is known of an attempt that is over, and what that says of it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stoker.core.costs import span_s
from stoker.core.failure_patterns import NAMES, diagnose
from stoker.core.governor_settings import Policy
from stoker.core.snapshot import JobSnapshot
from stoker.model.job_state import Claim, JobState
from stoker.model.log_entries import Waste
from stoker.model.node_facts import Exit, FailureCause, Heartbeat
from stoker.model.observed import Known
from stoker.model.policy import Rule
from stoker.model.spec import Spec

# Signals by which a program ends itself: SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGSEGV and SIGSYS. The others come
# from outside: a person's kill, a shell that was closed, the kernel.
OWN_SIGNALS = frozenset({4, 5, 6, 7, 8, 11, 31})
# Signals by which others end a program: a person, a shell that was closed, a service that saves memory.
_OUTSIDE = {1: "SIGHUP", 2: "SIGINT", 9: "SIGKILL", 15: "SIGTERM"}
# The same of a command that a shell ran.
_KILLED_CODES = frozenset(128 + number for number in _OUTSIDE)
# What a program does to its GPU, or what another program's end did to it; and errors that the GPU corrected, which no
# program notices. They excuse no script.
_PROGRAMS_XIDS = frozenset({"xid:13", "xid:31", "xid:43", "xid:45", "xid:63", "xid:92", "xid:121"})
# Kinds of failures by which a script has too little memory for what it restored.
_NO_MEMORY = frozenset({"gpu-memory", "shared-memory"})


@dataclass(frozen=True)
class Case:
    """Everything known of an attempt whose every rank has exited or is gone."""

    claim: Claim
    exits: tuple[Exit | None, ...]
    heartbeats: tuple[Heartbeat | None, ...]
    noticed: bool
    state: JobState
    spec: Spec
    policy: Policy
    # The rules of the house about what a failure means, as far as they are about this job.
    diagnoses: tuple[Rule, ...] = ()
    # The rule that says how often it is resumed, in words; empty where the job says it itself.
    resumed_by: str = ""
    # Why there was no machine after all, where the cloud says so.
    dry: str = ""

    @property
    def left(self) -> tuple[Exit, ...]:
        """The exits there are."""
        return tuple(found for found in self.exits if found is not None)

    @property
    def failures(self) -> tuple[tuple[Exit, FailureCause | None], ...]:
        """The exits that were failures, the first one first, with what their logs say. Those that only tell of another
        rank's end come last: they are consequences."""
        found = [(each, cause_of(each)) for each in self.left if each.outcome == "failed"]
        return tuple(sorted(found, key=lambda one: (one[1] is not None and one[1].blame == "peer", one[0].at)))

    @property
    def failure(self) -> Exit | None:
        """The exit of the failure that caused the others."""
        return next((found for found, _ in self.failures), None)

    @property
    def trained_s(self) -> float:
        spans = [span_s(found.trained_s) for found in (*self.left, *self.heartbeats) if found is not None]
        return max(spans, default=0.0)

    @property
    def moved_s(self) -> float:
        """The training without the silence at its end, as far as that was told."""
        told = [beat.activity for beat in self.heartbeats if beat is not None and beat.activity is not None]
        return max(0.0, self.trained_s - min((span_s(each.silent_s) for each in told), default=0.0))

    @property
    def step(self) -> int | None:
        steps = [found.step for found in (*self.left, *self.heartbeats) if found is not None and found.step is not None]
        return max(steps, default=None)

    @property
    def restored_from(self) -> str | None:
        for found in (*self.left, *self.heartbeats):
            if found is not None and found.restored_from:
                return found.restored_from
        return None

    @property
    def checkpoint(self) -> str | None:
        keys = [
            found.checkpoint.key for found in (*self.left, *self.heartbeats) if found is not None and found.checkpoint
        ]
        return max(keys, default=None)

    @property
    def waste(self) -> Waste | None:
        """As the ranks told it, each in its exit, or in its last heartbeat where it left none."""
        told = [(left or beat) for left, beat in zip(self.exits, self.heartbeats, strict=True)]
        found = [one.waste for one in told if one is not None and one.waste is not None]
        if not found:
            return None
        idle = [span_s(each.idle_s) for each in found if each.idle_s is not None]
        # Of a gang, rank 0 saves: alone, or together with the others.
        first = told[0].waste if told[0] is not None else None
        return Waste(
            waited_s=max(span_s(each.waited_s) for each in found),
            idle_s=sum(idle) / len(idle) if len(idle) == len(self.exits) else None,
            lost_s=None if first is None or first.lost_s is None else span_s(first.lost_s),
        )

    @property
    def saved(self) -> bool:
        """Whether it made a checkpoint of its own."""
        return self.checkpoint is not None and self.checkpoint != self.restored_from

    @property
    def saved_step(self) -> int | None:
        """The highest step that is in a checkpoint of its own, where those tell."""
        found = [one.checkpoint for one in (*self.left, *self.heartbeats) if one is not None and one.checkpoint]
        steps = [ref.step for ref in found if ref.step is not None and ref.key != self.restored_from]
        return max(steps, default=None)

    @property
    def progressed(self) -> bool:
        """Steps tell it, once anybody told one: who stands still may save the same step again, each time anew.

        What was reported is compared with what was reported, and what was saved with what was saved: steps that were
        lost with their machine have to be made again, and are progress once they are kept. Some scripts count anew in
        every epoch: what was trained for long and saved is progress, whatever its steps say.
        """
        before = [claim.closed for claim in self.state.claims if claim.closed]
        reported, kept = [closed.step for closed in before], [closed.saved_step for closed in before]
        if _beyond(self.step, reported) or _beyond(self.saved_step, kept):
            return True
        never_told = all(step is None for step in (self.step, self.saved_step, *reported, *kept))
        return self.saved and (never_told or self.moved_s >= self.policy.long_s)

    @property
    def at_startup(self) -> bool:
        # Who has saved since has got past what it restored, however little that was.
        return not self.progressed and not self.saved and self.trained_s < self.policy.startup_s

    @property
    def loaded(self) -> bool:
        """Whether what it restored was good for more training, as far as anything shows.

        A step beyond the one restored, steps or numbers that changed, or a save of its own. Time is no evidence: large
        checkpoints load for long, and hangs last.
        """
        told = [one for one in (*self.left, *self.heartbeats) if one is not None]
        beyond = any(
            one.step is not None
            and (
                (one.restored_step is not None and one.step > one.restored_step)
                or (one.first_step is not None and one.step > one.first_step)
            )
            for one in told
        )
        trends = [trend for beat in self.heartbeats if beat is not None for trend in beat.trends.values()]
        kept = any(one.checkpoint is not None and one.checkpoint.is_save for one in told) and self.saved
        return kept or beyond or any(trend.low < trend.high for trend in trends)

    @property
    def suspects_checkpoint(self) -> bool:
        """Whether the script failed by its own doing before it got past what it restored.

        SIGKILL, reclaims, lost machines and whatever the machine is to blame for say nothing about a checkpoint. Nor
        does a lack of memory, the host's or the GPU's: the same checkpoint loads on a larger or a calmer machine, and
        the one before it is as large.
        """
        if not self.failures or self.restored_from is None or self.loaded:
            return False
        failure, cause = self.failures[0]
        own = failure.signal in OWN_SIGNALS if failure.signal is not None else failure.code not in _KILLED_CODES
        blamed = cause is None or (cause.blame == "script" and cause.name not in _NO_MEMORY)
        return failure.why == "finished" and own and blamed


def case_of(
    job: JobSnapshot, claim: Claim, policy: Policy, diagnoses: tuple[Rule, ...] = (), resumed_by: str = ""
) -> Case:
    """The case of a claim whose every rank has exited or is gone."""
    beats = [job.heartbeat_of(claim, rank) for rank in range(claim.nodes)]
    exits = tuple(job.exit_of(claim, rank) for rank in range(claim.nodes))
    return Case(
        claim=claim,
        exits=exits,
        heartbeats=tuple(beat.value if beat else None for beat in beats),
        # An agent that leaves at once may be gone before its notice is written; its exit tells of it too.
        noticed=job.noticed(claim) or any(exit_ is not None and exit_.why == "notice" for exit_ in exits),
        state=job.state,
        spec=job.spec,
        policy=policy,
        diagnoses=diagnoses,
        resumed_by=resumed_by,
        dry=next((facts.dry for facts in job.facts.get(claim.number, ()) if facts.dry), ""),
    )


def facts_complete(job: JobSnapshot, claim: Claim) -> bool:
    """Whether all that a verdict rests on could be read.

    An unread exit would turn a success into a loss, an unread notice a reclaim into the script's own failure, and an
    unread heartbeat would hide the progress that entitles it to another attempt.
    """
    return all(
        isinstance(facts.exit, Known) and isinstance(facts.notice, Known) and isinstance(facts.heartbeat, Known)
        for facts in job.facts.get(claim.number, ())
    )


def _beyond(step: int | None, before: Sequence[int | None]) -> bool:
    """Whether a step is known, and is higher than all that are known of those."""
    return step is not None and all(other is None or step > other for other in before)


def cause_of(found: Exit) -> FailureCause | None:
    """Why this node failed: what its machine reported, then SIGKILL, then its log, then any other signal from outside.
    None where nothing tells.

    A wrapper may end itself by SIGTERM after its program failed: an exception in the log comes first.
    """
    reported = next((fact for fact in found.evidence if fact not in _PROGRAMS_XIDS), None)
    if reported is not None:
        return FailureCause(reported, "machine", f"the machine reported {reported}")
    number = found.signal if found.signal is not None else (found.code or 0) - 128
    ended = None
    if found.why == "finished" and number in _OUTSIDE:
        verb = "killed" if number == 9 else "ended"
        ended = FailureCause("killed", "machine", f"the training was {verb} from outside ({_OUTSIDE[number]})")
    if ended is not None and number == 9:
        return ended
    told = found.cause if found.cause is not None and found.cause.name in NAMES else diagnose(found.tail)
    return ended if ended is not None and (told is None or told.blame == "peer") else told
