"""`spent/`: what ended jobs spent, day by day, in the names of keys: one list is the sum, and no job has to be there.

Written by governors before a job is forgotten, create-only, and never removed: money that was spent stays spent when
`stoker rm` removes the job. Writing it again changes nothing.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from urllib.parse import parse_qsl, urlencode

from stoker.core.daily_costs import Sum, Sums, by_day, spells
from stoker.core.hold import may_have_been_held
from stoker.core.summary import held_until
from stoker.model import keys
from stoker.model.job_state import JobState
from stoker.model.spec import Spec
from stoker.store import node_facts
from stoker.store.base import Store
from stoker.store.parallel import run_all

# Of an amount that is not known whole; alone, where nothing of it is.
_UNKNOWN = "x"
_MOST_MICRO = 10**18 - 1
_AMOUNT = f"([0-9]{{1,18}}{_UNKNOWN}?|{_UNKNOWN})"
# Where its log ended; what was spent, what that would have cost on-demand, and what of it counts against budgets; the
# tags. What was written before the third was known has the first two alone, with a dot between them.
_NAME = re.compile(rf"([0-9]{{8}})\.{_AMOUNT}(?:-{_AMOUNT}-{_AMOUNT}|\.{_AMOUNT})\.(.*)", re.ASCII)
_KEY = re.compile(rf"{keys.SPENT}([0-9]{{4}}-[0-9]{{2}})/([0-9]{{2}})/([^/]+)/([^/]+)", re.ASCII)
# Names of files end at 255 bytes. Tags that would not fit are in the object itself, which nobody else needs to read.
_MOST_TAGS = 150
_ELSEWHERE = "~"
_MOST_BYTES = 256 * 1024
# Objects that are read at once, where each takes a while.
_READERS = 32


@dataclass(frozen=True)
class Spent:
    """What a job that is over spent on one day. `seq` is where its log ended."""

    job: str
    day: date
    seq: int
    sums: Sums
    tags: Mapping[str, str]


# What keys say, by the keys: they never change, so whoever looks again need not read them again. None: nothing.
Parsed = dict[str, Spent | None]


def write_spent(store: Store, state: JobState, spec: Spec, now: datetime) -> None:
    """Write down what an ended job spent, from its log, and until now what it does if it has not ended. Raises
    StoreError when the store does not take it."""
    seq = state.ended.seq if state.ended is not None else state.seq
    held = {
        claim.number: held_until(claim, node_facts.read_claim(store, state.job, claim), now)
        for claim in state.claims
        if may_have_been_held(claim, spec)
    }
    for day, sums in by_day(spells(state, now, held)).items():
        keep_spent(store, Spent(state.job, day, seq, sums, spec.tags))


def keep_spent(store: Store, spent: Spent) -> None:
    """May be repeated. Raises StoreError when the store does not take it."""
    key, data = _key(spent)
    # If somebody's is there, it is the same: it is all in the key.
    store.create(key, data)


def read_spent(store: Store, prefixes: Iterable[str], known: Parsed | None = None) -> list[Spent]:
    """What is below these prefixes, once for each job and day: one that was resumed was written down more than once.

    What nobody here can have written is passed over. `known` is what was read before; it is brought up to date. Raises
    StoreError when the store does not answer: then nobody knows the sum.
    """
    before = {} if known is None else known
    key_list = [meta.key for prefix in prefixes for meta in store.list(prefix)]
    new = [key for key in key_list if key not in before]
    after = {key: before[key] for key in key_list if key in before} | _read(store, new)
    if known is not None:
        known.clear()
        known.update(after)
    found: dict[tuple[str, date], Spent] = {}
    for each in after.values():
        if each is None:
            continue
        other = found.get((each.job, each.day))
        if other is None or _rank(each) > _rank(other):
            found[each.job, each.day] = each
    return list(found.values())


def _read(store: Store, keys: list[str]) -> Parsed:
    found = {key: _parsed(key) for key in keys}
    elsewhere = [key for key, (_, tags) in found.items() if tags is None]
    calls = [lambda key=key: _tags(store, key) for key in elsewhere]
    bodies = dict(zip(elsewhere, run_all(calls, 1 if store.near else _READERS) if calls else (), strict=True))
    read: Parsed = {}
    for key, (spent, tags) in found.items():
        told = bodies[key] if tags is None else tags
        read[key] = None if spent is None or told is None else Spent(spent.job, spent.day, spent.seq, spent.sums, told)
    return read


def _rank(spent: Spent) -> tuple[float, bool, int]:
    """The dearest counts: a later end has all that was before it, save for how long machines were held."""
    return spent.sums.counted.known, not spent.sums.counted.whole, spent.seq


def _key(spent: Spent) -> tuple[str, bytes]:
    tags = _encoded(spent.tags)
    data = b""
    if len(tags) > _MOST_TAGS:
        tags, data = _ELSEWHERE, json.dumps(dict(spent.tags)).encode()
    sums = spent.sums
    amounts = "-".join(_micro(each) for each in (sums.spent, sums.on_demand, sums.counted))
    return f"{keys.spent_day(spent.day)}{spent.job}/{keys.number(spent.seq)}.{amounts}.{tags}", data


def _parsed(key: str) -> tuple[Spent | None, Mapping[str, str] | None]:
    """What a key says, and its tags: None where they are in the object. Nothing at all, with no tags, for what nobody
    here wrote."""
    where = _KEY.fullmatch(key)
    name = _NAME.fullmatch(where[4]) if where else None
    if where is None or name is None:
        return None, {}
    try:
        day = date.fromisoformat(f"{where[1]}-{where[2]}")
        tags = dict(parse_qsl(name[6], keep_blank_values=True, strict_parsing=bool(name[6])))
    except ValueError:
        if name[6] != _ELSEWHERE:
            return None, {}
        tags = None
    if tags is not None and _encoded(tags) != name[6]:
        return None, {}
    spent = _dollars(name[2])
    on_demand = _dollars(name[3] or name[5])
    counted = _dollars(name[4]) if name[4] else on_demand if name[2] == _UNKNOWN else spent
    return Spent(where[3], day, int(name[1]), Sums(spent, on_demand, counted), {}), tags


def _encoded(tags: Mapping[str, str]) -> str:
    return urlencode(sorted(tags.items()), errors="replace")


def _tags(store: Store, key: str) -> dict[str, str] | None:
    found = store.get(key, limit=_MOST_BYTES)
    try:
        return {str(name): str(value) for name, value in json.loads(found.data if found else b"").items()}
    except (ValueError, AttributeError):
        return None


def _micro(dollars: Sum) -> str:
    """Bounded: a name that is too long could not be written, and its job never be forgotten."""
    if not dollars.whole and dollars.known <= 0:
        return _UNKNOWN
    micro = max(0, round(min(dollars.known * 1e6, _MOST_MICRO))) if not math.isnan(dollars.known) else 0
    return f"{min(micro, _MOST_MICRO)}{'' if dollars.whole else _UNKNOWN}"


def _dollars(amount: str) -> Sum:
    digits = amount.removesuffix(_UNKNOWN)
    return Sum(int(digits or 0) / 1e6, whole=digits == amount)
