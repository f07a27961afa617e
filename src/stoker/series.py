"""Series of utilisation: packed small enough for a heartbeat, and what they say about a span of time. Pure.

Facts are untrusted: what does not make sense says nothing.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Iterable, Sequence

from stoker.model import Series

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


def windows(found: Iterable[Series], window_s: float, count: int) -> list[list[float]] | None:
    """The mean of each device in each of the last `count` windows, the newest last, from the finest series that is long
    enough. None where that is not known: of any device, for any part of the time."""
    readable = [(series.period_s, devices) for series in found if (devices := unpack(series)) is not None]
    for period_s, devices in sorted(readable, key=lambda each: each[0]):
        length = len(devices[0])
        # A period may be so short that the window has more of them than a number can say.
        size = round(min(window_s / period_s, length + 1))
        if size < 1 or size * count > length:
            continue
        means = [_means(device[len(device) - size * count :], size) for device in devices]
        if any(mean is None for device in means for mean in device):
            return None
        return [[mean for mean in device if mean is not None] for device in means]
    return None


def _means(values: list[float | None], size: int) -> list[float | None]:
    parts = [values[at : at + size] for at in range(0, len(values), size)]
    return [None if None in part else sum(value or 0.0 for value in part) / len(part) for part in parts]


def _byte(value: float | None) -> int:
    return _UNKNOWN if value is None or math.isnan(value) else round(min(1.0, max(0.0, value)) * _STEPS)


def _share(byte: int) -> float | None:
    return None if byte > _STEPS else byte / _STEPS
