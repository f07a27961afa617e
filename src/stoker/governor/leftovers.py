"""Find and remove leftovers of machines: disks, placement groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from stoker.core.hold import hold_of
from stoker.core.unowned_machines import is_orphan, why_unowned
from stoker.governor.connected_providers import Fleet
from stoker.model.errors import NotFound, StokerError, Transient, describe_error
from stoker.model.job_state import JobState
from stoker.model.offerings import Leftover
from stoker.providers.base import SupportsLeftovers
from stoker.store import job_log
from stoker.store.base import Store
from stoker.store.job_index import read_submission


@dataclass
class SweepResult:
    """The leftovers that were found, each with the reason, and why some could not be removed.

    `orphans` are the removed leftovers without a claim.
    """

    found: list[tuple[Leftover, str]] = field(default_factory=list)
    orphans: list[tuple[Leftover, str]] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)


def sweep(
    store: Store,
    fleet: Fleet,
    place: tuple[str, str | None],
    store_time: Callable[[], datetime],
    job: str | None = None,
    *,
    dry: bool = False,
) -> SweepResult:
    """Remove leftovers in one place: of one job where `job` is given, none at all when `dry`.

    `store_time` is asked once, if anything is listed. Ages are computed from it, because this computer's clock may be
    wrong. The cloud is listed before any log is read, so a listed thing either has its claim in the log, or has none.
    """
    name, region = place
    result = SweepResult()
    try:
        provider = fleet.provider(name)
        if not isinstance(provider, SupportsLeftovers):
            return result
        listed = [each for each in provider.list_leftovers(region) if job in (None, each.job)]
        if not listed:
            return result
        now = store_time()
    except Exception as error:  # noqa: BLE001 - a provider may be anybody's plug-in: no error of it may end the pass
        result.problems[name] = describe_error(error)  # A list that failed proves nothing: remove nothing, report it.
        return result
    states: dict[str, JobState | None] = {}
    for each in listed:
        try:
            if each.job not in states:
                states[each.job] = job_log.read(store, each.job)
            reason = why_unowned(each, states[each.job], provider.capabilities.newborn_s, now)
            if reason is None:
                continue
            result.found.append((each, reason))
            if not dry:
                provider.remove(each)
                if is_orphan(each, states[each.job]):
                    result.orphans.append((each, reason))
        except NotFound:
            continue
        except Transient as error:
            # A machine that is held for debugging may still use it.
            if not _is_held(store, states[each.job], now):
                result.problems[each.job] = str(error)
        except Exception as error:  # noqa: BLE001 - one leftover that fails must not hide the others
            result.problems[each.job] = describe_error(error)
    return result


def _is_held(store: Store, state: JobState | None, now: datetime) -> bool:
    if state is None or state.ended is None:
        return False
    try:
        held = hold_of(state, read_submission(store, state).spec)
    except StokerError:
        return False
    return held is not None and now < held.ends_at
