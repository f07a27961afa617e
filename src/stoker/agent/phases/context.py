"""The threads and the shared state of one attempt on one node."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from pathlib import Path

from stoker.agent.checkpoints.copy_thread import CheckpointCopies
from stoker.agent.checkpoints.sync import CheckpointSync
from stoker.agent.exit_report import TrainingRecord
from stoker.agent.fetch_programs import fetch_program
from stoker.agent.health.activity import ActivityRecorder
from stoker.agent.health.activity_probe import ActivityProbe, count_unreadable_accelerators
from stoker.agent.health.missing_saves import MissingSaves
from stoker.agent.health.setup_activity import SetupActivity
from stoker.agent.health.stack_dump import StackDumpRequests, collect_stack_dump, find_py_spy
from stoker.agent.health.usage_sampler import GpuReader, UsageSampler, UsageThread
from stoker.agent.heartbeat import HeartbeatThread, is_steady
from stoker.agent.job_log_watch import JobLogWatch
from stoker.agent.logs.cloud_copy import LogCopy
from stoker.agent.logs.log_pump import LogPump
from stoker.agent.metrics import MetricsPump
from stoker.agent.node import AgentNode
from stoker.agent.notices import Notices
from stoker.agent.output_sync import OutputSync
from stoker.agent.phases.leaving import LeaveChecks
from stoker.agent.runtime import HostRuntime, Runtime
from stoker.agent.setup import Setup, SetupResult
from stoker.agent.supervise import Training
from stoker.model.errors import SetupFailed, StoreError
from stoker.model.log_entries import Waste
from stoker.model.node_config import NodeConfig, NodePaths
from stoker.model.node_facts import AgentPhase, Heartbeat, Usage
from stoker.model.spec import Spec
from stoker.model.submission import Submission
from stoker.processes import TRAINING, make_group
from stoker.providers.base import HasEnvironmentCache
from stoker.store.base import Store


@dataclass
class Pumps:
    """Threads that bring what the training prints and reports to the store, and to the cloud's own log service."""

    logs: LogPump
    # Known when the submission has been read.
    metrics: MetricsPump | None = None
    copy: LogCopy | None = None


@dataclass
class Monitors:
    """Threads that watch the machine, the set-up and the training for the heartbeat."""

    usage: UsageThread
    setup: SetupActivity
    training: ActivityRecorder
    stack_dumps: StackDumpRequests


@dataclass
class Syncs:
    """Threads that bring the training's files to the store. All are None before the training is about to start."""

    checkpoints: CheckpointSync | None = None
    outputs: OutputSync | None = None
    # On rank 0 alone. `copies` only with `checkpoints.copy_to`.
    missing: MissingSaves | None = None
    copies: CheckpointCopies | None = None


class AttemptContext:
    """Everything that the phases of one attempt share. Creating it starts no thread."""

    def __init__(self, node: AgentNode) -> None:
        config, paths = node.config, node.paths
        self.node = node
        self.wake = threading.Event()
        self.log_watch = JobLogWatch(node.store, config.job, config.claim, config.instance)
        self.notices = Notices(node)
        self.heartbeat = HeartbeatThread(node.store, node.key, self.fill_heartbeat, self._is_steady)
        self.pumps = Pumps(
            LogPump(node.store, node.key, paths.train_log, earlier=node.earlier, tap=self.take_output),
        )
        self.monitors = self._make_monitors()
        self.leaving = LeaveChecks(self.log_watch, self.notices, self.monitors.stack_dumps)
        group = make_group(TRAINING, config.instance, sessions=paths.root / "training.sessions")
        self.runtime: Runtime = HostRuntime(group)
        self.training = Training(self.runtime, self.wake, self._cut_mounts, node.say)
        self.setup: Setup | None = None
        self.setup_result = SetupResult({}, {})
        self.syncs = Syncs()
        self.record = TrainingRecord()
        self.submission: Submission | None = None

    @property
    def config(self) -> NodeConfig:
        return self.node.config

    @property
    def paths(self) -> NodePaths:
        return self.node.paths

    @property
    def store(self) -> Store:
        return self.node.store

    @property
    def spec(self) -> Spec | None:
        """The job's spec; None until the submission has been read."""
        return self.submission.spec if self.submission is not None else None

    def deadline_s(self) -> float | None:
        """The monotonic time by which this node must be gone, after its training; None while nothing demands that.

        A notice, an entry of the log, or the request that ended the training.
        """
        leave_by_s = self.leaving.deadline_s(self.spec.checkpoints.grace_s if self.spec is not None else None)
        outcome = self.record.outcome
        ends = (leave_by_s, outcome.deadline_s if outcome else None)
        return min((end for end in ends if end is not None), default=None)

    def begin_phase(self, phase: AgentPhase, **changes: str | None) -> None:
        """Enter a phase before the training. It has no time limit, so its activity is recorded instead."""
        self.monitors.setup.begin()
        self.heartbeat.change(phase=phase, **changes)

    def wait_for_others(self, seconds: float) -> None:
        """Pause for another rank, or a driver. The wait is reported, so that it is no standstill. Raises LeaveEarly."""
        self.monitors.setup.note_waiting()
        self.leaving.pause(seconds)

    def use_runtime(self, runtime: Runtime) -> None:
        """Run the set-up and the training in `runtime` instead of on the machine itself."""
        self.runtime = runtime
        self.training = Training(runtime, self.wake, self._cut_mounts, self.node.say)

    def take_signal(self, _number: int, _frame: object) -> None:
        """Handle SIGTERM: the machine is being shut down."""
        self.notices.take_signal()
        self.wake.set()

    def take_output(self, data: bytes, at: float) -> None:
        """Give a block of the training's log to everything that reads it."""
        if self.pumps.copy is not None:
            self.pumps.copy.feed(data, at)
        self.monitors.setup.note_output(data)
        self.monitors.training.note_output(data)
        if self.pumps.metrics is not None:
            self.pumps.metrics.scan(data, at)

    def take_usage(self, usage: Usage) -> None:
        """Give a sample of the machine to the metrics."""
        if self.pumps.metrics is not None:
            self.pumps.metrics.add_usage(usage)

    def fill_heartbeat(self, heartbeat: Heartbeat) -> Heartbeat:
        """Return the heartbeat with the present state of this node. Called before each write."""
        training, activity = self.training, self.monitors.training
        changes: dict[str, object] = {"trained_s": training.trained_s, "usage": self.monitors.usage.latest}
        if heartbeat.restored_from is not None and self.record.restored is not None:
            changes["restored_step"] = self.record.restored.step
        if self.pumps.metrics is not None:
            progress = self.pumps.metrics.progress
            changes |= {"step": progress.last_step, "first_step": progress.first_step}
            changes |= {"metrics": progress.values, "trends": progress.trends}
            activity.note_step(progress.last_step, progress.moves)
            activity.note_metrics(progress.values)
        status = self.syncs.checkpoints.status() if self.syncs.checkpoints is not None else None
        if status is not None:
            activity.note_checkpoints((status.files, status.unsynced_bytes, status.bytes_moved, status.commits))
        changes |= {"activity": activity.report() or self.monitors.setup.report(), "waste": self.waste()}
        copy = self.pumps.copy
        problems = [self.pumps.logs.status.error, self.log_watch.error, copy.warning if copy else None]
        if status is not None:
            changes |= {
                "checkpoint": status.last,
                "checkpoint_files": status.files,
                "unsynced_bytes": status.unsynced_bytes,
            }
            problems += [status.error, status.held_back]
        if self.syncs.copies is not None:
            problems.append(self.syncs.copies.warning)
        if self.syncs.missing is not None:
            problems.append(self.syncs.missing.warning)
            changes["saves_elsewhere"] = self.syncs.missing.elsewhere
        changes["warnings"] = tuple(dict.fromkeys(problem for problem in problems if problem))
        return replace(heartbeat, **changes)  # type: ignore[arg-type]

    def waste(self) -> Waste:
        """The node's time so far that brought the job no further: waiting, idle accelerators, unsaved training."""
        claim, trained_s = self.log_watch.claim(), self.training.trained_s
        last_s = self.syncs.checkpoints.status().last_age_s if self.syncs.checkpoints is not None else None
        # Training after the begin of the save is not in it.
        since_s = None if last_s is None else max(0.0, last_s - self.training.over_s)
        asked_s = self.training.asked_s
        if last_s is not None and asked_s is not None and last_s <= asked_s:
            # The training saved because it was asked to end, and then trained no more.
            since_s = 0.0
        return Waste(
            waited_s=round(self.record.waited_s, 3),
            idle_s=self.monitors.training.idle_s(claim.offering.gpus if claim is not None else 0),
            lost_s=round(trained_s if since_s is None else min(trained_s, since_s), 3),
        )

    def collect_stacks(self) -> bytes:
        """Return a stack dump of the training; before its start, of the set-up's processes and of the agent."""
        early, log = self.record.started_at is None, self.paths.train_log
        members = self.monitors.setup.members() if early else self.runtime.group.members()
        secrets = {**(self.setup.secrets if self.setup is not None else {}), **self.setup_result.secrets}
        return collect_stack_dump(
            members, log, secrets, spy=self.find_py_spy(), gpu_processes=GpuReader().processes, agent=early
        )

    def find_py_spy(self) -> Path | None:
        """Return py-spy, fetched now if it is not installed. Without it the other parts of a stack dump are written."""
        tools = self.submission.tools if self.submission is not None else {}
        try:
            return find_py_spy() or fetch_program(self.store, tools, "py-spy", self.node.environments)
        except (SetupFailed, StoreError, OSError) as error:
            self.node.say(f"py-spy is not available: {error}")
            return None

    def _make_monitors(self) -> Monitors:
        shared = isinstance(self.node.machine, HasEnvironmentCache)

        # Looked up at each call: a container replaces the runtime later, and set-up and sync begin later.
        def members() -> set[int]:
            return self.runtime.group.members()

        def is_pulling() -> bool:
            return self.setup is not None and self.setup.pulling

        def is_sending() -> bool:
            return self.syncs.checkpoints is not None and self.syncs.checkpoints.is_sending

        probe = ActivityProbe(GpuReader().utilization, members, shared=shared, sending=is_sending)
        return Monitors(
            usage=UsageThread(UsageSampler(self.paths.root), self.take_usage),
            setup=SetupActivity(members, is_pulling, shared=shared),
            training=ActivityRecorder(probe, unreadable=count_unreadable_accelerators()),
            stack_dumps=StackDumpRequests(self.node, self.heartbeat, self.collect_stacks),
        )

    def _is_steady(self, heartbeat: Heartbeat) -> bool:
        return is_steady(heartbeat, self.log_watch.state, self.config.claim, self.config.rank)

    def _cut_mounts(self) -> None:
        if self.setup is not None:
            self.setup.cut_mounts()
