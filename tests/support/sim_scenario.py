"""What a seed stands for: the job, the faults, and what happens to it when."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from stoker.model.job_state import JobState
from stoker.model.offerings import Capabilities
from stoker.model.spec import Limits, Spec
from stoker.store.base import Store
from tests.support.sim_data import CAPABILITIES, make_spec

INCIDENTS = (
    *("notice",) * 5,
    *("short_notice",) * 3,
    "soft_notice",
    *("vanish",) * 3,
    *("partition",) * 3,
    *("agent_death",) * 3,
    *("stop",) * 3,
    *("resume",) * 2,
    "outage",
    "governor_pause",
)

# The chance that a call of a governor, or of the cloud, goes wrong in this way while faults are on.
RATES: dict[str, tuple[float, ...]] = {
    "crash": (0.0, 0.003, 0.01, 0.03),
    "interleave": (0.02, 0.1, 0.3),
    "store_before": (0.0, 0.0, 0.01),
    "store_after": (0.0, 0.0, 0.02),
    "no_capacity": (0.0, 0.1, 0.4),
    "quota": (0.0, 0.0, 0.0, 0.02),
    "partial_gang": (0.0, 0.3),
    "lost_reply": (0.0, 0.2, 0.5),
    "stale_list": (0.0, 0.2, 0.6),
    "throttled": (0.0, 0.0, 0.05),
    "transient": (0.0, 0.0, 0.05),
    "never_boots": (0.0, 0.0, 0.15),
}


@dataclass
class SimJob:
    """A job and the truth about it. `work`, `every` and `fails_at` are steps; `pace` is steps a second."""

    name: str
    spec: Spec
    work: int
    every: int
    pace: float
    fails_at: int | None = None
    poison_from: int | None = None
    poisoned: set[str] = field(default_factory=set)
    # Truth, as the world keeps it.
    state: JobState | None = None
    durable: list[tuple[str, int]] = field(default_factory=list)
    restored_by: int = 0
    succeeded: dict[int, set[int]] = field(default_factory=dict)
    # Since when its tombstone is there.
    removed_at_s: float | None = None

    def is_poisoned(self, key: str | None) -> bool:
        return key is not None and key in self.poisoned

    @staticmethod
    def step_of(key: str | None) -> int:
        return int(key.rpartition("step-")[2]) if key else 0

    def newest(self, store: Store, state: JobState | None) -> str | None:
        """What the next attempt restores: the newest checkpoint that the log has not given up on."""
        return max(self._usable(store, state), default=None)

    def older_than(self, store: Store, state: JobState | None, key: str | None) -> int:
        return sum(1 for other in self._usable(store, state) if key is not None and other < key)

    def _usable(self, store: Store, state: JobState | None) -> list[str]:
        from stoker.model import keys
        from tests.support.sim_agent import poisoned_in

        prefix = keys.checkpoints(self.name)
        key_list = [meta.key.removeprefix(prefix).removesuffix(".json") for meta in store.list(prefix)]
        given_up = poisoned_in(state)
        return [key for key in key_list if not given_up.covers(key)]


@dataclass(frozen=True)
class Scenario:
    """Everything that a seed decides before the first event."""

    seed: int
    governors: int
    skewed: bool
    capabilities: Capabilities
    rates: dict[str, float]
    incidents: tuple[tuple[float, str], ...]
    # When faults stop for good.
    faults_until_s: float
    # The chance that a write lands only after its caller gave up, and that it lands twice.
    late: float = 0.0
    again: float = 0.0
    # Whether a person removes jobs soon after they have ended.
    removes: bool = False


def make_scenario(seed: int, source: random.Random) -> tuple[Scenario, list[SimJob]]:
    """The scenario of a seed, and its jobs."""
    pick = source.choice
    incidents: list[tuple[float, str]] = []
    for _ in range(pick((0, 1, 1, 2, 2, 3, 3, 4, 6))):
        # Troubles come in company: often soon after another.
        close = incidents and source.random() < 0.4
        moment_s = incidents[-1][0] + source.uniform(0.0, 40.0) if close else source.uniform(5.0, 400.0)
        incidents.append((moment_s, pick(INCIDENTS)))
    # Of another source, so that seeds went on to tell the stories they were known for when this came.
    late = random.Random(f"late {seed}")
    scenario = Scenario(
        seed=seed,
        governors=pick((1, 1, 2, 2, 2, 3)),
        skewed=pick((True, False)),
        capabilities=replace(CAPABILITIES, token_lifetime_s=pick((3600.0, 3600.0, 200.0))),
        rates={name: pick(chances) for name, chances in RATES.items()},
        incidents=tuple(incidents),
        faults_until_s=900.0,
        late=late.choice((0.0, 0.0, 0.01, 0.05)),
        again=late.choice((0.0, 0.0, 0.05, 0.2)),
        removes=late.random() < 0.4,
    )
    jobs = [_make_job(f"job-{n}", source) for n in range(pick((1, 1, 1, 1, 2)))]
    # Of another source, so that seeds went on to tell the stories they were known for when this came.
    held_s = random.Random(f"hold {seed}").choice((0.0, 0.0, 60.0, 600.0))
    wait_s = random.Random(f"spot {seed}").choice((None, None, 60.0, 600.0))
    self_end_s = random.Random(f"self-end {seed}").choice((0.0, 60.0))
    scenario = replace(scenario, capabilities=replace(scenario.capabilities, self_end_s=self_end_s))
    for job in jobs:
        job.spec = replace(job.spec, retry=replace(job.spec.retry, hold_on_failure_s=held_s, spot_wait_s=wait_s))
    return scenario, jobs


def _make_job(name: str, source: random.Random) -> SimJob:
    pick = source.choice
    limits = Limits(
        max_runtime_s=pick((None, None, None, 120.0, 2000.0)),
        max_cost=pick((None, None, None, 1.0, 0.2)),
        max_wait_s=pick((None, None, 1500.0)),
    )
    work = pick((20, 100, 250, 400))
    return SimJob(
        name=name,
        spec=make_spec(
            pick((1, 1, 1, 2, 2, 3)),
            spot=pick(("prefer", "prefer", "only", "never")),
            limits=limits,
            user_errors=pick((0, 0, 2)),
        ),
        work=work,
        every=pick((5, 20, 60)),
        pace=1.0,
        fails_at=pick((None,) * 7 + (1, work // 2)),
        poison_from=pick((None,) * 6 + (work // 3,)),
    )
