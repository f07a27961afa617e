"""Look at everything a decision rests on, in the order that makes it safe.

The cloud is listed first, then the logs are read, then the machines that the logs name are asked for, then their facts
are read. So a listed machine whose claim is not in the log has none, "gone" is always newer than the log it is held
against, and the facts of what is gone are complete.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone

from stoker.core.placement import wants_claim
from stoker.core.snapshot import JobSnapshot, Snapshot
from stoker.governor.connected_providers import Fleet
from stoker.governor.market_records import MarketReader
from stoker.model import keys
from stoker.model.errors import STUMBLES, ProviderError, StokerError, in_words
from stoker.model.job_state import Claim, JobState
from stoker.model.node_facts import Exit, NodeFacts, NoticeFact
from stoker.model.observed import Known, Observed, Stamped, Unknown
from stoker.model.offerings import Instance, InstanceState, Offering
from stoker.model.spec import Submission
from stoker.providers.base import Provider, Speaks, TellsWhyGone
from stoker.store import job_log, node_facts
from stoker.store.base import Store
from stoker.store.job_index import IndexRecord, read_index, read_submission
from stoker.store.parallel import for_each

# Where a provider's machines are listed: one list per provider and region, shared by all jobs of a pass.
Place = tuple[str, str | None]


@dataclass
class Memory:
    """What a governor need not read again: frozen specs and the folds of the last pass. Only ever a shortcut."""

    states: dict[str, JobState] = field(default_factory=dict)
    submissions: dict[str, Submission] = field(default_factory=dict)
    # What the index said when the job was first looked at.
    indexed: dict[str, IndexRecord] = field(default_factory=dict)

    def keep(self, jobs: set[str]) -> None:
        """Forget all but these: a governor may run for months."""
        self.forget([job for job in (*self.states, *self.submissions) if job not in jobs])

    def forget(self, jobs: Iterable[str]) -> None:
        for job in jobs:
            self.states.pop(job, None)
            self.submissions.pop(job, None)
            self.indexed.pop(job, None)


@dataclass(frozen=True)
class Listing:
    """The clouds as they were listed at the start of a pass."""

    instances: dict[Place, Observed[tuple[Instance, ...]]]

    def of(self, job: str, places: Iterable[Place]) -> Observed[tuple[Instance, ...]]:
        found: list[Instance] = []
        for place in places:
            match self.instances.get(place, Unknown(f"{place[0]} was not listed")):
                case Known(value=instances):
                    found += [instance for instance in instances if instance.job == job]
                case Unknown() as unknown:
                    return unknown
        return Known(tuple(found))

    def narrowed(self, jobs: set[str]) -> Listing:
        """The same lists, of these jobs only."""
        return Listing(
            {
                place: Known(tuple(i for i in part.value if i.job in jobs)) if isinstance(part, Known) else part
                for place, part in self.instances.items()
            }
        )

    def jobs(self) -> set[str]:
        known = (part.value for part in self.instances.values() if isinstance(part, Known))
        return {instance.job for instances in known for instance in instances if instance.state != "gone"}


@dataclass(frozen=True)
class Observation:
    """A snapshot, and what could not be looked at."""

    snapshot: Snapshot
    listing: Listing
    problems: dict[str, str] = field(default_factory=dict)


def active_jobs(store: Store) -> dict[str, tuple[int, ...]]:
    """The jobs that have a marker, with their markers."""
    found: dict[str, set[int]] = {}
    for meta in store.list(keys.ACTIVE):
        marker = keys.read_marker(meta.key)
        if marker is not None:
            found.setdefault(marker[0], set()).add(marker[1])
    return {job: tuple(sorted(markers)) for job, markers in found.items()}


def is_idle(store: Store) -> bool:
    """No marker belongs to a job with a log. One without is a submission that failed, or whose submitter has yet to
    call a governor. Raises StoreError."""
    return not any(store.head(keys.log_entry(job, 1)) is not None for job in active_jobs(store))


def known_places(store: Store) -> set[Place]:
    """Everywhere that machines of this store were ever launched."""
    found = (meta.key.removeprefix(keys.PLACES).partition("/") for meta in store.list(keys.PLACES))
    return {(provider, None if region == keys.NO_REGION else region) for provider, _, region in found}


def list_clouds(store: Store, fleet: Fleet, memory: Memory, jobs: Iterable[str], more: Iterable[Place] = ()) -> Listing:
    """List every place where these jobs have, or may have, machines, and `more`. Reads no log: that comes after."""
    places: set[Place] = {*fleet.always_listed(), *more}
    named = list(jobs)
    unknown = [job for job in named if job not in memory.states]
    records = for_each(lambda job: read_index(store, job), unknown, near=store.near)
    for job, found in zip(unknown, records, strict=True):
        if found is not None:
            memory.states[job], memory.indexed[job] = found.state, found
    for job in named:
        state = memory.states.get(job)
        if state is not None:
            places |= _places_of(state)
        submission = memory.submissions.get(job)
        if submission is not None and (state is None or not state.claims):
            places.add((submission.spec.resources.provider, submission.spec.resources.region))
    return Listing({place: _list(fleet, place) for place in sorted(places, key=str)})


def observe(
    store: Store,
    fleet: Fleet,
    memory: Memory,
    markers: dict[str, tuple[int, ...]],
    listing: Listing,
    markets: MarketReader | None = None,
) -> Observation:
    """Read the logs and facts of these jobs and of every job that has a machine, and ask after their machines.

    `markets`: what all jobs saw of them; None: nobody needs to know.
    """
    jobs = sorted({*markers, *listing.jobs()})
    snapshots: list[JobSnapshot] = []
    strays: list[Instance] = []
    problems: dict[str, str] = {}

    def look(job: str) -> JobSnapshot | Exception | None:
        try:
            found = _observe_job(store, fleet, memory, job, markers.get(job, ()), listing)
            return found and _with_offerings(found, store, fleet, memory.submissions[job], markets)
        except (StokerError, *STUMBLES) as error:
            return error  # One job that cannot be read must not keep the others from being governed.

    for job, found in zip(jobs, for_each(look, jobs, near=store.near), strict=True):
        if isinstance(found, JobSnapshot):
            snapshots.append(found)
        elif found is None:
            strays += [
                i for part in listing.instances.values() if isinstance(part, Known) for i in part.value if i.job == job
            ]
        else:
            problems[job] = in_words(found)
    newborn = {name: fleet.capabilities(name).newborn_s for name in {stray.provider for stray in strays}}
    return Observation(Snapshot(tuple(snapshots), tuple(strays), newborn), listing, problems)


def _observe_job(
    store: Store, fleet: Fleet, memory: Memory, job: str, markers: tuple[int, ...], listing: Listing
) -> JobSnapshot | None:
    state = job_log.read(store, job, memory.states.get(job))
    if state is None:
        return None
    memory.states[job] = state
    submission = memory.submissions.get(job)
    if submission is None:
        submission = memory.submissions[job] = read_submission(store, state)
    # Before the facts: a machine that is gone by then has said its last word. The other way round, an exit written
    # between the two would be missed, and a success taken for a loss.
    states = _states(fleet, state, listing)
    told = {claim.number: node_facts.read_claim(store, job, claim) for claim in state.open_claims}
    return JobSnapshot(
        state=state,
        spec=submission.spec,
        capabilities=fleet.capabilities(submission.spec.resources.provider),
        facts={claim.number: _heard(fleet, claim, told[claim.number], states) for claim in state.open_claims},
        instances=listing.of(job, _places_of(state)),
        states=states,
        markers=markers,
        announced=_announced(store, state, markers),
        elsewhere=fleet.is_elsewhere(submission),
    )


def _with_offerings(
    job: JobSnapshot, store: Store, fleet: Fleet, submission: Submission, markets: MarketReader | None
) -> JobSnapshot:
    """What it could be launched on, where that is to be decided now, and what is known of that."""
    if wants_claim(job) is None:
        return job
    wanted = submission.spec.resources
    return replace(
        job,
        offerings=_offerings(fleet, submission),
        dry=_dry(store, wanted.provider) if job.capabilities.dry_for_s else {},
        market=markets.of(wanted.provider) if markets is not None and wanted.spot != "never" else job.market,
    )


def _dry(store: Store, provider: str) -> dict[str, datetime]:
    """What any job found dry, and when."""
    return {meta.key.removeprefix(keys.DRY): meta.modified for meta in store.list(f"{keys.DRY}{provider}/")}


def _heard(
    fleet: Fleet, claim: Claim, told: tuple[NodeFacts, ...], states: Observed[dict[str, InstanceState]]
) -> tuple[NodeFacts, ...]:
    """The facts, with the last words of machines that ended before their agent, or their boot, could say anything."""
    if not isinstance(states, Known):
        return told
    provider = fleet.provider(claim.offering.provider)
    heard = []
    for node in told:
        if node.exit == Known(None) and states.value.get(node.instance) in ("off", "gone"):
            node = _last_words(provider, node, claim.offering.region)
        heard.append(node)
    return tuple(heard)


def _last_words(provider: Provider, node: NodeFacts, region: str | None) -> NodeFacts:
    """What a cloud says of a machine that is gone and left no exit."""
    why = None
    if isinstance(provider, TellsWhyGone) and node.notice == Known(None):
        try:
            why = provider.why_gone(node.instance, region)
        except ProviderError:
            why = None
        now = datetime.now(timezone.utc)
        if why is not None and why.dry and node.heartbeat == Known(None):
            return replace(node, dry=why.reason)
        if why is not None and (why.reclaimed or why.dry):
            # It was taken away quicker than its agent could pass the notice on.
            notice = NoticeFact(hard=True, source=why.reason, at=now, grace_s=0.0)
            return replace(node, notice=Known(Stamped(notice, modified=now, etag="")))
        if why is not None and not why.by_itself and node.heartbeat == Known(None):
            return _failed_boot(node, why.reason)
    if node.heartbeat != Known(None):
        return node
    if isinstance(provider, Speaks):
        left = _console_exit(provider, node.instance, region)
        if left is not None:
            return replace(node, exit=Known(Stamped(left, modified=left.at, etag="")))
    if why is not None and why.by_itself:
        # Nothing but its own boot could have done that, though it found no words for why.
        return _failed_boot(node, "the machine switched itself off before it reported anything")
    return node


def _failed_boot(node: NodeFacts, reason: str) -> NodeFacts:
    now = datetime.now(timezone.utc)
    left = Exit(outcome="infrastructure", why="boot", at=now, reason=f"boot failed: {reason}")
    return replace(node, exit=Known(Stamped(left, modified=now, etag="")))


def _console_exit(provider: Speaks, instance: str, region: str | None) -> Exit | None:
    """What the console says about a boot that failed, if it says anything about that."""
    try:
        output = provider.console(instance, region)
    except ProviderError:
        return None  # It would have been the better reason; that the machine is gone is known without it.
    return node_facts.boot_exit(output, datetime.now(timezone.utc)) if output else None


def _announced(store: Store, state: JobState, markers: tuple[int, ...]) -> dict[int, datetime]:
    """When the entries beyond the end of an ended job were last announced."""
    if state.ended is None or not any(marker > state.ended.seq for marker in markers):
        return {}
    found: dict[int, datetime] = {}
    for meta in store.list(f"{keys.ACTIVE}{state.job}/"):
        marker = keys.read_marker(meta.key)
        if marker is not None and marker[1] > state.ended.seq and marker[1] in markers:
            found[marker[1]] = max(meta.modified, found.get(marker[1], meta.modified))
    return found


def _places_of(state: JobState) -> set[Place]:
    return {(claim.offering.provider, claim.offering.region) for claim in state.claims}


def _list(fleet: Fleet, place: Place) -> Observed[tuple[Instance, ...]]:
    name, region = place
    try:
        return Known(tuple(fleet.provider(name).list_instances(region)))
    except (StokerError, *STUMBLES) as error:
        # Also a provider that is not installed here: other jobs are governed all the same.
        return Unknown(str(error))


def _states(fleet: Fleet, state: JobState, listing: Listing) -> Observed[dict[str, InstanceState]]:
    """Ask after the machines that the log names, save those that were just listed as running."""
    found: dict[str, InstanceState] = {}
    for place in sorted(_places_of(state), key=str):
        listed: dict[str, InstanceState] = {}
        match listing.instances.get(place):
            case Known(value=instances):
                listed = {instance.id: instance.state for instance in instances}
        wanted = [
            node.instance
            for claim in state.claims
            # Of closed claims only an ended job still wants to know.
            if (claim.offering.provider, claim.offering.region) == place and (claim.open or state.ended is not None)
            for node in claim.launched or ()
        ]
        unsure = [instance for instance in wanted if listed.get(instance) not in ("pending", "running")]
        found |= {instance: listed[instance] for instance in wanted if instance not in unsure}
        if unsure:
            try:
                found |= fleet.provider(place[0]).state(unsure, place[1])
            except ProviderError as error:
                return Unknown(str(error))
    return Known(found)


def _offerings(fleet: Fleet, submission: Submission) -> Observed[tuple[Offering, ...]]:
    try:
        fleet.check_place(submission)
        return Known(fleet.offerings(submission.spec.resources))
    except ProviderError as error:
        return Unknown(str(error))
