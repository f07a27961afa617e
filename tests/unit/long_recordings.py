"""Hours of a training in virtual time, made of what a real GPU showed: recorder, heartbeat, store, rules and ladder.

Each activity is the recorded one, second by second, repeated for as long as it is wanted; counters go on from where
they were. The clock is the test's. Everything else is what runs on a node and in a governor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from stoker.agent.health.activity import ActivityRecorder
from stoker.agent.health.activity_probe import ActivitySample
from stoker.agent.heartbeat import REMOTE_INTERVAL_S, HeartbeatThread, is_steady
from stoker.agent.metric_progress import StepCount
from stoker.core.decide import decide_job
from stoker.core.governor_settings import DEFAULT, GovernorSettings
from stoker.core.snapshot import Append
from stoker.model import keys
from stoker.model.job_state import fold
from stoker.model.log_entries import Claimed, Draining, Entry, Event, Launched, NodeRef, Submitted, Warned
from stoker.model.node_facts import CheckpointRef, Heartbeat
from stoker.model.spec import Limits
from stoker.policy.policy_file import parse_policy
from stoker.store import node_facts
from stoker.testing.memory_store import MemoryStore
from tests.support.playback import RECORDED
from tests.support.sim_data import JOB, SPOT_A, at, make_snapshot, make_spec

HOUR_S = 3600
# Imports and the first use of the GPU are over by then.
_FROM, _TO = 12, 38
GOVERNED_EVERY_S = 15
LOOKED_EVERY_S = round(REMOTE_INTERVAL_S)


@dataclass(frozen=True)
class Second:
    """What one second of a recording adds."""

    gpu: float | None
    cpu_s: float
    moved: float
    steps: int
    lines: int


def seconds_of(name: str) -> Iterator[Second]:
    """An activity for ever. `spinning` is a collective that waits: the GPU and a core at 100 %, and nothing else."""
    if name == "spinning":
        while True:
            yield Second(1.0, 1.0, 0.0, 0, 0)
    recorded: dict[str, Any] = RECORDED[name]
    moved = [recorded["disk_bytes"][n] + recorded["net_bytes"][n] for n in range(len(recorded["gpu"]))]
    while True:
        for n in range(_FROM, _TO):
            steps = [recorded["step"][m] or 0 for m in (n - 1, n)]
            yield Second(
                gpu=recorded["gpu"][n] / 100,
                cpu_s=recorded["cpu_s"][n] - recorded["cpu_s"][n - 1],
                moved=float(moved[n] - moved[n - 1]),
                steps=max(0, steps[1] - steps[0]),
                lines=recorded["lines"][n] - recorded["lines"][n - 1],
            )


@dataclass
class LongJob:
    """One job on one node. `policy` has its rules; the log is what its governor decided."""

    policy: str = "stall: {}"
    limits: Limits = field(default_factory=Limits)
    # Its heartbeats are rare while all is calm.
    calm: bool = True
    # Its steps begin anew after so many; 0: never.
    counted_in: int = 0
    now_s: int = 0
    told: list[tuple[int, Event, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.settings: GovernorSettings = replace(
            DEFAULT, policy=parse_policy(f"rules: [{{name: hangs, {self.policy}}}]".encode(), "p")
        )
        self.store = MemoryStore(lambda: at(self.now_s))
        self.recorder = ActivityRecorder(_nobody_looks, monotonic=lambda: float(self.now_s))
        self.recorder.begin(sample=False)
        node = keys.node(JOB, 2, 0, keys.boot("i-2-0", 0))
        self.beat = HeartbeatThread(self.store, node, self._refresh, self._is_calm, monotonic=lambda: float(self.now_s))
        self.beat.change(phase="training", checkpoint=CheckpointRef("c1", "1"))
        self.entries = [
            Entry(1, at(0), "", Submitted(spec_digest="0" * 64, submitter="jane")),
            Entry(2, at(0), "", Claimed(offering=replace(SPOT_A, gpus=1), nodes=1)),
            Entry(3, at(0), "", Launched(2, (NodeRef(0, "i-2-0"),))),
        ]
        self.cpu_s = self.moved = 0.0
        self.step: int | None = None
        self.count = StepCount()
        self.ended_at: int | None = None

    def live(
        self,
        name: str,
        seconds: int,
        *,
        line_every_s: int = 0,
        twitch_every_s: int = 0,
        steps: bool = True,
        saves: bool = False,
        debugged: bool = False,
        repeats: tuple[int, ...] = (),
        heard: bool = True,
    ) -> LongJob:
        """Go on with an activity. `line_every_s`: a side thread logs; `twitch_every_s`: one core works for a second;
        `steps`: as recorded; `saves`: its checkpoint folder grows; `debugged`: a person has stopped it; `repeats`: side
        threads report the last step less so much, again and again; not `heard`: its heartbeats do not reach the store.
        """
        for number, second in zip(range(seconds), seconds_of(name), strict=False):
            if self.ended_at is not None:
                break
            self.now_s += 1
            twitches = twitch_every_s and number % twitch_every_s == 0
            self.cpu_s += 1.0 if twitches else 0.0 if debugged else second.cpu_s
            self.moved += 0.0 if debugged else second.moved
            self.recorder.take(ActivitySample((second.gpu,), self.cpu_s, self.moved, debugged=debugged))
            for _ in range(second.steps if steps and not debugged else 0):
                self.step = 0 if self.step is None else self.step + 1
                if self.counted_in:
                    self.step %= self.counted_in
                self.count.note(self.step, {})
            for less in repeats:
                self.count.note((self.step or 0) - less, {"waits": 1.0})
            if (second.lines and not debugged) or (line_every_s and number % line_every_s == 0):
                self.recorder.note_output(b"still syncing\n")
            if saves:
                self.recorder.note_checkpoints(self.now_s)
            if self.now_s % LOOKED_EVERY_S == 0 and heard:
                self.beat.tick()
            if self.now_s % GOVERNED_EVERY_S == 0:
                self._govern()
        return self

    def words(self, code: str = "policy:hangs") -> list[int]:
        return [at_s for at_s, event, _ in self.told if isinstance(event, Warned) and event.code.startswith(code)]

    def _refresh(self, beat: Heartbeat) -> Heartbeat:
        if self.step is not None and not self.count.moves:
            self.count.note(self.step, {})
        self.recorder.note_step(self.step, self.count.moves)
        return replace(beat, step=self.step, trained_s=float(self.now_s), activity=self.recorder.report())

    def _is_calm(self, beat: Heartbeat) -> bool:
        return self.calm and is_steady(beat, fold(JOB, self.entries), 2, 0)

    def _govern(self) -> None:
        state = fold(JOB, self.entries)
        assert state is not None
        (claim,) = state.open_claims
        found = node_facts.read_claim(self.store, JOB, claim)
        job = make_snapshot(state, *found, spec=make_spec(limits=self.limits))
        for action in decide_job(job, self.settings, at(self.now_s)).actions:
            assert isinstance(action, Append), action
            self.told.append((self.now_s, action.event, action.reason))
            self.entries.append(Entry(action.seq, at(self.now_s), action.reason, action.event))
            if isinstance(action.event, Warned) and action.event.evidence:
                # Its agent has collected it by the next heartbeat.
                self.beat.change(evidence=(*self.beat.now.evidence, action.event.code))
            if isinstance(action.event, Draining):
                self.ended_at = self.now_s


def _nobody_looks() -> ActivitySample:
    raise AssertionError("the test looks")
