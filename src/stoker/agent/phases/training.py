"""Start the training, watch for reasons to end it, and make durable what it saves."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace

from stoker.agent import host_names, job_folders, sagemaker_scripts
from stoker.agent.checkpoints.copy_thread import CheckpointCopies, CopySource
from stoker.agent.checkpoints.plain_copy import PlainCopy
from stoker.agent.checkpoints.restore_folder import take_baseline
from stoker.agent.checkpoints.sync import CheckpointSync
from stoker.agent.checkpoints.whole_saves import TrainingEnd
from stoker.agent.exit_report import how_it_ended, make_training_exit
from stoker.agent.health.missing_saves import MissingSaves
from stoker.agent.node import FLUSH_LIMIT_S, utcnow
from stoker.agent.output_files import Baseline
from stoker.agent.output_sync import OutputSync
from stoker.agent.peers import HeartbeatLink
from stoker.agent.phases.agree_and_restore import RestoreResult
from stoker.agent.phases.context import AttemptContext
from stoker.agent.setup import make_command, make_location
from stoker.agent.shutdown_budget import ShutdownBudget
from stoker.agent.supervise import EndRequest, TrainingSurvived
from stoker.agent.training_environment import TrainingLocation, ask_to_save
from stoker.core.saved_work import attempts_of, checkpoint_title, with_step
from stoker.model.command_line import command_argv
from stoker.model.errors import SetupFailed
from stoker.model.job_state import JobState
from stoker.model.node_facts import Exit
from stoker.model.path_patterns import as_written
from stoker.model.spec import Spec
from stoker.model.submission import Submission
from stoker.processes import open_for_writing
from stoker.store.base import open_store
from stoker.store.checkpoint_copy import CopyRecord
from stoker.store.checkpoint_manifests import TrustedClaims
from stoker.store.upload_progress import UPLOADS

_log = logging.getLogger(__name__)


def remaining_runtime_s(state: JobState, spec: Spec) -> float | None:
    """How long `limits.max_runtime` lets this attempt train; None without that limit."""
    if spec.limits.max_runtime_s is None:
        return None
    return spec.limits.max_runtime_s - sum(claim.closed.trained_s for claim in state.since_opened() if claim.closed)


def start_syncs(
    context: AttemptContext, spec: Spec, location: TrainingLocation, baseline: Baseline, trust: TrustedClaims
) -> None:
    """Begin to bring checkpoints and outputs to the store. `baseline`: the files from before the training."""
    config, peers = context.config, context.leaving.peers
    assert peers is not None
    seen_at = [path for path in (job_folders.checkpoints_inside(spec),) if path is not None]
    options = replace(
        job_folders.sync_options(context.node, spec, baseline, trust, context.node.say),
        restored=context.record.restored,
        writing=lambda aliased: open_for_writing(
            context.runtime.group.members(), location.checkpoints, seen_at, aliased
        ),
        gang=HeartbeatLink(context.heartbeat, peers) if config.nodes > 1 else None,
        lead_finished=lambda: peers.lead_finished,
        is_output=lambda path: job_folders.is_output(context.paths, spec, path),
    )
    checkpoints = context.syncs.checkpoints = CheckpointSync(options)
    checkpoints.start()
    context.training.observer = checkpoints
    if config.rank == 0:
        named = as_written(spec.checkpoints.dir)
        context.syncs.missing = MissingSaves(
            location.code, location.checkpoints, named, context.node.say, baseline, options.selection
        )
        start_copies(context, spec, checkpoints, trust)
    files = job_folders.output_files(context.paths, spec, baseline, job_folders.confinement(context.node, spec))
    context.syncs.outputs = OutputSync(context.store, config.job, config.claim, config.rank, files, nodes=config.nodes)
    context.syncs.outputs.start()


def start_copies(context: AttemptContext, spec: Spec, sync: CheckpointSync, trust: TrustedClaims) -> None:
    """Begin to copy checkpoints to `checkpoints.copy_to`, if the job has that."""
    url, state = spec.checkpoints.copy_to, context.log_watch.state
    if url is None or state is None:
        return
    config = context.config
    own = CopyRecord(config.job, context.store.url, state.submitted_at, spec.resume_from)

    def make(check: Callable[[], None]) -> PlainCopy:
        return PlainCopy(context.store, open_store(url), own, context.paths.scratch, check)

    source = CopySource(context.store, config.job, lambda: sync.status().last, trust, config.nodes)
    context.syncs.copies = CheckpointCopies(source, make, context.node.say)
    context.syncs.copies.start()


class TrainingPhase:
    """One run of the job's command, from the start of the syncs to the last commit."""

    def __init__(self, context: AttemptContext, submission: Submission, runtime_left_s: float | None = None) -> None:
        self._context = context
        self._submission = submission
        self._runtime_left_s = runtime_left_s
        # How many of the soft notices have reached the training.
        self._hints_forwarded = 0

    def run(self, restored: RestoreResult, attempt: int) -> Exit:
        """Train until the command ends or must end. Raises LeaveEarly, SetupFailed if it could not be started."""
        context, spec = self._context, self._submission.spec
        location = make_location(context.node, self._submission, context.setup_result, restored.rendezvous, attempt)
        # The syncs start before the training: a save of its first second is watched from its beginning.
        confinement = job_folders.confinement(context.node, spec)
        baseline = take_baseline(context.paths, spec, context.record.restored, confinement)
        start_syncs(context, spec, location, baseline, restored.trust)
        command = make_command(context.node, self._submission, context.setup_result, location, command_argv(spec))
        command = host_names.give_names(context.node, context.runtime, spec, location, command)
        # The last check before the start: entries of the log that were read since the permission count.
        context.leaving.check()
        context.node.say(f"attempt {attempt}{self._describe_start(restored.rendezvous.checkpoint, attempt)}")
        try:
            context.training.start(replace(command, main=True), context.paths.train_log)
        except OSError as error:
            what = f"there is no program {error.filename!r}" if isinstance(error, FileNotFoundError) else str(error)
            raise SetupFailed(f"run: {what} on this machine", user=True, code=127) from error
        context.record.started_at = utcnow()
        context.monitors.setup.stop()
        context.monitors.training.begin()
        context.heartbeat.change(phase="training", training_since=context.record.started_at)
        request = context.training.wait(lambda: self.reason_to_end(spec.checkpoints.grace_s))
        if request is None:
            try:
                outcome = context.record.outcome = context.training.finish()
            except TrainingSurvived:
                self.commit_at_leisure(TrainingEnd("died"))
                raise
            self.commit_at_leisure(TrainingEnd("finished" if outcome.code == 0 else "died"))
        else:
            self.end(request)
        message = ""
        if spec.environment.contract is not None:
            message = sagemaker_scripts.read_failure(context.paths, context.setup_result.secrets)
        runtime = context.runtime
        return make_training_exit(context.record, context.paths.root, runtime.group.folder, message, runtime.fault)

    def end(self, request: EndRequest) -> None:
        """Ask the training to save and end, and make its last save durable.

        The training is notified before anything else happens. From then on every second, and the whole bandwidth, is
        for checkpoints: outputs pause until the flush.
        """
        context, sync = self._context, self._context.syncs.checkpoints
        assert sync is not None
        deadline_s = context.training.notify(request, context.paths.notice)
        before = sync.status()
        if context.syncs.missing is not None:
            context.syncs.missing.check(before, context.training.trained_s, leaving=True)
        sync.hurry(deadline_s - time.monotonic())
        if context.syncs.copies is not None:
            context.syncs.copies.pause()
        if context.syncs.outputs is not None:
            context.syncs.outputs.pause()
        context.heartbeat.change(phase="saving")
        context.node.say(f"{request.reason}: {request.grace_s:.1f} s to save")
        outcome = context.training.end(request, context.paths.notice, self.commit_last, context.notices.poll)
        after, save = sync.status(), outcome.save
        if save is not None:
            save = replace(save, commits=after.commits - before.commits, torn=after.held_back is not None)
        context.record.outcome = replace(outcome, save=save)
        if save is not None and save.saved_s is None:
            context.node.say("the command did not end in time, and was killed")
        elif outcome.code != 0:
            context.node.say(f"the command ended with {how_it_ended(outcome)}")

    def reason_to_end(self, grace_s: float) -> EndRequest | None:
        """Return why the training must end now; None if it may go on. `grace_s` is its grace without a notice."""
        context = self._context
        # A notice comes first: its deadline is the only one that does not wait.
        deadline_s = context.notices.poll()
        if deadline_s is not None:
            assert context.notices.notice is not None
            left_s = max(0.0, deadline_s - time.monotonic())
            return EndRequest("notice", f"notice from {context.notices.notice.source}", left_s)
        self._forward_hint()
        syncs, trained_s = context.syncs, context.training.trained_s
        if syncs.missing is not None and syncs.checkpoints is not None:
            syncs.missing.check(syncs.checkpoints.status(), trained_s)
        context.monitors.stack_dumps.start_requested(context.log_watch.state)
        leave = context.log_watch.leave()
        if leave is not None:
            return EndRequest(leave.why, leave.reason, grace_s)
        peer = context.leaving.peers.left if context.leaving.peers else None
        if peer is not None:
            return EndRequest("peer", peer.reason, peer.grace_s if peer.grace_s is not None else grace_s)
        if self._runtime_left_s is not None and trained_s >= self._runtime_left_s:
            return EndRequest("limit", "limits.max_runtime is reached", grace_s)
        return None

    def commit_last(self, seconds: float, end: TrainingEnd) -> bool:
        """Make durable what the training saved, within `seconds`. Return whether nothing is left to make durable."""
        return self._commit(ShutdownBudget(seconds, self._context.notices.poll), end)

    def commit_at_leisure(self, end: TrainingEnd) -> None:
        """Make durable what a training saved that ended by itself, for as long as bytes move."""
        budget = ShutdownBudget(FLUSH_LIMIT_S, self._context.deadline_s, progress=lambda: UPLOADS.total)
        self._commit(budget, end)

    def _commit(self, budget: ShutdownBudget, end: TrainingEnd) -> bool:
        context, sync = self._context, self._context.syncs.checkpoints
        assert sync is not None
        sync.final(None, end, until_s=budget.flush_by_s)
        status = sync.status()
        if status.held_back is not None:
            restored = context.record.restored
            last = status.last.key if status.last else restored.key if restored else None
            title = checkpoint_title(last, self._known_attempts()) if last else None
            remains = f"the checkpoint stays at {title}" if title else "there is no checkpoint yet"
            context.node.say(f"{status.held_back}; {remains}")
        return status.unsynced_bytes == 0

    def _forward_hint(self) -> None:
        """Ask the training to save once for each soft notice. It asks for nothing else: the training goes on."""
        context, sync = self._context, self._context.syncs.checkpoints
        if context.notices.hints == self._hints_forwarded:
            return
        self._hints_forwarded = context.notices.hints
        assert context.notices.notice is not None and sync is not None
        try:
            ask_to_save(context.paths.save, self._hints_forwarded)
        except OSError as error:
            _log.warning("the training cannot be asked to save: %s", error)
        sync.wake()
        if context.syncs.missing is not None:
            context.syncs.missing.check(sync.status(), context.training.trained_s, noticed=True)
        context.node.say(f"notice from {context.notices.notice.source}: asked to save, going on")

    def _describe_start(self, checkpoint: str | None, attempt: int) -> str:
        if checkpoint is None:
            return ", starting from the beginning: there is no checkpoint" if attempt > 1 else ""
        restored = self._context.record.restored
        title = checkpoint_title(checkpoint, self._known_attempts())
        return f", resuming from {with_step(title, restored.step if restored is not None else None)}"

    def _known_attempts(self) -> dict[int, int]:
        state = self._context.log_watch.state
        return attempts_of(state) if state is not None else {}
