"""A restarted agent, or one on a rebooted machine, never trains: it makes durable what is there, and leaves."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

from stoker.agent import job_folders
from stoker.agent.checkpoints.folder_snapshot import Selection
from stoker.agent.checkpoints.sync import CheckpointSync, SyncStatus
from stoker.agent.health.missing_saves import find_saves
from stoker.agent.heartbeat import Beat
from stoker.agent.job_log_watch import LogWatch
from stoker.agent.logs.cloud_copy import open_copy
from stoker.agent.logs.log_pump import LogPump
from stoker.agent.metrics import MetricsPump
from stoker.agent.node import FLUSH_LIMIT_S, Node, patient, utcnow
from stoker.agent.notices import Notices
from stoker.agent.output_files import Baseline
from stoker.agent.output_sync import OutputSync
from stoker.agent.shutdown_budget import Closing
from stoker.core.saved_work import nothing_saved
from stoker.model import keys
from stoker.model.job_state import JobState
from stoker.model.node_facts import CheckpointRef, Exit, Heartbeat, KeptOutputs
from stoker.model.observed import Known
from stoker.model.path_patterns import as_written
from stoker.model.spec import Submission
from stoker.processes.unmounting import unmount_below
from stoker.store.checkpoint_manifests import NOTHING, trust_of
from stoker.store.job_index import read_submission
from stoker.store.node_facts import read_fact

_log = logging.getLogger(__name__)

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


def flush(node: Node) -> None:
    """Make the log, the finished checkpoints and the outputs durable, and write the exit.

    Whoever supervises the machine has killed everything that ran on it before this agent was started. A notice may be
    in force, or come: then what can be resumed from comes first, and the exit keeps its time.
    """
    notices = Notices(node)
    unmount_below(node.paths.mounts)
    with _hearing(notices):
        _flush(node, notices)


@contextmanager
def _hearing(notices: Notices) -> Iterator[None]:
    """A shutdown is a notice meanwhile. Only the main thread hears signals."""
    try:
        before = signal.signal(signal.SIGTERM, lambda *_: notices.take_signal())
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _flush(node: Node, notices: Notices) -> None:
    closing = Closing(FLUSH_LIMIT_S, notices.look)
    if _exit_is_written(node, closing.exit_by_s()):
        return
    node.say("the agent was restarted: looking for what can still be saved")
    beat = Beat(node.store, node.key, lambda beat: beat)
    before = _last_words(node)
    if before is not None:
        # What the dead agent had told stays told, beside what this one saves.
        beat.change(**{name: getattr(before, name) for name in _INHERITED})
    beat.change(phase="flushing")
    beat.start()
    metrics: MetricsPump | None = None
    status: SyncStatus | None = None
    state, submission = _submission(node, closing.rest_by_s())
    copy = open_copy(submission.spec, node.config, state) if submission is not None else None
    tap = copy.feed if copy is not None else None
    logs = LogPump(node.store, node.key, node.paths.train_log, earlier=node.earlier, tap=tap)
    logs.start()
    if submission is not None:
        metrics = MetricsPump(node.store, node.key, node.paths.metrics, submission.spec.metrics, earlier=node.earlier)
        metrics.start()
        if _is_awaited(node, state):
            status = _flush_checkpoints(node, state, submission, closing)
            if status is not None:
                # Else the verdict would say that no file was written.
                beat.change(checkpoint_files=status.files)
    elsewhere = _say_what_is_kept(node, submission, status, before)
    logs.drain(closing.share_s(1 / 2), closing.rest_by_s)
    if metrics is not None:
        metrics.drain(closing.share_s(1 / 2), closing.rest_by_s)
    kept = _flush_outputs(node, submission, closing) if submission is not None else None
    beat.stop(timeout_s=min(5.0, closing.share_s(1 / 2)))
    progress = metrics.progress if metrics else None
    left = Exit(
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
        waste=before.waste if before else None,
        outputs=kept,
    )
    node.write_exit(left, closing.exit_by_s())
    if copy is not None:
        copy.drain(min(_COPY_S, max(0.0, closing.exit_by_s() - time.monotonic())))


def _reason(status: SyncStatus | None, before: Heartbeat | None) -> str:
    """What this agent found to save. Whether there is any checkpoint at all is said by the verdict."""
    found = _found(status, before)
    return f"the agent died; {found}" if found else "the agent died"


def _found(status: SyncStatus | None, before: Heartbeat | None) -> str:
    """What is in the store of this attempt; empty where nothing is."""
    saved = status.last if status is not None and status.commits else None
    if saved is not None:
        return f"the next one saved {_title(saved)}"
    if before is not None and before.checkpoint is not None:
        return f"{_title(before.checkpoint)} was saved before"
    return ""


def _say_what_is_kept(
    node: Node, submission: Submission | None, status: SyncStatus | None, before: Heartbeat | None
) -> tuple[str, ...]:
    """Say in the job's log what the store has of the training. Answers files elsewhere that look like its saves, where
    it has nothing."""
    if before is None or before.training_since is None:
        return ()
    found = _found(status, before)
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


def _title(ref: CheckpointRef) -> str:
    return f"step {ref.step}" if ref.step is not None else ref.name


def _is_awaited(node: Node, state: JobState | None) -> bool:
    """Whether the job still waits for this claim. A machine that was off and started again finds it closed: another
    attempt has gone on from an older checkpoint, and must not find a newer one behind its back."""
    claim = state.claim(node.config.claim) if state is not None else None
    return claim is None or claim.open


def _last_words(node: Node) -> Heartbeat | None:
    """The newest heartbeat of the boots before this one; None where there is none, or the store does not answer."""
    for key in reversed(node.earlier):
        found = read_fact(node.store, keys.heartbeat(key), Heartbeat)
        if isinstance(found, Known) and found.value is not None:
            return found.value.value
    return None


def _exit_is_written(node: Node, until_s: float) -> bool:
    """Whether an earlier boot had said its last word already, and only failed to switch the machine off."""
    found: list[bool] = []
    patient(lambda: found.append(any(node.store.head(keys.exit_(key)) for key in node.earlier)), until_s)
    return found == [True]


def _submission(node: Node, until_s: float) -> tuple[JobState | None, Submission | None]:
    config = node.config
    watch = LogWatch(node.store, config.job, config.claim, config.instance)
    found: list[Submission] = []

    def look() -> None:
        state = watch.poll()
        if state is not None:
            found.append(read_submission(node.store, state))

    patient(look, until_s)
    return watch.state, found[0] if found else None


def _flush_checkpoints(
    node: Node, state: JobState | None, submission: Submission, closing: Closing
) -> SyncStatus | None:
    folder = job_folders.checkpoint_folder(node.paths, submission.spec)
    if not folder.is_dir():
        return None
    # Without it no training began here, and nothing is committed.
    baseline = Baseline.read(node.paths.baseline) or Baseline()
    sync = CheckpointSync(
        node.store,
        job=node.config.job,
        claim=node.config.claim,
        rank=node.config.rank,
        nodes=node.config.nodes,
        folder=folder,
        channel=node.paths.channel,
        scratch=node.paths.scratch,
        keep=submission.spec.checkpoints.keep,
        trust=trust_of(state, own=node.config.claim) if state is not None else NOTHING,
        recovering=True,
        selection=job_folders.checkpoint_selection(
            node.paths, submission.spec, baseline, job_folders.confinement(node, submission.spec)
        ),
    )
    if closing.pressing:
        sync.press(closing.share_s())
    # A notice leaves something for the log, too.
    sync.final(closing.share_s(3 / 4 if closing.pressing else 1), until_s=closing.rest_by_s)
    return sync.status()


def _flush_outputs(node: Node, submission: Submission, closing: Closing) -> KeptOutputs | None:
    """Put what the training left as outputs. None: it never began."""
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
    outputs.final(closing.share_s(), until_s=closing.rest_by_s)
    return outputs.report()
