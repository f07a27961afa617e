"""Keep secrets out of a log: a small program between a command's output and the file that it goes to.

    python -I -S masker.py FD < output >> train.log

FD gives the secrets, so that they stand neither in the arguments nor in the environment. It lives until the output
ends, and so outlives the agent that started it. It imports nothing of Stoker's: it is started by its path, at once.
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
# Shorter ones would be found everywhere, and each `***` would tell where.
SHORTEST_BYTES = 4
# Parts of a secret are looked for from this length on: a line of a key, a piece of base64 around it.
_SHORTEST_PART_BYTES = 8
# After this much silence the beginning of what may become a secret is shown: a progress bar must not hang.
_IDLE_S = 0.05
_READ_BYTES = 1 << 20
# What `base64` and the mail of old put into one line.
_WRAPPED_BYTES = 57


class Masker:
    """Replaces secrets in a stream that may be cut anywhere. Holds back only what may be the beginning of one."""

    def __init__(self, values: Iterable[bytes]) -> None:
        found = {pattern for value in values for pattern in patterns(value)}
        self._patterns = sorted(found, key=len, reverse=True)
        # To see that there is nothing is what has to be quick; whoever holds another one is found by that one.
        self._telling = [one for one in self._patterns if not any(other in one for other in found if other != one)]
        self._starts = {
            size: {one[:size] for one in found if len(one) > size} for size in range(1, _SHORTEST_PART_BYTES)
        }
        self._anchors: dict[bytes, list[bytes]] = {}
        for one in self._patterns:
            if len(one) > _SHORTEST_PART_BYTES:
                self._anchors.setdefault(one[:_SHORTEST_PART_BYTES], []).append(one)
        shortest = min(map(len, found), default=0)
        # A beginning that is shorter tells little, and ends many an innocent line.
        self._short = min(_SHORTEST_PART_BYTES, (shortest + 1) // 2)
        self._held = b""
        # How much of what is held was shown already, as itself or as a mask. It is kept to know the rest by.
        self._shown = 0

    @property
    def waiting(self) -> bool:
        """Whether `idle` would show something."""
        return self._shown < len(self._held) < self._short

    def feed(self, data: bytes) -> bytes:
        """What can be shown, now that this came."""
        data = self._held + data
        shown, parts = self._shown, []
        held_from = self._undecided(data)
        for start, end in self._spans(data):
            # One inside of what may become a longer one waits with it: what stands between would be shown.
            if end > shown and start <= held_from:
                parts += [data[shown:start], MASK]
                shown = end
        if held_from > shown:
            parts.append(data[shown:held_from])
            shown = held_from
        self._held, self._shown = data[held_from:], shown - held_from
        return b"".join(parts)

    def idle(self) -> bytes:
        """What is shown because nothing more came for a while. Half a secret is not."""
        if not self.waiting:
            return b""
        rest, self._shown = self._held[self._shown :], len(self._held)
        return rest

    def end(self) -> bytes:
        """The last of it."""
        rest = self.idle()
        if self._shown < len(self._held):
            rest = MASK
        self._held, self._shown = b"", 0
        return rest

    def _spans(self, data: bytes) -> list[tuple[int, int]]:
        """Where secrets are, in order and apart from each other."""
        if not any(one in data for one in self._telling):
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
        """Where the longest end begins that may go on to be a secret; the length where there is none."""
        found = len(data)
        for anchor, group in self._anchors.items():
            # The longest one is the first. Only what begins before the best so far counts; it may reach beyond that.
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
    """Everything that shows this secret: as it is, and as programs write it. Empty for one that is too short."""
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


# As different libraries write them; an error of a cloud's is often XML.
_QUOTES_IN_HTML = (('"', "'"), ("&quot;", "'"), ("&quot;", "&#x27;"), ("&quot;", "&apos;"), ("&#34;", "&#39;"))


def _written(value: bytes) -> set[bytes]:
    text = value.decode("utf-8", "surrogateescape")
    found = {value, binascii.hexlify(value), binascii.hexlify(value).upper(), repr(value)[2:-1].encode()}
    written = {
        repr(text)[1:-1],
        json.dumps(text)[1:-1],
        json.dumps(text, ensure_ascii=False)[1:-1],
        json.dumps(text)[1:-1].replace("/", "\\/"),
        # JSON as text inside JSON: a log line that holds a request.
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
    # Inside of something longer (`user:token`) it stands at one of three offsets; what its neighbours change is left.
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
    """The file. A full disk loses words, as it does without a masker; it does not stop the training."""

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
    # It ends when the output does, whatever its agent is told.
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
