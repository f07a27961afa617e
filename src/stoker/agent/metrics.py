"""Collect metrics from the training's reports, from its log and from the machine, and bring them to the store.

How many samples of each metric are written is bounded.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stoker.agent.logs.pump_thread import PumpThread, Turn
from stoker.agent.metric_progress import MAX_NAMES, Progress, ProgressTracker
from stoker.agent.metric_reports import ReportReader
from stoker.agent.metric_scan import MetricScanner
from stoker.model import keys
from stoker.model.node_facts import Usage
from stoker.store.base import Store
from stoker.store.log_chunks import (
    ChunkWriter,
    MetricLine,
    MetricsMark,
    Sample,
    UsageSample,
    decode_lines,
    encode_line,
    last_chunk,
)

LOCAL_FLUSH_S = 0.5
REMOTE_FLUSH_S = 5.0
_POLL_S = 0.25
# How much of the file is read at a time, and how much may wait in memory for the store.
_READ_BYTES = 256 * 1024
_WAITING_BYTES = 1024 * 1024


# Samples written of a metric: this many a second, after a burst of so many; and in the long run one a second, so that
# a week of training stays readable.
RATE_PER_S = 10.0
BURST = 100.0
LONG_RUN = 10_000
LONG_RUN_RATE_PER_S = 1.0


class Thinner:
    """Chooses the samples to write. The first, the newest and every change to or from NaN are always among them."""

    @dataclass
    class _Metric:
        allowance: float = BURST
        written: int = 0
        at: float = -math.inf
        is_finite: bool = True

    def __init__(self) -> None:
        self._metrics: dict[str, Thinner._Metric] = {}
        # The newest value of each metric, if it was not written.
        self._held_back: dict[str, tuple[float, int | None, float]] = {}

    def offer(self, sample: Sample) -> Sample | None:
        """Return the part of the sample that is to be written now; None if there is none."""
        chosen: dict[str, float] = {}
        for name, value in sample.values.items():
            metric = self._metrics.get(name)
            if metric is None:
                if len(self._metrics) >= MAX_NAMES:
                    continue
                metric = self._metrics[name] = Thinner._Metric(at=sample.at)
            rate = RATE_PER_S if metric.written < LONG_RUN else LONG_RUN_RATE_PER_S
            metric.allowance = min(BURST, metric.allowance + max(0.0, sample.at - metric.at) * rate)
            metric.at = max(metric.at, sample.at)
            is_finite = math.isfinite(value)
            if metric.allowance >= 1 or is_finite != metric.is_finite:
                metric.allowance = max(0.0, metric.allowance - 1)
                metric.written += 1
                chosen[name] = value
                self._held_back.pop(name, None)
            else:
                self._held_back[name] = (sample.at, sample.step, value)
            metric.is_finite = is_finite
        if chosen or (sample.step is not None and not sample.values):
            return Sample(sample.at, sample.step, chosen)
        return None

    def newest(self) -> list[Sample]:
        """Return the newest values that were held back, to be written after all."""
        together: dict[tuple[float, int | None], dict[str, float]] = {}
        for name, (at, step, value) in self._held_back.items():
            together.setdefault((at, step), {})[name] = value
        self._held_back.clear()
        return [Sample(at, step, values) for (at, step), values in together.items()]


class _WaitingLines:
    """Encoded lines that wait for the store."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque()
        self.size = 0

    def __bool__(self) -> bool:
        return bool(self._lines)

    def add(self, line: MetricLine) -> None:
        encoded = encode_line(line)
        self._lines.append(encoded)
        self.size += len(encoded)

    def pop(self, room: int) -> bytes:
        """Remove and return the oldest lines, less than `room` bytes together."""
        data = bytearray()
        while self._lines and len(data) + len(self._lines[0]) < room:
            data += self._lines.popleft()
        self.size -= len(data)
        return bytes(data)


class MetricsPump:
    """Gathers samples into `keys.metrics_chunk(node, 0…)`. Give `scan` to the log pump as its tap."""

    def __init__(
        self,
        store: Store,
        node: str,
        path: Path,
        regexes: Mapping[str, str] | None = None,
        *,
        earlier: Sequence[str] = (),
    ) -> None:
        self._store = store
        self._reports = ReportReader(path)
        self._earlier = tuple(earlier)
        self._scanner = MetricScanner(regexes or {})
        self._scanner_lock = threading.Lock()
        self._writer = ChunkWriter(store, lambda n, size: keys.metrics_chunk(node, n, size))
        self._flush_s = LOCAL_FLUSH_S if store.is_local else REMOTE_FLUSH_S
        self._flushed_at = -self._flush_s
        self._mark = MetricsMark(0)
        # Guards the following, which the threads that scan the log and sample the machine share.
        self._lock = threading.Lock()
        self._thinner = Thinner()
        self._waiting = _WaitingLines()
        self._tracker = ProgressTracker(regexes or ())
        self._thread = PumpThread("metrics-pump", self._turn, _POLL_S)

    @property
    def progress(self) -> Progress:
        with self._lock:
            return self._tracker.progress(time.monotonic())

    def start(self) -> None:
        self._thread.start()

    def drain(self, deadline_s: float, until_s: Callable[[], float] | None = None) -> bool:
        """Wait until everything that was reported is durable; return False if there was not enough time.

        Call it after the log pump's `drain`, which scans the last lines.
        """
        with self._scanner_lock:
            found = self._scanner.finish(time.time())
        self._take(found)
        return self._thread.drain(deadline_s, until_s)

    def stop(self, timeout_s: float = 5.0) -> None:
        """End the thread. Does not drain."""
        self._thread.stop(timeout_s)

    def scan(self, data: bytes, at: float) -> None:
        """Search a block of the log for metrics."""
        with self._scanner_lock:
            found = self._scanner.feed(data, at)
        self._take(found)

    def add_usage(self, usage: Usage, at: float | None = None) -> None:
        """Add a sample of the machine. It is dropped if an outage has filled the memory for metrics."""
        with self._lock:
            if self._waiting.size < _WAITING_BYTES:
                self._waiting.add(UsageSample(time.time() if at is None else at, usage))

    def _take(self, samples: Iterable[Sample]) -> None:
        with self._lock:
            for sample in samples:
                self._tracker.note(sample, time.monotonic())
                chosen = self._thinner.offer(sample)
                if chosen is not None and chosen.values:
                    self._waiting.add(chosen)

    # ── On the pump's own thread ──

    def _turn(self, hurry: bool) -> Turn:
        if self._earlier:
            self._resume()
        self._push()
        more = self._read_reports()
        since_s = time.monotonic() - self._flushed_at
        if not (hurry or since_s >= self._flush_s or self._waiting.size >= _READ_BYTES):
            return "busy" if more else "waiting"
        gathered = self._gather()
        self._push()
        if more or (gathered and hurry):
            return "busy"
        return "waiting" if gathered else "idle"

    def _read_reports(self) -> bool:
        """Read some of the file; return whether it may have more. While too much waits, the file is the buffer."""
        if self._waiting.size >= _WAITING_BYTES:
            return False
        samples, more = self._reports.read(_READ_BYTES, time.time())
        self._take(samples)
        return more

    def _gather(self) -> bool:
        """Move waiting lines into the present chunk, with a mark of how far they reach; return whether any moved."""
        with self._lock:
            for sample in self._thinner.newest():
                self._waiting.add(sample)
            data = self._waiting.pop(self._writer.room - 1024)
            mark = MetricsMark(self._reports.offset, self._tracker.first_step, self._tracker.last_step)
            # With lines left behind, the mark would promise too much.
            if not self._waiting and mark != self._mark:
                self._mark = mark
                data += encode_line(mark)
        if not data:
            return False
        self._writer.add(data)
        return True

    def _push(self) -> None:
        if not self._writer.pending:
            return
        self._writer.push()
        self._flushed_at = time.monotonic()
        self._reports.forget(self._mark.offset)

    def _resume(self) -> None:
        """Go on where the earlier boots of this machine got to. Raises StoreError; repeated until it succeeds."""
        mark, values = MetricsMark(0), dict[str, float]()
        for node in self._earlier:
            for line in decode_lines(last_chunk(self._store, f"{node}/metrics/")):
                if isinstance(line, MetricsMark):
                    mark = line
                elif isinstance(line, Sample):
                    values.update(line.values)
        with self._lock:
            self._reports.resume(mark.offset)
            self._mark = mark
            self._tracker.resume(mark, values)
            self._earlier = ()
