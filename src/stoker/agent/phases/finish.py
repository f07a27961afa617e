"""The end of an attempt: make everything durable, write the exit, and give the machine back.

The order is a guarantee. Checkpoints are durable before this module begins; then the log, the metrics and the outputs;
then the exit. The next attempt starts when it sees the exit, so whatever is only for people or only cleans up this
machine comes after it.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace

from stoker.agent import hold, job_folders
from stoker.agent.exit_report import CAUSE_BYTES, CAUSE_LINES, complete_exit, make_exit
from stoker.agent.node import FLUSH_LIMIT_S
from stoker.agent.phases.context import AttemptContext
from stoker.agent.shutdown_budget import ShutdownBudget
from stoker.agent.supervise import TrainingSurvived
from stoker.core.saved_work import no_checkpoint, nothing_saved
from stoker.model.durations import span_text
from stoker.model.node_facts import Exit
from stoker.model.path_patterns import as_written
from stoker.model.spec import Spec
from stoker.processes.unmounting import unmount_below
from stoker.store.upload_progress import UPLOADS

_log = logging.getLogger(__name__)

# How long the last lines of the log may take, which are said after everything else was sent.
_SAID_LAST_S = 5.0
# How long the exit may wait for a built environment to be stored for the next attempt, after a short training.
_ENVIRONMENT_LIMIT_S = 60.0
# How long the copy of the log may take for its last lines, before and after the exit is written.
_COPY_BEFORE_EXIT_S = 2.0
_COPY_AFTER_EXIT_S = 10.0
_MOST_NAMED = 3


def finish(context: AttemptContext, exit_: Exit) -> None:
    """Flush everything, write the exit, then stop. Returns when the exit is written, or cannot be.

    No process of the training or of its set-up is alive any more.
    """
    context.heartbeat.change(phase="flushing")
    outcome = context.record.outcome
    budget = ShutdownBudget(FLUSH_LIMIT_S, context.deadline_s, progress=lambda: UPLOADS.total)
    budget.refresh()
    if exit_.outcome != "succeeded" and (outcome is None or outcome.request is None):
        context.node.say(exit_.reason)
    exit_ = say_nothing_saved(context, exit_)
    spec = context.spec
    # Decided before the flush, which closes what a held machine still shows.
    holds = not budget.has_deadline and hold.may_hold(exit_, spec)
    if holds:
        assert spec is not None
        span = span_text(spec.retry.hold_on_failure_s)
        context.node.say(f"if this ends the job, the machine is held for {span} at most; `stoker stop` gives it back")
    else:
        # A container takes a while to be removed: that begins now, and goes on beside the flush.
        context.runtime.begin_close()
    # Before the flush, which sends the outputs for the last time.
    keep_uncommitted_saves(context, exit_)
    exit_ = flush(context, exit_, budget)
    if holds:
        context.heartbeat.change(phase="held")
    else:
        # No heartbeat may follow the exit.
        context.heartbeat.stop(timeout_s=min(5.0, budget.share_s(0.5)))
    written = context.node.write_exit(_complete(context, exit_), budget.exit_by_s())
    if not holds:
        context.runtime.close()
    unmount_below(context.paths.mounts)
    if context.pumps.copy is not None:
        # A copy for people must not delay the next attempt: slow requests come after the exit.
        context.pumps.copy.drain(min(_COPY_AFTER_EXIT_S, max(0.0, budget.exit_by_s() - time.monotonic())))
        context.pumps.copy.stop()
    if holds:
        if written:
            hold_machine(context)
        context.runtime.close()
        context.heartbeat.stop()
    # Last: a hold ends by entries of the log.
    context.log_watch.stop()


def leave_without_exit(context: AttemptContext, survived: TrainingSurvived) -> None:
    """Flush everything, and write no exit: processes of the training live, and only the machine's end will end them.

    The attempt counts as left when the machine is known to be gone.
    """
    context.heartbeat.change(phase="flushing")
    context.node.say(f"{survived}; the machine is given back, and the next attempt begins when it is off")
    budget = ShutdownBudget(FLUSH_LIMIT_S, context.deadline_s, progress=lambda: UPLOADS.total)
    budget.refresh()
    flush(context, make_exit("infrastructure", "agent", str(survived), context.record), budget)
    context.heartbeat.stop(timeout_s=min(5.0, budget.share_s(0.5)))
    context.runtime.close()
    unmount_below(context.paths.mounts)
    if context.pumps.copy is not None:
        context.pumps.copy.drain(_COPY_AFTER_EXIT_S)
        context.pumps.copy.stop()
    context.log_watch.stop()


def say_nothing_saved(context: AttemptContext, exit_: Exit) -> Exit:
    """Warn in the job's log that the store has nothing of this training; return the exit with saves found elsewhere.

    The warning is for a training that was asked to end, was killed, or saved elsewhere. A script that ended by itself
    and saved nowhere needs none. Neither does one that succeeded and saved elsewhere only at its end: that is its
    result.
    """
    missing, sync, spec = context.syncs.missing, context.syncs.checkpoints, context.spec
    if missing is None or sync is None or spec is None:
        return exit_
    status, outcome = sync.status(), context.record.outcome
    has_checkpoint = status.last is not None or context.record.restored is not None
    if has_checkpoint or outcome is None:
        return exit_
    if exit_.outcome == "succeeded":
        missing.settle()
        if not missing.elsewhere or status.files:
            return exit_
        context.node.say(no_checkpoint(as_written(spec.checkpoints.dir), missing.elsewhere))
        return replace(exit_, saves_elsewhere=missing.elsewhere)
    missing.conclude(outcome.trained_s)
    elsewhere = missing.elsewhere
    if elsewhere or outcome.request is not None or outcome.signal is not None or exit_.outcome == "infrastructure":
        context.node.say(nothing_saved(as_written(spec.checkpoints.dir), elsewhere, written=status.files > 0))
    return replace(exit_, saves_elsewhere=elsewhere)


def keep_uncommitted_saves(context: AttemptContext, exit_: Exit) -> None:
    """Let the last outputs include files of the checkpoint folder: those outside of saves, and a last save that no
    commit has.

    The last save only if the job may be over: another attempt would save again, and then it is not worth the time.
    `say_kept_saves` says what became of them.
    """
    sync, outputs, spec = context.syncs.checkpoints, context.syncs.outputs, context.spec
    if sync is None or outputs is None or spec is None:
        return
    may_be_over = exit_.outcome in ("succeeded", "failed") or exit_.why in ("stop", "limit")
    loose = sync.loose()
    files = loose | (sync.uncommitted() if may_be_over else {})
    if files:
        outputs.keep_saves(job_folders.checkpoint_folder(context.paths, spec), files, sync.torn(), loose.keys())


def say_kept_saves(context: AttemptContext) -> bool:
    """Name the files of the checkpoint folder that are outputs in the store; return False if there are none.

    The exit reports those for which there was no room or no time.
    """
    outputs = context.syncs.outputs
    assert outputs is not None
    saves, loose = outputs.stored_saves(), outputs.stored_loose()
    for note, files in ((", perhaps unfinished", saves), ("", loose)):
        if files:
            more = f" and {len(files) - _MOST_NAMED} more" if len(files) > _MOST_NAMED else ""
            named = ", ".join(files[:_MOST_NAMED]) + more
            context.node.say(f"kept as outputs{note}, since no checkpoint has them: {named}")
    return bool(saves or loose)


def flush(context: AttemptContext, exit_: Exit, budget: ShutdownBudget) -> Exit:
    """Bring the log, the metrics and the outputs to the store, stop their threads, and return the exit.

    Checkpoints are durable already. With little time left each of these gets a share of it, and the exit keeps its own.
    A success whose files could not all be stored becomes an interruption.
    """
    pumps, syncs = context.pumps, context.syncs
    if context.setup is not None:
        store_until_s = time.monotonic() + _ENVIRONMENT_LIMIT_S
        # A machine that is taken away has no time for it.
        context.setup.wait_for_uploads(lambda: 0.0 if context.notices.poll() is not None else store_until_s)
    # The log before the metrics, which are found in it.
    pumps.logs.drain(budget.share_s(1 / 2), budget.flush_by_s)
    if pumps.metrics is not None:
        pumps.metrics.drain(budget.share_s(1 / 2), budget.flush_by_s)
    safe = syncs.checkpoints is None or syncs.checkpoints.status().unsynced_bytes == 0
    if syncs.outputs is not None:
        # A machine that is taken away has no time for plain names, which `stoker pull` does not need.
        sent = syncs.outputs.final(None, until_s=budget.flush_by_s, publish=not budget.has_deadline)
        safe = sent and safe
        if say_kept_saves(context):
            # The log was drained before.
            pumps.logs.drain(min(_SAID_LAST_S, budget.share_s(1 / 2)), budget.flush_by_s)
    if syncs.copies is not None and context.notices.poll() is None:
        # A machine that is taken away has no time for it: the next attempt copies what this one committed.
        syncs.copies.final(budget.flush_by_s)
        if syncs.copies.warning is not None:
            # The log was drained before.
            pumps.logs.drain(min(_SAID_LAST_S, budget.share_s(1 / 2)), budget.flush_by_s)
    if pumps.copy is not None and not budget.has_deadline:
        pumps.copy.drain(_COPY_BEFORE_EXIT_S)
    _stop_threads(context, budget)
    if exit_.outcome == "succeeded" and budget.has_deadline and not safe:
        # Otherwise the job would have succeeded without its results. The next attempt finishes once more.
        reason = "the command finished, but the machine was taken before everything was safe"
        return replace(exit_, outcome="interrupted", why="notice", reason=reason)
    return exit_


def _stop_threads(context: AttemptContext, budget: ShutdownBudget) -> None:
    pumps, monitors = context.pumps, context.monitors
    if context.syncs.checkpoints is not None:
        context.syncs.checkpoints.close()
    if context.syncs.copies is not None:
        context.syncs.copies.close()
    for worker in (context.leaving.peers, monitors.usage, monitors.setup, monitors.training):
        if worker is not None:
            worker.stop()
    for pump in (pumps.logs, pumps.metrics):
        if pump is not None:
            pump.stop(timeout_s=min(5.0, budget.share_s(1 / 2)))


def _complete(context: AttemptContext, exit_: Exit) -> Exit:
    """Return the exit with what is only known after the flush."""
    pumps, syncs = context.pumps, context.syncs
    return complete_exit(
        exit_,
        syncs.checkpoints.status() if syncs.checkpoints is not None else None,
        pumps.metrics.progress if pumps.metrics is not None else None,
        pumps.logs.tail(CAUSE_LINES, CAUSE_BYTES),
        context.waste(),
        syncs.outputs.report() if syncs.outputs is not None else None,
    )


def hold_machine(context: AttemptContext) -> None:
    """Keep the machine of a failed training for people to look at, as long as the spec and the log allow.

    A shutdown of the machine ends the hold; a notice does not, because there is nothing left to save.
    """
    spec: Spec | None = context.spec
    assert spec is not None
    over = hold.hold_machine(
        spec,
        context.config.claim,
        lambda: context.log_watch.state,
        lambda: context.notices.signalled,
        context.wake,
    )
    _log.info("%s", over)
