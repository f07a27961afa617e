"""Read one job as it is now: its state and its summary."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone

from stoker.core.summary import Summary, summarize
from stoker.model import keys
from stoker.model.job_state import JobState
from stoker.model.keywords import checks_keywords
from stoker.model.node_facts import NodeFacts
from stoker.model.spec import Spec
from stoker.providers import registry
from stoker.providers.console_links import NodeIdentity
from stoker.store import job_index, job_log, node_facts
from stoker.store.base import Store, open_any
from stoker.store.find_job import find_job
from stoker.submit.submitted_state import half_removed


@checks_keywords
def summary(job: str, store: str | Store | None = None) -> Summary:
    """The summary of a job now, from its log and the facts of its nodes. Raises UserError when there is no such job."""
    return read_record(job, open_any(store)).summary


@checks_keywords
def read_record(job: str, store: Store) -> job_index.IndexRecord:
    """The state and the summary of a job now. Raises UserError when there is no such job."""
    found = find_job(store, job)
    record = job_index.read_index(store, found)
    state = job_log.read(store, found, record.state if record is not None else None)
    if state is None or store.head(keys.log_entry(found, 1)) is None:
        raise half_removed(found)
    submission = job_index.read_submission(store, state)
    facts = {claim.number: node_facts.read_claim(store, found, claim) for claim in state.attempts}
    waiting = record.summary.reason if record is not None and state.ended is None else ""
    summary_now = summarize(state, submission, facts, _now(facts), waiting)
    return job_index.IndexRecord(state=state, summary=_linked(summary_now, state, submission.spec, store.url))


def _linked(summary_now: Summary, state: JobState, spec: Spec, store: str) -> Summary:
    """Add the names of the job's machines, and the web addresses of the machines and their logs."""
    attempts = []
    for attempt in summary_now.attempts:
        links, claim = registry.links(attempt.provider), state.claim(attempt.claim)
        if links is None or claim is None:
            attempts.append(attempt)
            continue
        region = claim.offering.region
        nodes = tuple(
            replace(
                node,
                name=links.name(NodeIdentity(store, summary_now.id, claim.number, attempt.n, claim.nodes, node.rank)),
                link=links.machine(node.instance, region),
                log_link=links.log(spec.logs, summary_now.id, attempt.n, node.rank, region),
                logs_query=links.own_logs(node.instance, region),
                logs_link=links.own_logs_link(node.instance, region),
            )
            for node in attempt.nodes
        )
        attempts.append(replace(attempt, nodes=nodes))
    return replace(summary_now, attempts=tuple(attempts))


def _now(facts: dict[int, tuple[NodeFacts, ...]]) -> datetime:
    """The store's time, as closely as reading allows: this computer's, but never before the newest heartbeat."""
    heartbeats = [
        beat.modified for nodes in facts.values() for node in nodes if (beat := node.known_heartbeat) is not None
    ]
    return max([datetime.now(timezone.utc), *heartbeats])
