"""Stoker from Python: submit, wait, stop, resume, clone, remove and interrupt jobs.

    job = stoker.submit(stoker.Job(run="python train.py"))
    summary = stoker.wait(job)

`stoker.read.api` adds jobs, logs, metrics, checkpoints, compare, pull and pull_outputs. The command line is built on
both. A job is named by its id, a unique beginning of it, or its name: of several jobs with one name, the only active
one is meant. A store is a URL, an open store, or None: then STOKER_STORE, else a folder under the home.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stoker.core.hold import hold_of
from stoker.core.summary import Summary
from stoker.governor.background import check_governed, ensure_governed, wake_deployed
from stoker.governor.connected_providers import Fleet
from stoker.governor.handover_guard import HandoverGuard, guarding
from stoker.governor.loop import Governor
from stoker.governor.observe import active_jobs
from stoker.jobfile import Job, assignments, job_layer, resolve_spec
from stoker.maintenance.before_removal import check_machines_gone, record_costs_before_removal
from stoker.maintenance.delete import remove_job
from stoker.model.errors import NotFound, StoreDenied, StoreError, StoreUnavailable, UserError
from stoker.model.job_state import JobState
from stoker.model.keywords import checks_keywords
from stoker.model.log_entries import Outcome
from stoker.model.offerings import Offering
from stoker.model.spec import Spec
from stoker.providers import registry
from stoker.providers.base import Provider, ShellCommand, ShellRequest, SupportsInterrupt, SupportsShell
from stoker.read.api import checkpoints, compare, jobs, logs, metrics, pull, pull_outputs
from stoker.read.govern_while_following import RETIRE_S
from stoker.read.job_status import read_record, summary
from stoker.read.planned_actions import planned_actions
from stoker.store import job_index, job_log
from stoker.store.base import Store, open_any
from stoker.store.find_job import find_job
from stoker.submit import prepare
from stoker.submit.identity import user_at_host
from stoker.submit.prepared_job import PreparedJob
from stoker.submit.resume import ask_to_resume, prepare_resume
from stoker.submit.send import send
from stoker.submit.stop import ask_to_stop, may_be_held
from stoker.submit.submitted_state import read_state

DEFAULT_GRACE_S = 30.0

AnyJob = Job | Spec | str | os.PathLike[str]


# ── Submitting ────────────────────────────────────────────────────────────────────────────────────────────────────────


@checks_keywords
def submit(job: AnyJob, *, store: str | Store | None = None, sets: Sequence[str] = (), detach: bool = False) -> str:
    """Submit a job (a `Job`, a `Spec` or the path of a job file) and return its id. `sets` are as for `--set`.

    `detach` starts a governor in the background; without it, `wait` (or any governor) has to drive the job. Raises
    UserError for the first mistake, before anything is written, and NotGoverned where the job was submitted and no
    governor could be started.
    """
    opened = open_any(store)
    with prepare_any(job, opened, sets) as prepared:
        return _send(prepared, opened, detach=detach)


def _send(prepared: PreparedJob, store: Store, *, detach: bool) -> str:
    if not detach:
        submitted = send(prepared, store)
        wake_deployed(store, [submitted])
        return submitted
    with guarding(store.url) as guard:
        submitted = send(prepared, store)
        guard.job(submitted)
        check_governed(submitted, ensure_governed(store, [submitted]))
    return submitted


@checks_keywords
def prepare_any(job: AnyJob, store: Store, sets: Sequence[str] = ()) -> PreparedJob:
    """Do everything of a submission that comes before the first write. Use the result in a `with`."""
    if isinstance(job, Spec):
        if sets:
            raise UserError("sets: a Spec is complete; change it with dataclasses.replace")
        resolved = resolve_spec(job, registry.capabilities)
        return prepare.prepare_resolved(resolved, store)
    given: object = job
    if not isinstance(given, (Job, str, os.PathLike)):
        what = "a `stoker.Job`, a `Spec` or the path of a job file"
        raise UserError(f"expected {what}, found a {type(given).__name__}; write stoker.Job(run=…)")
    layer = job.layer() if isinstance(job, Job) else job_layer(Path(job))
    return prepare.prepare_job((layer, *([assignments(sets)] if sets else ())), store)


@checks_keywords
def prepare_clone(job: str, store: Store, sets: Sequence[str] = ()) -> PreparedJob:
    """Prepare a new job with the code and the spec of another, with changes. Use the result in a `with`."""
    origin = find_job(store, job)
    submission = job_index.read_submission(store, read_state(store, origin))
    return prepare.prepare_clone(prepare.Original(origin, submission), store, sets)


@checks_keywords
def clone(job: str, *, store: str | Store | None = None, sets: Sequence[str] = (), detach: bool = False) -> str:
    """Submit a new job like another one, whose code it shares. Returns the new job's id."""
    opened = open_any(store)
    with prepare_clone(job, opened, sets) as prepared:
        return _send(prepared, opened, detach=detach)


# ── Waiting ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@checks_keywords
def wait(job: str, store: str | Store | None = None, timeout: float | None = None) -> Summary:
    """Govern until the job has ended and its machines are gone, and return its summary.

    Raises TimeoutError after `timeout` seconds. A governor in the background then continues the job, as it does when
    this process is interrupted or killed.
    """
    opened = open_any(store)
    found = find_job(opened, job)
    with guarding(opened.url) as guard:
        guard.job(found)
        return _wait(opened, found, timeout, guard)


def _wait(store: Store, job: str, timeout: float | None, guard: HandoverGuard) -> Summary:
    governor = Governor(store)
    deadline = None if timeout is None else time.monotonic() + timeout
    ended_at: float | None = None
    state: JobState | None = None
    while True:
        wake_in_s: float | None = None
        try:
            wake_in_s = governor.run_pass().wake_in_s
            state = job_log.read(store, job, state)
            if state is not None and state.ended is not None:
                ended_at = ended_at or time.monotonic()
                waited = time.monotonic() - ended_at > RETIRE_S or may_be_held(store, state)
                if waited or job not in active_jobs(store):
                    return summary(job, store)
        except StoreUnavailable:
            pass  # A store that does not answer proves nothing; look again.
        guard.passed()
        if deadline is not None:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"{job} has not ended within {timeout:g} s")
            wake_in_s = left_s if wake_in_s is None else min(wake_in_s, left_s)
        governor.sleep(wake_in_s)


# ── Steering ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@checks_keywords
def stop(job: str, store: str | Store | None = None) -> bool:
    """Ask a job to save and end, or give back the machine that is held after its end. Idempotent.

    False: the job had ended already, and no machine is held.
    """
    opened = open_any(store)
    found = find_job(opened, job)
    asked = ask_to_stop(found, opened)
    if asked:
        wake_deployed(opened, [found])
    return asked


@checks_keywords
def resume(job: str, store: str | Store | None = None, *, checkpoint: str | None = None) -> str:
    """Continue a failed or stopped job from its last checkpoint: the same job, next attempt. Returns its id.

    `checkpoint` is a reference or a name as `stoker checkpoints` lists them: the job continues from it, and newer ones
    are left aside. Without it, checkpoints that attempts failed on are passed over. Raises UserError when the job has
    not ended, or has succeeded, or the policy refuses it, or there is no such checkpoint.
    """
    opened = open_any(store)
    found = find_job(opened, job)
    ask_to_resume(prepare_resume(found, opened, checkpoint), opened)
    wake_deployed(opened, [found])
    return found


@checks_keywords
def remove(job: str, store: str | Store | None = None) -> str:
    """Delete an ended job with its checkpoints, outputs and logs. Returns its id; safe to repeat after a crash.

    Raises UserError while the job is active, or machines of it may be left. A job whose log or spec cannot be read is
    deleted as well, once no provider lists a machine of it: no governor can end it. Code that it shared is deleted by
    `maintenance.delete.collect_shared`.
    """
    opened = open_any(store)
    found = find_job(opened, job)
    state: JobState | None = None
    try:
        state = job_log.read(opened, found)
        if state is not None:
            job_index.read_submission(opened, state)
    except (StoreUnavailable, StoreDenied):
        raise
    except StoreError as error:
        check_machines_gone(opened, found, error)
        record_costs_before_removal(opened, found, state)
        remove_job(opened, found, user_at_host(), governed=False)
        return found
    if state is not None and state.ended is None:
        raise UserError(f"{found} is active; `stoker stop {found}` first")
    if state is not None and found in active_jobs(opened):
        # Its machines may be gone by now; only a governor's pass finds out.
        Governor(opened).run_pass(only={found})
        if found in active_jobs(opened):
            if may_be_held(opened, state):
                raise UserError(f"{found} has failed and its machine is held; `stoker stop {found}` gives it back")
            raise UserError(f"{found} has ended, but its machines are not known to be gone yet; try again soon")
    record_costs_before_removal(opened, found, state)
    remove_job(opened, found, user_at_host())
    return found


# ── The machines of a job ─────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class JobMachine:
    """The machine of one node of a job, with its offering and its provider."""

    job: str
    instance: str
    offering: Offering
    provider: Provider


@checks_keywords
def find_node(job: str, store: str | Store | None = None, node: int = 0, *, held: bool = False) -> JobMachine:
    """The machine of a job's node now; with `held`, also one that is held after the job's end.

    Raises UserError when the job has no such machine.
    """
    opened = open_any(store)
    found = find_job(opened, job)
    state = read_state(opened, found)
    running = [claim for claim in state.open_claims if claim.launched]
    if not running and held:
        hold = hold_of(state, job_index.read_submission(opened, state).spec)
        running = [claim for claim in state.claims if hold is not None and claim.number == hold.claim]
    if not running:
        raise _no_machine(found, state.ended.outcome if state.ended is not None else None)
    claim = running[-1]
    instance = claim.instance(node)
    if instance is None:
        nodes = "only node 0" if claim.nodes == 1 else f"nodes 0 to {claim.nodes - 1}"
        raise UserError(f"{found} has no node {node}; it has {nodes}")
    return JobMachine(found, instance, claim.offering, Fleet(opened.url).provider(claim.offering.provider))


def _no_machine(job: str, ended: Outcome | None = None) -> UserError:
    if ended is not None:
        return UserError(f"{job} has ended ({ended}), and has no machine any more")
    return UserError(f"{job} has no machine now; `stoker show {job}` shows why")


@checks_keywords
def interrupt(job: str, store: str | Store | None = None, node: int = 0, grace_s: float = DEFAULT_GRACE_S) -> str:
    """Rehearse a reclaim: give a node of the job a hard notice. Returns the machine's id.

    Raises UserError when the job has no such machine now, or its provider cannot do that.
    """
    machine = find_node(job, store, node)
    interrupt_machine(machine, grace_s)
    return machine.instance


@checks_keywords
def interrupt_machine(machine: JobMachine, grace_s: float = DEFAULT_GRACE_S) -> str | None:
    """Give this machine a hard notice. Returns a message where the provider did something else instead.

    Raises UserError where the machine is gone by now, or its provider cannot do that.
    """
    provider = machine.provider
    if not isinstance(provider, SupportsInterrupt) or not provider.capabilities.interrupts:
        raise UserError(f"{machine.offering.provider} cannot rehearse a reclaim")
    try:
        return provider.interrupt(machine.instance, grace_s, machine.offering.region)
    except NotFound:
        raise _no_machine(machine.job) from None


@checks_keywords
@contextmanager
def open_shell(machine: JobMachine, request: ShellRequest, store: str | Store | None = None) -> Iterator[ShellCommand]:
    """The command that opens a shell on this machine; valid while the context lasts.

    Raises UserError where its provider has no access to machines.
    """
    opened = open_any(store)
    if not isinstance(machine.provider, SupportsShell):
        raise UserError(f"{machine.offering.provider} gives no access to its machines")
    spec = job_index.read_submission(opened, read_state(opened, machine.job)).spec
    with machine.provider.shell_command(machine.instance, request, spec, machine.offering.region) as command:
        yield command


__all__ = [
    "JobMachine",
    "checkpoints",
    "clone",
    "compare",
    "find_node",
    "interrupt",
    "interrupt_machine",
    "jobs",
    "logs",
    "metrics",
    "open_any",
    "open_shell",
    "planned_actions",
    "prepare_any",
    "prepare_clone",
    "pull",
    "pull_outputs",
    "read_record",
    "remove",
    "resume",
    "stop",
    "submit",
    "summary",
    "wait",
]
