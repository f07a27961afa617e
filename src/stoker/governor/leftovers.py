"""Find and remove what machines left beside them: disks, placement groups."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone

from stoker.core.hold import hold_of
from stoker.core.orphans import is_orphan, why_left
from stoker.governor.connected_providers import Fleet
from stoker.model.errors import STUMBLES, NotFound, ProviderError, StokerError, StoreError, Transient, in_words
from stoker.model.job_state import JobState
from stoker.model.offerings import Leftover
from stoker.providers.base import Leaves
from stoker.store import job_log
from stoker.store.base import Store
from stoker.store.job_index import read_submission


@dataclass
class Swept:
    """What was found to be nobody's, with the reason, and what could not be removed.

    `orphans` are those of them that were removed and that no claim stands behind.
    """

    found: list[tuple[Leftover, str]] = field(default_factory=list)
    orphans: list[tuple[Leftover, str]] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)


def sweep(
    store: Store, fleet: Fleet, place: tuple[str, str | None], job: str | None = None, *, dry: bool = False
) -> Swept:
    """Remove what is nobody's in one place; of one job only, where that is named; nothing at all when `dry`.

    The cloud is listed before any log is read, so whatever was listed has its claim in the log, or none.
    """
    name, region = place
    swept = Swept()
    try:
        provider = fleet.provider(name)
        if not isinstance(provider, Leaves):
            return swept
        listed = [each for each in provider.list_leftovers(region) if job in (None, each.job)]
    except StokerError as error:
        swept.problems[name] = str(error)  # A list that failed proves nothing, and hides nothing.
        return swept
    states: dict[str, JobState | None] = {}
    # The clouds' own times are compared with this computer's: newborns are given minutes.
    now = datetime.now(timezone.utc)
    for each in listed:
        try:
            if each.job not in states:
                states[each.job] = job_log.read(store, each.job)
            reason = why_left(each, states[each.job], provider.capabilities.newborn_s, now)
            if reason is None:
                continue
            swept.found.append((each, reason))
            if not dry:
                provider.remove(each)
                if is_orphan(each, states[each.job]):
                    swept.orphans.append((each, reason))
        except NotFound:
            continue
        except Transient as error:
            # A machine that is held for a person still uses it.
            if not _is_held(store, states[each.job], now):
                swept.problems[each.job] = str(error)
        except (ProviderError, StoreError, *STUMBLES) as error:
            swept.problems[each.job] = in_words(error)
    return swept


def _is_held(store: Store, state: JobState | None, now: datetime) -> bool:
    if state is None or state.ended is None:
        return False
    try:
        held = hold_of(state, read_submission(store, state).spec)
    except StokerError:
        return False
    return held is not None and now < held.ends_at
