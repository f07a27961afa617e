"""Run the one attempt in which a node trains: its phases, in order, over one `AttemptContext`.

named → accelerators → set-up → permission → rendezvous and restore → training → finish
"""

from __future__ import annotations

import logging
import signal

from stoker.agent import job_folders
from stoker.agent.exit_report import make_exit
from stoker.agent.logs.cloud_copy import open_log_copy
from stoker.agent.metrics import MetricsPump
from stoker.agent.notices import KnownEnd, clock_of
from stoker.agent.phases.accelerators import AcceleratorPhase
from stoker.agent.phases.agree_and_restore import agree_and_restore
from stoker.agent.phases.context import AttemptContext
from stoker.agent.phases.finish import finish, leave_without_exit
from stoker.agent.phases.leaving import LeaveEarly
from stoker.agent.phases.permission import wait_until_allowed, wait_until_named, watch_peers
from stoker.agent.phases.training import TrainingPhase, remaining_runtime_s
from stoker.agent.setup import Setup
from stoker.agent.supervise import TrainingSurvived
from stoker.core import reserved_time
from stoker.model import keys
from stoker.model.errors import SetupFailed
from stoker.model.job_state import JobState
from stoker.model.node_facts import Exit, ExitOutcome
from stoker.model.submission import Submission
from stoker.store.checkpoints import RestoreError
from stoker.store.job_index import read_submission

_log = logging.getLogger(__name__)


def run_attempt(context: AttemptContext) -> None:
    """Live through one attempt. Returns when the exit is written, or cannot be.

    While processes of the training live, no exit is written. An unexpected error after the start of the training is
    raised: the next agent on this machine saves what is there.
    """
    # Before anything else: a shutdown that comes during the boot must count as a notice.
    signal.signal(signal.SIGTERM, context.take_signal)
    context.paths.train_log.touch()
    context.pumps.logs.start()
    context.heartbeat.start()
    context.monitors.usage.start()
    try:
        exit_ = _run_to_exit(context)
    except TrainingSurvived as survived:
        leave_without_exit(context, survived)
    else:
        finish(context, exit_)


def _run_to_exit(context: AttemptContext) -> Exit:
    """Run the phases, and return the exit. All processes of the job are dead then. Raises TrainingSurvived."""
    record = context.record
    try:
        exit_ = _run_phases(context)
    except LeaveEarly as leaving:
        # Abandoned downloads on other threads end before their next file: nothing is committed after the exit.
        context.leaving.mark_left()
        exit_ = make_exit("interrupted", leaving.why, leaving.reason, record)
    except SetupFailed as failure:
        outcome: ExitOutcome = "failed" if failure.user else "infrastructure"
        exit_ = make_exit(outcome, "setup", str(failure), record, failure.code)
    except RestoreError as failure:
        exit_ = make_exit("failed", "restore", str(failure), record)
    except TrainingSurvived:
        raise
    except Exception as failure:
        if record.started_at is not None:
            raise  # The agent that is started next saves what is there.
        # A bug of the agent, with nothing to save: an exit with its text is worth more than another start.
        _log.exception("the agent failed")
        exit_ = make_exit("infrastructure", "agent", f"the agent failed: {failure!r}", record)
    finally:
        # Before the flush, and also when the error is raised: no process of the job runs without its agent, and none
        # changes files while they are sent for the last time.
        context.training.kill()
    return exit_


def _run_phases(context: AttemptContext) -> Exit:
    # User code of any kind, and so everything below, runs only on machines that the log knows.
    state = wait_until_named(context)
    context.log_watch.start(context.wake.set)
    watch_peers(context)
    submission = _read_submission(context, state)
    _expect_end(context, state, submission)
    rank_0_address = context.node.machine.address() if context.config.rank == 0 else None
    context.begin_phase("setup", address=rank_0_address)
    accelerators = AcceleratorPhase(context, submission)
    accelerators.wait()
    _choose_runtime(context, submission)
    leaving = context.leaving
    context.setup = Setup(
        context.node, context.runtime, leaving.ask_store, leaving.check, context.monitors.setup.note_waiting
    )
    context.setup_result = context.setup.run(state, submission)
    accelerators.wait_after_setup()
    context.setup_result = context.setup.count_accelerators(submission, context.setup_result)
    # The set-up comes before the permission: it changes nothing of the job, and may run while an older attempt is still
    # saving. Restoring comes after the permission: until then the older attempt may commit a newer checkpoint.
    state = wait_until_allowed(context)
    claim = state.claim(context.config.claim)
    assert claim is not None and claim.attempt is not None
    context.begin_phase("restoring", image=context.runtime.image)
    restored = agree_and_restore(context, state, submission.spec)
    training = TrainingPhase(context, submission, remaining_runtime_s(state, submission.spec))
    return training.run(restored, claim.attempt)


def _read_submission(context: AttemptContext, state: JobState) -> Submission:
    """Read the job's submission, and start the pumps that depend on it."""
    submission = context.leaving.ask_store(lambda: read_submission(context.store, state))
    context.submission = submission
    node = context.node
    context.pumps.copy = open_log_copy(submission.spec, node.config, state)
    metrics = context.pumps.metrics = MetricsPump(
        node.store, node.key, node.paths.metrics, submission.spec.metrics, earlier=node.earlier
    )
    metrics.start()
    return submission


def _expect_end(context: AttemptContext, state: JobState, submission: Submission) -> None:
    """Take notice of the end of the reservation in which the machine is, as the claim's entry has it."""
    claim = state.claim(context.config.claim)
    reservation = claim.offering.reservation if claim is not None else None
    if claim is None or reservation is None or reservation.ends_machines_at is None:
        return
    source = reserved_time.end_text(reservation, claim.offering.provider)
    notice_s = reserved_time.notice_s(submission.spec)
    # The cloud ends the reservation by its own clock, to which the store's is nearer than a machine's that runs wrong.
    own = keys.heartbeat(context.node.key)
    context.notices.clock = clock_of(context.leaving.ask_store(lambda: context.store.get(own)))
    context.notices.known_end = KnownEnd(reservation.ends_machines_at, notice_s, source)


def _choose_runtime(context: AttemptContext, submission: Submission) -> None:
    """Run the job in a container if it asks for one, unless the machine itself is a container."""
    if not job_folders.has_engine(context.node, submission.spec):
        return
    # Imported here, since most jobs need none of it.
    from stoker.agent.container.container import ContainerRuntime

    leaving = context.leaving
    context.use_runtime(ContainerRuntime(context.node, submission, leaving.ask_store, leaving.check))
