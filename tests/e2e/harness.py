"""A small world for each test: its own home, store, code folder, and a place where scripts keep their own record.

Jobs run as real processes. Tests wait for conditions, never for seconds, and look at what happened afterwards: the
job's summary and log lines as Stoker tells them, and the script's own journal, which Stoker knows nothing about.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from stoker import Job, client
from stoker.core.summary import Summary
from stoker.governor.connected_providers import Fleet
from stoker.governor.observe import active_jobs
from stoker.model.job_state import Claim, JobState
from stoker.model.node_facts import Heartbeat
from stoker.model.observed import Known
from stoker.processes import Process
from stoker.read.logs import read_lines
from stoker.read.node_chunks import boots, node_logs
from stoker.store import job_log, node_facts
from stoker.store.base import Store, open_store
from stoker.store.checkpoints import Checkpoint, list_checkpoints
from stoker.store.log_chunks import list_chunks, parse_segments

T = TypeVar("T")

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
# Long enough for two busy cores. Reaching it is a failure, never a pass.
PATIENCE_S = 120.0
CGROUPS = Path("/sys/fs/cgroup")


def until(condition: Callable[[], T | None], what: str, timeout_s: float = PATIENCE_S, pause_s: float = 0.05) -> T:
    """Wait until the condition gives something true, and answer that.

    A condition that takes long is asked less often: who waits leaves the cores to those that are waited for.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        asked = time.monotonic()
        found = condition()
        if found:
            return found
        now = time.monotonic()
        assert now < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(max(pause_s, 3 * (now - asked)))


def chain(steps: int) -> str:
    """What `scripts/counter.py` has learnt after so many steps, however often it was interrupted."""
    link = ""
    for step in range(1, steps + 1):
        link = hashlib.sha256(f"{link}{step}".encode()).hexdigest()
    return link


@dataclass(frozen=True)
class Record:
    """One line of a script's own journal."""

    kind: str
    attempt: int
    rank: int
    step: int
    text: str


class World:
    """One test's home, store and code. `truth` is where scripts write what they did."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = root / "home"
        self.folder = root / "store"
        self.url = self.folder.as_uri()
        self.code = root / "code"
        self.truth = root / "truth"
        for folder in (self.home, self.code, self.truth):
            folder.mkdir(exist_ok=True)
        self._started: list[subprocess.Popen[bytes]] = []
        self._opened: tuple[tuple[str, dict[str, str]], Store] | None = None

    @property
    def store(self) -> Store:
        """Opened once for each address and environment: a bucket takes up to 25 ms of a core, and waits ask often."""
        opened_with = (self.url, dict(os.environ))
        if self._opened is None or self._opened[0] != opened_with:
            self._opened = opened_with, open_store(self.url)
        return self._opened[1]

    # ── Jobs ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    def script(self, name: str) -> None:
        """Take one of `scripts/` as the code folder's train.py."""
        shutil.copyfile(HERE / "scripts" / name, self.code / "train.py")

    def write(self, text: str) -> None:
        """Write the code folder's train.py."""
        (self.code / "train.py").write_text(text)

    def job(self, **fields: Any) -> Job:
        """A job of the code folder, with the place of the script's own record in its environment."""
        fields.setdefault("run", ["python", "train.py"])
        fields.setdefault("name", "job")
        fields["env"] = {"TRUTH": str(self.truth)} | fields.get("env", {})
        fields.setdefault("code", str(self.code))
        return Job(**fields)

    def submit(self, *, detach: bool = True, **fields: Any) -> str:
        """Submit it. Detached, a governor in the background carries it on, and ends with it."""
        return client.submit(self.job(**fields), store=self.url, detach=detach)

    def run(self, **fields: Any) -> Summary:
        """Submit it and wait for its end."""
        return self.ended(self.submit(**fields))

    def ended(self, job: str, timeout_s: float = PATIENCE_S) -> Summary:
        """Wait, without governing, until the job has ended and its machines are known to be gone."""

        def over() -> bool:
            state = self.state(job)
            return state.ended is not None and job not in active_jobs(self.store)

        try:
            until(over, f"{job} ends", timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.story(job)}") from None
        return self.summary(job)

    def summary(self, job: str) -> Summary:
        return client.summary(job, self.url)

    def state(self, job: str) -> JobState:
        state = job_log.read(self.store, job)
        assert state is not None
        return state

    def training(self, job: str, step: int = 1, attempt: int = 1) -> Summary:
        """Wait until the script says in its journal that it made this step in this attempt (or a later one)."""
        until(
            lambda: any(
                record.kind == "step" and record.attempt >= attempt and record.step >= step for record in self.journal()
            ),
            f"attempt {attempt} makes step {step}\n{self.story(job)}",
        )
        return self.summary(job)

    def interrupt(self, job: str, grace_s: float, node: int = 0) -> None:
        client.interrupt(job, self.url, node=node, grace_s=grace_s)

    def terminate(self, instance: str) -> None:
        """Switch a machine off, hard and without notice, as a cloud may."""
        Fleet(self.url).provider("local").terminate(instance)

    def instance(self, job: str, rank: int = 0) -> str:
        """The machine of a rank of the newest attempt that is not over."""
        claim = [claim for claim in self.state(job).open_claims if claim.launched][-1]
        instance = claim.instance(rank)
        assert instance is not None
        return instance

    def heartbeat(self, job: str, claim: Claim, rank: int = 0) -> Heartbeat | None:
        """What this rank's agent said last, if it has said anything."""
        instance = claim.instance(rank)
        if instance is None:
            return None
        told = node_facts.read_node(self.store, job, claim.number, rank, instance).heartbeat
        return told.value.value if isinstance(told, Known) and told.value is not None else None

    # ── What is left of them ──────────────────────────────────────────────────────────────────────────────────────────

    def journal(self, kind: str | None = None) -> list[Record]:
        """The script's own record, in the order in which it was written."""
        try:
            text = (self.truth / "journal").read_text()
        except FileNotFoundError:
            return []
        # The last line may be torn by a kill -9.
        lines = text.split("\n")[:-1]
        records = [Record(**json.loads(line)) for line in lines]
        return [record for record in records if kind in (None, record.kind)]

    def lines(self, job: str) -> list[str]:
        """Every line of every attempt and node, as `stoker logs` would print them."""
        state = self.state(job)
        return [line.text for line in read_lines(self.store, job, node_logs(state))]

    def printed(self, job: str, attempt: int = 1, rank: int = 0) -> bytes:
        """The very bytes of one node's log."""
        (node,) = [one for one in node_logs(self.state(job)) if (one.attempt, one.rank) == (attempt, rank)]
        data = b""
        for boot in boots(self.store, job, node):
            for _, meta in list_chunks(self.store, f"{boot}/log/"):
                for segment in parse_segments(self.store.get_from(meta.key, 0) or b"").segments:
                    assert segment.offset <= len(data), f"a hole in the log before {segment.offset}"
                    data += segment.data[len(data) - segment.offset :]
        return data

    def checkpoints(self, job: str) -> list[Checkpoint]:
        return list_checkpoints(self.store, job)

    def outputs(self, job: str) -> Path:
        """Where the outputs that count lie, as plain files."""
        ended = self.state(job).ended
        assert ended is not None and ended.claim is not None
        return self.folder / "work" / job / "outputs" / f"{ended.claim:08d}"

    def story(self, job: str) -> str:
        """What happened, for the message of a failed assertion."""
        try:
            entries = [
                f"{entry.seq} {entry.at:%H:%M:%S.%f} {type(entry.event).__name__}: {entry.reason}"
                for entry in job_log.entries(self.store, job, 1)
            ]
            return "\n".join([*entries, *self.nodes_said(job), *self.agents_said()])
        except Exception as error:  # noqa: BLE001 - only there to explain another failure
            return f"(no story: {error!r})"

    def nodes_said(self, job: str) -> list[str]:
        """The end of each node's log, attempt by attempt."""
        told = []
        for node in node_logs(self.state(job)):
            lines = [line.text for line in read_lines(self.store, job, [node])]
            told += [f"── attempt {node.attempt} node {node.rank}", *lines[-30:]]
        return told

    def agents_said(self) -> list[str]:
        """The end of each agent's and supervisor's own log."""
        told = []
        for path in sorted(self.home.glob("nodes/*/*/*.log")):
            if path.name in ("agent.log", "node.log"):
                told += [f"── {path.parent.name}/{path.name}", *path.read_text().splitlines()[-15:]]
        for path in sorted(self.home.glob("governors/*.log")):
            told += [f"── {path.name}", *path.read_text().splitlines()[-15:]]
        return told

    # ── Programs ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def environ(self) -> dict[str, str]:
        return os.environ | {"STOKER_HOME": str(self.home), "STOKER_STORE": self.url, "TRUTH": str(self.truth)}

    def cli(self, *arguments: str, timeout_s: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
        """Run the command line to its end, in the code folder."""
        return subprocess.run(
            [sys.executable, "-m", "stoker.cli", *arguments],
            cwd=self.code,
            env=self.environ(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start the command line, for instance a governor. Ended with the test."""
        with (self.root / "started.log").open("ab") as output:
            child = subprocess.Popen(
                [sys.executable, "-m", "stoker.cli", *arguments],
                cwd=self.code,
                env=self.environ(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self._started.append(child)
        return child

    def end_started(self) -> None:
        for child in self._started:
            child.kill()
            child.wait()
        self._started = []

    # ── Processes ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def processes(self, role: str | None = None) -> list[Process]:
        """Every live process that belongs to this world, or those of a role: agent, supervisor, governor, training.

        Known by this world's folder, in its environment, its arguments or as its working folder.
        """
        found = []
        mark = os.fsencode(self.root)
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal() or int(entry.name) == os.getpid():
                continue
            process = Process.of(int(entry.name))
            try:
                arguments = (entry / "cmdline").read_bytes()
                environ = (entry / "environ").read_bytes()
                cwd = os.fsencode((entry / "cwd").readlink())
            except OSError:
                continue  # Ended meanwhile, or a zombie.
            if process is None or not any(mark in text for text in (arguments, environ, cwd)):
                continue
            if role in (None, _role(arguments, environ)):
                found.append(process)
        return found

    def kill(self, role: str) -> bool:
        """kill -9 of one process of a role; False when there is none now."""
        found = self.processes(role)
        return bool(found) and found[0].signal(signal.SIGKILL)

    def cgroups(self) -> list[Path]:
        """The cgroups of this world's nodes that are still there."""
        owners = {f"stoker-node-{path.name}-" for path in self.home.glob("nodes/*/*") if path.is_dir()}
        found = []
        for folder, below, _ in os.walk(CGROUPS / "unified" if (CGROUPS / "unified").exists() else CGROUPS):
            found += [Path(folder) / name for name in below if any(name.startswith(owner) for owner in owners)]
        return found


def _role(arguments: bytes, environ: bytes) -> str:
    words = arguments.split(b"\0")
    if b"stoker.processes.warden" in words:
        return "warden"
    if b"stoker.agent" in words:
        return "agent"
    if b"stoker.providers.local.supervisor" in words:
        return "supervisor"
    if b"stoker.governor.background" in words or b"govern" in words:
        return "governor"
    if b"STOKER_TRAINING=" in environ and any(word.endswith(b"train.py") for word in words):
        return "training"
    return "other"


def fields(summary: Summary, *names: str) -> list[Sequence[Any]]:
    """These fields of each attempt, for comparing."""
    return [tuple(getattr(attempt, name) for name in names) for attempt in summary.attempts]
