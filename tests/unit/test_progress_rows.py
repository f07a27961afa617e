"""A script that draws several progress bars: a person who follows the job reads them, and nothing above is touched."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator

import pytest

from stoker.read.logs import LogLine
from stoker.read.progress_rows import ProgressRows
from stoker.read.screens import PlainScreen, TerminalScreen

UP = "\x1b[A"


def bar(name: str, done: int) -> str:
    """As tqdm writes it."""
    return f"{name}: {done:3d}%|{'█' * (done // 10):10}| {done}/100 [00:0{done // 20}<00:05, 10.00it/s]"


def lines(text: str, rank: int = 0) -> Iterator[LogLine]:
    """Cut as the log is cut: after each line feed and carriage return."""
    start = 0
    for place, letter in enumerate(text):
        if letter in "\r\n":
            yield LogLine(1, rank, 0.0, text[start:place], letter)
            start = place + 1
    if start < len(text):
        yield LogLine(1, rank, 0.0, text[start:], "")


def two_bars() -> str:
    """The bytes of two bars of tqdm, the second with `position=1`, with a message of `tqdm.write` in between."""
    text = f"\r{bar('outer', 0)}"
    for done in (0, 10, 20):
        text += f"\n\r{bar('inner', done)}{UP}"
    text += f"\r{bar('outer', 10)}"
    text += f"\n\r{bar('inner', 30)}{UP}"
    text += f"\r{' ' * 80}\rsaved step 30\n"
    text += f"\r{bar('outer', 10)}\n\r{bar('inner', 40)}{UP}"
    text += f"\n\r{' ' * 80}\r{UP}\r{bar('outer', 100)}\n"
    return text


def flat(text: str) -> list[tuple[str, str]]:
    rows = ProgressRows()
    return [(line.text, line.end) for line in map(rows.flatten, lines(text))]


def test_only_what_is_new_becomes_a_line() -> None:
    found = flat(two_bars())
    assert not any(UP in text for text, _ in found)
    ended = [text for text, end in found if end == "\n" and text]
    # Below the message the bars are drawn anew.
    assert ended == [bar("outer", 0), "saved step 30", bar("outer", 10), bar("outer", 100)]
    assert {bar("inner", done) for done in (0, 10, 20, 30, 40)} <= {
        text.removesuffix("\x1b[K") for text, end in found if end == "\r"
    }


def test_a_log_without_rows_stays_as_it_is() -> None:
    for text in ("a\nb\n", f"\r{bar('x', 0)}\r{bar('x', 10)}\n", "\x1b[31mred\x1b[0m\n", "50%|\n[00:01<00:02]\n\n"):
        assert flat(text) == [(line.text, line.end) for line in lines(text)]


def test_a_message_is_never_taken_for_a_bar() -> None:
    assert flat(f"{UP * 5}a\n\n[stoker] attempt 2\nloss 3/10 [1]\n[stoker] 5 min\n")[:3] == [
        ("a", "\n"),
        ("", "\r"),
        ("[stoker] attempt 2", "\n"),
    ]


def test_rows_are_of_one_node_and_bounded() -> None:
    rows = ProgressRows()
    (pretended,) = lines(f"\x1b[999A{bar('x', 1)}\n")
    assert rows.flatten(pretended).end == "\r"
    (other,) = lines(f"{bar('y', 1)}\n", rank=1)
    assert rows.flatten(other) is other
    ends = [rows.flatten(line).end for line in lines(f"{bar('x', 1)}\n" * 30)]
    assert ends == ["\r"] * 19 + ["\n"] * 11
    (down,) = lines("\x1b[5Ba\n")
    assert rows.flatten(down) == down._replace(text="a")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("live", [True, False])
def test_on_a_terminal_the_bar_that_was_drawn_last_is_shown(live: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr("shutil.get_terminal_size", lambda *_: os.terminal_size((200, 40)))
    monkeypatch.setenv("NO_COLOR", "1")
    screen = TerminalScreen(terminal, prefix=False, live=live)
    for line in lines(f"\r{bar('outer', 0)}\n\r{bar('inner', 0)}{UP}\n\r{bar('inner', 10)}{UP}\n\r"):
        screen.line(line)
        screen.status("running")
    above, _, last = terminal.getvalue().rpartition("\n")
    assert UP not in above + last and above.endswith(bar("outer", 0))
    if live:
        assert last.endswith(f"running │ {bar('inner', 10)}")
    else:
        assert last == f"\r{bar('inner', 0)}\x1b[K\r\r{bar('inner', 10)}\x1b[K\r\r"


def test_a_file_gets_every_byte(tmp_path: object, capsys: pytest.CaptureFixture[str]) -> None:
    screen = PlainScreen(sys.stdout, prefix=False)
    for line in lines(two_bars()):
        screen.line(line)
    assert capsys.readouterr().out == two_bars()
