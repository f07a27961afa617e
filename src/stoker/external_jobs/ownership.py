"""Recognise training jobs that Stoker itself started: they are governed as jobs of Stoker."""

from __future__ import annotations

import re

from stoker.external_jobs.aws_account import TrainingJobDescription
from stoker.providers.sagemaker import names, tags
from stoker.store import job_log
from stoker.store.base import Store

_JOB = re.compile(r"[a-z0-9-]+")


def is_own(store: Store, found: TrainingJobDescription) -> bool:
    """Return whether Stoker started the training job. Anybody may choose tags and names, so a job belongs to this store
    only if a claim in its log has it. A job whose name and tags fit another store is left to that store."""
    name, tags_of_job = str(found.description.get("TrainingJobName", "")), tags.from_aws(found.tags)
    named, job, whose = names.read(name), tags_of_job.get(tags.JOB, ""), tags_of_job.get(tags.STORE, "")
    if named is None or _JOB.fullmatch(job) is None:
        return False
    if name != names.training_job(store.url, job, named.claim, named.nodes):
        return whose != store.url and name == names.training_job(whose, job, named.claim, named.nodes)
    state = job_log.read(store, job)
    return state is not None and any(claim.number == named.claim for claim in state.claims)
