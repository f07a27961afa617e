"""`spent/`: what ended jobs spent, day by day, in the names of keys: one list is the sum, and no job has to be there.

Written by governors before a job is forgotten, create-only, and never removed: money that was spent stays spent when
`stoker rm` removes the job. Writing it again changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from urllib.parse import parse_qsl, urlencode

from stoker import facts, layout
from stoker.core.costs import Cost
from stoker.core.hold import hold_of
from stoker.core.spending import by_day, dearest, spells
from stoker.errors import StoreError
from stoker.fold import JobState
from stoker.spec import Spec
from stoker.store import Store
from stoker.summary import held_until

_UNKNOWN = "x"
# Names of files end at 255 bytes. Tags that would not fit are in the object itself, which nobody else needs to read.
_MOST_TAGS = 150
_ELSEWHERE = "~"
_MOST_BYTES = 256 * 1024


@dataclass(frozen=True)
class Spent:
    """What a job that is over spent on one day. `seq` is where its log ended."""

    job: str
    day: date
    seq: int
    cost: Cost
    tags: Mapping[str, str]


def write_spent(store: Store, state: JobState, spec: Spec, now: datetime) -> None:
    """Write down what an ended job spent, from its log. Raises StoreError when the store does not take it."""
    assert state.ended is not None
    hold = hold_of(state, spec)
    claim = state.claim(hold.claim) if hold is not None else None
    held = {claim.number: held_until(claim, facts.read_claim(store, state.job, claim), now)} if claim else {}
    for day, cost in by_day(spells(state, now, held)).items():
        key, data = _key(Spent(state.job, day, state.ended.seq, cost, spec.tags))
        # If somebody's is there, it is the same: it is all in the key.
        store.create(key, data)


def read_spent(store: Store, prefixes: Iterable[str]) -> list[Spent]:
    """What is below these prefixes, once for each job and day: one that was resumed was written down more than once.

    Raises StoreError when it cannot be read: then nobody knows the sum.
    """
    found: dict[tuple[str, date], Spent] = {}
    for prefix in prefixes:
        for meta in store.list(prefix):
            each = _parsed(store, meta.key)
            if each is None:
                continue
            before = found.get((each.job, each.day))
            if before is None or _rank(each) > _rank(before):
                found[each.job, each.day] = each
    return list(found.values())


def _rank(spent: Spent) -> tuple[bool, float]:
    """The dearest counts, and what is not known before all: a later end has all that was before it, save for how long
    machines were held."""
    return spent.cost.spent is None, dearest(spent.cost) or 0.0


def _key(spent: Spent) -> tuple[str, bytes]:
    tags = urlencode(sorted(spent.tags.items()))
    data = b""
    if len(tags) > _MOST_TAGS:
        tags, data = _ELSEWHERE, json.dumps(dict(spent.tags)).encode()
    amounts = f"{_micro(spent.cost.spent)}.{_micro(spent.cost.on_demand)}"
    return f"{layout.spent_day(spent.day)}{spent.job}/{layout.number(spent.seq)}.{amounts}.{tags}", data


def _parsed(store: Store, key: str) -> Spent | None:
    """None for what nobody here wrote. Raises StoreError where its tags cannot be read."""
    try:
        month, day, job, name = key.removeprefix(layout.SPENT).split("/")
        seq, spent, on_demand, tags = name.split(".", 3)
        when, number = date.fromisoformat(f"{month}-{day}"), int(seq)
        cost = Cost(_dollars(spent), _dollars(on_demand))
    except ValueError:
        return None
    return Spent(job, when, number, cost, _tags(store, key) if tags == _ELSEWHERE else dict(parse_qsl(tags, True)))


def _tags(store: Store, key: str) -> dict[str, str]:
    found = store.get(key, limit=_MOST_BYTES)
    try:
        return {str(name): str(value) for name, value in json.loads(found.data if found else b"").items()}
    except (ValueError, AttributeError):
        raise StoreError(f"{key}: its tags cannot be read") from None


def _micro(dollars: float | None) -> str:
    return _UNKNOWN if dollars is None else str(round(dollars * 1e6))


def _dollars(micro: str) -> float | None:
    return None if micro == _UNKNOWN else int(micro) / 1e6
