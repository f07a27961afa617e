"""The one life in which a node trains."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from stoker.agent import hold, job_folders, sagemaker_scripts
from stoker.agent.checkpoints.blobs import BlobSender
from stoker.agent.checkpoints.restore import RestoreError, find_candidates
from stoker.agent.checkpoints.restore_folder import RestoreFolder, take_baseline
from stoker.agent.checkpoints.resume_from import import_checkpoint, parse_source
from stoker.agent.checkpoints.sync import CheckpointSync
from stoker.agent.checkpoints.whole_units import TrainingEnd
from stoker.agent.exit_report import CAUSE_BYTES, CAUSE_LINES, Trained, complete, judge, make_exit
from stoker.agent.fetch_programs import fetch_program
from stoker.agent.health.activity import ActivityRecorder, Sight, count_others
from stoker.agent.health.missing_saves import MissingSaves
from stoker.agent.health.setup_activity import Preparing
from stoker.agent.health.stack_dump import find_spy, testify
from stoker.agent.health.stack_dump_request import Witness
from stoker.agent.health.usage_sampler import Gpus, UsageSampler, UsageThread
from stoker.agent.heartbeat import Beat, is_calm
from stoker.agent.job_log_watch import LogWatch
from stoker.agent.logs.cloud_copy import LogCopy, open_copy
from stoker.agent.logs.log_pump import LogPump
from stoker.agent.metrics import MetricsPump
from stoker.agent.node import FLUSH_LIMIT_S, Node, utcnow
from stoker.agent.notices import Notices
from stoker.agent.output_files import Baseline
from stoker.agent.output_sync import OutputSync
from stoker.agent.peers import PeerWatch
from stoker.agent.rendezvous import Agreement, Gang, sleep_interruptibly
from stoker.agent.runtime import Enclosure, Host
from stoker.agent.setup import Ready, Readying, make_command, make_place
from stoker.agent.shutdown_budget import Closing
from stoker.agent.supervise import Ending, Training
from stoker.agent.training_environment import Place, ask_to_save
from stoker.core import retry
from stoker.core.gate import Go, Leave, Wait
from stoker.core.governor_settings import DEFAULT as POLICY
from stoker.core.saved_work import attempts_of, checkpoint_title, nothing_saved, with_step
from stoker.model.command_line import command_argv
from stoker.model.durations import span_text
from stoker.model.errors import SetupFailed, StoreError, StoreUnavailable, UserError
from stoker.model.job_state import JobState
from stoker.model.log_entries import Waste
from stoker.model.node_facts import AgentPhase, Exit, ExitOutcome, ExitWhy, Heartbeat, Usage
from stoker.model.path_patterns import as_written
from stoker.model.spec import Spec, Submission, master_port
from stoker.processes import TRAINING, make_group, open_for_writing
from stoker.processes.unmounting import unmount_below
from stoker.providers.base import Contained, KeepsEnvironments
from stoker.store.checkpoint_manifests import NOTHING, trust_of
from stoker.store.job_index import read_submission
from stoker.store.parallel import run_watched

_log = logging.getLogger(__name__)

T = TypeVar("T")

# How often a node that waits for permission asks the log: the gap between two attempts is at least this.
_NEAR_ASK_S = 0.05
_FAR_ASK_S = 1.0

# Between two questions to a store that does not answer.
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0

# What an environment gets to be kept in for the next time, where the training was over sooner.
_KEEP_LAST_S = 60.0
# What the copy of the log gets to take the last lines, before and after the exit is written.
_COPY_FIRST_S = 2.0
_COPY_LAST_S = 10.0


class Left(Exception):
    """This node leaves before its training started."""

    def __init__(self, why: ExitWhy, reason: str) -> None:
        super().__init__(reason)
        self.why = why
        self.reason = reason


class Life:
    """Owns the node's threads. `run` returns when the exit is written, or cannot be."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.config = node.config
        self.paths = node.paths
        self.store = node.store
        self.wake = threading.Event()
        self.watch = LogWatch(self.store, self.config.job, self.config.claim, self.config.instance)
        self.beat = Beat(self.store, node.key, self._refresh, self._is_calm)
        self.logs = LogPump(self.store, node.key, self.paths.train_log, earlier=node.earlier, tap=self._scan)
        self.metrics: MetricsPump | None = None
        self.usage = UsageThread(UsageSampler(self.paths.root), self._take_usage)
        shared = isinstance(node.machine, KeepsEnvironments)
        members = lambda: self.enclosure.group.members()  # noqa: E731 - a container's comes later
        self.preparing = Preparing(members, lambda: self.readying is not None and self.readying.pulling, shared=shared)
        sending = lambda: self.sync is not None and self.sync.sending  # noqa: E731
        sight = Sight(Gpus().utilization, members, shared=shared, sending=sending)
        self.activity = ActivityRecorder(sight, others=count_others())
        self.witness = Witness(node, self.beat, self._testify)
        group = make_group(TRAINING, self.config.instance, sessions=self.paths.root / "training.sessions")
        self.enclosure: Enclosure = Host(group)
        self.training = Training(self.enclosure, self.wake, self._cut_mounts)
        self.readying: Readying | None = None
        self.ready = Ready({}, {})
        self.sync: CheckpointSync | None = None
        self.outputs: OutputSync | None = None
        self.peers: PeerWatch | None = None
        self.trained = Trained()
        self.missing: MissingSaves | None = None
        # Which manifests count; known when the log has been read.
        self.trust = NOTHING
        self.notices = Notices(node)
        self.copy: LogCopy | None = None
        self._spec: Spec | None = None
        self._tools: Mapping[str, str] = {}
        self._left = threading.Event()
        self._signalled = False
        self._runtime_left_s: float | None = None
        self._saves_passed_on = 0
        self._waited_s = 0.0

    # ── The whole ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def run(self) -> None:
        signal.signal(signal.SIGTERM, self._on_signal)
        self.paths.train_log.touch()
        self.logs.start()
        self.beat.start()
        self.usage.start()
        try:
            left = self._live()
        except Left as leaving:
            self._left.set()
            left = make_exit("interrupted", leaving.why, leaving.reason, self.trained)
        except SetupFailed as failure:
            outcome: ExitOutcome = "failed" if failure.user else "infrastructure"
            left = make_exit(outcome, "setup", str(failure), self.trained, failure.code)
        except RestoreError as failure:
            left = make_exit("failed", "restore", str(failure), self.trained)
        except Exception as failure:
            if self.trained.started_at is not None:
                raise  # The agent that is started next saves what there is.
            # A mistake of ours, and nothing to save: what went wrong is worth more than another start.
            _log.exception("the agent failed")
            left = make_exit("infrastructure", "agent", f"the agent failed: {failure!r}", self.trained)
        finally:
            self.training.kill()
        self._finish(left)

    def _live(self) -> Exit:
        state = self._wait_until_named()
        self.watch.start(self.wake.set)
        self._watch_peers()
        submission = self._ask(lambda: read_submission(self.store, state))
        spec = self._spec = submission.spec
        self._tools = submission.tools
        self.copy = open_copy(spec, self.config, state)
        self.metrics = MetricsPump(
            self.store, self.node.key, self.paths.metrics, spec.metrics, earlier=self.node.earlier
        )
        self.metrics.start()
        self._prepare("setup", address=self.node.machine.address() if self.config.rank == 0 else None)
        self._enclose(submission)
        self.readying = Readying(self.node, self.enclosure, self._ask, self._leave_if_told, self.preparing.waits)
        self.ready = self.readying.run(state, submission)
        state = self._wait_until_allowed()
        claim = state.claim(self.config.claim)
        assert claim is not None and claim.attempt is not None
        if spec.limits.max_runtime_s is not None:
            spent = sum(c.closed.trained_s for c in state.since_opened() if c.closed)
            self._runtime_left_s = spec.limits.max_runtime_s - spent
        self._prepare("restoring", image=self.enclosure.image)
        agreement = self._agree(state, submission)
        return self._train(submission, agreement, claim.attempt)

    def _enclose(self, submission: Submission) -> None:
        """Known only now: whether everything runs on the machine itself."""
        if submission.spec.environment.container is None or isinstance(self.node.machine, Contained):
            return
        # Most jobs need none of this.
        from stoker.agent.container.container import Container

        self.enclosure = Container(self.node, submission, self._ask, self._leave_if_told)
        self.training = Training(self.enclosure, self.wake, self._cut_mounts)

    # ── Before the training ───────────────────────────────────────────────────────────────────────────────────────────

    def _prepare(self, phase: AgentPhase, **changes: str | None) -> None:
        """The next part of the way to the training: nobody bounds it, so it is watched whether anything moves."""
        self.preparing.begin()
        self.beat.change(phase=phase, **changes)

    def _wait_for_others(self, seconds: float) -> None:
        self.preparing.waits()
        self._pause(seconds)

    def _wait_until_named(self) -> JobState:
        """Until `launched` names this instance: user code of any kind runs only on machines that the log knows."""
        deadline_s = time.monotonic() + POLICY.wait_limit_s
        while True:
            state = self.watch.poll()
            self._leave_if_told()
            claim = self.watch.claim()
            if state is not None and claim is not None and claim.launched is not None:
                return state
            if time.monotonic() > deadline_s:
                raise Left("waited", "the log never named this machine")
            time.sleep(_NEAR_ASK_S if self.store.near else _FAR_ASK_S)

    def _watch_peers(self) -> None:
        """From the very start: a rank that leaves before the training would be waited for in vain by the others."""
        claim = self.watch.claim()
        assert claim is not None
        self.peers = PeerWatch(self.store, self.config.job, claim, self.config.rank)
        self.peers.start(self.wake.set)

    def _wait_until_allowed(self) -> JobState:
        """Until every older claim has left for good. Meanwhile another attempt may still be saving."""
        self.beat.change(phase="waiting")
        began_s = time.monotonic()
        said = ""
        while True:
            self._waited_s = time.monotonic() - began_s
            match self.watch.permission():
                case Go():
                    assert self.watch.state is not None
                    return self.watch.state
                case Leave(reason=reason, why=why):
                    raise Left(why, reason)
                case Wait(reason=reason):
                    if reason != said and time.monotonic() - began_s > 1.0:
                        _log.info("waiting: %s", reason)
                        said = reason
            if time.monotonic() - began_s > POLICY.wait_limit_s:
                raise Left("waited", f"waited {span_text(POLICY.wait_limit_s)} to be allowed to train")
            self._leave_if_noticed()
            time.sleep(_NEAR_ASK_S if self.store.near else _FAR_ASK_S)

    def _agree(self, state: JobState, submission: Submission) -> Agreement:
        spec = submission.spec
        claim = state.claim(self.config.claim)
        assert claim is not None
        self.trust = trust_of(state, own=claim.number, imported=spec.resume_from is not None)
        folder = RestoreFolder.open(self.paths, spec, self.config.job, job_folders.confinement(self.node, spec))
        gang = Gang(self.store, self.config.job, claim, self.config.rank, self.beat, self._wait_for_others)
        address = self.node.machine.address()

        def fetch(key: str) -> None:
            try:
                self.trained.restored = self._ask(
                    lambda: folder.restore(self.store, self.config.rank, key, self.trust, self._stop_if_left)
                )
            except RestoreError as error:
                self.node.say(f"checkpoint {key} cannot be restored: {error.reason}")
                raise

        if self.config.rank != 0:
            agreement = gang.follow(address, fetch)
        else:
            given_up = retry.poisoned(state, POLICY)
            self._import(spec.resume_from)
            candidates = self._ask(
                lambda: find_candidates(self.store, self.config.job, given_up, state.choice, trust=self.trust)
            )
            port = self.node.machine.master_port(master_port(spec))
            agreement = gang.lead(address, port, iter(candidates), fetch)
            if agreement.checkpoint in candidates:
                self.trained.older_checkpoints = len(candidates) - candidates.index(agreement.checkpoint) - 1
        if agreement.checkpoint is None:
            self.trained.restored = None
            self._ask(lambda: folder.clear(self.store))
        if folder.aside:
            self.node.say(f"{folder.aside_text}; nothing of it is deleted")
        return agreement

    def _import(self, resume_from: str | None) -> None:
        """Bring the checkpoint that a person asked to resume from into this job, unless it has checkpoints."""
        source = parse_source(resume_from) if resume_from else None
        if source is None:
            return
        senders: dict[int, BlobSender] = {}
        try:
            self._ask(
                lambda: import_checkpoint(
                    self.store,
                    self.config.job,
                    source,
                    ordinal=self.config.claim,
                    trust=self.trust,
                    senders=senders,
                    scratch=self.paths.root,
                    check=self._stop_if_left,
                )
            )
        except UserError as error:
            raise SetupFailed(f"resume_from: {error}", user=True) from error

    # ── The training ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _train(self, submission: Submission, agreement: Agreement, attempt: int) -> Exit:
        spec = submission.spec
        place = make_place(self.node, submission, self.ready, agreement, attempt)
        self._start_syncs(submission, place, take_baseline(self.paths, spec, self.trained.restored))
        command = make_command(self.node, submission, self.ready, place, command_argv(spec))
        # The last look before the start: whatever was read since the gate counts.
        self._leave_if_told()
        known = attempts_of(self.watch.state) if self.watch.state is not None else {}
        begins = ", starting from the beginning: there is no checkpoint" if attempt > 1 else ""
        if agreement.checkpoint is not None:
            step = self.trained.restored.step if self.trained.restored is not None else None
            begins = f", resuming from {with_step(checkpoint_title(agreement.checkpoint, known), step)}"
        self.node.say(f"attempt {attempt}{begins}")
        try:
            self.training.start(replace(command, main=True), self.paths.train_log)
        except OSError as error:
            what = f"there is no program {error.filename!r}" if isinstance(error, FileNotFoundError) else str(error)
            raise SetupFailed(f"run: {what} on this machine", user=True, code=127) from error
        self.trained.started_at = utcnow()
        self.preparing.stop()
        self.activity.begin()
        self.beat.change(phase="training", training_since=self.trained.started_at)
        ending = self.training.wait(lambda: self._reason_to_end(spec.checkpoints.grace_s))
        if ending is None:
            self.trained.ended = self.training.finish()
            self._last_commit(FLUSH_LIMIT_S, TrainingEnd("finished" if self.trained.ended.code == 0 else "died"))
        else:
            self._end(ending)
        said = (
            sagemaker_scripts.failure(self.paths, self.ready.secrets) if spec.environment.contract is not None else ""
        )
        return judge(self.trained, self.paths.root, self.enclosure.group.folder, said, self.enclosure.fault)

    def _end(self, ending: Ending) -> None:
        """The training hears of it before anything else happens; then every second is for what can be resumed from."""
        assert self.sync is not None
        deadline_s = self.training.tell(ending, self.paths.notice)
        before = self.sync.status()
        if self.missing is not None:
            self.missing.look(before, self.training.trained_s, leaving=True)
        self.sync.press(deadline_s - time.monotonic())
        if self.outputs is not None:
            self.outputs.hold()
        self.beat.change(phase="saving")
        self.node.say(f"{ending.reason}: {ending.grace_s:.1f} s to save")
        ended = self.training.end(ending, self.paths.notice, self._last_commit, self.notices.look)
        save = replace(ended.save, commits=self.sync.status().commits - before.commits) if ended.save else None
        self.trained.ended = replace(ended, save=save)

    def _start_syncs(self, submission: Submission, place: Place, baseline: Baseline) -> None:
        spec = submission.spec
        assert self.peers is not None
        seen_at = [path for path in (job_folders.checkpoints_inside(spec),) if path is not None]
        confinement = job_folders.confinement(self.node, spec)
        selection = job_folders.checkpoint_selection(self.paths, spec, baseline, confinement)
        self.sync = CheckpointSync(
            self.store,
            job=self.config.job,
            claim=self.config.claim,
            rank=self.config.rank,
            nodes=self.config.nodes,
            folder=place.checkpoints,
            channel=self.paths.channel,
            scratch=self.paths.scratch,
            keep=spec.checkpoints.keep,
            restored=self.trained.restored,
            trust=self.trust,
            writing=lambda: open_for_writing(self.enclosure.group.members(), place.checkpoints, seen_at),
            peers=self.peers.ranks_with_files,
            lead_finished=lambda: self.peers is not None and self.peers.lead_finished,
            selection=selection,
        )
        self.sync.start()
        self.training.observer = self.sync
        if self.config.rank == 0:
            named = as_written(spec.checkpoints.dir)
            self.missing = MissingSaves(place.code, place.checkpoints, named, self.node.say, baseline, selection)
        files = job_folders.output_files(self.paths, spec, baseline, confinement)
        self.outputs = OutputSync(
            self.store, self.config.job, self.config.claim, self.config.rank, files, nodes=self.config.nodes
        )
        self.outputs.start()

    def _reason_to_end(self, grace_s: float) -> Ending | None:
        """Why the training must end now, if it must. `grace_s` is what it has where no cloud presses."""
        deadline_s = self.notices.look()
        if deadline_s is not None:
            assert self.notices.notice is not None
            left_s = max(0.0, deadline_s - time.monotonic())
            return Ending("notice", f"notice from {self.notices.notice.source}", left_s)
        self._pass_on_hint()
        if self.missing is not None and self.sync is not None:
            self.missing.look(self.sync.status(), self.training.trained_s)
        self.witness.look(self.watch.state)
        leave = self.watch.leave()
        if leave is not None:
            return Ending(leave.why, leave.reason, grace_s)
        peer = self.peers.left if self.peers else None
        if peer is not None:
            return Ending("peer", peer.reason, peer.grace_s if peer.grace_s is not None else grace_s)
        if self._runtime_left_s is not None and self.training.trained_s >= self._runtime_left_s:
            return Ending("limit", "limits.max_runtime is reached", grace_s)
        return None

    def _pass_on_hint(self) -> None:
        """A soft notice asks for a save, and for nothing else: the training goes on."""
        if self.notices.saves_asked == self._saves_passed_on:
            return
        self._saves_passed_on = self.notices.saves_asked
        assert self.notices.notice is not None and self.sync is not None
        try:
            ask_to_save(self.paths.save, self._saves_passed_on)
        except OSError as error:
            _log.warning("the training cannot be asked to save: %s", error)
        self.sync.poke()
        if self.missing is not None:
            self.missing.look(self.sync.status(), self.training.trained_s, noticed=True)
        self.node.say(f"notice from {self.notices.notice.source}: asked to save, going on")

    def _last_commit(self, seconds: float, end: TrainingEnd) -> bool:
        """Make durable what the training saved. True when there is nothing left to make durable."""
        assert self.sync is not None
        closing = Closing(seconds, self.notices.look)
        self.sync.final(seconds, end, until_s=closing.rest_by_s)
        status = self.sync.status()
        if status.held_back is not None:
            restored = self.trained.restored
            last = status.last.key if status.last else restored.key if restored else None
            known = attempts_of(self.watch.state) if self.watch.state is not None else {}
            kept = f"the checkpoint stays at {checkpoint_title(last, known)}" if last else "there is no checkpoint yet"
            self.node.say(f"{status.held_back}; {kept}")
        return status.unsynced_bytes == 0

    # ── Leaving ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _finish(self, left: Exit) -> None:
        """Everything durable, then the exit, then nothing more."""
        self.beat.change(phase="flushing")
        ended = self.trained.ended
        closing = Closing(FLUSH_LIMIT_S, lambda: self.notices.look() or (ended.deadline_s if ended else None))
        closing.rest_by_s()
        if left.outcome != "succeeded" and (ended is None or ended.ending is None):
            self.node.say(left.reason)
        left = self._say_what_is_kept(left)
        holding = not closing.pressing and hold.may_hold(left, self._spec)
        if holding:
            assert self._spec is not None
            span = span_text(self._spec.retry.hold_on_failure_s)
            self.node.say(f"if this ends the job, the machine is held for {span} at most; `stoker stop` gives it back")
        else:
            self.enclosure.leave()
        self._keep_uncommitted(left)
        left = self._flush_rest(left, closing)
        if holding:
            self.beat.change(phase="held")
        else:
            self.beat.stop(timeout_s=min(5.0, closing.share_s(0.5)))
        saved = self.sync.status() if self.sync is not None else None
        progress = self.metrics.progress if self.metrics is not None else None
        kept = self.outputs.report() if self.outputs is not None else None
        last_lines = self.logs.tail(CAUSE_LINES, CAUSE_BYTES)
        left = complete(left, saved, progress, last_lines, self._waste(), kept)
        written = self.node.write_exit(left, closing.exit_by_s())
        if not holding:
            self.enclosure.close()
        unmount_below(self.paths.mounts)
        if self.copy is not None:
            # A copy for people must not keep the next attempt waiting: what is slow comes after the exit.
            self.copy.drain(min(_COPY_LAST_S, max(0.0, closing.exit_by_s() - time.monotonic())))
            self.copy.stop()
        if holding:
            if written:
                self._hold()
            self.enclosure.close()
            self.beat.stop()
        self.watch.stop()

    def _say_what_is_kept(self, left: Exit) -> Exit:
        """Say in the job's log that nothing of the training is in the store, where it was asked to go or was killed, or
        saved elsewhere. A script that failed by itself and saved nowhere has nothing to be told."""
        if self.missing is None or self.sync is None or self._spec is None:
            return left
        status, ended = self.sync.status(), self.trained.ended
        if status.last is not None or self.trained.restored is not None or ended is None or left.outcome == "succeeded":
            return left
        self.missing.conclude(ended.trained_s)
        elsewhere = self.missing.elsewhere
        if elsewhere or ended.ending is not None or ended.signal is not None or left.outcome == "infrastructure":
            self.node.say(nothing_saved(as_written(self._spec.checkpoints.dir), elsewhere, written=status.files > 0))
        return replace(left, saves_elsewhere=elsewhere)

    def _keep_uncommitted(self, left: Exit) -> None:
        """Keep the last save of a job that may be over as outputs, where it could not be committed.

        Another attempt would save again: then it is not worth the time.
        """
        if self.sync is None or self.outputs is None or self._spec is None:
            return
        over = left.outcome in ("succeeded", "failed") or left.why in ("stop", "limit")
        files = self.sync.uncommitted() if over else {}
        if files:
            self.outputs.keep_saves(job_folders.checkpoint_folder(self.paths, self._spec), files)
            named = ", ".join(sorted(files)[:3]) + (f" and {len(files) - 3} more" if len(files) > 3 else "")
            self.node.say(f"kept as outputs, perhaps unfinished, since no checkpoint has them: {named}")

    def _flush_rest(self, left: Exit, closing: Closing) -> Exit:
        """What resumes is safe. With little time left each of the rest gets its share, and the exit keeps its own."""
        if self.readying is not None:
            keep_by_s = time.monotonic() + _KEEP_LAST_S
            # A machine that is taken away has no time for it.
            self.readying.settle(lambda: 0.0 if self.notices.look() is not None else keep_by_s)
        self.logs.drain(closing.share_s(1 / 2), closing.rest_by_s)
        if self.metrics is not None:
            self.metrics.drain(closing.share_s(1 / 2), closing.rest_by_s)
        safe = self.sync is None or self.sync.status().unsynced_bytes == 0
        if self.outputs is not None:
            # A machine that is taken away has no time for names that pulls do not need.
            done = self.outputs.final(closing.share_s(), until_s=closing.rest_by_s, publish=not closing.pressing)
            safe = done and safe
        if self.copy is not None and not closing.pressing:
            self.copy.drain(_COPY_FIRST_S)
        if self.sync is not None:
            self.sync.close()
        for worker in (self.peers, self.usage, self.preparing, self.activity):
            if worker is not None:
                worker.stop()
        for pump in (self.logs, self.metrics):
            if pump is not None:
                pump.stop(timeout_s=min(5.0, closing.share_s(1 / 2)))
        if left.outcome == "succeeded" and closing.pressing and not safe:
            # Else the job would have succeeded without what it was for. The next attempt finishes once more.
            reason = "the command finished, but the machine was taken before everything was safe"
            return replace(left, outcome="interrupted", why="notice", reason=reason)
        return left

    def _hold(self) -> None:
        assert self._spec is not None
        # Not a notice: there is nothing left to save, and nobody to hand over to.
        signalled = lambda: self._signalled  # noqa: E731
        over = hold.stay(self._spec, self.config.claim, lambda: self.watch.state, signalled, self.wake)
        _log.info("%s", over)

    # ── Reasons to leave ───────────────────────────────────────────────────────────────────────────────────────────

    def _leave_if_noticed(self) -> None:
        self.witness.look(self.watch.state)
        if self.notices.look() is not None:
            raise Left("notice", "given notice before the training started")
        if self.peers is not None and self.peers.left is not None:
            raise Left("peer", self.peers.left.reason)

    def _leave_if_told(self) -> None:
        self._leave_if_noticed()
        leave = self.watch.leave()
        if leave is not None:
            raise Left(leave.why, leave.reason)

    def _stop_if_left(self, *_progress: int) -> None:
        """Ends what nobody waits for any more, before its next file: what is left of the line is for the last words,
        and nothing is committed behind the exit."""
        if self._left.is_set():
            raise Left("notice", "this node has left")

    def _ask(self, question: Callable[[], T]) -> T:
        """Ask the store until it answers: before the training there is nothing better to do. Raises Left if told to go.

        Whatever is asked may be repeated, and be left half done: a notice leaves less time than a large checkpoint
        takes to come.
        """
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return run_watched(question, self._leave_if_told)
            except StoreUnavailable as error:
                _log.warning("%s", error)
            self._pause(pause_s)
            pause_s = min(_LONGEST_PAUSE_S, pause_s * 2)

    def _pause(self, seconds: float) -> None:
        sleep_interruptibly(seconds, self._leave_if_told)

    def _cut_mounts(self) -> None:
        if self.readying is not None:
            self.readying.cut_mounts()

    def _on_signal(self, _number: int, _frame: object) -> None:
        self._signalled = True
        self.notices.take_signal()
        self.wake.set()

    # ── Small things ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _refresh(self, beat: Heartbeat) -> Heartbeat:
        """Called by the heartbeat before each write."""
        changes: dict[str, object] = {"trained_s": self.training.trained_s, "usage": self.usage.latest}
        if beat.restored_from is not None and self.trained.restored is not None:
            changes["restored_step"] = self.trained.restored.step
        if self.metrics is not None:
            progress = self.metrics.progress
            changes |= {"step": progress.last_step, "first_step": progress.first_step}
            changes |= {"metrics": progress.values, "trends": progress.trends}
            self.activity.stepped(progress.last_step, progress.moves)
            self.activity.reported(progress.values)
        status = self.sync.status() if self.sync is not None else None
        if status is not None:
            self.activity.saved((status.files, status.unsynced_bytes, status.bytes_moved, status.commits))
        changes |= {"activity": self.activity.fact() or self.preparing.fact(), "waste": self._waste()}
        problems = [self.logs.status.error, self.watch.error, self.copy.warning if self.copy else None]
        if status is not None:
            changes |= {
                "checkpoint": status.last,
                "checkpoint_files": status.files,
                "unsynced_bytes": status.unsynced_bytes,
            }
            problems += [status.error, status.held_back]
        if self.missing is not None:
            problems.append(self.missing.warning)
            changes["saves_elsewhere"] = self.missing.elsewhere
        changes["warnings"] = tuple(dict.fromkeys(problem for problem in problems if problem))
        return replace(beat, **changes)  # type: ignore[arg-type]

    def _is_calm(self, beat: Heartbeat) -> bool:
        return is_calm(beat, self.watch.state, self.config.claim, self.config.rank)

    def _waste(self) -> Waste:
        """What of its time led nowhere, so far."""
        claim, trained_s = self.watch.claim(), self.training.trained_s
        last_s = self.sync.status().last_age_s if self.sync is not None else None
        # A checkpoint that became durable after the end of the training has all of it.
        since_s = None if last_s is None else max(0.0, last_s - self.training.over_s)
        return Waste(
            waited_s=round(self._waited_s, 3),
            idle_s=self.activity.idle_s(claim.offering.gpus if claim is not None else 0),
            lost_s=round(trained_s if since_s is None else min(trained_s, since_s), 3),
        )

    def _testify(self) -> bytes:
        early, log = self.trained.started_at is None, self.paths.train_log
        members = self.preparing.members() if early else self.enclosure.group.members()
        secrets = {**(self.readying.secrets if self.readying is not None else {}), **self.ready.secrets}
        return testify(members, log, secrets, spy=self._spy(), gpu_processes=Gpus().processes, agent=early)

    def _spy(self) -> Path | None:
        """py-spy, fetched now where it is not installed. The rest of the evidence does not wait for it."""
        try:
            return find_spy() or fetch_program(self.store, self._tools, "py-spy", self.node.environments)
        except (SetupFailed, StoreError, OSError) as error:
            self.node.say(f"py-spy cannot be had: {error}")
            return None

    def _take_usage(self, usage: Usage) -> None:
        if self.metrics is not None:
            self.metrics.add_usage(usage)

    def _scan(self, data: bytes, at: float) -> None:
        if self.copy is not None:
            self.copy.feed(data, at)
        self.preparing.heard(data)
        self.activity.heard(data)
        if self.metrics is not None:
            self.metrics.scan(data, at)
