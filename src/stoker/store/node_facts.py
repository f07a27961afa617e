"""Read the facts that agents wrote. They come from machines that run other people's code: limited in size,
validated."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from functools import lru_cache, partial
from typing import Any, TypeVar, cast

from stoker.model import codec, keys
from stoker.model.errors import CodecError, StoreDenied, StoreError, StoreUnavailable
from stoker.model.gang_messages import SaveProposal
from stoker.model.job_state import Claim
from stoker.model.log_entries import Waste
from stoker.model.node_facts import (
    CheckpointRef,
    Exit,
    FailureCause,
    Heartbeat,
    NodeFacts,
    NoticeFact,
    OmittedOutput,
    OutputLink,
    SavedOutputs,
    SaveTimes,
)
from stoker.model.observed import Known, Observed, Stamped, Unknown
from stoker.store.base import Object, Store
from stoker.store.checkpoint_manifests import safe_path
from stoker.store.link_targets import safe_link

T = TypeVar("T")

# Facts whose parsed form is kept, and the bytes that each of them may have: a few MB at most.
_REMEMBERED = 512
_REMEMBERED_BYTES = 8 * 1024
# A heartbeat or an exit is a few KB, the output of a boot a page or two, which the machine cuts at half of this. A
# larger object was not written by an agent.
MAX_FACT_BYTES = 256 * 1024
# A node's agent is started at most four times; more boots than this are not believed.
MAX_BOOTS = 8
# Beginning of the line in which a failed boot gives its reason: on the console, and in its output in the store.
BOOT_FAILED = "stoker: boot failed: "
# Verdicts quote facts in the log, whose entries are limited in size: an entry too large to be read would end the job
# for every reader. Agents stay below all of these limits.
_REASON_CHARS = 4000
_TAIL_LINES, _TAIL_CHARS = 50, 20_000
_KEY_CHARS = 300
_EVIDENCE, _EVIDENCE_CHARS = 10, 100
_WARNINGS = 20
# Number of named omitted outputs; and more bytes than any store holds.
_LEFT_OUT = 20
# Number of links among the outputs of one node: a few tens of KB of the fact at most.
MOST_LINKS = 200
_MOST_BYTES = 10**18
# No step, size or number of anything is larger; and no agent writes before or after these times.
_MOST_COUNT = 10**18
_EARLIEST, _LATEST = datetime(2000, 1, 1, tzinfo=timezone.utc), datetime(2200, 1, 1, tzinfo=timezone.utc)
_PATHS = 5
# Names in a proposal of a save; agents give fewer.
_PROPOSED_NAMES = 50
# A century: no training, save or notice takes longer.
_LONGEST_SPAN_S = 100 * 365 * 86400.0


def read_fact(store: Store, key: str, cls: type[T]) -> Observed[Stamped[T] | None]:
    """Read one fact; Known(None) if it is positively absent, Unknown without an answer.

    An invalid fact counts as absent: if it were Unknown, a job that writes an invalid `exit` could never be closed, not
    even by a stop.
    """
    return _read(store, key, partial(_parse_fact, cls))[0]


def _parse_fact(cls: type[T], found: Object) -> T:
    """Parse and clamp a fact. Passes read the same exits again and again, so recent small facts are parsed once."""
    if len(found.data) > _REMEMBERED_BYTES:
        return clamp_fact(codec.loads(cls, found.data, where=found.meta.key))
    return cast("T", _parse_small(cast("Any", cls), found.data))


@lru_cache(_REMEMBERED)
def _parse_small(cls: type[Any], data: bytes) -> Any:
    return clamp_fact(codec.loads(cls, data))


def _read(store: Store, key: str, parse: Callable[[Object], T | None]) -> tuple[Observed[Stamped[T] | None], bool]:
    """Read one fact, and whether an object may exist, including an invalid one."""
    try:
        found = store.get(key, limit=MAX_FACT_BYTES)
    except (StoreUnavailable, StoreDenied) as error:
        return Unknown(str(error)), True
    except StoreError:
        return Known(None), True  # Too large: not written by an agent.
    if found is None:
        return Known(None), False
    try:
        value = parse(found)
    except CodecError:
        value = None
    if value is None:
        return Known(None), True
    return Known(Stamped(value, modified=found.meta.modified, etag=found.meta.etag)), True


def read_node(store: Store, job: str, claim: int, rank: int, instance: str) -> NodeFacts:
    """Read all facts of one machine over all boots of its agent: the newest heartbeat, any notice, any exit."""
    nodes = [keys.node(job, claim, rank, keys.boot(instance, n)) for n in range(MAX_BOOTS)]
    heartbeat: Observed[Stamped[Heartbeat] | None] = Known(None)
    notice: Observed[Stamped[NoticeFact] | None] = Known(None)
    exit_: Observed[Stamped[Exit] | None] = Known(None)
    for node in nodes:
        beat, there = _read(store, keys.heartbeat(node), partial(_parse_fact, Heartbeat))
        if not there:
            if node == nodes[0]:
                exit_ = read_boot(store, node)
            break
        # An invalid heartbeat is ignored, but other facts of the same agent count.
        heartbeat = beat if beat != Known(None) else heartbeat
        notice = _prefer(notice, read_fact(store, keys.notice(node), NoticeFact))
        exit_ = _prefer(exit_, read_fact(store, keys.exit_(node), Exit))
    return NodeFacts(rank=rank, instance=instance, heartbeat=heartbeat, notice=notice, exit=exit_)


def read_boot(store: Store, node: str) -> Observed[Stamped[Exit] | None]:
    """The exit of a machine that reported that it could not start an agent."""
    return _read(store, keys.boot_output(node), _parse_boot)[0]


def _parse_boot(found: Object) -> Exit | None:
    return boot_exit(found.data.decode("utf-8", "replace"), found.meta.modified)


def boot_exit(output: str, at: datetime) -> Exit | None:
    """Build an exit from the output of a failed boot; None if it reports no failure."""
    lines = [line.rstrip() for line in output.splitlines() if line.strip()]
    reasons = [line.partition(BOOT_FAILED)[2].strip() for line in lines if BOOT_FAILED in line]
    if not reasons:
        return None
    return clamp_fact(
        Exit(outcome="infrastructure", why="boot", at=at, reason=f"boot failed: {reasons[-1]}", tail=tuple(lines))
    )


def read_claim(store: Store, job: str, claim: Claim) -> tuple[NodeFacts, ...]:
    """Read the facts of every machine that `launched` names."""
    return tuple(read_node(store, job, claim.number, node.rank, node.instance) for node in claim.launched or ())


def read_exits(store: Store, job: str, claim: Claim) -> tuple[Exit | None, ...]:
    """Read the exits of all ranks; None where there is none, or no answer."""
    found: list[Exit | None] = [None] * claim.nodes
    for node in claim.launched or ():
        left = read_node(store, job, claim.number, node.rank, node.instance).known_exit
        if node.rank < claim.nodes and left is not None:
            found[node.rank] = left
    return tuple(found)


def clamp_fact(fact: T) -> T:
    """Cut or drop absurd values of a fact: endless texts, invalid times. The rest of the fact still counts.

    Facts of a real agent come back unchanged.
    """
    fact = _bounded(fact)
    if isinstance(fact, Heartbeat):
        return replace(
            fact,
            trained_s=_span_s(fact.trained_s),
            interval_s=_span_s(fact.interval_s),
            restored_from=_key(fact.restored_from),
            checkpoint=_checkpoint(fact.checkpoint),
            waste=_waste(fact.waste),
            image=_key(fact.image),
            warnings=tuple(text[:_REASON_CHARS] for text in fact.warnings[:_WARNINGS]),
            saves_elsewhere=_paths(fact.saves_elsewhere),
            save_proposal=_proposal(fact.save_proposal),
        )
    if isinstance(fact, Exit):
        return replace(
            fact,
            reason=fact.reason[:_REASON_CHARS],
            trained_s=_span_s(fact.trained_s),
            restored_from=_key(fact.restored_from),
            checkpoint=_checkpoint(fact.checkpoint),
            tail=_tail(fact.tail),
            save=_save(fact.save),
            waste=_waste(fact.waste),
            outputs=_outputs(fact.outputs),
            evidence=tuple(text[:_EVIDENCE_CHARS] for text in fact.evidence[:_EVIDENCE]),
            cause=_cause(fact.cause),
            saves_elsewhere=_paths(fact.saves_elsewhere),
        )
    if isinstance(fact, NoticeFact):
        return replace(fact, source=fact.source[:_KEY_CHARS], grace_s=_span_s(fact.grace_s))
    return fact


def _bounded(value: T) -> T:
    """Clamp every whole number and every time of a fact, in all its parts, so that it can be counted with and shown."""
    if value is None or isinstance(value, (str, float)):  # By type first: most values are of these types.
        return value
    found: Any = value
    if isinstance(value, int) and not isinstance(value, bool):
        found = max(-_MOST_COUNT, min(value, _MOST_COUNT))
    elif isinstance(value, datetime):
        found = max(_EARLIEST, min(value, _LATEST))
    elif isinstance(value, tuple):
        found = tuple(map(_bounded, value))
    elif isinstance(value, dict):
        found = {name: _bounded(part) for name, part in value.items()}
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        changed = {name: new for name, part in parts.items() if (new := _bounded(part)) is not part}
        found = replace(value, **changed) if changed else value
    return cast("T", found)


def _span_s(reported_s: float) -> float:
    """Clamp a span of time, so that times can be computed with it."""
    return min(reported_s, _LONGEST_SPAN_S) if reported_s > 0 else 0.0  # NaN compares as false.


def read_output_links(store: Store, job: str, claim: Claim) -> tuple[OutputLink, ...]:
    """Read the links among the outputs of a claim, from the exits of its machines."""
    links: list[OutputLink] = []
    for node in claim.launched or ():
        left = read_node(store, job, claim.number, node.rank, node.instance).known_exit
        links += left.outputs.links if left is not None and left.outputs is not None else ()
    return tuple(links)


def _tail(lines: tuple[str, ...]) -> tuple[str, ...]:
    """The last lines, as many as fit."""
    tail: list[str] = []
    left = _TAIL_CHARS
    for line in reversed(lines[-_TAIL_LINES:]):
        if left <= 0:
            break
        tail.append(line[:left])
        left -= len(line)
    return tuple(reversed(tail))


def _key(key: str | None) -> str | None:
    return key if key is None or len(key) <= _KEY_CHARS else None


def _checkpoint(ref: CheckpointRef | None) -> CheckpointRef | None:
    return ref if ref is None or len(ref.key) + len(ref.name) <= 2 * _KEY_CHARS else None


def _save(save: SaveTimes | None) -> SaveTimes | None:
    if save is None:
        return None
    times = (save.saved_s, save.durable_s, save.ended_s, save.grace_s)
    saved_s, durable_s, ended_s, grace_s = (None if time is None else _span_s(time) for time in times)
    return SaveTimes(saved_s, durable_s, ended_s, grace_s, save.commits, save.torn)


def _proposal(proposal: SaveProposal | None) -> SaveProposal | None:
    if proposal is None or not abs(proposal.quiet_s) <= _LONGEST_SPAN_S:  # NaN compares as false.
        return None
    absurd = len(proposal.newest) > _PROPOSED_NAMES or any(len(name) > _KEY_CHARS for name in proposal.newest)
    return None if absurd else proposal


def _cause(cause: FailureCause | None) -> FailureCause | None:
    return cause and FailureCause(cause.name[:_EVIDENCE_CHARS], cause.blame, cause.line[:_REASON_CHARS])


def _paths(paths: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(path for path in paths[:_PATHS] if len(path) <= _KEY_CHARS)


def _waste(waste: Waste | None) -> Waste | None:
    if waste is None:
        return None
    idle_s, lost_s = (None if span is None else _span_s(span) for span in (waste.idle_s, waste.lost_s))
    return Waste(_span_s(waste.waited_s), idle_s, lost_s)


def _outputs(reported: SavedOutputs | None) -> SavedOutputs | None:
    if reported is None:
        return None
    named = (
        OmittedOutput(one.path[:_KEY_CHARS], _count(one.size), one.why[:_KEY_CHARS])
        for one in reported.named[:_LEFT_OUT]
    )
    return SavedOutputs(
        files=_count(reported.files),
        size=_count(reported.size),
        left_out=_count(reported.left_out),
        left_out_size=_count(reported.left_out_size),
        named=tuple(named),
        links=tuple(one for one in reported.links[:MOST_LINKS] if _is_safe(one)),
        unfinished=_count(reported.unfinished),
    )


def _is_safe(link: OutputLink) -> bool:
    """Return whether a reported link can be written, and stays among the outputs."""
    short = len(link.path) + len(link.target) <= 2 * _KEY_CHARS
    return short and safe_path(link.path) and safe_link(link.path, link.target)


def _count(reported: int) -> int:
    return min(max(0, reported), _MOST_BYTES)


def _prefer(known: Observed[Stamped[T] | None], newer: Observed[Stamped[T] | None]) -> Observed[Stamped[T] | None]:
    """Prefer the earliest known fact. An unread fact stays unknown unless another boot has one."""
    if isinstance(known, Known) and known.value is not None:
        return known
    if isinstance(newer, Known) and newer.value is None:
        return known
    return newer
