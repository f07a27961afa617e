"""The forms people write single values in, and back: `1h30m`, `200GB`, `A100:8`, `8+`.

Each reader raises ValueError with the form to write instead. Each has a writer whose text reads back as the same value.
"""

from __future__ import annotations

import re
from datetime import date

from stoker.model.resources import Gpus

_SECONDS = {"w": 604800.0, "d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_DURATION = re.compile(r"\s*".join(rf"(?:(?P<{unit}>\d+(?:\.\d+)?)\s*{unit}(?![a-z]))?" for unit in _SECONDS))
_BYTES: dict[str, int] = {
    "B": 1,
    **{f"{letter}B": 1000**power for power, letter in enumerate("KMGTP", 1)},
    **{f"{letter}iB": 1024**power for power, letter in enumerate("KMGTP", 1)},
}
_UNITS = {unit.lower(): size for unit, size in _BYTES.items()}
_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[A-Za-z]+)\s*\+?")
_GPUS = re.compile(r"(?P<name>[A-Za-z][A-Za-z0-9_.-]*)(?::(?P<count>\d+))?|(?P<any>\d+)")

DURATION_HELP = "a duration such as 90s, 15m, 24h or 1h30m"
SIZE_HELP = "a size with its unit, such as 200GB or 64GiB"
GPUS_HELP = "accelerators such as A100:8, A100 or 8"
PERCENT_HELP = "a share such as 80% or 0.8"
DATE_HELP = "a day such as 2026-12-31"
AT_LEAST_HELP = "a whole number such as 8 or 8+"


def read_duration(value: str | int | float) -> float:
    """Seconds. A plain number is seconds already."""
    if isinstance(value, (int, float)):
        if value < 0:
            raise ValueError(DURATION_HELP)
        return float(value)
    text = value.strip()
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    match = _DURATION.fullmatch(text)
    if not text or match is None:
        raise ValueError(DURATION_HELP)
    return sum(float(number) * _SECONDS[unit] for unit, number in match.groupdict().items() if number)


def write_duration(seconds: float) -> str:
    """An exact text: `1h30m`, or plain seconds where there is a fraction of one."""
    if seconds != int(seconds):
        from decimal import Decimal  # imported here: slow to import, and seldom needed

        return f"{Decimal(repr(seconds)):f}s"
    left = int(seconds)
    parts = []
    for unit in ("d", "h", "m", "s"):
        count, left = divmod(left, int(_SECONDS[unit]))
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def read_size(value: str | int | float) -> int:
    """Bytes. GB is 10⁹ and GiB is 2³⁰. A number without a unit is refused."""
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    unit = _UNITS.get(match["unit"].lower()) if match else None
    if match is None or unit is None:
        raise ValueError(SIZE_HELP)
    whole, _, fraction = match["number"].partition(".")
    # Whole-number arithmetic: a float would lose bytes of a large disk.
    return int(whole + fraction) * unit // int("1" + "0" * len(fraction))


def write_size(size: int) -> str:
    """The largest unit that is exact."""
    for unit, factor in sorted(_BYTES.items(), key=lambda item: -item[1]):
        if size >= factor and size % factor == 0:
            return f"{size // factor}{unit}"
    return f"{size}B"


def read_gpus(value: str | int | float) -> Gpus | None:
    """A number of accelerators of one kind, or of any kind; 0 means none."""
    text = str(value).strip()
    match = _GPUS.fullmatch(text)
    if not text or match is None or isinstance(value, float):
        raise ValueError(GPUS_HELP)
    count = int(match["count"] or match["any"] or 1)
    if count == 0 and match["name"]:
        raise ValueError(GPUS_HELP)
    return Gpus(name=match["name"] or "", count=count) if count else None


def write_gpus(gpus: Gpus) -> str | int:
    return f"{gpus.name}:{gpus.count}" if gpus.name else gpus.count


def read_percent(value: str | int | float) -> float:
    """A share of one: `80%`, or `0.8`."""
    text = str(value).strip()
    share = float(text.removesuffix("%").strip()) / (100 if text.endswith("%") else 1)
    if not 0 <= share <= 1:
        raise ValueError(PERCENT_HELP)
    return share


def read_date(value: str | int | float) -> date:
    """A day, as `2026-12-31`."""
    if not isinstance(value, str) or not re.fullmatch(r"\d{4}-\d\d-\d\d", value.strip()):
        raise ValueError(DATE_HELP)
    return date.fromisoformat(value.strip())


def read_at_least(value: str | int | float) -> int:
    text = str(value).strip().removesuffix("+")
    if isinstance(value, float) or not re.fullmatch(r"\d+", text):
        raise ValueError(AT_LEAST_HELP)
    return int(text)
