"""List jobs: the active ones and those that ended last, with filters by phase, tag and name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import partial
from typing import get_args

from stoker.core.summary import Summary, summarize
from stoker.model import keys
from stoker.model.errors import StoreDenied, StoreError, StoreUnavailable, UserError
from stoker.model.log_entries import Phase
from stoker.store import job_index, job_log, node_facts
from stoker.store.base import Meta, Store
from stoker.store.find_job import name_of
from stoker.store.parallel import read_each

# Older records of running jobs are refreshed from the nodes' heartbeats, for at most so many jobs.
_OLD = timedelta(seconds=60)
_MOST_HEARD = 20
# Number of ended jobs that are read at once by a search.
_PORTION = 256


@dataclass(frozen=True)
class JobList:
    """The jobs of a store, newest first. `unreadable` are the reasons why jobs are missing, by id."""

    active: frozenset[str]
    summaries: tuple[Summary, ...]
    unreadable: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Filter:
    """A selection of jobs: those that fit every part. A part without a value fits all.

    `names` are names or ids, and patterns of them (`gpt*`). `tags` are `team=nlp`, with patterns for the value
    (`team=n*`), or `team` for any value; a job has to have all of them.
    """

    phases: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()

    def check(self, dashes: str = "") -> None:
        """Raise UserError for a part that no job can ever match. `dashes` are what the parts begin with in messages."""
        known = get_args(Phase)
        for phase in self.phases:
            if phase not in known:
                close = get_close_matches(phase, known, n=1)
                meant = f"did you mean {close[0]}? " if close else ""
                raise UserError(
                    f"{dashes}phase {phase}: there is no such phase; {meant}choose one of: {', '.join(known)}"
                )
        for tag in self.tags:
            if not tag.partition("=")[0].strip():
                raise UserError(f"{dashes}tag {tag}: write it as name=value, such as team=nlp, or the name alone")

    def may_fit(self, job: str) -> bool:
        """False if the id alone shows that the job does not fit."""
        return not self.names or any(fnmatchcase(name_of(job), one) or fnmatchcase(job, one) for one in self.names)

    def fits(self, summary: Summary) -> bool:
        if self.phases and summary.phase not in self.phases:
            return False
        if self.names and not any(_named(summary, pattern) for pattern in self.names):
            return False
        return all(_tagged(summary, tag) for tag in self.tags)


ALL = Filter()


def list_jobs(store: Store, recent: int | None = None, wanted: Filter = ALL) -> JobList:
    """The active jobs, and the `recent` ones that ended last (None: all), that match `wanted`. Raises StoreError."""
    active = {meta.key.split("/")[1] for meta in store.list(keys.ACTIVE)}
    listed = {job_index.job_of(meta): meta for meta in job_index.list_index(store)}
    # The record of an ended job was last written when it ended.
    ended = sorted(((meta.modified, job) for job, meta in listed.items() if job not in active), reverse=True)
    over = [job for _, job in ended if wanted.may_fit(job)]
    unreadable: dict[str, str] = {}

    def read(jobs: list[str]) -> list[Summary]:
        found = _read_all(store, [(job, listed.get(job)) for job in jobs])
        unreadable.update((job, each) for job, each in zip(jobs, found, strict=True) if isinstance(each, str))
        return [each for each in found if isinstance(each, Summary) and wanted.fits(each)]

    summaries, fitting = _with_heartbeats(store, read(sorted(filter(wanted.may_fit, active)))), 0
    # In portions: only reading them shows how many are wanted.
    portion = len(over) if recent is None else recent if wanted == ALL else max(recent, _PORTION)
    while over and (recent is None or fitting < recent):
        some = read(over[:portion])
        summaries += some if recent is None else some[: recent - fitting]
        fitting += len(some)
        over = over[portion:] if wanted != ALL else []
    newest_first = sorted(summaries, key=lambda summary: summary.submitted_at, reverse=True)
    return JobList(frozenset(active), tuple(newest_first), unreadable)


def _with_heartbeats(store: Store, summaries: list[Summary]) -> list[Summary]:
    """Refresh summaries of running jobs from their nodes' heartbeats.

    On a bucket, records are refreshed rarely. For few jobs the heartbeats are read instead; for many, each row shows
    its age.
    """
    now = datetime.now(timezone.utc)
    old = [each for each in summaries if each.heard_at is not None and now - each.heard_at > _OLD]
    running = [each for each in old if each.ended_at is None and each.attempts and each.attempts[-1].outcome is None]
    if store.is_local or not running or len(running) > _MOST_HEARD:
        return summaries
    fresh = read_each(partial(_with_heartbeat, store), running, is_local=False)
    by_id = {each.id: each for each in fresh}
    return [by_id.get(each.id, each) for each in summaries]


def _with_heartbeat(store: Store, summary: Summary) -> Summary:
    attempt = summary.attempts[-1]
    facts = [node_facts.read_node(store, summary.id, attempt.claim, node.rank, node.instance) for node in attempt.nodes]
    heartbeats = [beat for fact in facts if (beat := fact.known_heartbeat) is not None]
    heard_at = max((each.modified for each in heartbeats), default=None)
    if heard_at is None or (summary.heard_at is not None and heard_at <= summary.heard_at):
        return summary
    trained_s = max(each.value.trained_s for each in heartbeats)
    steps = [each.value.step for each in heartbeats if each.value.step is not None]
    return replace(
        summary,
        heard_at=heard_at,
        step=max(steps, default=summary.step),
        trained_s=summary.trained_s + max(0.0, trained_s - attempt.trained_s),
        metrics={**summary.metrics, **heartbeats[0].value.metrics},
    )


def _read_all(store: Store, jobs: Sequence[tuple[str, Meta | None]]) -> list[Summary | str | None]:
    return read_each(lambda each: _read(store, *each), jobs, is_local=store.is_local)


def _read(store: Store, job: str, listed: Meta | None) -> Summary | str | None:
    """The summary, the reason that there is none, or None for a job that does not exist."""
    found = job_index.read_summary(store, job, listed)
    if found is not None:
        return found
    # A job without an index record was submitted moments ago.
    try:
        state = job_log.read(store, job)
        if state is None:
            return None
        return summarize(state, job_index.read_submission(store, state), {}, datetime.now(timezone.utc))
    except (StoreUnavailable, StoreDenied):
        raise
    except StoreError as error:
        return str(error)


def tags_of(summaries: Iterable[Summary]) -> list[str]:
    """The tags of these jobs, as `name=value`."""
    return sorted({f"{name}={value}" for summary in summaries for name, value in summary.tags.items()})


def _named(summary: Summary, pattern: str) -> bool:
    return fnmatchcase(summary.name, pattern) or fnmatchcase(summary.id, pattern)


def _tagged(summary: Summary, wanted: str) -> bool:
    name, equals, pattern = wanted.partition("=")
    value = summary.tags.get(name.strip())
    return value is not None and (not equals or fnmatchcase(str(value), pattern))
