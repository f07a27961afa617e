"""The line below a log that is followed: how the job is, in as many parts as fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from types import MappingProxyType

from stoker.cli.format import ago, as_of, dollars, duration, legible, number, one_line, width
from stoker.core.costs import job_cost
from stoker.core.governor_settings import DEFAULT
from stoker.core.placement import next_try
from stoker.core.saved_work import attempts_of, checkpoint_title, with_step
from stoker.core.summary import phase_of
from stoker.model.errors import UserError
from stoker.model.job_state import JobState
from stoker.model.node_facts import Heartbeat
from stoker.model.observed import Known
from stoker.store import job_index, node_facts
from stoker.store.base import Store

_BETWEEN = " · "
# Metrics that fit beside the rest.
_MOST_METRICS = 3
# An offering that is dry is followed by the next one at once: only what lasts is told.
_SETTLED_S = 2.0
# Of what a job waits for; `stoker explain` has all of it.
_MOST_WAITING = 100


@dataclass(frozen=True)
class Part:
    """A few words. Where there is no room, what has the highest `spare` goes first; 0 stays."""

    text: str
    spare: int = 0


@dataclass(frozen=True)
class Status:
    """How a job is, as parts."""

    parts: tuple[Part, ...] = ()
    running: bool = False
    # What a job without machines waits for, as governors last wrote it down.
    waiting: str = ""

    @property
    def text(self) -> str:
        return _BETWEEN.join(part.text for part in self.parts)

    def fitted(self, room: int) -> str:
        """The parts that fit into so many columns, whole; should even those that stay be too long, their beginning."""
        kept = list(self.parts)
        while width(_BETWEEN.join(part.text for part in kept)) > room:
            spared = [part for part in kept if part.spare]
            if not spared:
                break
            # Of several alike, the last.
            most = max(part.spare for part in spared)
            kept.pop(max(place for place, part in enumerate(kept) if part.spare == most))
        return _BETWEEN.join(part.text for part in kept)[:room]


def status_of(store: Store, job: str, state: JobState) -> Status:
    """`gpt-7f3k · running · attempt 2 · step 413 · loss 0.12 · checkpoint step-400 3.1 s ago · $0.01`."""
    told = {claim.number: node_facts.read_claim(store, job, claim) for claim in state.open_claims}
    heard = [
        node.heartbeat.value
        for nodes in told.values()
        for node in nodes
        if isinstance(node.heartbeat, Known) and node.heartbeat.value is not None
    ]
    now = datetime.now(timezone.utc)
    phase = phase_of(state, told)
    parts = [Part(job, spare=1), Part(phase)]
    waiting = _waiting(store, job) if phase == "queued" else ""
    if phase == "queued":
        parts += dry_parts(state, now) or ([Part(one_line(waiting, _MOST_WAITING), spare=2)] if waiting else [])
    if state.attempts:
        parts.append(Part(f"attempt {len(state.attempts)}", spare=3))
    parts += beat_parts([beat.value for beat in heard], now, attempts_of(state))
    old = as_of(max((beat.modified for beat in heard), default=None), now)
    if old:
        parts.append(Part(old, spare=2))
    cost = job_cost(state, now).spent
    if cost:
        parts.append(Part(dollars(cost)))
    return Status(tuple(legible(part) for part in parts), phase == "running", legible(waiting))


def _waiting(store: Store, job: str) -> str:
    found = job_index.read_summary(store, job)
    return found.reason if found is not None and found.phase == "queued" else ""


def dry_parts(state: JobState, now: datetime) -> list[Part]:
    """That nothing was to be had, and when it is asked for again."""
    from stoker.providers import registry

    last = state.last_claim
    if last is None or last.closed_at is None or (now - last.closed_at).total_seconds() < _SETTLED_S:
        return []
    try:
        dry_for_s = registry.capabilities(last.offering.provider).dry_for_s
    except UserError:
        dry_for_s = 0.0  # It is not installed here; somebody else governs.
    at = next_try(state, DEFAULT, dry_for_s)
    if at is None:
        return []
    left_s = (at - now).total_seconds()
    return [Part("no machine to be had"), Part(f"next try in {duration(left_s)}" if left_s > 0 else "tries again")]


def beat_parts(beats: list[Heartbeat], now: datetime, attempts: Mapping[int, int] = MappingProxyType({})) -> list[Part]:
    """What the node that trained longest tells: its step, its metrics, and what of it is safe.

    `attempts` are the job's, by their claims.
    """
    if not beats:
        return []
    # While one attempt saves and the next waits, the one that trained tells more.
    beat = max(beats, key=lambda beat: beat.trained_s)
    parts = []
    if beat.step is not None:
        parts.append(Part(f"step {beat.step}"))
    shown = [(name, value) for name, value in beat.metrics.items() if name != "step"]
    parts += [
        Part(f"{name} {number(value)}", spare=6 if place else 4)
        for place, (name, value) in enumerate(shown[:_MOST_METRICS])
    ]
    if beat.checkpoint is not None:
        name = with_step(beat.checkpoint.name, beat.checkpoint.step)
        parts.append(Part(f"checkpoint {name} {ago(beat.checkpoint.committed_at, now)}", spare=5))
    elif beat.restored_from is not None:
        parts.append(Part(f"from {checkpoint_title(beat.restored_from, attempts)}", spare=5))
    elif beat.trained_s > 0:
        parts.append(Part("no checkpoint yet", spare=5))
    return parts
