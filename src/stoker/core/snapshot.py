"""What one pass observed, and what it plans. Input and output of `decide`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime

from stoker.core.budget_state import Books
from stoker.core.costs import span_s
from stoker.core.market import UNKNOWN as UNKNOWN_MARKET
from stoker.core.market import Market
from stoker.model.job_state import Claim, JobState
from stoker.model.log_entries import Event
from stoker.model.node_facts import Exit, Heartbeat, NodeFacts, NoticeFact
from stoker.model.observed import Known, Observed, Stamped
from stoker.model.offerings import Capabilities, Instance, InstanceState, Offering
from stoker.model.spec import Spec

# So many heartbeats are missed before a node counts as silent.
_MISSED_BEATS = 3
# The interval that a heartbeat tells counts up to this: a node cannot have itself waited for much longer.
_LONGEST_INTERVAL_S = 600.0


@dataclass(frozen=True)
class JobSnapshot:
    """One job, as far as it could be seen. The order of observation matters and is the observer's duty:
    `instances` was listed before the log was read, `states` was asked after."""

    state: JobState
    spec: Spec
    capabilities: Capabilities
    # Facts of the open claims' nodes, by claim number.
    facts: dict[int, tuple[NodeFacts, ...]]
    # This job's machines in the provider's list.
    instances: Observed[tuple[Instance, ...]]
    # The state of every instance that the log names and that may still exist.
    states: Observed[dict[str, InstanceState]]
    # What could be launched on. None: nobody asked, since nothing was to be launched.
    offerings: Observed[tuple[Offering, ...]] | None = None
    # Offerings that were found dry, for whichever job, and when, by the store's clock.
    dry: dict[str, datetime] = field(default_factory=dict)
    # What all jobs saw of the market lately; empty where nobody looked, or knows.
    market: Market = UNKNOWN_MARKET
    # The markers that make this job active.
    markers: tuple[int, ...] = ()
    # Of an ended job, when those markers were written that announce an entry after its end: a `resume` under way.
    announced: dict[int, datetime] = field(default_factory=dict)
    # How the budgets of the house stand. None: nobody looked, since none is about it or nothing was to be launched.
    books: Observed[Books] | None = None
    # Its machines can be started and seen at another place only.
    elsewhere: bool = False

    def facts_of(self, claim: Claim, rank: int) -> NodeFacts | None:
        for facts in self.facts.get(claim.number, ()):
            if facts.rank == rank:
                return facts
        return None

    def exit_of(self, claim: Claim, rank: int) -> Exit | None:
        """The rank's exit, if it is known to have written one."""
        facts = self.facts_of(claim, rank)
        return facts.exit.value.value if facts and isinstance(facts.exit, Known) and facts.exit.value else None

    def stamped_notice_of(self, claim: Claim, rank: int) -> Stamped[NoticeFact] | None:
        """The rank's notice and when it was written, if it is known to have one."""
        facts = self.facts_of(claim, rank)
        return facts.notice.value if facts and isinstance(facts.notice, Known) else None

    def notice_of(self, claim: Claim, rank: int) -> NoticeFact | None:
        """The rank's notice, if it is known to have one."""
        found = self.stamped_notice_of(claim, rank)
        return found.value if found else None

    def heartbeat_of(self, claim: Claim, rank: int) -> Stamped[Heartbeat] | None:
        """The rank's newest heartbeat, if one is known."""
        facts = self.facts_of(claim, rank)
        return facts.heartbeat.value if facts and isinstance(facts.heartbeat, Known) else None

    def noticed(self, claim: Claim) -> bool:
        """Whether any rank is known to have had a hard notice."""
        notices = (self.notice_of(claim, rank) for rank in range(claim.nodes))
        return any(notice is not None and notice.hard for notice in notices)

    def unnoticed(self, claim: Claim) -> bool:
        """Whether every rank is known not to have had a hard notice. Not the opposite of `noticed`."""
        told = self.facts.get(claim.number, ())
        return not self.noticed(claim) and all(isinstance(facts.notice, Known) for facts in told)

    def exit_unread(self, claim: Claim, rank: int) -> bool:
        """Whether the rank may have written an exit that nobody could read."""
        facts = self.facts_of(claim, rank)
        return facts is not None and not isinstance(facts.exit, Known)

    def silence_s(self, beat: Heartbeat | None) -> float:
        """How long a node with this heartbeat is waited for, in both steps.

        An agent writes more rarely while all is calm, and tells how often.
        """
        told_s = 0.0 if beat is None else min(span_s(beat.interval_s), _LONGEST_INTERVAL_S)
        return max(self.capabilities.silence_s, _MISSED_BEATS * told_s)

    def settled(self, now: datetime) -> JobSnapshot:
        """With a verdict on machines that the cloud does not know: not born yet, as far as it can see, or long gone."""
        if not isinstance(self.states, Known) or "unheard-of" not in self.states.value.values():
            return self
        alive: dict[str, InstanceState] = {}
        for claim in self.state.claims:
            launched_at = claim.launched_at
            young = launched_at is not None and (now - launched_at).total_seconds() < self.capabilities.newborn_s
            for node in claim.launched or ():
                beat = self.heartbeat_of(claim, node.rank)
                if young:
                    alive[node.instance] = "pending"
                elif beat is not None and (now - beat.modified).total_seconds() < self.silence_s(beat.value):
                    # It speaks. Whoever asked has asked the wrong cloud: another account's, for one.
                    alive[node.instance] = "running"
        states: dict[str, InstanceState] = {
            instance: alive.get(instance, "gone") if state == "unheard-of" else state
            for instance, state in self.states.value.items()
        }
        return replace(self, states=Known(states))

    def is_gone(self, instance: str) -> bool:
        """Positively gone: asked after the log was read, and answered. Absence from a list is not enough."""
        return isinstance(self.states, Known) and self.states.value.get(instance) == "gone"

    def rank_gone(self, claim: Claim, rank: int) -> bool:
        """Nothing of this rank will ever train: its machine is positively gone or off, or `launched` names none."""
        if claim.launched is None:
            return False
        instance = claim.instance(rank)
        return instance is None or self.is_over(instance)

    def is_over(self, instance: str) -> bool:
        """Whatever ran on it will never run again: it is positively gone, or off."""
        return isinstance(self.states, Known) and self.states.value.get(instance) in ("off", "gone")


@dataclass(frozen=True)
class Snapshot:
    """Everything one pass observed."""

    jobs: tuple[JobSnapshot, ...] = ()
    # Machines with this store's tag whose job has no log at all.
    strays: tuple[Instance, ...] = ()
    # Machines younger than this are never strays, by provider.
    newborn_s: dict[str, float] = field(default_factory=dict)
    # Not every active job was looked at.
    partial: bool = False
    # Other active jobs, as they were seen before: they hold room, and their place in the queue. None: not looked at.
    others: tuple[JobSnapshot, ...] | None = ()


@dataclass(frozen=True)
class Append:
    """Write the next entry of the job's log. If a rival was quicker, what follows for this job is dropped."""

    job: str
    seq: int
    event: Event
    reason: str


@dataclass(frozen=True)
class Launch:
    """Finish a claim: get its machines, and write `launched`, or close it if there are none."""

    job: str
    claim: int
    reason: str


@dataclass(frozen=True)
class Terminate:
    """Ask for the end of a machine."""

    job: str
    instance: str
    provider: str
    reason: str
    region: str | None = None
    # No claim of any job ever named it, nor could: people want to hear of that.
    orphan: bool = False


@dataclass(frozen=True)
class Unmark:
    """The job has ended and its machines are positively gone: nobody needs to look at it any more."""

    job: str
    markers: tuple[int, ...]
    reason: str


Action = Append | Launch | Terminate | Unmark


@dataclass(frozen=True)
class Plan:
    """What to do now, in order, and when to look again even if nothing happens."""

    actions: tuple[Action, ...] = ()
    wake_at: datetime | None = None
    # Why nothing more was done, by job: what `explain` and `ps` say about waiting.
    waiting: dict[str, str] = field(default_factory=dict)
    # Jobs that nothing could be decided about.
    problems: dict[str, str] = field(default_factory=dict)
