"""Read what agents pushed. Facts come from machines that run other people's code: size-capped and validated."""

from __future__ import annotations

from typing import TypeVar

from stoker import codec, layout
from stoker.errors import CodecError, StoreDenied, StoreError, StoreUnavailable
from stoker.fold import Claim
from stoker.model import Exit, Heartbeat, Known, NodeFacts, NoticeFact, Observed, Stamped, Unknown
from stoker.store import Store

T = TypeVar("T")

# A heartbeat or an exit is a few KB; a larger one was not written by an agent.
MAX_FACT_BYTES = 256 * 1024
# A node's agent is started at most four times; more boots than this are not believed.
MAX_BOOTS = 8


def read_fact(store: Store, key: str, cls: type[T]) -> Observed[Stamped[T] | None]:
    """One fact; Known(None) when it is positively not there, Unknown when nobody answered.

    Something that was read and makes no sense says nothing, for good: were it Unknown, whoever writes one such `exit`
    would have a job that can never be closed, not even by a stop.
    """
    try:
        found = store.get(key, limit=MAX_FACT_BYTES)
    except (StoreUnavailable, StoreDenied) as error:
        return Unknown(str(error))
    except StoreError:
        return Known(None)  # Too large: no agent wrote that.
    if found is None:
        return Known(None)
    try:
        value = codec.loads(cls, found.data, where=key)
    except CodecError:
        return Known(None)
    return Known(Stamped(value=value, modified=found.meta.modified, etag=found.meta.etag))


def read_node(store: Store, job: str, claim: int, rank: int, instance: str) -> NodeFacts:
    """Everything the agents of one machine said, over all their boots: the newest heartbeat, any notice, any exit."""
    nodes = [layout.node(job, claim, rank, layout.boot(instance, n)) for n in range(MAX_BOOTS)]
    heartbeat: Observed[Stamped[Heartbeat] | None] = Known(None)
    notice: Observed[Stamped[NoticeFact] | None] = Known(None)
    exit_: Observed[Stamped[Exit] | None] = Known(None)
    for node in nodes:
        beat = read_fact(store, layout.heartbeat(node), Heartbeat)
        if beat == Known(None):
            break
        heartbeat = beat
        notice = _prefer(notice, read_fact(store, layout.notice(node), NoticeFact))
        exit_ = _prefer(exit_, read_fact(store, layout.exit_(node), Exit))
    return NodeFacts(rank=rank, instance=instance, heartbeat=heartbeat, notice=notice, exit=exit_)


def read_claim(store: Store, job: str, claim: Claim) -> tuple[NodeFacts, ...]:
    """The facts of every machine that `launched` names."""
    return tuple(read_node(store, job, claim.number, node.rank, node.instance) for node in claim.launched or ())


def read_exits(store: Store, job: str, claim: Claim) -> tuple[Exit | None, ...]:
    """The exits of all ranks; None where there is none, or nobody answered."""
    found: list[Exit | None] = [None] * claim.nodes
    for node in claim.launched or ():
        facts = read_node(store, job, claim.number, node.rank, node.instance)
        if node.rank < claim.nodes and isinstance(facts.exit, Known) and facts.exit.value:
            found[node.rank] = facts.exit.value.value
    return tuple(found)


def _prefer(known: Observed[Stamped[T] | None], newer: Observed[Stamped[T] | None]) -> Observed[Stamped[T] | None]:
    """What a boot said stays said. An unread fact stays unknown unless another boot told."""
    if isinstance(known, Known) and known.value is not None:
        return known
    if isinstance(newer, Known) and newer.value is None:
        return known
    return newer
