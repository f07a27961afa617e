"""Input and output of `decide`: the observations of one pass, and its plan."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from stoker.core.market import NO_HISTORY as UNKNOWN_MARKET
from stoker.core.market import MarketHistory
from stoker.model.job_state import Claim, JobState
from stoker.model.log_entries import Event
from stoker.model.node_facts import Exit, Heartbeat, NodeFacts, NoticeFact
from stoker.model.observed import Known, Observed, Stamped
from stoker.model.offerings import Capabilities, Instance, InstanceState, Offering
from stoker.model.spec import Spec

if TYPE_CHECKING:
    from stoker.core.budget_state import BudgetState


@dataclass(frozen=True)
class JobSnapshot:
    """The observations of one job. The observer guarantees their order: `instances` was listed before the log was read,
    `states` was queried after it."""

    state: JobState
    spec: Spec
    capabilities: Capabilities
    # Facts of the open claims' nodes, by claim number.
    facts: dict[int, tuple[NodeFacts, ...]]
    # This job's machines in the provider's list.
    instances: Observed[tuple[Instance, ...]]
    # The state of every instance that the log names and that may still exist. Those in a region that gave no answer are
    # left out.
    states: Observed[dict[str, InstanceState]]
    # Offerings for the next launch. None: not queried, because nothing is to be launched.
    offerings: Observed[tuple[Offering, ...]] | None = None
    # Why no offering will ever serve the job: it names something that its cloud does not have any more.
    no_offerings: str = ""
    # The regions of the job whose offerings are not among these, because they gave no answer, and why; empty: none.
    unanswered: str = ""
    # This job's machines in the regions whose list was answered, where another region's was not: `instances` is unknown
    # then.
    partly_listed: tuple[Instance, ...] = ()
    # Offerings without capacity, found by any job, and when, by the store's clock.
    dry: dict[str, datetime] = field(default_factory=dict)
    # Recent market observations of all jobs; empty if not read or unknown.
    market: MarketHistory = UNKNOWN_MARKET
    # The markers that make this job active.
    markers: tuple[int, ...] = ()
    # For an ended job: when the markers were written that announce an entry after its end, that is, a `resume`.
    announced: dict[int, datetime] = field(default_factory=dict)
    # The state of the policy's budgets. None: not read, because no budget applies or nothing is to be launched.
    budget_state: Observed[BudgetState] | None = None
    # Its machines can be started and seen only from another computer.
    elsewhere: bool = False

    def facts_of(self, claim: Claim, rank: int) -> NodeFacts | None:
        return next((facts for facts in self.facts.get(claim.number, ()) if facts.rank == rank), None)

    def exit_of(self, claim: Claim, rank: int) -> Exit | None:
        """The rank's exit, if one is known."""
        facts = self.facts_of(claim, rank)
        return facts.known_exit if facts else None

    def notice_of(self, claim: Claim, rank: int) -> Stamped[NoticeFact] | None:
        """The rank's notice and the time of its writing, if one is known."""
        facts = self.facts_of(claim, rank)
        return facts.known_notice if facts else None

    def heartbeat_of(self, claim: Claim, rank: int) -> Stamped[Heartbeat] | None:
        """The rank's newest heartbeat, if one is known."""
        facts = self.facts_of(claim, rank)
        return facts.known_heartbeat if facts else None

    def noticed(self, claim: Claim) -> bool:
        """Return whether any rank is known to have had a hard notice."""
        notices = (self.notice_of(claim, rank) for rank in range(claim.nodes))
        return any(notice is not None and notice.value.hard for notice in notices)

    def known_unnoticed(self, claim: Claim) -> bool:
        """Return whether every rank is known to have had no hard notice. Not the opposite of `noticed`."""
        nodes = self.facts.get(claim.number, ())
        return not self.noticed(claim) and all(isinstance(facts.notice, Known) for facts in nodes)

    def exit_unread(self, claim: Claim, rank: int) -> bool:
        """Return whether the rank may have written an exit that could not be read."""
        facts = self.facts_of(claim, rank)
        return facts is not None and not isinstance(facts.exit, Known)

    @property
    def seen_instances(self) -> tuple[Instance, ...]:
        """The machines that were listed. Absence from them proves nothing."""
        return self.instances.value if isinstance(self.instances, Known) else self.partly_listed

    def is_gone(self, instance: str) -> bool:
        """Return whether the cloud answered, after the log was read, that it is gone. Absence from a list is not
        enough."""
        return isinstance(self.states, Known) and self.states.value.get(instance) == "gone"

    def rank_gone(self, claim: Claim, rank: int) -> bool:
        """Return whether this rank can never train again: its machine is positively gone or off, or `launched` names
        none."""
        if claim.launched is None:
            return False
        instance = claim.instance(rank)
        return instance is None or self.is_over(instance)

    def is_over(self, instance: str) -> bool:
        """Return whether its processes can never run again: the machine is positively gone, or off."""
        return isinstance(self.states, Known) and self.states.value.get(instance) in ("off", "gone")


@dataclass(frozen=True)
class Snapshot:
    """Everything one pass observed."""

    jobs: tuple[JobSnapshot, ...] = ()
    # Machines with this store's tag whose job has no log at all.
    strays: tuple[Instance, ...] = ()
    # Machines younger than this are never strays, by provider.
    newborn_s: dict[str, float] = field(default_factory=dict)
    # Not every active job was observed.
    partial: bool = False
    # Other active jobs as last observed: they occupy capacity and places in the queue. None: not known.
    others: tuple[JobSnapshot, ...] | None = ()


@dataclass(frozen=True)
class Append:
    """Append the next entry to the job's log. If another writer was first, the job's remaining actions are dropped."""

    job: str
    seq: int
    event: Event
    reason: str


@dataclass(frozen=True)
class Launch:
    """Finish a claim: start its machines and write `launched`, or close the claim if there is no capacity."""

    job: str
    claim: int
    reason: str


@dataclass(frozen=True)
class Terminate:
    """Request the termination of a machine."""

    job: str
    instance: str
    provider: str
    reason: str
    region: str | None = None
    # No claim of any job ever named it: people are notified of such a machine.
    orphan: bool = False


@dataclass(frozen=True)
class Unmark:
    """Remove the job's markers: it has ended, and its machines are positively gone."""

    job: str
    markers: tuple[int, ...]
    reason: str


Action = Append | Launch | Terminate | Unmark


@dataclass(frozen=True)
class Plan:
    """Actions in order, and when to decide again even if nothing happens."""

    actions: tuple[Action, ...] = ()
    wake_at: datetime | None = None
    # Why a job waits, by job; shown by `explain` and `ps`.
    waiting: dict[str, str] = field(default_factory=dict)
    # Jobs whose decision failed, with the error.
    problems: dict[str, str] = field(default_factory=dict)
