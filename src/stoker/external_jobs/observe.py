"""What is asked for about a training job of others before anything is decided."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

from stoker.core.budget_state import Books, concerned
from stoker.core.policy_rules import Subject
from stoker.external_jobs import chain_log, decide, training_job
from stoker.external_jobs import gpu_alarms as alarming
from stoker.external_jobs.apply import ForeignApplier
from stoker.external_jobs.aws_account import Described, ForeignAccount, gpus_of, price_of
from stoker.external_jobs.clone_chain import Family
from stoker.external_jobs.clone_request import begin, clone_name, lineage
from stoker.external_jobs.gpu_alarms import Alarm
from stoker.external_jobs.snapshot import Sight
from stoker.external_jobs.training_job import TrainingJob
from stoker.governor.budget_tracker import Bookkeeper
from stoker.governor.observe import Memory, active_jobs
from stoker.model.errors import ProviderError
from stoker.model.observed import Known, Observed, Unknown
from stoker.model.policy import House, Rule
from stoker.policy.history import Past
from stoker.store import external_job_index
from stoker.store.base import Store

# What SageMaker takes for the name of a training job.
NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")


class ForeignObserver:
    """Looks, and changes nothing."""

    def __init__(self, store: Store, start: str, topic: str | None = None) -> None:
        self._store = store
        # What names of alarms begin with.
        self._start = start
        self._topic = topic
        self._past = Past(store)

    def sight(
        self,
        house: House,
        account: ForeignAccount,
        found: Described,
        now: datetime,
        listed: Iterable[Alarm] | None,
        applier: ForeignApplier | None,
    ) -> Sight:
        """Everything that is looked at before it is decided about."""
        job = training_job.read(found.description, found.tags, account.region)
        family = self._family(job)
        alarms = self._alarms(account, job, listed, applier)
        gpus = gpus_of(job)
        readings = tail = since = None
        if isinstance(alarms, Known) and job.training and any(alarm.ringing for alarm in alarms.value):
            span_s = max((alarming.span_s(rule) for rule in house.rules), default=0.0)
            begin = now - timedelta(seconds=span_s + 1200)
            readings = _known(lambda: account.readings(job.name, job.hosts, begin, now))
        if (job.status == "Failed" or job.exceeded) and not {job.name} & {*family.clones, *family.gave_up}:
            since = self._wanted_since(house, account.region)
            tail = _known(lambda: account.tail(job.name, job.last_training_at)) if job.status == "Failed" else None
        subject = decide.subject_of(job, family, now)
        rules_since = {} if job.over else self._rules_since(house, job, subject)
        # It wants machines, or a clone of it would.
        wants = job.status in ("Failed", "Stopped") or (job.status == "InProgress" and not job.trained_s(now))
        books = self.books(house, job, now) if wants else None
        return Sight(
            job=job,
            family=family,
            alarms=alarms,
            start=self._start,
            topic=account.told_by_alarms(self._topic),
            gpus=gpus,
            price=price_of(job),
            readings=readings,
            tail=tail,
            books=books,
            rules_since=rules_since,
            wanted_since=since,
        )

    def _family(self, job: TrainingJob) -> Family:
        """Tags are copied by people too: a job is a clone where the log of its origin names it."""
        origin = lineage(job.tags).origin
        if origin and origin != job.name and NAME.fullmatch(origin) is not None:
            family = chain_log.read(self._store, job.region, origin)
            if family.holds(job.name):
                return family
        return chain_log.read(self._store, job.region, job.name)

    def _alarms(
        self,
        account: ForeignAccount,
        job: TrainingJob,
        listed: Iterable[Alarm] | None,
        applier: ForeignApplier | None,
    ) -> Observed[tuple[Alarm, ...]]:
        try:
            found = account.alarms(f"{self._start}{job.name}-") if listed is None else listed
        except ProviderError as error:
            return Unknown(str(error))
        mine = {alarm.name: alarm for alarm in found if job_of(alarm) == job.name}
        if applier is None:
            return Known(tuple(mine.values()))
        # CloudWatch may not list at once what was made a moment ago, nor as that.
        for name, made in applier.made.items():
            listed_as = mine.get(name, Alarm(name, made.host))
            mine[name] = replace(listed_as, topics=(made.topic,) if made.topic else listed_as.topics)
        return Known(tuple(alarm for name, alarm in mine.items() if name not in applier.removed))

    def resumed_as(self, account: ForeignAccount, sight: Sight) -> Observed[str]:
        """The training job in progress, of none of its clones, that has the same checkpoints; empty: there is none."""
        return _known(lambda: next(self._with_its_checkpoints(account, sight), ""))

    def _with_its_checkpoints(self, account: ForeignAccount, sight: Sight) -> Iterator[str]:
        job, family, rows = sight.job, sight.family, external_job_index.read(self._store, account.region).rows
        for name in (each.name for each in account.in_progress()):
            row = rows.get(name)
            if name == clone_name(job.name, job.created_at):
                continue
            if row is not None and row.checkpoints is not None:
                checkpoints, tags = row.checkpoints, row.tags
            else:
                found = account.describe(name)
                if found is None:
                    continue
                other = training_job.read(found.description, found.tags, account.region)
                checkpoints, tags = other.checkpoints, dict(other.tags)
            if checkpoints == job.checkpoints and not _is_of(family, job, name, tags):
                yield name

    def books(self, house: House, job: TrainingJob, now: datetime) -> Observed[Books] | None:
        """How the budgets stand that are about this job."""
        if not concerned(house, job.tags):
            return None
        keeper = Bookkeeper(self._store, Memory())
        keeper.begin(tuple(active_jobs(self._store)), whole=False)
        return keeper.look(house, now)

    def _wanted_since(self, house: House, region: str) -> datetime | None:
        return self._past.since(house, partial(_governs, region))

    def _rules_since(self, house: House, job: TrainingJob, subject: Subject) -> dict[str, datetime]:
        """Since when there have been the rules, as they are and for its region, that would have refused this job."""
        found = {}
        for finding in decide.refusals(house, job, subject):
            at = self._past.since(house, partial(_has, finding.rule, job.region))
            if at is not None:
                found[finding.rule.name] = at
        return found


def _is_of(family: Family, job: TrainingJob, name: str, tags: Mapping[str, str]) -> bool:
    """Whether a training job is of the family, or a clone that another house made of one of it, which this one may not
    know of. That tells by its tags, which people copy, and by its name, which they do not."""
    start, own = begin(name), begin(job.name)
    # Long names are cut off.
    named_alike = start != name and (start.startswith(own) or own.startswith(start))
    return family.holds(name) or (lineage(tags).origin == family.origin and named_alike)


def job_of(alarm: Alarm) -> str:
    """The training job that it watches."""
    return alarm.host.partition("/")[0]


def _has(rule: Rule, region: str, house: House) -> bool:
    return rule in house.rules and _governs(region, house)


def _governs(region: str, house: House) -> bool:
    return house.sagemaker is not None and region in house.sagemaker.regions


def _known(ask: Callable[[], object]) -> Observed:  # type: ignore[type-arg]
    try:
        return Known(ask())
    except ProviderError as error:
        return Unknown(str(error))
