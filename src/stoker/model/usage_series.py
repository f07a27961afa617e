"""Series of utilisation: packed small enough for a heartbeat, and what they say about a span of time. Pure.

Facts are untrusted: what does not make sense says nothing.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Iterable, Sequence

from stoker.model.node_facts import Series

# What agents keep: a look a second at best, and a day at most. So many windows that a busy one shows in any period.
FINEST_S, LONGEST_S, MOST_WINDOWS = 1.0, 86400.0, 1000
_UNKNOWN = 255
# Of half percents.
_STEPS = 200
# No heartbeat of ours has more.
_MOST_BYTES = 64 * 1024


def pack(period_s: float, devices: Sequence[Sequence[float | None]]) -> Series:
    """`devices` are shares of one, by device, the newest last. All have the same length."""
    data = bytes(_byte(value) for device in devices for value in device)
    return Series(period_s, len(devices), base64.b64encode(data).decode())


def unpack(series: Series) -> list[list[float | None]] | None:
    """Shares of one, by device; None for what is no series."""
    if not 0 < series.devices <= 1024 or not series.period_s > 0 or len(series.data) > _MOST_BYTES:
        return None
    try:
        data = base64.b64decode(series.data, validate=True)
    except (ValueError, binascii.Error):
        return None
    length, odd = divmod(len(data), series.devices)
    if odd:
        return None
    return [[_share(byte) for byte in data[n * length : (n + 1) * length]] for n in range(series.devices)]


def means(found: Iterable[Series], over_s: float) -> list[float] | None:
    """Of each device over the last `over_s`, from the finest series that reaches so far back. None where that is not
    known: of any device, for any part of the time."""
    for period_s, devices in _readable(found, over_s):
        if _reaches(period_s, devices, over_s):
            known = [_mean(device[-math.ceil(over_s / period_s) :]) for device in devices]
            return [mean for mean in known if mean is not None] if None not in known else None
    return None


def quiet(
    found: Iterable[Series], window_s: float, count: int, below: float, devices: int, *, hidden: bool = True
) -> bool:
    """Whether all of so many devices were at or below this in each of the last `count` windows, and that is known.

    What was long ago is kept in coarse periods only. Where those are longer than a window, they are the windows of the
    same span, and the one window that they may hide must not have been above: so they get its share of `below`. A
    coarse series is behind; so the finer ones have their say, too, as far as they reach. Not `hidden`: a window that a
    coarse period hides may have been above.
    """
    span_s = window_s * count
    for period_s, values in _readable(found, span_s):
        reaches = _reaches(period_s, values, span_s)
        # Of periods that make a window.
        size = max(1, round(min(window_s / period_s, len(values[0]) + 1)))
        most = below * min(1.0, window_s / (size * period_s)) if hidden else below
        wanted = math.ceil(min(span_s / period_s, len(values[0])))
        seen = [_means(device[-wanted:], size, whole=not reaches) for device in values]
        if len(values) < devices or not all(mean is not None and mean <= most for device in seen for mean in device):
            return False
        if reaches:
            return True
    return False


def _readable(found: Iterable[Series], span_s: float) -> list[tuple[float, list[list[float | None]]]]:
    """What says something about such a span, by its period, the finest first."""
    unpacked = [(series.period_s, devices) for series in found if (devices := unpack(series)) is not None]
    # One period that is longer than all of it says nothing of it.
    sensible = [(period_s, devices) for period_s, devices in unpacked if devices[0] and period_s <= span_s]
    return sorted(sensible, key=lambda each: each[0])


def _reaches(period_s: float, devices: list[list[float | None]], span_s: float) -> bool:
    return period_s * len(devices[0]) >= span_s


def _means(values: list[float | None], size: int, *, whole: bool) -> list[float | None]:
    """Of so many at a time, from the newest. `whole`: the oldest that are too few are left out."""
    ends = range(len(values), size - 1 if whole else 0, -size)
    return [_mean(values[max(0, end - size) : end]) for end in ends]


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


def _byte(value: float | None) -> int:
    return _UNKNOWN if value is None or math.isnan(value) else round(min(1.0, max(0.0, value)) * _STEPS)


def _share(byte: int) -> float | None:
    return None if byte > _STEPS else byte / _STEPS
