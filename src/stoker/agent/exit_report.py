"""The last word of a node: how it ended, from what is known when everything is over."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from stoker.agent.checkpoints.restore import Restored
from stoker.agent.checkpoints.sync import SyncStatus
from stoker.agent.health import exit_evidence
from stoker.agent.logs.file_tail import KEEP_BYTES
from stoker.agent.metrics import Progress
from stoker.agent.node import utcnow
from stoker.agent.supervise import Ended
from stoker.core.failure_patterns import diagnose
from stoker.model.log_entries import Waste
from stoker.model.node_facts import Exit, ExitOutcome, ExitWhy, KeptOutputs

# Of the log, what the exit keeps for people, and what is read to find the cause of a failure: the stacks that a crash
# of several processes prints are long: eight ranks print more than 100 KiB.
TAIL_LINES = 20
CAUSE_LINES = 4000
CAUSE_BYTES = KEEP_BYTES


@dataclass
class Trained:
    """What becomes known of the training on its way."""

    ended: Ended | None = None
    started_at: datetime | None = None
    restored: Restored | None = None
    older_checkpoints: int = 0


def make_exit(outcome: ExitOutcome, why: ExitWhy, reason: str, trained: Trained, code: int | None = None) -> Exit:
    """The exit, as far as it is known when the training is dead, or will never start."""
    ended = trained.ended
    return Exit(
        outcome=outcome,
        why=why,
        at=utcnow(),
        reason=reason,
        started=ended is not None,
        code=ended.code if ended else code,
        signal=ended.signal if ended else None,
        trained_s=ended.trained_s if ended else 0.0,
        started_at=trained.started_at if ended else None,
        save=ended.save if ended else None,
        restored_from=trained.restored.key if trained.restored else None,
        restored_step=trained.restored.step if trained.restored else None,
        older_checkpoints=trained.older_checkpoints,
    )


def judge(trained: Trained, node_dir: Path, cgroup: str | None, said: str = "", fault: str | None = None) -> Exit:
    """How a training that started has ended. `said` is its own word about a failure; `fault` is what befell it."""
    ended = trained.ended
    assert ended is not None
    if ended.ending is not None:
        # Asked to go, it went. Whether its exit status was 0 or not says nothing about the job being done: a script
        # that saves and exits with 0 on SIGTERM has not finished.
        return make_exit("interrupted", ended.ending.why, ended.ending.reason, trained)
    if ended.code == 0:
        return make_exit("succeeded", "finished", "the command finished", trained)
    if fault is not None:
        return make_exit("infrastructure", "finished", fault, trained)
    how = f"signal {ended.signal}" if ended.signal is not None else f"exit code {ended.code}"
    reason = f"the command ended with {how}: {said}" if said else f"the command ended with {how}"
    left = make_exit("failed", "finished", reason, trained)
    began_s = time.monotonic() - ended.trained_s
    group = Path(cgroup) if cgroup else None
    return replace(left, evidence=exit_evidence.collect(ended.code, ended.signal, began_s, node_dir, group))


def complete(
    left: Exit,
    saved: SyncStatus | None,
    progress: Progress | None,
    last_lines: tuple[str, ...],
    waste: Waste,
    outputs: KeptOutputs | None = None,
) -> Exit:
    """With what is only known when everything is flushed. `last_lines` of the log tell why it failed."""
    if saved is not None:
        left = replace(left, checkpoint=saved.last, commits=saved.commits)
    if progress is not None:
        left = replace(left, step=progress.last_step, first_step=progress.first_step, metrics=progress.values)
    cause = diagnose(last_lines) if left.outcome == "failed" else None
    return replace(left, tail=last_lines[-TAIL_LINES:], cause=cause, waste=waste, outputs=outputs)
