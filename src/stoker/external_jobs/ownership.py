"""Which training jobs Stoker itself started: these are governed as jobs."""

from __future__ import annotations

import re

from stoker.external_jobs.aws_account import Described
from stoker.providers.sagemaker import names, tags
from stoker.store import job_log
from stoker.store.base import Store

_JOB = re.compile(r"[a-z0-9-]+")


def is_own(store: Store, found: Described) -> bool:
    """Whether Stoker itself started it. Tags and names are anybody's: of this store it is what its log claims. What
    looks like another store's in all is left to that one."""
    name, told = str(found.description.get("TrainingJobName", "")), tags.read(found.tags)
    named, job, whose = names.read(name), told.get(tags.JOB, ""), told.get(tags.STORE, "")
    if named is None or _JOB.fullmatch(job) is None:
        return False
    if name != names.training_job(store.url, job, named.claim, named.nodes):
        return whose != store.url and name == names.training_job(whose, job, named.claim, named.nodes)
    state = job_log.read(store, job)
    return state is not None and any(claim.number == named.claim for claim in state.claims)
