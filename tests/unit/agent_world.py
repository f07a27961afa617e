"""A job in a store in memory, and agents of its nodes that live in the process of the test."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from noticing_machine import Here
from plain_store import wait_for

from stoker.agent.attempt import run_attempt
from stoker.agent.node import AgentNode
from stoker.agent.phases.context import AttemptContext
from stoker.model import codec, keys
from stoker.model.job_state import Claim, JobState
from stoker.model.log_entries import Claimed, Event, Launched, NodeRef, Record, Submitted
from stoker.model.node_config import NodeConfig, NodePaths
from stoker.model.node_facts import Exit, Heartbeat
from stoker.model.observed import Known
from stoker.model.offerings import Offering
from stoker.model.spec import Spec
from stoker.model.submission import Submission
from stoker.store import job_log
from stoker.store.log_chunks import parse_segments
from stoker.store.node_facts import read_fact
from stoker.testing.memory_store import Faults, MemoryStore

JOB = "job-0a1b"
OFFERING = Offering("gce", "n2-standard-2", "us-central1-a", spot=True)


class AgentWorld:
    """One job. `claim` opens its next attempt, `life` is the agent of one of its nodes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        # Two processes that test at once must not end each other's trainings.
        self._machines = secrets.token_hex(4)
        self.store = MemoryStore(lambda: datetime.now(timezone.utc), is_local=True)
        self._lives: list[AttemptContext] = []
        self._errors: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    @property
    def state(self) -> JobState:
        found = job_log.read(self.store, JOB)
        assert found is not None
        return found

    def append(self, event: Event, reason: str = "for the test") -> int:
        """Write an entry of the log; its number."""
        state = job_log.read(self.store, JOB)
        number = state.seq + 1 if state else 1
        assert job_log.append(self.store, JOB, number, Record(job_log.new_token(), "test", reason, event))
        return number

    def submit(self, *run: str, **spec: Any) -> Submission:
        submission = Submission(JOB, Spec(**{"name": "job", "run": run} | spec), "test")
        data = codec.dumps(submission)
        self.store.put(keys.spec(JOB), data)
        self.append(Submitted(spec_digest=codec.digest(data), submitter="test"))
        return submission

    def claim(self, nodes: int = 1, *, launched: bool = True, offering: Offering = OFFERING, **more: Any) -> Claim:
        """The next attempt."""
        number = self.append(Claimed(offering, nodes=nodes, **more))
        if launched:
            self.launch(number, nodes)
        found = self.state.claim(number)
        assert found is not None
        return found

    def launch(self, number: int, nodes: int = 1) -> None:
        named = (NodeRef(rank, self.instance(number, rank)) for rank in range(nodes))
        self.append(Launched(claim=number, nodes=tuple(named)))

    def instance(self, number: int, rank: int) -> str:
        return f"z.{self._machines}.{number}.{rank}"

    def node(
        self, claim: Claim, rank: int = 0, *, machine: Here | None = None, faults: Faults | None = None, boots: int = 0
    ) -> AgentNode:
        instance = self.instance(claim.number, rank)
        paths = NodePaths(self.root / instance)
        paths.channel.mkdir(parents=True, exist_ok=True)
        config = NodeConfig("memory://", "gce", JOB, claim.number, rank, claim.nodes, instance)
        key_list = [keys.node(JOB, claim.number, rank, keys.boot(instance, boot)) for boot in range(boots + 1)]
        return AgentNode(
            config, paths, self.store.client(faults), machine or Here(), key_list[-1], tuple(key_list[:-1])
        )

    def life(
        self, claim: Claim, rank: int = 0, *, machine: Here | None = None, faults: Faults | None = None
    ) -> AttemptContext:
        life = AttemptContext(self.node(claim, rank, machine=machine, faults=faults))
        self._lives.append(life)
        return life

    def beat(self, life: AttemptContext) -> Heartbeat | None:
        found = read_fact(self.store, keys.heartbeat(life.node.key), Heartbeat)
        assert isinstance(found, Known)
        return found.value.value if found.value else None

    def exit_of(self, life: AttemptContext) -> Exit:
        found = read_fact(self.store, keys.exit_(life.node.key), Exit)
        assert isinstance(found, Known) and found.value is not None, "there is no exit"
        return found.value.value

    def has_exit(self, life: AttemptContext) -> bool:
        return self.store.holds(keys.exit_(life.node.key))

    def log_of(self, life: AttemptContext) -> str:
        """What the store has of its log."""
        found = [self.store.get(meta.key) for meta in self.store.list(f"{life.node.key}/log/")]
        parts = (segment for one in found if one is not None for segment in parse_segments(one.data).segments)
        return b"".join(segment.data for segment in sorted(parts, key=lambda segment: segment.offset)).decode()

    def meanwhile(self, *steps: Callable[[], object]) -> None:
        """Take these steps one after another while an agent lives in the test's own thread."""

        def work() -> None:
            try:
                for step in steps:
                    step()
            except BaseException as error:  # noqa: BLE001 - the test raises it
                self._errors.append(error)
                for life in self._lives:
                    life.take_signal(0, None)  # Else the test would wait for an end that does not come.

        thread = threading.Thread(target=work, name="meanwhile", daemon=True)
        self._threads.append(thread)
        thread.start()

    def run(self, life: AttemptContext) -> Exit:
        """Live, then wait for what goes on meanwhile."""
        run_attempt(life)
        self.join()
        return self.exit_of(life)

    def join(self) -> None:
        for thread in self._threads:
            thread.join(60.0)
        for error in self._errors:
            raise error

    def until_phase(self, life: AttemptContext, phase: str) -> Callable[[], None]:
        def reached() -> bool:
            beat = self.beat(life)
            return beat is not None and beat.phase == phase

        return lambda: wait_for(reached)
