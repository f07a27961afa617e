"""Keys of what claims observed of the spot market: by day, provider, offering and hour."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, datetime, timezone

from stoker.model.key_segments import quote, unquote
from stoker.model.keys import MARKET


def market_day(day: date, provider: str) -> str:
    """Prefix of the market observations of one provider on one day."""
    return f"{MARKET}{day.isoformat()}/{quote(provider)}/"


def market_observation(at: datetime, names: Iterable[str], observation: str) -> str:
    """An observation of the spot market by a claim, at a time in UTC. `names`, any text, identify the offering."""
    return "/".join((f"{MARKET}{at:%Y-%m-%d}", *map(quote, names), f"{at:%H}", observation))


def read_market_observation(key: str) -> tuple[datetime, tuple[str, ...], str] | None:
    """Parse a key into the hour, the names of the offering and the observation; None if it is not such a key."""
    parts = key.removeprefix(MARKET).split("/")
    if not key.startswith(MARKET) or len(parts) < 4:
        return None
    day, *names, hour, observation = parts
    try:
        at = datetime.strptime(f"{day} {hour}", "%Y-%m-%d %H").replace(tzinfo=timezone.utc)
        return at, tuple(map(unquote, names)), observation
    except ValueError:
        return None
