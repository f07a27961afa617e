"""Flush a node whose agent was restarted or whose machine was rebooted: it never trains again.

The agent makes durable what its predecessor left, and writes the exit.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from stoker.agent import job_folders
from stoker.agent.checkpoints.folder_snapshot import Selection
from stoker.agent.checkpoints.sync import CheckpointSync, SyncStatus
from stoker.agent.health.missing_saves import find_saves
from stoker.agent.heartbeat import HeartbeatThread
from stoker.agent.job_log_watch import JobLogWatch
from stoker.agent.logs.cloud_copy import open_log_copy
from stoker.agent.logs.log_pump import LogPump
from stoker.agent.metrics import MetricsPump
from stoker.agent.node import FLUSH_LIMIT_S, AgentNode, retry_until, utcnow
from stoker.agent.notices import Notices
from stoker.agent.output_files import Baseline
from stoker.agent.output_sync import OutputSync
from stoker.agent.shutdown_budget import ShutdownBudget
from stoker.core.saved_work import nothing_saved
from stoker.model import keys
from stoker.model.job_state import JobState
from stoker.model.log_entries import Waste
from stoker.model.node_facts import CheckpointRef, Exit, Heartbeat, SavedOutputs
from stoker.model.observed import Known
from stoker.model.path_patterns import as_written
from stoker.model.submission import Submission
from stoker.processes.unmounting import unmount_below
from stoker.store.checkpoint_manifests import TRUST_NONE, trusted_claims
from stoker.store.job_index import read_submission
from stoker.store.node_facts import read_fact
from stoker.store.upload_progress import UPLOADS

_COPY_S = 10.0
_INHERITED = (
    "trained_s",
    "training_since",
    "step",
    "first_step",
    "restored_from",
    "restored_step",
    "checkpoint",
    "metrics",
    "image",
    "waste",
)


def flush(node: AgentNode) -> None:
    """Make the log, the finished checkpoints and the outputs durable, and write the exit.

    The machine's supervisor has killed all processes of the job before it started this agent. A notice may be in force,
    or come: then checkpoints come first, and the exit keeps its time.
    """
    notices = Notices(node)
    unmount_below(node.paths.mounts)
    with _signals_as_notices(notices):
        _flush(node, notices)


@contextmanager
def _signals_as_notices(notices: Notices) -> Iterator[None]:
    """Count SIGTERM as a notice meanwhile. Only the main thread can handle signals: others do without."""
    try:
        before = signal.signal(signal.SIGTERM, lambda *_: notices.take_signal())
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _flush(node: AgentNode, notices: Notices) -> None:
    budget = ShutdownBudget(FLUSH_LIMIT_S, notices.poll, progress=lambda: UPLOADS.total)
    if _exit_is_written(node, budget.exit_by_s()):
        return
    node.say("the agent was restarted: looking for what can still be saved")
    heartbeat = HeartbeatThread(node.store, node.key, lambda heartbeat: heartbeat)
    before = _last_heartbeat(node)
    if before is not None:
        # Facts of the dead agent stay in the heartbeat, beside those of this one.
        heartbeat.change(**{name: getattr(before, name) for name in _INHERITED})
    heartbeat.change(phase="flushing")
    heartbeat.start()
    metrics: MetricsPump | None = None
    sync: CheckpointSync | None = None
    status: SyncStatus | None = None
    state, submission = _submission(node, budget.flush_by_s())
    copy = open_log_copy(submission.spec, node.config, state) if submission is not None else None
    tap = copy.feed if copy is not None else None
    logs = LogPump(node.store, node.key, node.paths.train_log, earlier=node.earlier, tap=tap)
    logs.start()
    if submission is not None:
        metrics = MetricsPump(node.store, node.key, node.paths.metrics, submission.spec.metrics, earlier=node.earlier)
        metrics.start()
        if _is_claim_open(node, state):
            sync = _flush_checkpoints(node, state, submission, budget)
            if sync is not None:
                status = sync.status()
                # Otherwise the verdict would state that no file was written.
                heartbeat.change(checkpoint_files=status.files)
    elsewhere = _report_saved(node, submission, status, before)
    logs.drain(budget.share_s(1 / 2), budget.flush_by_s)
    if metrics is not None:
        metrics.drain(budget.share_s(1 / 2), budget.flush_by_s)
    kept = _flush_outputs(node, submission, sync, budget) if submission is not None else None
    heartbeat.stop(timeout_s=min(5.0, budget.share_s(1 / 2)))
    progress = metrics.progress if metrics else None
    exit_ = Exit(
        outcome="infrastructure",
        why="agent",
        at=utcnow(),
        reason=_reason(status, before),
        started=before is not None and before.training_since is not None,
        trained_s=before.trained_s if before else 0.0,
        started_at=before.training_since if before else None,
        restored_from=before.restored_from if before else None,
        restored_step=before.restored_step if before else None,
        first_step=progress.first_step if progress else None,
        step=progress.last_step if progress else None,
        metrics=progress.values if progress else {},
        checkpoint=(status.last if status else None) or (before.checkpoint if before else None),
        commits=status.commits if status else 0,
        tail=logs.tail(),
        saves_elsewhere=elsewhere,
        waste=_waste(status, before),
        outputs=kept,
    )
    node.write_exit(exit_, budget.exit_by_s())
    if copy is not None:
        copy.drain(min(_COPY_S, max(0.0, budget.exit_by_s() - time.monotonic())))


def _reason(status: SyncStatus | None, before: Heartbeat | None) -> str:
    """Describe what this agent could save. The verdict states whether the job has any checkpoint at all."""
    found = _describe_saved(status, before)
    return f"the agent died; {found}" if found else "the agent died"


def _describe_saved(status: SyncStatus | None, before: Heartbeat | None) -> str:
    """Describe the newest checkpoint of this attempt in the store; empty if there is none."""
    saved = status.last if status is not None and status.commits else None
    if saved is not None:
        return f"the next one saved {_title(saved)}"
    if before is not None and before.checkpoint is not None:
        return f"{_title(before.checkpoint)} was saved before"
    return ""


def _report_saved(
    node: AgentNode, submission: Submission | None, status: SyncStatus | None, before: Heartbeat | None
) -> tuple[str, ...]:
    """Write to the job's log what the store has of the training.

    If it has nothing, return files elsewhere that look like saves.
    """
    if before is None or before.training_since is None:
        return ()
    found = _describe_saved(status, before)
    if found:
        node.say(found)
    if found or before.restored_from is not None or submission is None or node.config.rank != 0:
        return ()
    spec, baseline = submission.spec, Baseline.read(node.paths.baseline) or Baseline()
    folder, chosen = job_folders.checkpoint_folder(node.paths, spec), job_folders.checkpoint_filter(spec)
    selection = Selection(takes=chosen.takes) if chosen is not None else None
    elsewhere = find_saves(node.paths.code, folder, before.training_since.timestamp(), baseline, selection)
    written = status is not None and status.files > 0
    node.say(nothing_saved(as_written(spec.checkpoints.dir), elsewhere, written=written))
    return elsewhere


def _waste(status: SyncStatus | None, before: Heartbeat | None) -> Waste | None:
    """Return the waste that the dead agent reported; with a newer checkpoint, what was lost is not known."""
    waste = before.waste if before is not None else None
    if waste is not None and status is not None and status.commits:
        return replace(waste, lost_s=None)
    return waste


def _title(ref: CheckpointRef) -> str:
    return f"step {ref.step}" if ref.step is not None else ref.name


def _is_claim_open(node: AgentNode, state: JobState | None) -> bool:
    """Return whether the job still waits for this claim.

    A machine that was off and started again finds the claim closed: another attempt has resumed from an older
    checkpoint, so no newer one may appear now.
    """
    claim = state.claim(node.config.claim) if state is not None else None
    return claim is None or claim.open


def _last_heartbeat(node: AgentNode) -> Heartbeat | None:
    """Return the newest heartbeat of earlier boots; None if there is none, or the store does not answer."""
    for key in reversed(node.earlier):
        found = read_fact(node.store, keys.heartbeat(key), Heartbeat)
        if isinstance(found, Known) and found.value is not None:
            return found.value.value
    return None


def _exit_is_written(node: AgentNode, until_s: float) -> bool:
    """Return whether an earlier boot has written its exit already, and only failed to switch the machine off."""
    found: list[bool] = []
    retry_until(lambda: found.append(any(node.store.head(keys.exit_(key)) for key in node.earlier)), until_s)
    return found == [True]


def _submission(node: AgentNode, until_s: float) -> tuple[JobState | None, Submission | None]:
    config = node.config
    watch = JobLogWatch(node.store, config.job, config.claim, config.instance)
    found: list[Submission] = []

    def read() -> None:
        state = watch.poll()
        if state is not None:
            found.append(read_submission(node.store, state))

    retry_until(read, until_s)
    return watch.state, found[0] if found else None


def _flush_checkpoints(
    node: AgentNode, state: JobState | None, submission: Submission, budget: ShutdownBudget
) -> CheckpointSync | None:
    if not job_folders.checkpoint_folder(node.paths, submission.spec).is_dir():
        return None
    # Without a baseline no training began on this machine, and nothing is committed.
    baseline = Baseline.read(node.paths.baseline) or Baseline()
    trust = trusted_claims(state, own=node.config.claim) if state is not None else TRUST_NONE
    options = job_folders.sync_options(node, submission.spec, baseline, trust)
    sync = CheckpointSync(replace(options, recovering=True))
    if budget.has_deadline:
        sync.hurry(budget.share_s())
    # Under a notice a part of the time is left for the log, too.
    sync.final(budget.share_s(3 / 4) if budget.has_deadline else None, until_s=budget.flush_by_s)
    return sync


def _flush_outputs(
    node: AgentNode, submission: Submission, sync: CheckpointSync | None, budget: ShutdownBudget
) -> SavedOutputs | None:
    """Store the outputs that the training left; return None if it never began."""
    baseline = Baseline.read(node.paths.baseline)
    if baseline is None:
        return None
    files = job_folders.output_files(
        node.paths, submission.spec, baseline, job_folders.confinement(node, submission.spec)
    )
    config = node.config
    outputs = OutputSync(
        node.store, config.job, config.claim, config.rank, files, nodes=config.nodes, boot=len(node.earlier)
    )
    if sync is not None:
        loose = sync.loose()
        outputs.keep_saves(job_folders.checkpoint_folder(node.paths, submission.spec), loose, sync.torn(), loose.keys())
    outputs.final(None, until_s=budget.flush_by_s)
    return outputs.report()
