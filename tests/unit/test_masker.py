"""No secret gets through the masker, however it is written and wherever the stream is cut; nothing else is changed."""

from __future__ import annotations

import base64
import binascii
import html
import json
import os
import random
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from urllib.parse import quote, quote_plus
from xml.sax import saxutils

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.secrets import masker
from stoker.secrets.masker import MASK, Masker, patterns

TOKEN = "hf_Wq3+z/8Lk=pQ 'x\"y\\é&"
PLAIN = "sk-0123456789abcdefghij"


def masked(data: bytes, *values: str, cuts: tuple[int, ...] = (), idle: bool = False) -> bytes:
    machine = Masker(value.encode() for value in values)
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    shown = b""
    for start, end in pairwise(places):
        shown += machine.feed(data[start:end])
        if idle:
            shown += machine.idle()
    return shown + machine.end()


def spellings(value: str) -> dict[str, bytes]:
    raw = value.encode()
    return {
        "itself": raw,
        "repr": repr(value).encode(),
        "repr of a dict of bytes": repr({"token": raw}).encode(),
        "JSON": json.dumps({"token": value}).encode(),
        "JSON in UTF-8": json.dumps({"token": value}, ensure_ascii=False).encode(),
        "JSON in JSON": json.dumps({"request": json.dumps({"token": value})}).encode(),
        "HTML": f"<b>{html.escape(value)}</b>".encode(),
        "HTML but for quotes": f"<b>{html.escape(value, quote=False)}</b>".encode(),
        "XML": saxutils.quoteattr(f"{value}\"'").encode(),
        "a URL's part": quote(value, safe="").encode(),
        "a URL's path": quote(value).encode(),
        "a form": quote_plus(value).encode(),
        "small hexadecimal in a URL": re.sub("%..", lambda two: two.group().lower(), quote(value, safe="")).encode(),
        "base64": base64.b64encode(raw),
        "base64 for URLs": base64.urlsafe_b64encode(raw).rstrip(b"="),
        "hexadecimal": binascii.hexlify(raw),
        "a shell's trace": f"+ curl -u {shlex.quote(value)}".encode(),
    }


@pytest.mark.parametrize("value", [TOKEN, PLAIN, "hunter2hunter2", "päßwort-ü", "x" * 40, "line one 1\nline two 2\n"])
def test_every_usual_spelling_is_masked_wherever_it_is_cut(value: str) -> None:
    for name, written in spellings(value).items():
        data = b"before <" + written + b"> after\n"
        for cut in range(len(data) + 1):
            shown = masked(data, value, cuts=(cut,))
            assert MASK in shown, (name, cut, shown)
            assert shown.startswith(b"before <") and shown.endswith(b"> after\n"), (name, cut, shown)
            for pattern in patterns(value.encode()):
                assert pattern not in shown, (name, cut, shown)


@pytest.mark.parametrize("before", [b"", b"u", b"us", b"use", b"user:"])
@pytest.mark.parametrize("after", [b"", b"!", b"@host", b"@example"])
def test_inside_of_a_longer_base64(before: bytes, after: bytes) -> None:
    """A header for basic authentication: what is left of the secret is less than a byte at each end."""
    written = base64.b64encode(before + PLAIN.encode() + after)
    shown = masked(b"Authorization: Basic " + written + b"\r\n", PLAIN)
    assert MASK in shown
    left = shown.removeprefix(b"Authorization: Basic ").rstrip(b"\r\n").replace(MASK, b"")
    assert len(left) <= len(base64.b64encode(before)) + len(base64.b64encode(after)) + 4
    assert base64.b64encode(PLAIN.encode())[4:12] not in shown


def test_wrapped_base64() -> None:
    key = random.Random(1).randbytes(200)
    shown = Masker([key]).feed(base64.encodebytes(key) + b"end\n")
    assert not any(line in shown for line in base64.encodebytes(key).splitlines() if len(line) > 8)


def test_a_key_of_many_lines_is_masked_line_by_line() -> None:
    key = "-----BEGIN KEY-----\nMIIEvQIBADANBgkq\nhkiG9w0BAQEFAASC\n-----END KEY-----\n"
    shown = masked(b"  | MIIEvQIBADANBgkq\n  | hkiG9w0BAQEFAASC\n  | else\n", key)
    assert shown == b"  | ***\n  | ***\n  | else\n"


def test_a_line_break_at_its_end_does_not_save_it() -> None:
    assert masked(b"Bearer hunter2hunter2, again\n", "hunter2hunter2\n") == b"Bearer ***, again\n"


def test_secrets_that_overlap_leave_nothing_between_them() -> None:
    for cut in range(13):
        shown = masked(b"<abcdefghijk>", "abcdefgh", "efghijk", cuts=(cut,))
        assert shown.replace(MASK, b"") == b"<>", (cut, shown)
    for cut in range(14):
        shown = masked(b"<secret-longer>"[:14], "secret", "secret-longer", cuts=(cut,))
        assert shown.replace(MASK, b"") == b"<", (cut, shown)


def test_half_a_secret_at_the_very_end_is_masked_and_a_few_letters_are_not() -> None:
    """Whoever printed it was killed in the middle of it."""
    assert masked(b"Bearer " + PLAIN[:15].encode(), PLAIN) == b"Bearer ***"
    assert masked(b"asks", PLAIN, idle=True) == b"asks"


def test_what_is_too_short_is_not_looked_for() -> None:
    assert masked(b"abc abc\n", "abc") == b"abc abc\n"
    assert not patterns(b"abc")


VALUES = st.lists(st.text("ab-", min_size=4, max_size=12), min_size=1, max_size=3)


@settings(max_examples=400, deadline=None)
@given(VALUES, st.text("ab- \n", max_size=60), st.lists(st.integers(0, 100), max_size=12), st.booleans())
def test_properties(values: list[str], text: str, cuts: list[int], idle: bool) -> None:
    """With few letters, secrets begin inside of each other all the time."""
    data = text.encode()
    shown = masked(data, *values, cuts=tuple(cuts), idle=idle)
    whole = masked(data, *values)
    # Cutting reveals no letter that was not to be seen, at most the beginnings that silence let out.
    every = {one for value in values for one in patterns(value.encode())}
    if not idle:
        assert not any(one in shown for one in every), shown
        assert shown.replace(MASK, b"") == whole.replace(MASK, b"")
    if not any(one in data for one in every):
        assert shown in (data, data[: len(shown) - len(MASK)] + MASK)
    # What is longer than the text it stands for was masked twice, and no more.
    assert len(shown) <= len(data) + len(MASK) * (len(data) + 1)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 23), max_size=8), st.integers(0, 3))
def test_silence_in_the_middle_shows_at_most_a_beginning(cuts: list[int], times: int) -> None:
    shown = masked(b"<" + PLAIN.encode() + b">", PLAIN, cuts=tuple(cuts) * (times + 1), idle=True)
    assert MASK in shown and shown.endswith(b">")
    assert len(shown.replace(MASK, b"")) <= 2 + 7
    assert PLAIN[8:].encode() not in shown and PLAIN[-4:].encode() not in shown


def test_what_is_held_back_is_never_a_whole_secret() -> None:
    machine = Masker([PLAIN.encode()])
    longest = max(map(len, patterns(PLAIN.encode())))
    given_bytes = shown = 0
    rng = random.Random(3)
    for _ in range(2000):
        data = rng.choice([PLAIN[: rng.randint(1, 22)], "loss=0.1\n", "sk-", "\r 10%"]).encode()
        shown += len(machine.feed(data))
        given_bytes += len(data)
        assert given_bytes - shown < longest


# ── The program ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def program(tmp_path: Path):  # type: ignore[no-untyped-def]
    started: list[subprocess.Popen[bytes]] = []

    def start(*values: str) -> subprocess.Popen[bytes]:
        reader, writer = os.pipe()
        with (tmp_path / "log").open("ab") as log:
            child = subprocess.Popen(
                [sys.executable, "-I", "-S", masker.__file__, str(reader)],
                stdin=subprocess.PIPE,
                stdout=log,
                pass_fds=(reader,),
                bufsize=0,
            )
        os.close(reader)
        os.write(writer, b"".join(base64.b64encode(value.encode()) + b"\n" for value in values))
        os.close(writer)
        started.append(child)
        return child

    yield start
    for child in started:
        child.kill()
        child.wait()


def wait_for(path: Path, data: bytes) -> None:
    until_s = time.monotonic() + 20
    while path.read_bytes() != data:
        assert time.monotonic() < until_s, path.read_bytes()
        time.sleep(0.005)


def test_a_progress_bar_flows_though_it_ends_as_a_secret_begins(program, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    child = program(PLAIN)
    child.stdin.write(b"\r 10% |##    | steps")
    wait_for(tmp_path / "log", b"\r 10% |##    | steps")
    child.stdin.write(b"\r 20% |####  | tasks")
    wait_for(tmp_path / "log", b"\r 10% |##    | steps\r 20% |####  | tasks")
    child.stdin.write(b"k-0123456789")
    time.sleep(masker._IDLE_S * 3)
    child.stdin.write(b"abcdefghij\n")
    child.stdin.close()
    assert child.wait() == 0
    assert (tmp_path / "log").read_bytes().endswith(b"tasks***\n")


def test_it_ends_with_the_output_and_not_before(program, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    child = program(PLAIN)
    child.stdin.write(b"one\n")
    wait_for(tmp_path / "log", b"one\n")
    for _ in range(3):
        child.terminate()
    child.stdin.write(f"two {PLAIN}".encode())
    child.stdin.close()
    assert child.wait() == 0
    assert (tmp_path / "log").read_bytes() == b"one\ntwo ***"


def test_its_arguments_and_variables_hold_no_secret(program) -> None:  # type: ignore[no-untyped-def]
    child = program(PLAIN)
    for name in ("cmdline", "environ"):
        assert PLAIN.encode() not in Path(f"/proc/{child.pid}/{name}").read_bytes()


def test_a_full_disk_loses_words_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrote: list[bytes] = []
    full = [True]

    def write(_handle: int, data: bytes) -> int:
        if full[0]:
            raise OSError(28, "No space left on device")
        wrote.append(bytes(data))
        return len(data)

    monkeypatch.setattr(masker.os, "write", write)
    sink = masker._Sink(1)
    sink.write(b"lost")
    full[0] = False
    sink.write(b"kept")
    assert b"".join(wrote) == b"\n[stoker] output was lost here: No space left on device\nkept"


def test_a_disk_that_takes_a_little_at_a_time_gets_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    wrote: list[bytes] = []

    def write(_handle: int, data: memoryview) -> int:
        wrote.append(bytes(data[:2]))
        return min(2, len(data))

    monkeypatch.setattr(masker.os, "write", write)
    masker._Sink(1).write(b"12345")
    assert wrote == [b"12", b"34", b"5"]


def test_what_was_lost_is_told_once_and_only_before_other_words(monkeypatch: pytest.MonkeyPatch) -> None:
    wrote: list[bytes] = []
    errors = [OSError(), OSError(28, "No space left on device")]

    def write(_handle: int, data: memoryview) -> int:
        if errors:
            raise errors.pop()
        wrote.append(bytes(data))
        return len(data)

    monkeypatch.setattr(masker.os, "write", write)
    sink = masker._Sink(1)
    for data in (b"lost", b"lost", b"", b"kept", b"more"):
        sink.write(data)
    assert wrote == [b"\n[stoker] output was lost here: it could not be written\n", b"kept", b"more"]


def _open_files() -> set[str]:
    found = set()
    for handle in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.add(str(handle.readlink()))
    return found


def run_here(secrets: bytes, output: bytes, log: Path) -> int:
    """The program in this process: its output comes through a pipe that has ended."""
    told, tell = os.pipe()
    pipe = str(Path(f"/proc/self/fd/{told}").readlink())
    os.write(tell, secrets)
    os.close(tell)
    read, write = os.pipe()
    os.write(write, output)
    os.close(write)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    saved = [os.dup(0), os.dup(1)]
    try:
        with log.open("wb") as file:
            os.dup2(read, 0)
            os.dup2(file.fileno(), 1)
            code = masker.main([str(told)])
            assert {signal.getsignal(number) for number in handlers} == {signal.SIG_IGN}
    finally:
        for handle, own in enumerate(saved):
            os.dup2(own, handle)
            os.close(own)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.close(read)
    # Closed: another thread of this process may have got the same number since, for another file.
    assert pipe not in _open_files(), "the secrets can still be read"
    return code


def test_the_program_masks_everything_up_to_the_end_of_the_output(tmp_path: Path) -> None:
    secrets = b"".join(base64.b64encode(one) + b"\n" for one in (PLAIN.encode(), b"another-secret"))
    output = f"one {PLAIN} two another-secret three {PLAIN[:15]}".encode()
    assert run_here(secrets, output, tmp_path / "log") == 0
    assert (tmp_path / "log").read_bytes() == b"one *** two *** three ***"
    assert run_here(secrets, b"", tmp_path / "log") == 0
    assert (tmp_path / "log").read_bytes() == b""


def test_the_program_shows_a_beginning_after_a_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing comes for a while: what may become a secret is shown, and then the rest is read."""
    asked: list[float] = []

    class Poll:
        def register(self, handle: int, events: int) -> None:
            assert (handle, events) == (0, select.POLLIN)

        def poll(self, milliseconds: float) -> list[int]:
            asked.append(milliseconds)
            # Something came only the second time.
            return [] if len(asked) == 1 else [1]

    blocks = [b"10% s", b" 20% s", b"k", b""]
    shown: list[bytes] = []
    monkeypatch.setattr(masker.select, "poll", Poll)
    own = os.read
    monkeypatch.setattr(masker.os, "read", lambda handle, size: blocks.pop(0) if handle == 0 else own(handle, size))
    monkeypatch.setattr(masker._Sink, "write", lambda _self, data: shown.append(data) if data else None)
    monkeypatch.setattr(masker.signal, "signal", lambda _number, _handler: None)
    told, tell = os.pipe()
    os.write(tell, base64.b64encode(PLAIN.encode()) + b"\n")
    os.close(tell)
    assert masker.main([str(told)]) == 0
    assert shown == [b"10% ", b"s", b" 20% ", b"sk"]
    assert asked == [masker._IDLE_S * 1000] * 3


# ── What is held back ─────────────────────────────────────────────────────────────────────────────────────────────────


def begins_a_secret(data: bytes, found: set[bytes]) -> int:
    """How many bytes at the end may go on to be one of these, found the slow way."""
    longest = max(map(len, found))
    for size in range(min(longest - 1, len(data)), 0, -1):
        if any(len(one) > size and one.startswith(data[-size:]) for one in found):
            return size
    return 0


@pytest.mark.parametrize("values", [[PLAIN], ["aabaabaa"], ["abcd", "bcdabcdabcd"], ["aaaaaaaaaaaa", "aaaab"]])
def test_exactly_the_longest_end_that_may_become_a_secret_is_held_back(values: list[str]) -> None:
    found = {one for value in values for one in patterns(value.encode())}
    rng = random.Random(5)
    pieces = [*found, b"a", b"ab", b"b ", b"x", b"sk-"]
    for _ in range(300):
        piece = rng.choice(pieces)
        data = rng.choice([b"", b"loss ", rng.choice(pieces)]) + piece[: rng.randint(1, len(piece))]
        machine = Masker(value.encode() for value in values)
        shown = machine.feed(data)
        held = begins_a_secret(data, found)
        assert machine._held == data[len(data) - held :], data
        if not any(one in data for one in found):
            assert shown == data[: len(data) - held]


@pytest.mark.parametrize(
    "values", [["aaaaaaaaaaaa"], ["abcdabcdabcdX"], ["bcdabcdabcd", "abcd"], ["abababababab1"], ["xyzxyzxyzxyzxyz!"]]
)
def test_secrets_that_repeat_themselves_are_masked_wherever_they_are_cut(values: list[str]) -> None:
    """One that holds its own beginning, or another one, has several places where it may have begun."""
    found = {one for value in values for one in patterns(value.encode())}
    for one in found:
        for cut in range(1, len(one)):
            machine = Masker(value.encode() for value in values)
            shown = machine.feed(b"x " + one[:cut]) + machine.feed(one[cut:] + b" y") + machine.end()
            # What is complete before the rest comes is masked, and the rest is masked, too.
            assert shown.replace(MASK + MASK, MASK) == b"x *** y", (one, cut)


def test_without_secrets_nothing_is_held_back() -> None:
    machine = Masker([])
    assert machine.feed(b"anything") == b"anything"
    assert not machine.waiting and machine.idle() == b"" and machine.end() == b""


def test_only_a_beginning_that_tells_little_is_shown_after_a_silence() -> None:
    machine = Masker([PLAIN.encode()])
    shortest = min(map(len, patterns(PLAIN.encode())))
    most = min(8, (shortest + 1) // 2)
    for size in range(1, most):
        machine = Masker([PLAIN.encode()])
        begun = PLAIN[:size].encode()
        assert machine.feed(b"x " + begun) == b"x " and machine.waiting
        assert machine.idle() == begun and not machine.waiting and machine.idle() == b""
        assert machine.end() == b"", "it was shown already"
    machine = Masker([PLAIN.encode()])
    assert machine.feed(PLAIN[:most].encode()) == b"" and not machine.waiting
    assert machine.idle() == b"" and machine.end() == MASK
    assert machine.feed(b"more") == b"more" and machine.end() == b""


def test_of_a_short_secret_less_is_shown_after_a_silence() -> None:
    machine = Masker([b"qwert"])
    shortest = min(map(len, patterns(b"qwert")))
    assert shortest == 5
    machine.feed(b"qw")
    assert machine.waiting
    machine.feed(b"e")
    assert not machine.waiting, "more than half of it"


def test_a_secret_whose_beginning_was_shown_is_masked_from_there_on() -> None:
    machine = Masker([PLAIN.encode()])
    shown = machine.feed(b"sk") + machine.idle() + machine.feed(PLAIN[2:].encode() + b" x")
    assert shown == b"sk" + MASK + b" x"


def test_a_secret_that_is_no_text_is_masked_as_bytes_and_as_programs_write_them() -> None:
    value = b"\xff\xfe raw/bytes \x80"
    for written in (value, repr(value)[2:-1].encode(), quote(value, safe="").encode(), base64.b64encode(value)):
        machine = Masker([value])
        assert machine.feed(b"<" + written + b">") == b"<***>", written


@pytest.mark.parametrize(
    "written",
    [
        *(b"a/b&amp;c&lt;d&gt;e&quot;f'g", b"a/b&amp;c&lt;d&gt;e&quot;f&#x27;g", b"a/b&amp;c&lt;d&gt;e&quot;f&apos;g"),
        *(b"a/b&amp;c&lt;d&gt;e&#34;f&#39;g", b"a/b&amp;c&lt;d&gt;e\"f'g", b"a\\/b&c<d>e\\\"f'g"),
        *(b"a/b&c<d>e\"f'\\''g", b"a%2fb%26c%3cd%3ee%22f%27g", b"612F62266 33C643E6522662767".replace(b" ", b"")),
    ],
)
def test_each_way_of_quoting_shows_nothing(written: bytes) -> None:
    machine = Masker([b"a/b&c<d>e\"f'g"])
    assert machine.feed(b"<" + written + b"> ") + machine.end() == b"<***> "
