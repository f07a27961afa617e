"""Keep machines and money in sight when a job is removed.

The costs are written first. Where the log is corrupt, no provider may list a machine of the job.
"""

from __future__ import annotations

from datetime import timedelta

from stoker.governor.connected_providers import Fleet
from stoker.governor.cost_ledger import record_job_costs
from stoker.governor.observe import Place, known_places
from stoker.model import codec, keys
from stoker.model.durations import span_text
from stoker.model.errors import CodecError, ProviderError, StoreDenied, StoreError, StoreUnavailable, UserError
from stoker.model.job_state import JobState
from stoker.model.submission import Submission
from stoker.store import job_index
from stoker.store.base import Store
from stoker.store.store_clock import read_time


def check_machines_gone(store: Store, job: str, why: StoreError) -> None:
    """Raise UserError unless the job has no machine in any place where this store ever launched one.

    The machines that the corrupt log named are unknown. So all places must answer, and the log must be older than the
    time in which a new machine may be missing from lists.
    """
    fleet, young = Fleet(store.url), timedelta()
    for place in sorted({*known_places(store), *_last_places(store, job)}, key=str):
        provider, region = place
        where = provider if region is None else f"{provider} {region}"
        try:
            found = fleet.provider(provider).list_instances(region)
            young = max(young, timedelta(seconds=fleet.capabilities(provider).newborn_s))
        except (ProviderError, UserError) as error:
            raise UserError(
                f"{job} cannot be read ({why}), and its machines on {where} cannot be listed: {error}"
            ) from None
        left = [instance.id for instance in found if instance.job == job and instance.state != "gone"]
        if left:
            raise UserError(f"{job} cannot be read ({why}), and has machines on {where}: {', '.join(left)}; end them")
    written = max((meta.modified for meta in store.list(keys.log_prefix(job))), default=None)
    if written is not None and read_time(store) - written < young:
        wait = span_text(young.total_seconds())
        raise UserError(f"{job} cannot be read ({why}), and a machine of it may still show up; wait {wait}")


def record_costs_before_removal(store: Store, job: str, state: JobState | None) -> None:
    """Write the costs of a job before it is removed: usually, but not always, a governor has done so when it unmarked
    the job.

    Without a readable log (`state` is None) the costs come from the job's last index record. Costs that are in neither
    are not counted. Raises StoreUnavailable or StoreDenied.
    """
    if state is None:
        record = job_index.read_index(store, job)
        if record is None:
            return
        state, until = record.state, record.summary.heard_at or record.state.updated_at
    else:
        until = read_time(store)
    try:
        found = store.get(keys.spec(job))
        spec = codec.loads(Submission, found.data if found else b"", where=keys.spec(job)).spec
    except (StoreUnavailable, StoreDenied):
        raise
    except (StoreError, CodecError):
        return  # Without its tags the job counts against no budget.
    record_job_costs(store, state, spec, until)


def _last_places(store: Store, job: str) -> set[Place]:
    record = job_index.read_index(store, job)
    claims = record.state.claims if record is not None else ()
    return {(claim.offering.provider, claim.offering.region) for claim in claims}
