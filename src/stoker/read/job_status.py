"""One job as it is now: its state and its summary."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone

from stoker.core.summary import Summary, summarize
from stoker.model import keys
from stoker.model.errors import UserError
from stoker.model.job_state import JobState
from stoker.model.keywords import checks_keywords
from stoker.model.node_facts import NodeFacts
from stoker.model.observed import Known
from stoker.model.spec import Spec
from stoker.providers import registry
from stoker.providers.console_links import Seat
from stoker.store import job_index, job_log, node_facts
from stoker.store.base import Store, open_any
from stoker.store.find_job import find_job


@checks_keywords
def summary(job: str, store: str | Store | None = None) -> Summary:
    """The job as it is now, from its log and the facts of its nodes. Raises UserError when there is no such job."""
    return look(job, open_any(store)).summary


@checks_keywords
def look(job: str, store: Store) -> job_index.IndexRecord:
    """The job as it is now: its state, and in short. Raises UserError when there is no such job."""
    found = find_job(store, job)
    record = job_index.read_index(store, found)
    state = job_log.read(store, found, record.state if record is not None else None)
    if state is None or store.head(keys.log_entry(found, 1)) is None:
        raise half_removed(found)
    submission = job_index.read_submission(store, state)
    told = {claim.number: node_facts.read_claim(store, found, claim) for claim in state.attempts}
    waiting = record.summary.reason if record is not None and state.ended is None else ""
    short = summarize(state, submission, told, _now(told), waiting)
    return job_index.IndexRecord(state=state, summary=_linked(short, state, submission.spec, store.url))


def _linked(short: Summary, state: JobState, spec: Spec, store: str) -> Summary:
    """With the names of its machines, and the addresses where people find them and their logs in a browser."""
    attempts = []
    for attempt in short.attempts:
        links, claim = registry.links(attempt.provider), state.claim(attempt.claim)
        if links is None or claim is None:
            attempts.append(attempt)
            continue
        region = claim.offering.region
        nodes = tuple(
            replace(
                node,
                name=links.name(Seat(store, short.id, claim.number, attempt.n, claim.nodes, node.rank)),
                link=links.machine(node.instance, region),
                log_link=links.log(spec.logs, short.id, attempt.n, node.rank, region),
                logs_query=links.own_logs(node.instance, region),
                logs_link=links.own_logs_link(node.instance, region),
            )
            for node in attempt.nodes
        )
        attempts.append(replace(attempt, nodes=nodes))
    return replace(short, attempts=tuple(attempts))


def _now(told: dict[int, tuple[NodeFacts, ...]]) -> datetime:
    """The store's time, as near as it can be had without writing: ours, but never before the newest fact."""
    beats = [
        node.heartbeat.value.modified
        for nodes in told.values()
        for node in nodes
        if isinstance(node.heartbeat, Known) and node.heartbeat.value is not None
    ]
    return max([datetime.now(timezone.utc), *beats])


def half_removed(job: str) -> UserError:
    return UserError(f"{job} was not submitted, or is half removed; `stoker rm {job}` clears it away")
