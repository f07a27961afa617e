"""Read everything that a decision needs, in the order that makes it safe.

First the clouds are listed, then the logs are read, then the states of the machines that the logs name, then the facts
of their nodes. So a listed machine without a claim in the log has none, "gone" is always newer than the log that it is
compared with, and the facts of machines that are gone are complete.
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
from stoker.model.errors import NoSuchResource, ProviderError, UserError, describe_error
from stoker.model.job_state import Claim, JobState
from stoker.model.node_facts import Exit, NodeFacts, NoticeFact
from stoker.model.observed import Known, Observed, Stamped, Unknown
from stoker.model.offerings import Instance, InstanceState, Offering
from stoker.model.resources import Resources
from stoker.model.submission import Submission
from stoker.providers.base import Provider, SupportsConsole, SupportsEndReason
from stoker.providers.regional_offerings import RegionalOfferings
from stoker.store import job_log, node_facts
from stoker.store.base import Store
from stoker.store.job_index import IndexRecord, read_index, read_submission
from stoker.store.parallel import read_each

# Where a provider's machines are listed: one list per provider and region, shared by all jobs of a pass.
Place = tuple[str, str | None]


@dataclass
class Memory:
    """Specs, which never change, and the job states of the last pass. Only an optimisation."""

    states: dict[str, JobState] = field(default_factory=dict)
    submissions: dict[str, Submission] = field(default_factory=dict)
    # The index records from when each job was first read.
    indexed: dict[str, IndexRecord] = field(default_factory=dict)

    def retain(self, jobs: set[str]) -> None:
        """Forget all other jobs: a governor may run for months."""
        self.forget([job for job in (*self.states, *self.submissions) if job not in jobs])

    def forget(self, jobs: Iterable[str]) -> None:
        for job in jobs:
            self.states.pop(job, None)
            self.submissions.pop(job, None)
            self.indexed.pop(job, None)


@dataclass(frozen=True)
class CloudListing:
    """The clouds as they were listed at the start of a pass."""

    instances: dict[Place, Observed[tuple[Instance, ...]]]

    def of(self, job: str, places: Iterable[Place]) -> Observed[tuple[Instance, ...]]:
        """The job's machines at these places; unknown if one of them gave no answer."""
        for place in places:
            found = self.instances.get(place, Unknown(f"{place[0]} was not listed"))
            if isinstance(found, Unknown):
                return found
        return Known(self.seen(job, places))

    def seen(self, job: str, places: Iterable[Place]) -> tuple[Instance, ...]:
        """The job's machines at those of these places that gave an answer."""
        lists = [self.instances.get(place) for place in places]
        return tuple(each for part in lists if isinstance(part, Known) for each in part.value if each.job == job)

    def narrowed(self, jobs: set[str]) -> CloudListing:
        """The same lists, with the machines of these jobs only."""
        return CloudListing(
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
    """A snapshot, the lists of the clouds, and why some jobs could not be read."""

    snapshot: Snapshot
    listing: CloudListing
    problems: dict[str, str] = field(default_factory=dict)


def active_jobs(store: Store) -> dict[str, tuple[int, ...]]:
    """The jobs that have a marker, each with its markers."""
    found: dict[str, set[int]] = {}
    for meta in store.list(keys.ACTIVE):
        marker = keys.read_marker(meta.key)
        if marker is not None:
            found.setdefault(marker[0], set()).add(marker[1])
    return {job: tuple(sorted(markers)) for job, markers in found.items()}


def is_idle(store: Store) -> bool:
    """Return whether no marker belongs to a job with a log. A marker without a log belongs to a submission that failed,
    or whose submitter will still call a governor. Raises StoreError."""
    return not any(store.head(keys.log_entry(job, 1)) is not None for job in active_jobs(store))


def known_places(store: Store) -> set[Place]:
    """All places where machines of this store were ever launched."""
    found = (meta.key.removeprefix(keys.PLACES).partition("/") for meta in store.list(keys.PLACES))
    return {(provider, None if region == keys.NO_REGION else region) for provider, _, region in found}


def list_clouds(
    store: Store, fleet: Fleet, memory: Memory, jobs: Iterable[str], more: Iterable[Place] = ()
) -> CloudListing:
    """List every place where these jobs have or may have machines, and `more`. Reads no log: logs are read after."""
    places: set[Place] = {*fleet.always_listed(), *more}
    named = list(jobs)
    unknown = [job for job in named if job not in memory.states]
    records = read_each(lambda job: read_index(store, job), unknown, is_local=store.is_local)
    for job, found in zip(unknown, records, strict=True):
        if found is not None:
            memory.states[job], memory.indexed[job] = found.state, found
    for job in named:
        state = memory.states.get(job)
        if state is not None:
            places |= _places_of(state)
        submission = memory.submissions.get(job)
        if submission is not None and (state is None or not state.claims):
            wanted = submission.spec.resources
            places |= {(wanted.provider, region) for region in wanted.regions or (None,)}
    return CloudListing({place: _list(fleet, place) for place in sorted(places, key=str)})


def observe(
    store: Store,
    fleet: Fleet,
    memory: Memory,
    markers: dict[str, tuple[int, ...]],
    listing: CloudListing,
    markets: MarketReader | None = None,
) -> Observation:
    """Read the logs, machines and facts of these jobs, and of every job that has a listed machine.

    `markets` is None where the caller needs no market statistics.
    """
    jobs = sorted({*markers, *listing.jobs()})
    snapshots: list[JobSnapshot] = []
    strays: list[Instance] = []
    problems: dict[str, str] = {}

    def observe_one(job: str) -> JobSnapshot | Exception | None:
        try:
            found = _observe_job(store, fleet, memory, job, markers.get(job, ()), listing)
            return found and _with_offerings(found, store, fleet, memory.submissions[job], markets)
        except Exception as error:  # noqa: BLE001 - one unreadable job must not stop the others
            return error

    for job, found in zip(jobs, read_each(observe_one, jobs, is_local=store.is_local), strict=True):
        if isinstance(found, JobSnapshot):
            snapshots.append(found)
        elif found is None:
            strays += [
                i for part in listing.instances.values() if isinstance(part, Known) for i in part.value if i.job == job
            ]
        else:
            problems[job] = describe_error(found)
    newborn = {name: fleet.capabilities(name).newborn_s for name in {stray.provider for stray in strays}}
    return Observation(Snapshot(tuple(snapshots), tuple(strays), newborn), listing, problems)


def _observe_job(
    store: Store, fleet: Fleet, memory: Memory, job: str, markers: tuple[int, ...], listing: CloudListing
) -> JobSnapshot | None:
    state = job_log.read(store, job, memory.states.get(job))
    if state is None:
        return None
    memory.states[job] = state
    submission = memory.submissions.get(job)
    if submission is None:
        submission = memory.submissions[job] = read_submission(store, state)
    # Before the facts: a machine that is gone by now has written its last fact. In the other order, an exit that is
    # written between the two reads would be missed, and a success taken for a loss.
    states = _states(fleet, state, listing)
    facts = {
        claim.number: _with_cloud_reasons(fleet, claim, node_facts.read_claim(store, job, claim), states)
        for claim in state.open_claims
    }
    places = sorted(_places_of(state), key=str)
    return JobSnapshot(
        state=state,
        spec=submission.spec,
        capabilities=fleet.capabilities(submission.spec.resources.provider),
        facts=facts,
        instances=listing.of(job, places),
        partly_listed=listing.seen(job, places),
        states=states,
        markers=markers,
        announced=_announced(store, state, markers),
        elsewhere=fleet.is_elsewhere(submission),
    )


def _with_offerings(
    job: JobSnapshot, store: Store, fleet: Fleet, submission: Submission, markets: MarketReader | None
) -> JobSnapshot:
    """The snapshot with the offerings to choose from, and their markets, where the job wants a claim now."""
    if wants_claim(job) is None:
        return job
    wanted = submission.spec.resources
    offerings, none, unanswered = _offerings(fleet, submission)
    return replace(
        job,
        offerings=offerings,
        no_offerings=none,
        unanswered=unanswered,
        dry=_dry(store, wanted.provider) if job.capabilities.dry_for_s else {},
        market=markets.of(wanted.provider) if markets is not None and wanted.spot != "never" else job.market,
    )


def _dry(store: Store, provider: str) -> dict[str, datetime]:
    """The offerings that any job found dry, and when."""
    return {meta.key.removeprefix(keys.DRY): meta.modified for meta in store.list(f"{keys.DRY}{provider}/")}


def _with_cloud_reasons(
    fleet: Fleet, claim: Claim, facts: tuple[NodeFacts, ...], states: Observed[dict[str, InstanceState]]
) -> tuple[NodeFacts, ...]:
    """The facts of a claim, with the cloud's reason for machines that ended before their agent, or their boot, could
    write an exit."""
    if not isinstance(states, Known):
        return facts
    provider = fleet.provider(claim.offering.provider)
    completed = []
    for node in facts:
        if node.exit == Known(None) and states.value.get(node.instance) in ("off", "gone"):
            node = _with_cloud_reason(provider, node, claim.offering.region)
        completed.append(node)
    return tuple(completed)


def _with_cloud_reason(provider: Provider, node: NodeFacts, region: str | None) -> NodeFacts:
    """The facts of a machine that is gone and left no exit, with the cloud's reason or its console output."""
    why = None
    if isinstance(provider, SupportsEndReason) and node.notice == Known(None):
        try:
            why = provider.end_reason(node.instance, region)
        except ProviderError:
            why = None
        now = datetime.now(timezone.utc)
        if why is not None and why.dry and node.heartbeat == Known(None):
            return replace(node, dry=why.reason)
        if why is not None and (why.reclaimed or why.dry):
            # The machine was reclaimed before its agent could pass the notice on.
            notice = NoticeFact(hard=True, source=why.reason, at=now, grace_s=0.0)
            return replace(node, notice=Known(Stamped(notice, modified=now, etag="")))
        if why is not None and not why.by_itself and node.heartbeat == Known(None):
            return _failed_boot(node, why.reason)
    if node.heartbeat != Known(None):
        return node
    if isinstance(provider, SupportsConsole):
        left = _console_exit(provider, node.instance, region)
        if left is not None:
            return replace(node, exit=Known(Stamped(left, modified=left.at, etag="")))
    if why is not None and why.by_itself:
        # Only its own boot can have switched it off, though it wrote no reason.
        return _failed_boot(node, "the machine switched itself off before it reported anything")
    return node


def _failed_boot(node: NodeFacts, reason: str) -> NodeFacts:
    now = datetime.now(timezone.utc)
    left = Exit(outcome="infrastructure", why="boot", at=now, reason=f"boot failed: {reason}")
    return replace(node, exit=Known(Stamped(left, modified=now, etag="")))


def _console_exit(provider: SupportsConsole, instance: str, region: str | None) -> Exit | None:
    """The failed boot that the console output reports, if it reports one."""
    try:
        output = provider.console(instance, region)
    except ProviderError:
        return None  # Without a console there is no better reason than that the machine is gone.
    return node_facts.boot_exit(output, datetime.now(timezone.utc)) if output else None


def _announced(store: Store, state: JobState, markers: tuple[int, ...]) -> dict[int, datetime]:
    """When new openings of an ended job were last announced, by the number of their entry."""
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
    except Exception as error:  # noqa: BLE001 - a provider may be anybody's plug-in
        # Also for a provider that is not installed here: the other jobs are still governed.
        return Unknown(describe_error(error))


def _states(fleet: Fleet, state: JobState, listing: CloudListing) -> Observed[dict[str, InstanceState]]:
    """The states of the machines that the log names; those that were just listed as running are not queried again.

    A region that gives no answer hides no machine of another one. Unknown if nothing was answered.
    """
    found: dict[str, InstanceState] = {}
    failed: ProviderError | None = None
    for place in sorted(_places_of(state), key=str):
        listed: dict[str, InstanceState] = {}
        match listing.instances.get(place):
            case Known(value=instances):
                listed = {instance.id: instance.state for instance in instances}
        wanted = [
            node.instance
            for claim in state.claims
            # Machines of closed claims matter only for an ended job.
            if (claim.offering.provider, claim.offering.region) == place and (claim.open or state.ended is not None)
            for node in claim.launched or ()
        ]
        unlisted = [instance for instance in wanted if listed.get(instance) not in ("pending", "running")]
        found |= {instance: listed[instance] for instance in wanted if instance not in unlisted}
        if unlisted:
            try:
                found |= fleet.provider(place[0]).state(unlisted, place[1])
            except ProviderError as error:
                failed = failed or error
    return Known(found) if found or failed is None else Unknown(str(failed))


def _offerings(fleet: Fleet, submission: Submission) -> tuple[Observed[tuple[Offering, ...]], str, str]:
    """The offerings of the job's regions, why there will never be any, and which regions gave no answer."""
    try:
        fleet.check_place(submission)
        found = _offerings_left(fleet, submission.spec.resources)
    except NoSuchResource as error:
        return Known(()), str(error), ""
    except (ProviderError, UserError) as error:
        # Another governor, with other packages or tables, may find nothing wrong with these resources.
        return Unknown(str(error)), "", ""
    return Known(found.offerings), "", found.unanswered_text


def _offerings_left(fleet: Fleet, wanted: Resources) -> RegionalOfferings:
    """The offerings; spot machines alone where a reservation is over, which they do not use. Raises NoSuchResource."""
    try:
        return fleet.offerings(wanted)
    except NoSuchResource:
        spot = fleet.offerings(replace(wanted, spot="only")) if wanted.spot == "prefer" else None
        if spot is None or not spot.offerings:
            raise
        return spot
