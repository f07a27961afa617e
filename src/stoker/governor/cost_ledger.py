"""`spent/`: the daily costs of ended jobs, in the names of keys: one list gives the sum, and no job has to exist.

Governors write it before a job is unmarked, create-only. It is never removed: money stays spent when `stoker rm`
removes the job. Writing it again changes nothing.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime
from functools import partial
from urllib.parse import parse_qsl, urlencode

from stoker.core.daily_costs import DaySums, KnownSum, by_day, paid_spans
from stoker.core.hold import qualifies_for_hold
from stoker.core.summary import held_until
from stoker.model import codec, keys
from stoker.model.errors import CodecError
from stoker.model.job_state import JobState
from stoker.model.spec import Spec
from stoker.store import node_facts
from stoker.store.base import Store
from stoker.store.parallel import read_each

# Marks an amount that is known only in part; stands alone where nothing of it is known.
_UNKNOWN = "x"
_MAX_MICRO = 10**18 - 1
_AMOUNT = f"([0-9]{{1,18}}{_UNKNOWN}?|{_UNKNOWN})"
# The number of the log's last entry; the amount spent, its on-demand price, and the part that counts against budgets;
# the tags. Older keys have the first two amounts only, with a dot between them.
_NAME = re.compile(rf"([0-9]{{8}})\.{_AMOUNT}(?:-{_AMOUNT}-{_AMOUNT}|\.{_AMOUNT})\.(.*)", re.ASCII)
_KEY = re.compile(rf"{keys.SPENT}([0-9]{{4}}-[0-9]{{2}})/([0-9]{{2}})/([^/]+)/([^/]+)", re.ASCII)
# File names have at most 255 bytes. Longer tags are in the object itself.
_MAX_TAGS = 150
_IN_OBJECT = "~"
_MAX_BYTES = 256 * 1024


@dataclass(frozen=True)
class DailyCost:
    """The cost of an ended job on one day. `seq` is the last entry of its log."""

    job: str
    day: date
    seq: int
    sums: DaySums
    tags: Mapping[str, str]


# Parsed keys. Keys never change, so each is parsed once. None: the key is not of this format.
ParsedKeys = dict[str, DailyCost | None]


def record_job_costs(store: Store, state: JobState, spec: Spec, now: datetime) -> None:
    """Write the daily costs of a job from its log: until its end, or until `now` if it has not ended. Raises
    StoreError."""
    seq = state.ended.seq if state.ended is not None else state.seq
    held = {
        claim.number: held_until(claim, node_facts.read_claim(store, state.job, claim), now)
        for claim in state.claims
        if qualifies_for_hold(claim, spec)
    }
    for day, sums in by_day(paid_spans(state, now, held)).items():
        record_daily_cost(store, DailyCost(state.job, day, seq, sums, spec.tags))


def record_daily_cost(store: Store, spent: DailyCost) -> None:
    """Write the cost of one day. May be repeated. Raises StoreError."""
    key, data = _key(spent)
    # An existing object is the same, since everything is in the key.
    store.create(key, data)


def read_daily_costs(store: Store, prefixes: Iterable[str], known: ParsedKeys | None = None) -> list[DailyCost]:
    """The costs below these prefixes, one for each job and day: a job that was resumed was written more than once.

    Keys of another format are ignored. `known` holds the keys that were read before, and is updated. Raises StoreError
    when the store does not answer: then the sum is unknown.
    """
    before = {} if known is None else known
    key_list = [meta.key for prefix in prefixes for meta in store.list(prefix)]
    new = [key for key in key_list if key not in before]
    after = {key: before[key] for key in key_list if key in before} | _read(store, new)
    if known is not None:
        known.clear()
        known.update(after)
    found: dict[tuple[str, date], DailyCost] = {}
    for each in after.values():
        if each is None:
            continue
        other = found.get((each.job, each.day))
        if other is None or _rank(each) > _rank(other):
            found[each.job, each.day] = each
    return list(found.values())


def _read(store: Store, keys: list[str]) -> ParsedKeys:
    found = {key: _parsed(key) for key in keys}
    in_object = [key for key, (_, tags) in found.items() if tags is None]
    bodies = dict(zip(in_object, read_each(partial(_tags, store), in_object, is_local=store.is_local), strict=True))
    read: ParsedKeys = {}
    for key, (spent, tags) in found.items():
        known_tags = bodies[key] if tags is None else tags
        read[key] = None if spent is None or known_tags is None else replace(spent, tags=known_tags)
    return read


def _rank(spent: DailyCost) -> tuple[float, bool, int]:
    """The highest cost counts: a later end includes all costs before it, except the time that machines were held."""
    return spent.sums.counted.known, not spent.sums.counted.whole, spent.seq


def _key(spent: DailyCost) -> tuple[str, bytes]:
    tags = _encoded(spent.tags)
    data = b""
    if len(tags) > _MAX_TAGS:
        tags, data = _IN_OBJECT, json.dumps(dict(spent.tags)).encode()
    sums = spent.sums
    amounts = "-".join(_micro(each) for each in (sums.spent, sums.on_demand, sums.counted))
    return f"{keys.spent_day(spent.day)}{spent.job}/{keys.number(spent.seq)}.{amounts}.{tags}", data


def _parsed(key: str) -> tuple[DailyCost | None, Mapping[str, str] | None]:
    """The cost in a key, and its tags, which are None where they are in the object. A key of another format gives None
    and no tags."""
    where = _KEY.fullmatch(key)
    name = _NAME.fullmatch(where[4]) if where else None
    if where is None or name is None:
        return None, {}
    try:
        day = date.fromisoformat(f"{where[1]}-{where[2]}")
        tags = dict(parse_qsl(name[6], keep_blank_values=True, strict_parsing=bool(name[6])))
    except ValueError:
        if name[6] != _IN_OBJECT:
            return None, {}
        tags = None
    if tags is not None and _encoded(tags) != name[6]:
        return None, {}
    spent = _dollars(name[2])
    on_demand = _dollars(name[3] or name[5])
    counted = _dollars(name[4]) if name[4] else on_demand if name[2] == _UNKNOWN else spent
    return DailyCost(where[3], day, int(name[1]), DaySums(spent, on_demand, counted), {}), tags


def _encoded(tags: Mapping[str, str]) -> str:
    return urlencode(sorted(tags.items()), errors="replace")


def _tags(store: Store, key: str) -> dict[str, str] | None:
    found = store.get(key, limit=_MAX_BYTES)
    try:
        return {str(name): str(value) for name, value in codec.parse_object(found.data if found else b"").items()}
    except CodecError:
        return None


def _micro(dollars: KnownSum) -> str:
    """The amount in millionths of a dollar. Bounded, since a key that is too long could not be written, and its job
    never be unmarked."""
    if not dollars.whole and dollars.known <= 0:
        return _UNKNOWN
    micro = max(0, round(min(dollars.known * 1e6, _MAX_MICRO))) if not math.isnan(dollars.known) else 0
    return f"{min(micro, _MAX_MICRO)}{'' if dollars.whole else _UNKNOWN}"


def _dollars(amount: str) -> KnownSum:
    digits = amount.removesuffix(_UNKNOWN)
    return KnownSum(int(digits or 0) / 1e6, whole=digits == amount)
