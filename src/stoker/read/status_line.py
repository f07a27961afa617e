"""The status line below a followed log: the state of the job, in as many parts as fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from types import MappingProxyType

from stoker.core.costs import job_cost
from stoker.core.governor_settings import DEFAULT
from stoker.core.launch_history import next_try
from stoker.core.saved_work import attempts_of, checkpoint_title, with_step
from stoker.core.summary import phase_of
from stoker.model.errors import UserError
from stoker.model.job_state import JobState
from stoker.model.node_facts import Heartbeat
from stoker.read.format import ago, as_of, cut, dollars, duration, number, one_line, width
from stoker.read.safe_text import legible
from stoker.store import job_index, node_facts
from stoker.store.base import Store

_BETWEEN = " · "
# The most metrics that fit beside the rest.
_MOST_METRICS = 3
# After an offering without capacity the next one is tried at once: only a lasting lack is shown.
_SETTLED_S = 2.0
# The most characters of the reason for waiting; `stoker explain` shows all of it.
_MOST_WAITING = 100


@dataclass(frozen=True)
class StatusPart:
    """A few words of the status. Where room is short, the part with the highest `spare` goes first; 0 stays."""

    text: str
    spare: int = 0


@dataclass(frozen=True)
class Status:
    """The state of a job, in parts."""

    parts: tuple[StatusPart, ...] = ()
    running: bool = False
    # Why a job without machines waits, as a governor last recorded it.
    waiting: str = ""

    @property
    def text(self) -> str:
        return _BETWEEN.join(part.text for part in self.parts)

    def fitted(self, room: int) -> str:
        """The parts that fit into so many columns; where even those that stay are too long, their beginning."""
        kept = list(self.parts)
        while width(_BETWEEN.join(part.text for part in kept)) > room:
            spared = [part for part in kept if part.spare]
            if not spared:
                break
            # Among equals, the last part goes.
            most = max(part.spare for part in spared)
            kept.pop(max(place for place, part in enumerate(kept) if part.spare == most))
        return cut(_BETWEEN.join(part.text for part in kept), room)


def status_of(store: Store, job: str, state: JobState) -> Status:
    """`gpt-7f3k · running · attempt 2 · step 413 · loss 0.12 · checkpoint step-400 3.1 s ago · $0.01`."""
    facts = {claim.number: node_facts.read_claim(store, job, claim) for claim in state.open_claims}
    heartbeats = [beat for nodes in facts.values() for node in nodes if (beat := node.known_heartbeat) is not None]
    now = datetime.now(timezone.utc)
    phase = phase_of(state, facts)
    parts = [StatusPart(job, spare=1), StatusPart(phase)]
    waiting = waiting_reason(store, job) if phase == "queued" else ""
    if phase == "queued":
        parts += no_capacity_parts(state, now) or (
            [StatusPart(one_line(waiting, _MOST_WAITING), spare=2)] if waiting else []
        )
    if state.attempts:
        parts.append(StatusPart(f"attempt {len(state.attempts)}", spare=3))
    parts += heartbeat_parts([each.value for each in heartbeats], now, attempts_of(state))
    age = as_of(max((each.modified for each in heartbeats), default=None), now)
    if age:
        parts.append(StatusPart(age, spare=2))
    cost = job_cost(state, now).spent
    if cost:
        parts.append(StatusPart(dollars(cost)))
    return Status(tuple(legible(part) for part in parts), phase == "running", legible(waiting))


def waiting_reason(store: Store, job: str) -> str:
    """Why a queued job waits, as a governor last recorded it."""
    found = job_index.read_summary(store, job)
    return found.reason if found is not None and found.phase == "queued" else ""


def no_capacity_parts(state: JobState, now: datetime) -> list[StatusPart]:
    """That no machine was available, and when the next try is."""
    from stoker.providers import registry

    last = state.last_claim
    if last is None or last.closed_at is None or (now - last.closed_at).total_seconds() < _SETTLED_S:
        return []
    try:
        dry_for_s = registry.capabilities(last.offering.provider).dry_for_s
    except UserError:
        dry_for_s = 0.0  # The provider is not installed here: another computer governs the job.
    at = next_try(state, DEFAULT, dry_for_s)
    if at is None:
        return []
    left_s = (at - now).total_seconds()
    return [
        StatusPart("no machine available"),
        StatusPart(f"next try in {duration(left_s)}" if left_s > 0 else "tries again"),
    ]


def heartbeat_parts(
    heartbeats: list[Heartbeat], now: datetime, attempts: Mapping[int, int] = MappingProxyType({})
) -> list[StatusPart]:
    """Step, metrics and checkpoint of the node that trained longest.

    `attempts` are the numbers of the job's attempts by their claims.
    """
    if not heartbeats:
        return []
    # While one attempt saves and the next waits, the one that trained says more.
    newest = max(heartbeats, key=lambda heartbeat: heartbeat.trained_s)
    parts = []
    if newest.step is not None:
        parts.append(StatusPart(f"step {newest.step}"))
    shown = [(name, value) for name, value in newest.metrics.items() if name != "step"]
    parts += [
        StatusPart(f"{name} {number(value)}", spare=6 if place else 4)
        for place, (name, value) in enumerate(shown[:_MOST_METRICS])
    ]
    if newest.checkpoint is not None:
        name = with_step(newest.checkpoint.name, newest.checkpoint.step)
        parts.append(StatusPart(f"checkpoint {name} {ago(newest.checkpoint.committed_at, now)}", spare=5))
    elif newest.restored_from is not None:
        parts.append(StatusPart(f"from {checkpoint_title(newest.restored_from, attempts)}", spare=5))
    elif newest.trained_s > 0:
        parts.append(StatusPart("no checkpoint yet", spare=5))
    return parts
