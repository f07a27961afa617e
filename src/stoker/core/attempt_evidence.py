"""Evidence about a finished attempt, and what follows from it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stoker.core.costs import valid_span_s
from stoker.core.failure_diagnosis import NAMES, diagnose
from stoker.core.governor_settings import GovernorSettings
from stoker.core.snapshot import JobSnapshot
from stoker.model.job_state import Claim, JobState
from stoker.model.log_entries import Waste
from stoker.model.node_facts import Exit, FailureCause, Heartbeat
from stoker.model.observed import Known
from stoker.model.policy import Rule
from stoker.model.spec import Spec

# Signals by which a program ends itself: SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGSEGV and SIGSYS. All others come
# from outside: a person's kill, a closed shell, the kernel.
OWN_SIGNALS = frozenset({4, 5, 6, 7, 8, 11, 31})
# Signals by which a program is ended from outside: by a person, a closed shell, a service that saves memory.
_OUTSIDE = {1: "SIGHUP", 2: "SIGINT", 9: "SIGKILL", 15: "SIGTERM"}
# The same signals as exit codes of a command that a shell ran.
_KILLED_CODES = frozenset(128 + number for number in _OUTSIDE)
# XIDs caused by the program itself, by the end of another program, or by errors that the GPU corrected and no program
# notices. They do not excuse the script.
_PROGRAMS_XIDS = frozenset({"xid:13", "xid:31", "xid:43", "xid:45", "xid:63", "xid:92", "xid:121"})
# Failures for lack of memory for the restored checkpoint.
_NO_MEMORY = frozenset({"gpu-memory", "shared-memory"})


@dataclass(frozen=True)
class AttemptEvidence:
    """Everything known about an attempt whose ranks have all exited or are gone."""

    claim: Claim
    exits: tuple[Exit | None, ...]
    heartbeats: tuple[Heartbeat | None, ...]
    noticed: bool
    state: JobState
    spec: Spec
    settings: GovernorSettings
    # The policy's failure rules that apply to this job.
    diagnoses: tuple[Rule, ...] = ()
    # The policy rule that sets the number of resumes; empty if the job itself sets it.
    resumed_by: str = ""
    # The cloud's reason if it accepted the launch and then had no machine.
    dry: str = ""

    @property
    def left(self) -> tuple[Exit, ...]:
        """The known exits."""
        return tuple(found for found in self.exits if found is not None)

    @property
    def failures(self) -> tuple[tuple[Exit, FailureCause | None], ...]:
        """The failed exits with their causes, earliest first. Failures caused by another rank's end come last."""
        found = [(each, cause_of(each)) for each in self.left if each.outcome == "failed"]
        return tuple(sorted(found, key=lambda one: (one[1] is not None and one[1].blame == "peer", one[0].at)))

    @property
    def failure(self) -> Exit | None:
        """The exit of the failure that caused the others."""
        return next((found for found, _ in self.failures), None)

    @property
    def trained_s(self) -> float:
        spans = [valid_span_s(found.trained_s) for found in (*self.left, *self.heartbeats) if found is not None]
        return max(spans, default=0.0)

    @property
    def moved_s(self) -> float:
        """Training time without the silence at its end, as far as that was reported."""
        reported = [beat.activity for beat in self.heartbeats if beat is not None and beat.activity is not None]
        return max(0.0, self.trained_s - min((valid_span_s(each.silent_s) for each in reported), default=0.0))

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
        """The waste that the ranks reported, each in its exit or, without one, in its last heartbeat."""
        reports = [(left or beat) for left, beat in zip(self.exits, self.heartbeats, strict=True)]
        found = [one.waste for one in reports if one is not None and one.waste is not None]
        if not found:
            return None
        idle = [valid_span_s(each.idle_s) for each in found if each.idle_s is not None]
        # In a gang rank 0 always saves, alone or together with the others.
        first = reports[0].waste if reports[0] is not None else None
        return Waste(
            waited_s=max(valid_span_s(each.waited_s) for each in found),
            idle_s=sum(idle) / len(idle) if len(idle) == len(self.exits) else None,
            lost_s=None if first is None or first.lost_s is None else valid_span_s(first.lost_s),
        )

    @property
    def saved(self) -> bool:
        """True if the attempt committed a checkpoint of its own."""
        return self.checkpoint is not None and self.checkpoint != self.restored_from

    @property
    def saved_step(self) -> int | None:
        """The highest step in its own checkpoints, if they record steps."""
        found = [one.checkpoint for one in (*self.left, *self.heartbeats) if one is not None and one.checkpoint]
        steps = [ref.step for ref in found if ref.step is not None and ref.key != self.restored_from]
        return max(steps, default=None)

    @property
    def progressed(self) -> bool:
        """True if the attempt brought the job further. Decided by steps if any attempt reported one: a stalled script
        may save the same step again and again.

        Reported steps are compared with reported steps, and saved steps with saved steps: steps that were lost with
        their machine must be trained again, and are progress once they are saved. Some scripts count from zero in every
        epoch: long training with a save is progress whatever its steps say.
        """
        before = [claim.closed for claim in self.state.claims if claim.closed]
        reported, saved = [closed.step for closed in before], [closed.saved_step for closed in before]
        if _beyond(self.step, reported) or _beyond(self.saved_step, saved):
            return True
        no_steps = all(step is None for step in (self.step, self.saved_step, *reported, *saved))
        return self.saved and (no_steps or self.moved_s >= self.settings.long_s)

    @property
    def at_startup(self) -> bool:
        # An attempt that saved has got past its start, however little it trained.
        return not self.progressed and not self.saved and self.trained_s < self.settings.startup_s

    @property
    def loaded(self) -> bool:
        """True if there is evidence that the restored checkpoint works: a step beyond the restored one, changing steps
        or metrics, or a save of its own. Time is no evidence: large checkpoints take long to load, and hangs last.
        """
        reports = [one for one in (*self.left, *self.heartbeats) if one is not None]
        beyond = any(
            one.step is not None
            and (
                (one.restored_step is not None and one.step > one.restored_step)
                or (one.first_step is not None and one.step > one.first_step)
            )
            for one in reports
        )
        trends = [trend for beat in self.heartbeats if beat is not None for trend in beat.trends.values()]
        has_save = any(one.checkpoint is not None and one.checkpoint.is_save for one in reports) and self.saved
        return has_save or beyond or any(trend.low < trend.high for trend in trends)

    @property
    def suspects_checkpoint(self) -> bool:
        """True if the script itself failed before it got past its restored checkpoint.

        SIGKILL, reclaims, lost machines and machine faults say nothing about a checkpoint. Neither does a lack of host
        or GPU memory: the same checkpoint loads on a larger or less busy machine, and the one before it is as large.
        """
        if not self.failures or self.restored_from is None or self.loaded:
            return False
        failure, cause = self.failures[0]
        own = failure.signal in OWN_SIGNALS if failure.signal is not None else failure.code not in _KILLED_CODES
        blamed = cause is None or (cause.blame == "script" and cause.name not in _NO_MEMORY)
        return failure.why == "finished" and own and blamed


def evidence_of(
    job: JobSnapshot, claim: Claim, settings: GovernorSettings, diagnoses: tuple[Rule, ...] = (), resumed_by: str = ""
) -> AttemptEvidence:
    """Collect the evidence about a claim whose ranks have all exited or are gone."""
    beats = [job.heartbeat_of(claim, rank) for rank in range(claim.nodes)]
    exits = tuple(job.exit_of(claim, rank) for rank in range(claim.nodes))
    return AttemptEvidence(
        claim=claim,
        exits=exits,
        heartbeats=tuple(beat.value if beat else None for beat in beats),
        # An agent that leaves at once may be gone before its notice is written; its exit reports the notice too.
        noticed=job.noticed(claim) or any(exit_ is not None and exit_.why == "notice" for exit_ in exits),
        state=job.state,
        spec=job.spec,
        settings=settings,
        diagnoses=diagnoses,
        resumed_by=resumed_by,
        dry=next((facts.dry for facts in job.facts.get(claim.number, ()) if facts.dry), ""),
    )


def facts_complete(job: JobSnapshot, claim: Claim) -> bool:
    """Return whether all facts behind a verdict could be read.

    An unread exit would turn a success into a loss, an unread notice a reclaim into a failure of the script, and an
    unread heartbeat would hide progress that allows another attempt.
    """
    return all(
        isinstance(facts.exit, Known) and isinstance(facts.notice, Known) and isinstance(facts.heartbeat, Known)
        for facts in job.facts.get(claim.number, ())
    )


def _beyond(step: int | None, before: Sequence[int | None]) -> bool:
    """Return whether a step is known and higher than all known steps before it."""
    return step is not None and all(other is None or step > other for other in before)


def cause_of(found: Exit) -> FailureCause | None:
    """Why this node failed: by what its machine reported, then SIGKILL, then its log, then any other signal from
    outside. None if nothing names a cause.

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
    logged = found.cause if found.cause is not None and found.cause.name in NAMES else diagnose(found.tail)
    return ended if ended is not None and (logged is None or logged.blame == "peer") else logged
