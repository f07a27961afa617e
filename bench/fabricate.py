"""Ten thousand jobs in a folder, without running one: the objects that a real life leaves behind, written directly."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path

from stoker.core.summary import summarize
from stoker.model import codec, keys
from stoker.model.job_state import JobState, fold
from stoker.model.log_entries import Claimed, Closed, Ended, Entry, Event, Launched, NodeRef, Record, Submitted
from stoker.model.node_facts import CheckpointRef, Exit, Heartbeat, NodeFacts, Usage
from stoker.model.observed import Known, Stamped
from stoker.model.offerings import Capabilities, Instance, InstanceState, Offering
from stoker.model.resources import Resources
from stoker.model.spec import Spec
from stoker.model.submission import Code, Submission
from stoker.providers.base import LaunchOrder, Request, TerminateResult
from stoker.providers.local.capabilities import CAPABILITIES
from stoker.store.job_index import IndexRecord

ACTIVE = 100
_CLAIM = 2
# Stands for the job's own name, and the digest of its spec, in what is written for all of them.
_NAME = "spirals-00000000"
_DIGEST = "f" * 64
_AT = datetime(2026, 1, 1, tzinfo=timezone.utc)
_OFFERING = Offering(provider="local", machine="local", zone="this-computer", spot=True, price=3.06, price_source="x")


def make_jobs(root: Path, count: int) -> None:
    """Fill the store at `root` with jobs, the last `ACTIVE` of them in training.

    The ended ones share one log and one spec by hard links, and what their nodes left is not there: making a hundred
    thousand files would take longer than all that is measured, and no command that reads all jobs reads these.
    """
    active, ended = _template(_active_events(), None), _template(_ended_events(), _exit())
    for prefix in (keys.JOBS, keys.WORK, keys.INDEX, keys.ACTIVE, keys.GOVERNORS):
        (root / prefix).mkdir(parents=True)
    _write_job(root, name_of(0), ended)
    for n in range(1, count - ACTIVE):
        _copy_job(root, name_of(0), name_of(n), ended)
    for job in active_names(count):
        _write_job(root, job, active)
        marker = root / keys.active(job, 1)
        marker.parent.mkdir()
        marker.touch()


def beat(root: Path, count: int) -> None:
    """Write fresh heartbeats, as the agents of active jobs do all the time."""
    data = codec.dumps(_heartbeat(datetime.now(timezone.utc)))
    for job in active_names(count):
        path = root / keys.heartbeat(_node(job))
        draft = path.with_name(".draft")
        draft.write_bytes(data)
        draft.replace(path)


def active_objects(jobs: Iterable[str]) -> dict[str, bytes]:
    """Everything that jobs in training have in a store, with fresh heartbeats, by key."""
    template = _template(_active_events(), None)
    now = codec.dumps(_heartbeat(datetime.now(timezone.utc)))
    found: dict[str, bytes] = {}
    for job in jobs:
        found |= _objects(job, template)
        found[keys.heartbeat(_node(job))] = now
        found[keys.active(job, 1)] = b""
    return found


def name_of(n: int) -> str:
    return f"spirals-{n:08d}"


def active_names(count: int) -> list[str]:
    return [name_of(n) for n in range(count - ACTIVE, count)]


class Machines:
    """A provider whose machines all run, and which refuses to do anything: nothing is due."""

    name = "local"

    def __init__(self, jobs: Iterable[str]) -> None:
        now = datetime.now(timezone.utc)
        self._instances = tuple(
            Instance(_instance(job), "local", job, _CLAIM, 0, "running", now, zone="this-computer") for job in jobs
        )

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    def offerings(self, resources: Resources) -> tuple[Offering, ...]:  # noqa: ARG002 - always the same
        return (_OFFERING,)

    def build(self, order: LaunchOrder) -> tuple[Request, ...]:
        raise AssertionError(f"nothing was to be launched: {order}")

    def launch(self, requests: tuple[Request, ...]) -> tuple[Instance, ...]:
        raise AssertionError(f"nothing was to be launched: {requests}")

    def list_instances(self, region: str | None = None) -> tuple[Instance, ...]:  # noqa: ARG002 - has no regions
        return self._instances

    def state(self, ids: Iterable[str], region: str | None = None) -> Mapping[str, InstanceState]:  # noqa: ARG002
        return dict.fromkeys(ids, "running")

    def terminate(self, instance: str, region: str | None = None) -> TerminateResult:
        raise AssertionError(f"nothing was to be ended: {instance} {region}")


# ── One life, as a template ───────────────────────────────────────────────────────────────────────────────────────────


def _active_events() -> list[Event]:
    return [
        Submitted(spec_digest=_DIGEST, submitter="jane@desk", code_digest="c" * 64),
        Claimed(offering=_OFFERING, nodes=1),
        Launched(claim=_CLAIM, nodes=(NodeRef(0, _instance(_NAME)),)),
    ]


def _ended_events() -> list[Event]:
    closing = Closed(claim=_CLAIM, outcome="succeeded", rule="finished", trained_s=812.0, step=900, exit_code=0)
    return [*_active_events(), Ended(outcome="succeeded", rule="finished", claim=_CLAIM, exit_code=0, closing=closing)]


def _template(events: list[Event], left: Exit | None) -> dict[str, bytes]:
    """The job's objects by key, under the stand-in's name."""
    submission = Submission(
        job=_NAME,
        spec=Spec(name="spirals", run=("python", "train.py"), params={"lr": 0.05, "steps": 900}, tags={"user": "jane"}),
        submitter="jane@desk",
        code=Code(digest="c" * 64, size=2400, files=2, commit="a" * 40, dirty=False),
        environ={"PATH": "/usr/bin:/bin"},
    )
    objects = {keys.spec(_NAME): codec.dumps(submission)}
    entries = []
    for seq, event in enumerate(events, start=1):
        entries.append(Entry(seq=seq, at=_AT, reason="as decided", event=event, by="desk"))
        record = Record(token=f"{seq:016x}", by="desk", reason="as decided", event=event)
        objects[keys.log_entry(_NAME, seq)] = codec.dumps(record)
    state = fold(_NAME, entries)
    assert state is not None
    node = _node(_NAME)
    objects[keys.heartbeat(node)] = codec.dumps(_heartbeat(_AT))
    objects[keys.log_chunk(node, 0)] = b"step 100 loss 0.31\n" * 9
    objects[keys.index(_NAME, state.seq)] = codec.dumps(
        IndexRecord(state, summarize(state, submission, _told(state, left), _AT))
    )
    return objects


def _told(state: JobState, left: Exit | None) -> dict[int, tuple[NodeFacts, ...]]:
    claim = state.claims[-1]
    node = NodeFacts(
        rank=0,
        instance=_instance(_NAME),
        heartbeat=Known(Stamped(_heartbeat(_AT), _AT, "etag")),
        notice=Known(None),
        exit=Known(Stamped(left, _AT, "etag") if left else None),
    )
    return {claim.number: (node,)}


def _heartbeat(at: datetime) -> Heartbeat:
    return Heartbeat(
        beat=400,
        phase="training",
        at=at,
        interval_s=2.0,
        trained_s=800.0,
        training_since=_AT,
        address="127.0.0.1",
        step=850,
        checkpoint=_checkpoint(),
        checkpoint_files=1,
        usage=Usage(cpu_percent=98.0, memory_used=1 << 30, memory_total=1 << 34, disk_free=1 << 36),
        metrics={"loss": 0.31, "accuracy": 0.93},
    )


def _exit() -> Exit:
    return Exit(
        outcome="succeeded",
        why="finished",
        at=_AT,
        reason="the command finished",
        started=True,
        code=0,
        trained_s=812.0,
        step=900,
        first_step=1,
        checkpoint=_checkpoint(),
        commits=18,
        metrics={"loss": 0.29, "accuracy": 0.94},
        tail=tuple(f"step {step} loss 0.31" for step in range(10, 900, 50)),
        started_at=_AT,
    )


def _checkpoint() -> CheckpointRef:
    key = keys.checkpoint_key(_CLAIM, 17, "step-850")
    return CheckpointRef(key=key, name="step-850", step=850, committed_at=_AT)


def _instance(job: str) -> str:
    return f"{job}-2-0-0123abcd"


def _node(job: str) -> str:
    return keys.node(job, _CLAIM, 0, keys.boot(_instance(job), 0))


def _write_job(root: Path, job: str, template: dict[str, bytes]) -> None:
    """Everything of one job, under its own name."""
    for key, data in _objects(job, template).items():
        path = root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def _objects(job: str, template: dict[str, bytes]) -> dict[str, bytes]:
    spec = template[keys.spec(_NAME)].replace(_NAME.encode(), job.encode())
    digest = codec.digest(spec).encode()
    return {
        key.replace(_NAME, job): data.replace(_NAME.encode(), job.encode()).replace(_DIGEST.encode(), digest)
        for key, data in template.items()
    }


def _copy_job(root: Path, job: str, other: str, template: dict[str, bytes]) -> None:
    """Another job that went like `job`: an index record of its own, and the same log."""
    os.makedirs(f"{root}/{keys.log_prefix(other)}")  # noqa: PTH103 - Paths cost more than the calls themselves
    for key in template:
        if key.startswith(keys.JOBS):
            os.link(f"{root}/{key.replace(_NAME, job)}", f"{root}/{key.replace(_NAME, other)}")
    key = next(key for key in template if key.startswith(keys.INDEX))
    record = template[key].replace(_NAME.encode(), other.encode())
    os.mkdir(f"{root}/{keys.index_prefix(other)}")  # noqa: PTH102
    handle = os.open(f"{root}/{key.replace(_NAME, other)}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    os.write(handle, record)
    os.close(handle)
