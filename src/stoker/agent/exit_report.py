"""Make the exit of a node: how its attempt ended."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from stoker.agent.checkpoints.restore import RestoredCheckpoint
from stoker.agent.checkpoints.sync import SyncStatus
from stoker.agent.health import exit_evidence
from stoker.agent.logs.file_tail import KEEP_BYTES
from stoker.agent.metric_progress import Progress
from stoker.agent.node import utcnow
from stoker.agent.supervise import TrainingOutcome
from stoker.core.failure_diagnosis import diagnose
from stoker.model.log_entries import Waste
from stoker.model.node_facts import Exit, ExitOutcome, ExitWhy, SavedOutputs

# The lines of the log that the exit holds for people, and those that are searched for the cause of a failure: a crash
# of several processes prints long stacks, eight ranks more than 100 KiB.
TAIL_LINES = 20
CAUSE_LINES = 4000
CAUSE_BYTES = KEEP_BYTES


@dataclass
class TrainingRecord:
    """Facts about the training that the phases of an attempt add as they become known."""

    outcome: TrainingOutcome | None = None
    started_at: datetime | None = None
    restored: RestoredCheckpoint | None = None
    older_checkpoints: int = 0
    # How long this node waited for the permission to train.
    waited_s: float = 0.0


def make_exit(outcome: ExitOutcome, why: ExitWhy, reason: str, record: TrainingRecord, code: int | None = None) -> Exit:
    """Make the exit as far as it is known when the training is dead, or will never start."""
    ended = record.outcome
    return Exit(
        outcome=outcome,
        why=why,
        at=utcnow(),
        reason=reason,
        started=ended is not None,
        code=ended.code if ended else code,
        signal=ended.signal if ended else None,
        trained_s=ended.trained_s if ended else 0.0,
        started_at=record.started_at if ended else None,
        save=ended.save if ended else None,
        restored_from=record.restored.key if record.restored else None,
        restored_step=record.restored.step if record.restored else None,
        older_checkpoints=record.older_checkpoints,
    )


def make_training_exit(
    record: TrainingRecord, node_dir: Path, cgroup: str | None, message: str = "", fault: str | None = None
) -> Exit:
    """Make the exit of a training that started.

    `message` is its own text about a failure; `fault` is why its runtime was taken away around it.
    """
    ended = record.outcome
    assert ended is not None
    if ended.request is not None:
        # Asked to end, it ended. Its exit status does not say whether the job is done: a script that saves and exits
        # with 0 on SIGTERM has not finished.
        return make_exit("interrupted", ended.request.why, ended.request.reason, record)
    if ended.code == 0:
        return make_exit("succeeded", "finished", "the command finished", record)
    if fault is not None:
        return make_exit("infrastructure", "finished", fault, record)
    how = how_it_ended(ended)
    reason = f"the command ended with {how}: {message}" if message else f"the command ended with {how}"
    exit_ = make_exit("failed", "finished", reason, record)
    began_s = time.monotonic() - ended.trained_s
    group = Path(cgroup) if cgroup else None
    return replace(exit_, evidence=exit_evidence.collect(ended.code, ended.signal, began_s, node_dir, group))


def how_it_ended(outcome: TrainingOutcome) -> str:
    """Return the signal or the exit code that the command ended with, as text."""
    return f"signal {outcome.signal}" if outcome.signal is not None else f"exit code {outcome.code}"


def complete_exit(
    exit_: Exit,
    saved: SyncStatus | None,
    progress: Progress | None,
    last_lines: tuple[str, ...],
    waste: Waste,
    outputs: SavedOutputs | None = None,
) -> Exit:
    """Return the exit with what is only known after the flush. `last_lines` of the log show the cause of a failure."""
    if saved is not None:
        exit_ = replace(exit_, checkpoint=saved.last, commits=saved.commits)
    if progress is not None:
        exit_ = replace(exit_, step=progress.last_step, first_step=progress.first_step, metrics=progress.values)
    if exit_.outcome == "succeeded":
        # The results of the last training are in its outputs.
        waste = replace(waste, lost_s=0.0)
    cause = diagnose(last_lines) if exit_.outcome == "failed" else None
    return replace(exit_, tail=last_lines[-TAIL_LINES:], cause=cause, waste=waste, outputs=outputs)
