"""Jobs whose log makes no sense: one must be able to get rid of them, without forgetting machines or money."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from stoker.governor.connected_providers import Fleet
from stoker.governor.cost_ledger import write_spent
from stoker.governor.observe import Place, known_places
from stoker.model import codec, keys
from stoker.model.errors import STUMBLES, ProviderError, StokerError, StoreError, UserError
from stoker.model.job_state import JobState
from stoker.model.spec import Submission
from stoker.store import job_index
from stoker.store.base import Store


def check_gone(store: Store, job: str, why: StoreError) -> None:
    """Raises UserError unless no machine of the job is in any place where this store ever launched one.

    Nobody knows what its log named: all places must answer, and the log must be older than a machine that no list
    shows yet.
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
                f"{job} cannot be read ({why}), nor its machines be looked for on {where}: {error}"
            ) from None
        left = [instance.id for instance in found if instance.job == job and instance.state != "gone"]
        if left:
            raise UserError(f"{job} cannot be read ({why}), and has machines on {where}: {', '.join(left)}; end them")
    written = max((meta.modified for meta in store.list(keys.log_prefix(job))), default=None)
    if written is not None and datetime.now(timezone.utc) - written < young:
        minutes = young.total_seconds() / 60
        raise UserError(f"{job} cannot be read ({why}), and a machine of it may still show up; wait {minutes:.0f} min")


def keep_money(store: Store, job: str, state: JobState | None) -> None:
    """Before a job is removed, write down what it spent: a governor has, when it forgot the job, but not always.

    Without a log, it is what the job's last record tells. What nobody can know any more is not counted. Raises
    StoreUnavailable or StoreDenied.
    """
    until = datetime.now(timezone.utc)
    if state is None:
        record = job_index.read_index(store, job)
        if record is None:
            return
        state, until = record.state, record.summary.heard_at or record.state.updated_at
    found = store.get(keys.spec(job))
    try:
        spec = codec.loads(Submission, found.data if found else b"", where=keys.spec(job)).spec
    except (StokerError, *STUMBLES):
        return  # Without its tags it counts for nobody.
    write_spent(store, state, spec, until)


def _last_places(store: Store, job: str) -> set[Place]:
    record = job_index.read_index(store, job)
    claims = record.state.claims if record is not None else ()
    return {(claim.offering.provider, claim.offering.region) for claim in claims}
