"""Keep secrets out of a log: a small program between a command's output and the log file.

    python -I -S masker.py FD < output >> train.log

FD is a pipe with the secrets, so that they are neither in the arguments nor in the environment. The program runs until
the output ends, and so outlives the agent that started it. It imports nothing of Stoker, because it is started by its
path and must start quickly.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import select
import shlex
import signal
import sys
from collections.abc import Iterable
from urllib.parse import quote, quote_plus

MASK = b"***"
# Shorter secrets would match everywhere, and each `***` would reveal where.
SHORTEST_BYTES = 4
# Minimum length of the parts of a secret that are masked: a line of a key, a piece of base64 around it.
_SHORTEST_PART_BYTES = 8
# After this pause the possible beginning of a secret is shown: a progress bar must not hang.
_IDLE_S = 0.05
_READ_BYTES = 1 << 20
# Bytes per line of `base64` and of MIME.
_WRAPPED_BYTES = 57


class Masker:
    """Replaces secrets in a stream that may be cut anywhere. Holds back only possible beginnings of a secret."""

    def __init__(self, values: Iterable[bytes]) -> None:
        found = {pattern for value in values for pattern in patterns(value)}
        self._patterns = sorted(found, key=len, reverse=True)
        # The check for no match must be quick: a pattern that contains another one is found through that one.
        self._minimal = [one for one in self._patterns if not any(other in one for other in found if other != one)]
        self._starts = {
            size: {one[:size] for one in found if len(one) > size} for size in range(1, _SHORTEST_PART_BYTES)
        }
        self._anchors: dict[bytes, list[bytes]] = {}
        for one in self._patterns:
            if len(one) > _SHORTEST_PART_BYTES:
                self._anchors.setdefault(one[:_SHORTEST_PART_BYTES], []).append(one)
        shortest = min(map(len, found), default=0)
        # A shorter beginning reveals little, and many harmless lines end with one.
        self._short = min(_SHORTEST_PART_BYTES, (shortest + 1) // 2)
        self._held = b""
        # How much of the held bytes was shown already, as itself or as a mask. They are held to recognise the rest.
        self._shown = 0

    @property
    def waiting(self) -> bool:
        """Tell if `idle` would show something."""
        return self._shown < len(self._held) < self._short

    def feed(self, data: bytes) -> bytes:
        """Add data, and return the output that can be shown now."""
        data = self._held + data
        shown, parts = self._shown, []
        held_from = self._undecided(data)
        for start, end in self._spans(data):
            # A match inside a possible longer match waits for it: the bytes in between would be shown.
            if end > shown and start <= held_from:
                parts += [data[shown:start], MASK]
                shown = end
        if held_from > shown:
            parts.append(data[shown:held_from])
            shown = held_from
        self._held, self._shown = data[held_from:], shown - held_from
        return b"".join(parts)

    def idle(self) -> bytes:
        """Return the output that is shown after a pause. Half a secret is not."""
        if not self.waiting:
            return b""
        rest, self._shown = self._held[self._shown :], len(self._held)
        return rest

    def end(self) -> bytes:
        """Return the last output."""
        rest = self.idle()
        if self._shown < len(self._held):
            rest = MASK
        self._held, self._shown = b"", 0
        return rest

    def _spans(self, data: bytes) -> list[tuple[int, int]]:
        """Return the ranges of secrets, in order and without overlaps."""
        if not any(one in data for one in self._minimal):
            return []
        found = []
        for one in self._patterns:
            at = data.find(one)
            while at >= 0:
                found.append((at, at + len(one)))
                at = data.find(one, at + 1)
        merged: list[tuple[int, int]] = []
        for start, end in sorted(found):
            if merged and start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((start, end))
        return merged

    def _undecided(self, data: bytes) -> int:
        """Return the start of the longest ending that may become a secret; the length if there is none."""
        found = len(data)
        for anchor, group in self._anchors.items():
            # The longest pattern is first. Only a match that begins before the best so far counts; it may extend beyond
            # it.
            at = data.find(anchor, max(0, len(data) - len(group[0]) + 1), found + len(anchor) - 1)
            while at >= 0:
                rest = data[at:]
                if any(len(one) > len(rest) and one.startswith(rest) for one in group):
                    found = at
                    break
                at = data.find(anchor, at + 1, found + len(anchor) - 1)
        if found < len(data):
            return found
        for size in range(min(_SHORTEST_PART_BYTES - 1, len(data)), 0, -1):
            if data[-size:] in self._starts[size]:
                return len(data) - size
        return found


def patterns(value: bytes) -> set[bytes]:
    """Return all forms of this secret: as it is, and as programs write it. Empty if it is too short."""
    texts = {value, value.strip()}
    lines = [line.strip() for line in value.splitlines()]
    if len(lines) > 1:
        # A key of many lines is seldom printed as a whole.
        texts.update(line for line in lines if len(line) >= _SHORTEST_PART_BYTES)
    found: set[bytes] = set()
    for text in texts:
        if len(text) >= SHORTEST_BYTES:
            found |= _written(text) | _base64(text)
    return {one for one in found if len(one) >= SHORTEST_BYTES}


# As different libraries write them; cloud errors are often XML.
_QUOTES_IN_HTML = (('"', "'"), ("&quot;", "'"), ("&quot;", "&#x27;"), ("&quot;", "&apos;"), ("&#34;", "&#39;"))


def _written(value: bytes) -> set[bytes]:
    text = value.decode("utf-8", "surrogateescape")
    found = {value, binascii.hexlify(value), binascii.hexlify(value).upper(), repr(value)[2:-1].encode()}
    written = {
        repr(text)[1:-1],
        json.dumps(text)[1:-1],
        json.dumps(text, ensure_ascii=False)[1:-1],
        json.dumps(text)[1:-1].replace("/", "\\/"),
        # JSON as text inside JSON, as in a log line that contains a request.
        json.dumps(json.dumps(text)[1:-1])[1:-1],
        shlex.quote(text).removeprefix("'").removesuffix("'"),
        text.replace("'", "'\\''"),
    }
    tags = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for double, single in _QUOTES_IN_HTML:
        written.add(tags.replace('"', double).replace("'", single))
    for quoted in (quote(value), quote(value, safe=""), quote_plus(value)):
        written |= {quoted, re.sub("%[0-9A-F]{2}", lambda found: found.group().lower(), quoted)}
    return found | {one.encode("utf-8", "surrogateescape") for one in written}


def _base64(value: bytes) -> set[bytes]:
    whole = base64.b64encode(value)
    found = {whole, whole.rstrip(b"=")}
    # Inside a longer text (`user:token`) the secret is at one of three offsets; bits shared with its neighbours are
    # left out.
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + value)
        part = encoded[-(-before * 8 // 6) : (before + len(value)) * 8 // 6]
        if len(part) >= _SHORTEST_PART_BYTES:
            found.add(part)
    if len(value) > _WRAPPED_BYTES:
        lines = (value[at : at + _WRAPPED_BYTES] for at in range(0, len(value), _WRAPPED_BYTES))
        found |= {base64.b64encode(line) for line in lines if len(line) >= _SHORTEST_PART_BYTES}
    return found | {one.translate(bytes.maketrans(b"+/", b"-_")) for one in found}


class _Sink:
    """The log file. A full disk loses output, as it does without a masker, but does not stop the training."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._lost = b""

    def write(self, data: bytes) -> None:
        try:
            if data and self._lost:
                self._all(b"\n[stoker] output was lost here: " + self._lost + b"\n")
                self._lost = b""
            self._all(data)
        except OSError as error:
            self._lost = (error.strerror or "it could not be written").encode()

    def _all(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._handle, view) :]


def main(argv: list[str]) -> int:
    # The masker ends with the output, whatever signals its agent gets.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with os.fdopen(int(argv[0]), "rb") as source:
        masker = Masker(base64.b64decode(line) for line in source)
    sink = _Sink(1)
    poll = select.poll()
    poll.register(0, select.POLLIN)
    while True:
        if masker.waiting and not poll.poll(_IDLE_S * 1000):
            sink.write(masker.idle())
        data = os.read(0, _READ_BYTES)
        if not data:
            break
        sink.write(masker.feed(data))
    sink.write(masker.end())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
