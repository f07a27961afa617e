"""Stoker from Python, and what the command line is made of: submit, wait, stop, resume, clone, remove, interrupt; and
(from `stoker.read.api`) jobs, logs, metrics, checkpoints, compare, pull, pull_outputs.

    job = stoker.submit(stoker.Job(run="python train.py"))
    summary = stoker.wait(job)

A job is named by its id, a unique beginning of it, or its name where that is unique. A store is a URL, an open store,
or nothing: then STOKER_STORE, else a folder under the home.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

from stoker.core.hold import hold_of
from stoker.core.policy_rules import names_submitters
from stoker.core.snapshot import Action, JobSnapshot
from stoker.core.summary import Summary
from stoker.governor.background import call_deployed, carry_on
from stoker.governor.connected_providers import Fleet
from stoker.governor.handover_guard import Guard, guarding
from stoker.governor.loop import Governor
from stoker.governor.observe import active_jobs
from stoker.jobfile import (
    Job,
    assignments,
    base_folder,
    check_honoured,
    finalize,
    gather,
    job_layer,
    resolve,
    spec_layer,
)
from stoker.maintenance.corrupt_jobs import check_gone, keep_money
from stoker.maintenance.delete import remove_job
from stoker.model import keys
from stoker.model.errors import NotFound, ProviderError, StoreDenied, StoreError, StoreUnavailable, UserError
from stoker.model.job_state import JobState
from stoker.model.keywords import checks_keywords
from stoker.model.log_entries import Event, Outcome, ResumeAsked, StopAsked
from stoker.model.offerings import Offering
from stoker.model.spec import Spec
from stoker.notifications import check_channels
from stoker.providers import registry
from stoker.providers.base import Interrupts, KnowsLimits, Provider, Reachable, Visit, Way
from stoker.read.api import checkpoints, compare, jobs, logs, metrics, pull, pull_outputs
from stoker.read.job_status import half_removed, look, summary
from stoker.read.resume_plan import ResumePlan, plan_resume
from stoker.store import job_index, job_log
from stoker.store.base import Store, open_any
from stoker.store.find_job import find_job
from stoker.submit.check_inputs import check_readable
from stoker.submit.identity import identified
from stoker.submit.kept_folders import check_kept_folders
from stoker.submit.local_environment import localise, store_environ
from stoker.submit.policy_check import heed, heed_used, house_of
from stoker.submit.prepare import (
    Prepared,
    architectures,
    check_reached,
    connect,
    fitting_offerings,
    gather_inputs,
    pack_agents,
    pack_tools,
    place_of,
    prepare,
    submitter,
)
from stoker.submit.send import send
from stoker.submit.wheel_targets import taken_over

# A job that has ended is waited for until its machines are gone too, but no longer than this.
RETIRE_S = 20.0
DEFAULT_GRACE_S = 30.0

AnyJob = Job | Spec | str | os.PathLike[str]


# ── Submitting ────────────────────────────────────────────────────────────────────────────────────────────────────────


@checks_keywords
def submit(job: AnyJob, *, store: str | Store | None = None, sets: Sequence[str] = (), detach: bool = False) -> str:
    """Submit a job (a `Job`, a `Spec` or the path of a job file) and answer its id. `sets` are as for `--set`.

    `detach` starts a governor in the background; without it, `wait` (or any governor) has to make the job go on.
    Raises UserError before anything is written when something is wrong with it.
    """
    opened = open_any(store)
    with prepare_any(job, opened, sets) as prepared:
        return _send(prepared, opened, detach=detach)


def _send(prepared: Prepared, store: Store, *, detach: bool) -> str:
    if not detach:
        submitted = send(prepared, store)
        call_deployed(store, [submitted])
        return submitted
    with guarding(store.url) as guard:
        submitted = send(prepared, store)
        guard.job(submitted)
        carry_on(store, [submitted])
    return submitted


@checks_keywords
def prepare_any(job: AnyJob, store: Store, sets: Sequence[str] = ()) -> Prepared:
    """Everything before the first write. Use the answer in a `with`."""
    if isinstance(job, Spec):
        if sets:
            raise UserError("sets: a Spec is complete; change it with dataclasses.replace")
        capabilities = registry.capabilities(job.resources.provider)
        check_honoured(job, job.resources.provider, capabilities)
        spec, told = finalize(job, capabilities)
        return prepare(spec, store, folder=Path.cwd(), told=told)
    first = job.layer() if isinstance(job, Job) else job_layer(Path(job))
    own = (first, *([assignments(sets)] if sets else []))
    check_reached(own, store)
    house = store.get(keys.DEFAULTS)
    layers = (*gather(house=house.data if house is not None else None), *own)
    resolved = resolve(layers, registry.capabilities)
    return prepare(resolved.spec, store, folder=base_folder(layers), told=resolved.told)


@checks_keywords
def prepare_clone(job: str, store: Store, sets: Sequence[str] = ()) -> Prepared:
    """A new job with the code and the spec of another, with changes. Use the answer in a `with`."""
    found = find_job(store, job)
    submission = job_index.read_submission(store, _state(store, found))
    layers = [spec_layer(submission.spec, found), *([assignments(sets)] if sets else [])]
    resolved = resolve(layers, registry.capabilities)
    spec, unsure = identified(resolved.spec, store)
    provider = connect(spec, store)
    spec, uploads = gather_inputs(localise(spec, provider.capabilities, Path.cwd(), store), provider, store.url, store)
    if provider.capabilities.here:
        check_readable(spec)
    check_kept_folders(spec, provider.capabilities, None, store)
    house = house_of(store)
    offered = provider.offerings(spec.resources)
    heeded = heed(house, spec, fitting_offerings(house, spec, provider, offered), store)
    fitting = heeded.offerings
    if isinstance(provider, KnowsLimits):
        provider.check_limits(fitting, spec.nodes)
    bundles, unserved = pack_agents(provider, spec, fitting)
    tools, _ = pack_tools(provider, spec, fitting)
    return Prepared(
        spec=spec,
        capabilities=provider.capabilities,
        offerings=fitting,
        offered=offered,
        folder=Path.cwd(),
        told=(
            *resolved.told,
            *(unsure if names_submitters(house) else ()),
            *heeded.told,
            *check_channels.remarks(spec.notify),
            *unserved,
        ),
        noted=heeded.noted,
        bounds=heeded.bounds,
        code=submission.code,
        environ=submission.environ if provider.capabilities.here else store_environ(store.url),
        bundles=bundles,
        tools=tools,
        uploads=uploads,
        wheels=taken_over(spec, provider.capabilities, fitting, partial(architectures, provider), submission.wheels),
        place=place_of(provider),
        origin=found,
    )


@checks_keywords
def clone(job: str, *, store: str | Store | None = None, sets: Sequence[str] = (), detach: bool = False) -> str:
    """Submit a new job like another one, whose code it shares. Answers the new job's id."""
    opened = open_any(store)
    with prepare_clone(job, opened, sets) as prepared:
        return _send(prepared, opened, detach=detach)


# ── Watching ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@checks_keywords
def wait(job: str, store: str | Store | None = None, timeout: float | None = None) -> Summary:
    """Govern until the job has ended (and its machines are gone), and answer how it went.

    Raises TimeoutError after `timeout` seconds. The job then goes on with a governor in the background, as it does when
    this process is interrupted or killed.
    """
    opened = open_any(store)
    found = find_job(opened, job)
    with guarding(opened.url) as guard:
        guard.job(found)
        return _wait(opened, found, timeout, guard)


def _wait(opened: Store, found: str, timeout: float | None, guard: Guard) -> Summary:
    governor = Governor(opened)
    deadline = None if timeout is None else time.monotonic() + timeout
    ended_at: float | None = None
    state: JobState | None = None
    while True:
        wake_in_s: float | None = None
        try:
            wake_in_s = governor.run_pass().wake_in_s
            state = job_log.read(opened, found, state)
            if state is not None and state.ended is not None:
                ended_at = ended_at or time.monotonic()
                waited = time.monotonic() - ended_at > RETIRE_S or may_be_held(opened, state)
                if waited or found not in active_jobs(opened):
                    return summary(found, opened)
        except StoreUnavailable:
            pass  # Nothing can be concluded; look again.
        guard.passed()
        if deadline is not None:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"{found} has not ended within {timeout:g} s")
            wake_in_s = left_s if wake_in_s is None else min(wake_in_s, left_s)
        governor.sleep(wake_in_s)


# ── Steering ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@checks_keywords
def stop(job: str, store: str | Store | None = None) -> bool:
    """Ask a job to save and end, or give back the machine that is held after its end. Harmless to repeat.

    False: it had ended already, and no machine is held.
    """
    opened = open_any(store)
    found = find_job(opened, job)
    asked = ask_to_stop(found, opened)
    if asked:
        call_deployed(opened, [found])
    return asked


def ask_to_stop(found: str, opened: Store) -> bool:
    """`stop`, for who then sees to it that somebody governs."""
    me = submitter()

    def wanted(newest: JobState | None) -> tuple[Event, str] | None:
        state = _present(found, newest)
        if state.stop or (state.ended and not may_be_held(opened, state)):
            return None
        reason = f"the machine is given back by {me}" if state.ended else f"stopped by {me}"
        return StopAsked(by=me), reason

    before = _state(opened, found)
    job_log.append_next(opened, found, before, wanted, me)
    return before.ended is None or may_be_held(opened, before)


def may_be_held(store: Store, state: JobState) -> bool:
    """Whether a machine may still be kept for a look."""
    hold = hold_of(state, job_index.read_submission(store, state).spec)
    return hold is not None and bool(active_jobs(store).get(state.job))


@checks_keywords
def resume(job: str, store: str | Store | None = None, *, checkpoint: str | None = None) -> str:
    """Let an ended job go on from its last checkpoint: the same job, next attempt. Answers its id.

    `checkpoint` is a reference or a name as `stoker checkpoints` lists them: the job goes on from it, and newer ones
    are left aside. Without it, checkpoints that attempts failed on are passed over. Raises UserError when the job has
    not ended, or has succeeded, or a rule of the house refuses it, or there is no such checkpoint.
    """
    opened = open_any(store)
    found = find_job(opened, job)
    ask_to_resume(prepare_resume(found, opened, checkpoint), opened)
    call_deployed(opened, [found])
    return found


def prepare_resume(found: str, opened: Store, checkpoint: str | None = None) -> ResumePlan:
    """Everything of `resume` before the first write. Raises UserError as `resume` does."""
    state = _state(opened, found)
    _check_resumable(state)
    code = job_index.read_submission(opened, state).code if state.code_digest is not None else None
    if code is not None and opened.head(keys.code(keys.shared_name(code.digest, code.generation))) is None:
        raise UserError(f"{found}: its code is not in the store any more; submit it again from the folder")
    plan = plan_resume(opened, state, checkpoint)
    _heed_again(opened, state)
    return plan


def _check_resumable(state: JobState) -> None:
    if state.removal_at is not None:
        raise UserError(f"{state.job} is being removed; `stoker rm {state.job}` finishes that")
    if state.ended is None:
        raise UserError(f"{state.job} has not ended; `stoker logs -f {state.job}` follows it")
    if state.ended.outcome == "succeeded":
        again = f"`stoker clone {state.job}` starts a new job like it"
        further = f"with `--set resume_from={state.job}`, from its last checkpoint"
        raise UserError(f"{state.job} has succeeded; {again}, {further}")


def ask_to_resume(plan: ResumePlan, opened: Store) -> None:
    """Write down that the job goes on. The caller then sees to it that the job is governed."""
    me, found = submitter(), plan.state.job

    def wanted(newest: JobState | None) -> tuple[Event, str] | None:
        # Another may have resumed it since the plan was made.
        _check_resumable(_present(found, newest))
        if plan.key is None:
            return ResumeAsked(by=me), f"resumed by {me}"
        return ResumeAsked(by=me, checkpoint=plan.key), f"resumed by {me} from checkpoint {plan.title}"

    announcements: list[str] = []

    def announce(seq: int) -> None:
        announcements.append(keys.announcement(found, seq, job_log.new_token()))
        opened.put(announcements[-1], b"")

    # Marked before it is opened: a job in the log that nobody looks at would wait for ever.
    after = job_log.append_next(opened, found, plan.state, wanted, me, before=announce)
    # Create-if-absent does not remember: the number may have been free because the job was removed meanwhile.
    if job_log.is_removed(opened, found):
        raise UserError(f"{found} was removed meanwhile")
    # Announcements are deleted after a while: what stays is the marker of an entry that is in the log.
    if after is not None and after.ended is None:
        opened.put(keys.active(found, after.opened_seq), b"")
        opened.delete(announcements)


def _heed_again(store: Store, state: JobState) -> None:
    """Raise UserError where a rule of the house refuses the job now: it would end as soon as it is opened."""
    house = house_of(store)
    if not house.rules:
        return
    spec = job_index.read_submission(store, state).spec
    fitting: tuple[Offering, ...] = ()
    try:
        provider = connect(spec, store)
        offered = provider.offerings(spec.resources)
    except (ProviderError, UserError):
        pass  # What is on offer is for a governor to find out; the other rules need nobody's word.
    else:
        fitting = fitting_offerings(house, spec, provider, offered)
    heed_used(house, spec, state, fitting)
    heed(house, spec, fitting, store, state.job)


@dataclass(frozen=True)
class OnDuty:
    """A node of a job that runs now, and who lends its machine."""

    job: str
    instance: str
    offering: Offering
    provider: Provider


@checks_keywords
def find_node(job: str, store: str | Store | None = None, node: int = 0, *, held: bool = False) -> OnDuty:
    """The machine that is a job's node now; with `held`, also one that is kept after the job's end.

    Raises UserError when it has no such machine.
    """
    opened = open_any(store)
    found = find_job(opened, job)
    state = _state(opened, found)
    running = [claim for claim in state.open_claims if claim.launched]
    if not running and held:
        hold = hold_of(state, job_index.read_submission(opened, state).spec)
        running = [claim for claim in state.claims if hold is not None and claim.number == hold.claim]
    if not running:
        raise _no_machine(found, state.ended.outcome if state.ended is not None else None)
    claim = running[-1]
    instance = claim.instance(node)
    if instance is None:
        there = "only node 0" if claim.nodes == 1 else f"nodes 0 to {claim.nodes - 1}"
        raise UserError(f"{found} has no node {node}; it has {there}")
    return OnDuty(found, instance, claim.offering, Fleet(opened.url).provider(claim.offering.provider))


def _no_machine(job: str, ended: Outcome | None = None) -> UserError:
    if ended is not None:
        return UserError(f"{job} has ended ({ended}), and has no machine any more")
    return UserError(f"{job} has no machine now; `stoker show {job}` tells where it is")


@checks_keywords
def interrupt(job: str, store: str | Store | None = None, node: int = 0, grace_s: float = DEFAULT_GRACE_S) -> str:
    """Rehearse a reclaim: give a node of the job a hard notice. Answers the machine's name.

    Raises UserError when the job has no such machine now, or its provider cannot do that.
    """
    found = find_node(job, store, node)
    rehearse(found, grace_s)
    return found.instance


@checks_keywords
def rehearse(found: OnDuty, grace_s: float = DEFAULT_GRACE_S) -> str | None:
    """Give this node a hard notice. Answers what the provider did where that is not exactly this.

    Raises UserError where its machine is gone by now, or its provider cannot do that.
    """
    provider = found.provider
    if not isinstance(provider, Interrupts) or not provider.capabilities.interrupts:
        raise UserError(f"{found.offering.provider} cannot rehearse a reclaim")
    try:
        return provider.interrupt(found.instance, grace_s, found.offering.region)
    except NotFound:
        raise _no_machine(found.job) from None


@checks_keywords
@contextmanager
def reach(found: OnDuty, visit: Visit, store: str | Store | None = None) -> Iterator[Way]:
    """The way to this node, for as long as the context lasts. Raises UserError where there is none."""
    opened = open_any(store)
    if not isinstance(found.provider, Reachable):
        raise UserError(f"{found.offering.provider} has no machines that can be visited")
    spec = job_index.read_submission(opened, _state(opened, found.job)).spec
    with found.provider.way(found.instance, visit, spec, found.offering.region) as way:
        yield way


@checks_keywords
def remove(job: str, store: str | Store | None = None) -> str:
    """Delete an ended job with its checkpoints, outputs and logs. Answers its id; safe to repeat after a crash.

    Raises UserError while it is active, or machines of it may be left. One whose log makes no sense goes as well, once
    none of its machines is listed anywhere. Code that it shared is collected by `removing.collect_code`.
    """
    opened = open_any(store)
    found = find_job(opened, job)
    try:
        state = job_log.read(opened, found)
    except (StoreUnavailable, StoreDenied):
        raise
    except StoreError as error:
        check_gone(opened, found, error)
        state = None
    if state is not None and state.ended is None:
        raise UserError(f"{found} is active; `stoker stop {found}` first")
    if state is not None and found in active_jobs(opened):
        # Its machines may be gone by now; that is for a governor to find out.
        Governor(opened).run_pass(only={found})
        if found in active_jobs(opened):
            if may_be_held(opened, state):
                raise UserError(f"{found} has failed and its machine is held; `stoker stop {found}` gives it back")
            raise UserError(f"{found} has ended, but its machines are not known to be gone yet; try again soon")
    keep_money(opened, found, state)
    remove_job(opened, found, submitter())
    return found


@checks_keywords
def planned(job: str, store: Store) -> tuple[tuple[Action, ...], str]:
    """What a governor would do about the job now, and what it waits for. Does nothing."""
    from stoker.core.decide import decide
    from stoker.core.governor_settings import DEFAULT
    from stoker.core.place_capacity import is_bounded
    from stoker.governor.budget_tracker import Bookkeeper
    from stoker.governor.market_records import MarketReader
    from stoker.governor.observe import Memory, list_clouds, observe
    from stoker.policy.reader import HouseReader

    fleet, memory = Fleet(store.url), Memory()
    active = active_jobs(store)
    markers = {job: active.get(job, ())}
    keeper = Bookkeeper(store, memory)
    keeper.begin(tuple(active), whole=False)
    listing = list_clouds(store, fleet, memory, markers)
    policy = HouseReader(store, DEFAULT).read()
    now = datetime.now(timezone.utc)
    markets = MarketReader(store, now, policy.house)
    observation = observe(store, fleet, memory, markers, listing.narrowed({job}), markets)
    snapshot = keeper.with_books(replace(observation.snapshot, partial=True), policy.house, now, 0.0)
    others: tuple[JobSnapshot, ...] = ()
    if any(map(is_bounded, snapshot.jobs)):
        # Its turn depends on the jobs that wait beside it.
        others = observe(store, fleet, memory, active, list_clouds(store, fleet, memory, active), markets).snapshot.jobs
    plan = decide(replace(snapshot, partial=False, others=others), policy, now)
    problems = observation.problems | plan.problems
    return plan.actions, plan.waiting.get(job, "") or problems.get(job, "")


def _state(store: Store, job: str) -> JobState:
    try:
        return _present(job, job_log.read(store, job))
    except (StoreUnavailable, StoreDenied):
        raise
    except StoreError as error:
        raise UserError(
            f"{job} cannot be read: {error}; `stoker rm {job}` removes it, once it has no machines"
        ) from None


def _present(job: str, state: JobState | None) -> JobState:
    if state is None:
        raise half_removed(job)
    return state


__all__ = [
    "OnDuty",
    "checkpoints",
    "clone",
    "compare",
    "find_node",
    "interrupt",
    "jobs",
    "logs",
    "look",
    "metrics",
    "open_any",
    "planned",
    "prepare_any",
    "prepare_clone",
    "pull",
    "pull_outputs",
    "reach",
    "rehearse",
    "remove",
    "resume",
    "stop",
    "submit",
    "summary",
    "wait",
]
