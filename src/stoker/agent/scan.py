"""Find metrics in what the training prints, by the job's regular expressions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from stoker.chunks import Sample

# An expression that begins with `.*` takes time with the square of a line's length, and holds up the whole agent.
MAX_LINE_BYTES = 4096
# More than this often in one block, and only the first and the last ones of it are looked at: they are thinned anyway.
_MAX_HITS = 200
_LAST_CHARS = 8192
STEP = "step"


class MetricScanner:
    """Feed it the log in blocks. The value is the group `value`, else the first group, else the whole match.

    A line that also matches the expression named `step` is of that step; other lines are of the step seen last.
    Each block is searched as one text, since a line-by-line loop would cost a core when 100,000 lines come a second;
    what is found is then matched once more in its line alone, so an expression never sees two lines.
    """

    def __init__(self, regexes: Mapping[str, str]) -> None:
        self._patterns = {name: re.compile(regex, re.MULTILINE) for name, regex in regexes.items()}
        self._rest = b""
        # The rest of a line that is too long is skipped.
        self._overlong = False
        self._step: int | None = None

    def feed(self, data: bytes, at: float) -> list[Sample]:
        """The samples in the lines that are whole now."""
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
        """The samples in a last line that nobody ended."""
        block, self._rest, self._overlong = self._rest, b"", False
        return self._search(block, at) if block else []

    def _search(self, block: bytes, at: float) -> list[Sample]:
        lines = block.split(b"\n")
        if max(map(len, lines)) > MAX_LINE_BYTES:
            block = b"\n".join(line[:MAX_LINE_BYTES] for line in lines)
        text = block.decode("utf-8", "replace")
        # By line, in the order of the text; at a line's own step first.
        found: dict[int, dict[str, float]] = {}
        for name, pattern in self._patterns.items():
            for start, value in _hits(pattern, text):
                found.setdefault(start, {})[name] = value
        samples = []
        for start in sorted(found):
            values = found[start]
            step = values.pop(STEP, None)
            if step is not None and abs(step) < 2**53:
                self._step = int(step)
            samples.append(Sample(at=at, step=self._step, values=values))
        return samples


def _hits(pattern: re.Pattern[str], text: str) -> Iterator[tuple[int, float]]:
    """Where a matching line starts and the last value in it, for each line; of very many only some."""
    position, count = 0, 0
    while position < len(text) and (match := pattern.search(text, position)):
        start = text.rfind("\n", 0, match.start()) + 1
        end = text.find("\n", max(start, match.start()))
        end = len(text) if end < 0 else end
        value = None
        for inner in pattern.finditer(text[start:end]):
            value = _number(inner, value)
        if value is not None:
            yield start, value
        count += 1
        position = end + 1
        if count == _MAX_HITS:
            position = max(position, text.rfind("\n", 0, max(0, len(text) - _LAST_CHARS)) + 1)


def _number(match: re.Match[str], default: float | None) -> float | None:
    groups = match.re.groupindex
    group: int | str = "value" if "value" in groups else 1 if match.re.groups else 0
    try:
        # An expression such as [0-9.]+ also takes the full stop behind the number.
        return float((match[group] or "").strip().rstrip(".,"))
    except ValueError:
        return default
