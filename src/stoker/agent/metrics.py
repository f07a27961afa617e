"""Collect metrics from the training's reports, from its log and from the machine, and bring them to the store.

Reports come through a file that the training writes (`stoker.train.report`): lines such as
`{"t": 1700000000.0, "step": 3, "loss": 0.5}`. The training is somebody else's code: lines are capped, and what is not
a number is left out.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stoker.agent.health.step_count import StepCount
from stoker.agent.logs.file_tail import FileTail
from stoker.agent.logs.pump_thread import PumpThread, Turn
from stoker.agent.metric_scan import MetricScanner
from stoker.model import keys
from stoker.model.node_facts import Trend, Usage
from stoker.store.base import Store
from stoker.store.log_chunks import (
    ChunkWriter,
    Mark,
    MetricLine,
    Sample,
    UsageSample,
    decode_lines,
    encode_line,
    last_chunk,
)

NEAR_FLUSH_S = 0.5
FAR_FLUSH_S = 5.0
_POLL_S = 0.25
# How much is read of the file at a time, and how much may wait in memory for the store.
_READ_BYTES = 256 * 1024
_WAITING_BYTES = 1024 * 1024
_MAX_REPORT_BYTES = 16 * 1024
_MAX_NAME_CHARS = 100
# Heartbeats carry the last value of each; nobody looks at more.
MAX_NAMES = 200
# Rules look at a few of them.
MAX_TRENDS = 50
# Samples kept of a metric: this many a second, after a burst of so many; and in the long run one a second, so that a
# week of training stays readable.
RATE_PER_S = 10.0
BURST = 100.0
LONG_RUN = 10_000
LONG_RUN_RATE_PER_S = 1.0


@dataclass(frozen=True)
class Progress:
    """What the training has said so far: for heartbeats and the exit."""

    first_step: int | None = None
    last_step: int | None = None
    values: dict[str, float] = field(default_factory=dict)
    trends: dict[str, Trend] = field(default_factory=dict)
    # How often it moved on by its steps.
    moves: int = 0


def parse_report(raw: bytes, now: float) -> Sample | None:
    """One line of the training's metrics file, or None when there is nothing in it."""
    if len(raw) > _MAX_REPORT_BYTES:
        return None
    try:
        tree = json.loads(raw)
    except (ValueError, RecursionError):
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
    if step is not None and not (abs(step) < 2**53 and step == int(step)):
        step = None
    if step is None and not values:
        return None
    return Sample(
        at=at if at is not None and 0 <= at < 1e11 else now,
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
    # JSON has no word for these; some writers put them in quotes.
    if isinstance(value, str) and value.lower() in ("nan", "inf", "-inf", "infinity", "-infinity"):
        return float(value)
    return None


class Thinner:
    """Bounds how many samples of each metric are kept. The first, the newest and every turn to or from NaN are."""

    @dataclass
    class _Metric:
        allowance: float = BURST
        kept: int = 0
        at: float = -math.inf
        strange: bool = False

    def __init__(self) -> None:
        self._metrics: dict[str, Thinner._Metric] = {}
        # The newest value of each metric whose newest value was not kept.
        self._held: dict[str, tuple[float, int | None, float]] = {}

    def offer(self, sample: Sample) -> Sample | None:
        """What of the sample is to be written now."""
        kept: dict[str, float] = {}
        for name, value in sample.values.items():
            metric = self._metrics.get(name)
            if metric is None:
                if len(self._metrics) >= MAX_NAMES:
                    continue
                metric = self._metrics[name] = Thinner._Metric(at=sample.at)
            rate = RATE_PER_S if metric.kept < LONG_RUN else LONG_RUN_RATE_PER_S
            metric.allowance = min(BURST, metric.allowance + max(0.0, sample.at - metric.at) * rate)
            metric.at = max(metric.at, sample.at)
            strange = not math.isfinite(value)
            if metric.allowance >= 1 or strange != metric.strange:
                metric.allowance = max(0.0, metric.allowance - 1)
                metric.kept += 1
                kept[name] = value
                self._held.pop(name, None)
            else:
                self._held[name] = (sample.at, sample.step, value)
            metric.strange = strange
        if kept or (sample.step is not None and not sample.values):
            return Sample(sample.at, sample.step, kept)
        return None

    def newest(self) -> list[Sample]:
        """What was held back of each metric's newest values, to be written after all."""
        together: dict[tuple[float, int | None], dict[str, float]] = {}
        for name, (at, step, value) in self._held.items():
            together.setdefault((at, step), {})[name] = value
        self._held.clear()
        return [Sample(at, step, values) for (at, step), values in together.items()]


@dataclass
class _Best:
    """The lowest and the highest value so far, and when each was first reached."""

    low: float
    low_at_s: float
    high: float
    high_at_s: float

    def take(self, value: float, now_s: float) -> None:
        if value < self.low:
            self.low, self.low_at_s = value, now_s
        if value > self.high:
            self.high, self.high_at_s = value, now_s

    def told(self, now_s: float) -> Trend:
        return Trend(self.low, round(now_s - self.low_at_s, 3), self.high, round(now_s - self.high_at_s, 3))


class MetricsPump:
    """Gathers samples into `layout.metrics_chunk(node, 0…)`. Give `scan` to the log pump as its tap."""

    def __init__(
        self,
        store: Store,
        node: str,
        path: Path,
        regexes: Mapping[str, str] | None = None,
        *,
        earlier: Sequence[str] = (),
        near: bool | None = None,
    ) -> None:
        near = store.near if near is None else near
        self._store = store
        self._tail = FileTail(path)
        self._earlier = tuple(earlier)
        self._scanner = MetricScanner(regexes or {})
        # What the job names itself is not crowded out by what its script reports besides.
        self._named = frozenset(regexes or ())
        self._writer = ChunkWriter(store, lambda n, size: keys.metrics_chunk(node, n, size))
        self._flush_s = NEAR_FLUSH_S if near else FAR_FLUSH_S
        self._flushed_at = -self._flush_s
        self._rest = b""
        self._overlong = False
        self._mark = Mark(0)
        # Shared with the threads that scan the log and sample the machine.
        self._lock = threading.Lock()
        self._scanning = threading.Lock()
        self._thinner = Thinner()
        self._lines: deque[bytes] = deque()
        self._lines_bytes = 0
        self._first_step: int | None = None
        self._last_step: int | None = None
        self._steps = StepCount()
        self._values: dict[str, float] = {}
        self._bests: dict[str, _Best] = {}
        self._thread = PumpThread("metrics-pump", self._turn, _POLL_S)

    @property
    def progress(self) -> Progress:
        with self._lock:
            now_s = time.monotonic()
            trends = {name: best.told(now_s) for name, best in self._bests.items()}
            return Progress(self._first_step, self._last_step, dict(self._values), trends, self._steps.moves)

    def start(self) -> None:
        self._thread.start()

    def drain(self, deadline_s: float, until_s: Callable[[], float] | None = None) -> bool:
        """Wait until everything that was reported is durable. Call it after the log pump's. False: not in time."""
        with self._scanning:
            found = self._scanner.finish(time.time())
        self._take(found)
        return self._thread.drain(deadline_s, until_s)

    def stop(self, timeout_s: float = 5.0) -> None:
        """End the thread. Does not drain."""
        self._thread.stop(timeout_s)

    def scan(self, data: bytes, at: float) -> None:
        """Look for metrics in a block of the log."""
        with self._scanning:
            found = self._scanner.feed(data, at)
        self._take(found)

    def add_usage(self, usage: Usage, at: float | None = None) -> None:
        """A sample of the machine. Left out when an outage has filled the memory that is set aside for metrics."""
        with self._lock:
            if self._lines_bytes < _WAITING_BYTES:
                self._append(UsageSample(time.time() if at is None else at, usage))

    def _take(self, samples: Iterable[Sample]) -> None:
        with self._lock:
            for sample in samples:
                self._accept(sample)

    def _accept(self, sample: Sample) -> None:
        if sample.step is not None:
            if self._first_step is None:
                self._first_step = sample.step
            self._last_step = sample.step
            self._steps.note(sample.step, sample.values)
        for name, value in sample.values.items():
            if name in self._values or name in self._named or len(self._values) < MAX_NAMES:
                self._values[name] = value
                self._note_best(name, value)
        kept = self._thinner.offer(sample)
        if kept is not None and kept.values:
            self._append(kept)

    def _note_best(self, name: str, value: float) -> None:
        if not math.isfinite(value):
            return
        now_s = time.monotonic()
        best = self._bests.get(name)
        if best is not None:
            best.take(value, now_s)
        elif name in self._named or len(self._bests) < MAX_TRENDS:
            self._bests[name] = _Best(value, now_s, value, now_s)

    def _append(self, line: MetricLine) -> None:
        encoded = encode_line(line)
        self._lines.append(encoded)
        self._lines_bytes += len(encoded)

    # ── On the pump's own thread ──

    def _turn(self, hurry: bool) -> Turn:
        if self._earlier:
            self._resume()
        self._push()
        more = self._read_reports()
        since_s = time.monotonic() - self._flushed_at
        if not (hurry or since_s >= self._flush_s or self._lines_bytes >= _READ_BYTES):
            return "busy" if more else "waiting"
        gathered = self._gather()
        self._push()
        if more or (gathered and hurry):
            return "busy"
        return "waiting" if gathered else "idle"

    def _read_reports(self) -> bool:
        """Take in some of the file; whether there may be more. Stops while too much waits: the file is the buffer."""
        if self._lines_bytes >= _WAITING_BYTES:
            return False
        data = self._tail.read(_READ_BYTES)
        more = len(data) == _READ_BYTES
        if self._overlong:
            end = data.find(b"\n")
            if end < 0:
                return more
            data, self._overlong = data[end + 1 :], False
        *lines, rest = (self._rest + data).split(b"\n")
        self._overlong = len(rest) > _MAX_REPORT_BYTES
        self._rest = b"" if self._overlong else rest
        now = time.time()
        parsed = (parse_report(raw, now) for raw in lines)
        self._take(sample for sample in parsed if sample is not None)
        return more

    def _gather(self) -> bool:
        """Move waiting lines into the present chunk, with a mark of how far they reach; whether there were any."""
        with self._lock:
            for sample in self._thinner.newest():
                self._append(sample)
            data = bytearray()
            while self._lines and len(data) + len(self._lines[0]) < self._writer.room - 1024:
                data += self._lines.popleft()
            self._lines_bytes -= len(data)
            mark = Mark(self._tail.offset - len(self._rest), self._first_step, self._last_step)
            # With lines left behind, the mark would promise too much.
            if not self._lines and mark != self._mark:
                self._mark = mark
                data += encode_line(mark)
        if not data:
            return False
        self._writer.add(bytes(data))
        return True

    def _push(self) -> None:
        if not self._writer.pending:
            return
        self._writer.push()
        self._flushed_at = time.monotonic()
        self._tail.forget(self._mark.offset)

    def _resume(self) -> None:
        """Go on where the earlier boots of this machine got to. Raises StoreError, to be tried again."""
        mark, values = Mark(0), dict[str, float]()
        for node in self._earlier:
            for line in decode_lines(last_chunk(self._store, f"{node}/metrics/")):
                if isinstance(line, Mark):
                    mark = line
                elif isinstance(line, Sample):
                    values.update(line.values)
        with self._lock:
            self._tail.offset = mark.offset
            self._mark = mark
            self._first_step = mark.first_step if mark.first_step is not None else self._first_step
            self._last_step = self._last_step if self._last_step is not None else mark.last_step
            self._values = {**values, **self._values}
            self._earlier = ()
