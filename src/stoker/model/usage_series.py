"""Series of utilisation: packed small enough for a heartbeat, and evaluated over a span of time. Pure.

Facts are untrusted: an invalid series counts as no data.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Iterable, Sequence

from stoker.model.node_facts import Series

# Agents sample once a second at best and retain a day at most. The number of windows is bounded so that a busy window
# shows in any period.
FINEST_S, LONGEST_S, MOST_WINDOWS = 1.0, 86400.0, 1000
_UNKNOWN = 255
# Half percents in 100 %.
_STEPS = 200
# The share that each byte stands for.
_SHARES = [None if byte > _STEPS else byte / _STEPS for byte in range(256)]
# Larger than any series that an agent writes.
_MOST_BYTES = 64 * 1024


def pack(period_s: float, devices: Sequence[Sequence[float | None]]) -> Series:
    """Pack shares between 0 and 1, by device, the newest last. All devices have the same length."""
    return pack_bytes(period_s, [bytes(map(to_byte, device)) for device in devices])


def pack_bytes(period_s: float, devices: Sequence[bytes | bytearray]) -> Series:
    """Pack shares that `to_byte` made, as `pack` does."""
    return Series(period_s, len(devices), base64.b64encode(b"".join(devices)).decode())


def to_byte(value: float | None) -> int:
    """Return a share between 0 and 1 as a series holds it."""
    return _UNKNOWN if value is None or math.isnan(value) else round(min(1.0, max(0.0, value)) * _STEPS)


def unpack(series: Series) -> list[list[float | None]] | None:
    """Unpack shares between 0 and 1, by device; None for invalid data."""
    if not 0 < series.devices <= 1024 or not series.period_s > 0 or len(series.data) > _MOST_BYTES:
        return None
    try:
        data = base64.b64decode(series.data, validate=True)
    except (ValueError, binascii.Error):
        return None
    length, odd = divmod(len(data), series.devices)
    if odd:
        return None
    return [[_SHARES[byte] for byte in data[n * length : (n + 1) * length]] for n in range(series.devices)]


def device_means(found: Iterable[Series], over_s: float) -> list[float] | None:
    """Mean of each device over the last `over_s`, from the finest series that reaches back so far. None if a value of
    any device is unknown at any time."""
    for period_s, devices in _readable(found, over_s):
        if _reaches(period_s, devices, over_s):
            known = [_mean(device[-math.ceil(over_s / period_s) :]) for device in devices]
            return [mean for mean in known if mean is not None] if None not in known else None
    return None


def all_idle(
    found: Iterable[Series], window_s: float, count: int, below: float, devices: int, *, hidden: bool = True
) -> bool:
    """Return whether at least `devices` devices are known to have been at or below `below` in each of the last `count`
    windows.

    Older values exist only in coarse periods. If a period is longer than a window, it replaces the windows of its span,
    with a lower threshold: even if all its activity fell into one window, that window must not exceed `below`. A coarse
    series lags behind, so finer ones are checked too, as far as they reach. Without `hidden` the threshold is not
    lowered for coarse periods.
    """
    span_s = window_s * count
    for period_s, values in _readable(found, span_s):
        reaches = _reaches(period_s, values, span_s)
        # Number of periods in a window.
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
    """The valid series that can describe such a span, with their periods, the finest first."""
    unpacked = [(series.period_s, devices) for series in found if (devices := unpack(series)) is not None]
    # A period longer than the whole span says nothing about it.
    sensible = [(period_s, devices) for period_s, devices in unpacked if devices[0] and period_s <= span_s]
    return sorted(sensible, key=lambda each: each[0])


def _reaches(period_s: float, devices: list[list[float | None]], span_s: float) -> bool:
    return period_s * len(devices[0]) >= span_s


def _means(values: list[float | None], size: int, *, whole: bool) -> list[float | None]:
    """Means of `size` values at a time, from the newest. `whole`: an incomplete oldest group is left out."""
    ends = range(len(values), size - 1 if whole else 0, -size)
    return [_mean(values[max(0, end - size) : end]) for end in ends]


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None
