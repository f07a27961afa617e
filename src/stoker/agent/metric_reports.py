"""Read the metrics that the training reports through a file (`stoker.train.report`).

Its lines look like `{"t": 1700000000.0, "step": 3, "loss": 0.5}`. The training is user code: lines are capped, and
values that are no numbers are left out.
"""

from __future__ import annotations

from pathlib import Path

from stoker.agent.logs.file_tail import FileTail
from stoker.model import codec
from stoker.model.errors import CodecError
from stoker.store.log_chunks import LATEST_S, MOST_STEPS, Sample

_MAX_REPORT_BYTES = 16 * 1024
_MAX_NAME_CHARS = 100


class ReportReader:
    """Reads new lines of the file. A line that is too long is skipped."""

    def __init__(self, path: Path) -> None:
        self._tail = FileTail(path)
        self._rest = b""
        self._overlong = False

    @property
    def offset(self) -> int:
        """How far whole lines have been read."""
        return self._tail.offset - len(self._rest)

    def resume(self, offset: int) -> None:
        """Go on at this offset."""
        self._tail.offset = offset

    def forget(self, offset: int) -> None:
        """Allow the file to lose its bytes before this offset: they are durable."""
        self._tail.forget(offset)

    def read(self, size: int, now: float) -> tuple[list[Sample], bool]:
        """Read up to `size` bytes; return the samples in them, and whether the file may have more."""
        data = self._tail.read(size)
        more = len(data) == size
        if self._overlong:
            end = data.find(b"\n")
            if end < 0:
                return [], more
            data, self._overlong = data[end + 1 :], False
        *lines, rest = (self._rest + data).split(b"\n")
        self._overlong = len(rest) > _MAX_REPORT_BYTES
        self._rest = b"" if self._overlong else rest
        parsed = (parse_report(line, now) for line in lines)
        return [sample for sample in parsed if sample is not None], more


def parse_report(line: bytes, now: float) -> Sample | None:
    """Parse one line of the file; None if it holds no sample."""
    if len(line) > _MAX_REPORT_BYTES:
        return None
    try:
        tree = codec.parse(line, nonfinite=True)
    except CodecError:
        return None
    if not isinstance(tree, dict):
        return None
    values = {}
    for name, value in tree.items():
        number = _number(value)
        if name in ("t", "step") or number is None or not 0 < len(name) <= _MAX_NAME_CHARS:
            continue
        if name.isprintable():
            values[name] = number
    at, step = _number(tree.get("t")), _number(tree.get("step"))
    if step is not None and not (abs(step) < MOST_STEPS and step == int(step)):
        step = None
    if step is None and not values:
        return None
    return Sample(
        at=at if at is not None and 0 <= at < LATEST_S else now,
        step=None if step is None else int(step),
        values=values,
    )


def _number(value: object) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        try:
            return float(value)
        except OverflowError:
            return None
    # JSON has no numbers for these; some writers put them in quotes.
    if isinstance(value, str) and value.lower() in ("nan", "inf", "-inf", "infinity", "-infinity"):
        return float(value)
    return None
