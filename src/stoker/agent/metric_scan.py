"""Find metrics in what the training prints, by the job's regular expressions."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from itertools import islice

from stoker.core.safe_regex import MAX_EXPRESSIONS, Match, PatternError, SafePattern, StepBudget, compile_pattern
from stoker.store.log_chunks import MOST_STEPS, Sample

log = logging.getLogger(__name__)

MAX_LINE_BYTES = 4096
# The matching steps that all expressions together may take for one block, about a tenth of a second, and the least for
# each of very many. An expression that needs more searches the first and the last lines of the block only.
_BLOCK_STEPS = 400_000
_LEAST_STEPS = 10_000
# With more matches in one block, only its first and last ones are used: samples are thinned anyway.
_MAX_HITS = 200
_LAST_CHARS = 8192
STEP = "step"


class MetricScanner:
    """Feed it the log in blocks. The value is the group `value`, else the first group, else the whole match.

    A line that also matches the expression named `step` belongs to that step; other lines belong to the last step.
    Each block is searched as one text for the literal that an expression needs, since a loop over lines would occupy a
    core at 100,000 lines a second. The line found is then matched alone, so an expression never sees two lines.
    """

    def __init__(self, regexes: Mapping[str, str]) -> None:
        self._patterns: dict[str, SafePattern] = {}
        if len(regexes) > MAX_EXPRESSIONS:
            log.warning("metrics has %d expressions; the first %d are used", len(regexes), MAX_EXPRESSIONS)
        for name, regex in islice(regexes.items(), MAX_EXPRESSIONS):
            try:
                self._patterns[name] = compile_pattern(regex)
            except PatternError as error:
                # The job came from a client that does not check expressions.
                log.warning("metrics.%s is left out: %s", name, error)
        self._rest = b""
        # The rest of a line that is too long is skipped.
        self._overlong = False
        self._step: int | None = None

    def feed(self, data: bytes, at: float) -> list[Sample]:
        """Take a block of the log; return the samples in the lines that are complete now."""
        if not self._patterns:
            return []
        # A progress bar ends its lines with a carriage return.
        data = data.replace(b"\r", b"\n")
        if self._overlong:
            end = data.find(b"\n")
            if end < 0:
                return []
            data, self._overlong = data[end + 1 :], False
        text = self._rest + data
        cut = text.rfind(b"\n") + 1
        block, self._rest = text[:cut], text[cut:]
        if len(self._rest) > MAX_LINE_BYTES:
            block += self._rest[:MAX_LINE_BYTES]
            self._rest, self._overlong = b"", True
        return self._search(block, at) if block else []

    def finish(self, at: float) -> list[Sample]:
        """Return the samples in a last line that has no line end."""
        block, self._rest, self._overlong = self._rest, b"", False
        return self._search(block, at) if block else []

    def _search(self, block: bytes, at: float) -> list[Sample]:
        lines = block.split(b"\n")
        if max(map(len, lines)) > MAX_LINE_BYTES:
            block = b"\n".join(line[:MAX_LINE_BYTES] for line in lines)
        text = block.decode("utf-8", "replace")
        # Values by the start of their line.
        found: dict[int, dict[str, float]] = {}
        steps = max(_LEAST_STEPS, _BLOCK_STEPS // len(self._patterns))
        for name, pattern in self._patterns.items():
            for start, value in _hits(pattern, text, steps):
                found.setdefault(start, {})[name] = value
        samples = []
        for start in sorted(found):
            values = found[start]
            step = values.pop(STEP, None)
            if step is not None and abs(step) < MOST_STEPS:
                self._step = int(step)
            samples.append(Sample(at=at, step=self._step, values=values))
        return samples


def _hits(pattern: SafePattern, text: str, steps: int) -> Iterator[tuple[int, float]]:
    """Yield the start of each matching line, and the last value in it. Of very many lines only some."""
    position, count, work, last = 0, 0, StepBudget(steps), False
    while position < len(text):
        start = position
        if pattern.needed:
            hit = text.find(pattern.needed, position)
            if hit < 0:
                return
            start = text.rfind("\n", 0, hit) + 1
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        value = None
        for found in pattern.finditer(text[start:end], budget=work):
            value = _number(found, value)
        if value is not None:
            yield start, value
            count += 1
        position = end + 1
        if last and work.left <= 0:
            return
        if not last and (count >= _MAX_HITS or work.left <= 0):
            work, last = StepBudget(steps // 2), True
            position = max(position, text.rfind("\n", 0, max(0, len(text) - _LAST_CHARS)) + 1)


def _number(found: Match, default: float | None) -> float | None:
    group: int | str = "value" if "value" in found.names else 1 if len(found.spans) > 1 else 0
    try:
        # An expression such as [0-9.]+ also matches the full stop after the number.
        return float((found.group(group) or "").strip().rstrip(".,"))
    except ValueError:
        return default
