"""The door of a container: what goes through it, what does not, and what is left of it."""

from __future__ import annotations

import fcntl
import os
import stat
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from plain_store import wait_for

from stoker.agent.container import pipes as module
from stoker.agent.container.pipes import ContainerPipes, exec_in_container
from stoker.processes.container_sweep import container_name


class Become(Exception):
    """Instead of becoming a program."""


def handles() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def door(tmp_path: Path) -> Iterator[ContainerPipes]:
    made = ContainerPipes(tmp_path / "door")
    made.open()
    yield made
    made.close()


def read_all(pipe: Path) -> bytes:
    with pipe.open("rb") as file:
        return file.read()


def test_any_user_goes_through_and_none_looks_around(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        door = ContainerPipes(tmp_path / "door")
        door.open()
        entrance = door.command_pipes()
    finally:
        os.umask(before)
    assert stat.S_IMODE(door.folder.stat().st_mode) == 0o711
    for pipe in (door.alive, door.begun, entrance.exports, entrance.reply, entrance.out):
        assert stat.S_ISFIFO(pipe.stat().st_mode) and stat.S_IMODE(pipe.stat().st_mode) == 0o666
    entrance.close()
    door.close()


def test_a_reader_at_the_door_learns_that_the_agent_is_gone(door: ContainerPipes) -> None:
    waiting = os.open(door.alive, os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(BlockingIOError):
        os.read(waiting, 1)
    door.close()
    assert os.read(waiting, 1) == b"", "the end of the pipe is the end of the agent"
    os.close(waiting)


def test_nothing_of_it_stays(tmp_path: Path) -> None:
    before = handles()
    door = ContainerPipes(tmp_path / "door")
    for _ in range(2):
        # What an earlier agent left is no hindrance.
        (tmp_path / "door").mkdir(exist_ok=True)
        (tmp_path / "door" / "alive").touch()
        door.open()
        entrance = door.command_pipes()
        assert entrance.send_variables({}, lambda: True) is None
        entrance.close()
        assert sorted(path.name for path in door.folder.iterdir()) == ["alive", "begun"]
    door.close()
    door.close()
    assert handles() == before and not (tmp_path / "door").exists()


def test_the_first_program_is_heard(door: ContainerPipes) -> None:
    assert door.wait_started(lambda: True) is None
    writer = os.open(door.begun, os.O_WRONLY)
    os.write(writer, b"1 box")
    assert door.wait_started(lambda: True) is None, "half a line may be anything"
    os.write(writer, b"1 box\n")
    # It was there, and is gone: what it said before is heard.
    assert door.wait_started(lambda: True) == "box"
    os.close(writer)


def test_a_word_that_comes_in_parts_is_heard_as_one(door: ContainerPipes) -> None:
    entrance = door.command_pipes()
    parts = [b"4", b"2", b"\n"]
    reply = os.open(entrance.reply, os.O_RDWR)

    def gone() -> bool:
        if parts:
            os.write(reply, parts.pop(0))
        return False

    reader = threading.Thread(target=read_all, args=(entrance.exports,))
    reader.start()
    assert entrance.send_variables({"A": "1"}, gone) == "42"
    reader.join()
    os.close(reply)
    entrance.close()


def test_one_that_leaves_before_it_has_heard_everything_is_gone(door: ContainerPipes) -> None:
    entrance = door.command_pipes()
    before = handles()
    reader = os.open(entrance.exports, os.O_RDONLY | os.O_NONBLOCK)
    heard: list[str | None] = []
    # More than a pipe holds.
    passing = threading.Thread(
        target=lambda: heard.append(entrance.send_variables({"A": "x" * 200_000}, lambda: False))
    )
    passing.start()
    while not _read_some(reader):
        pass
    os.close(reader)
    passing.join()
    assert heard == [None] and handles() == before
    entrance.close()


def _read_some(reader: int) -> bytes:
    try:
        return os.read(reader, 1)
    except BlockingIOError:
        return b""


def test_a_pipe_that_is_not_there_is_an_error(door: ContainerPipes) -> None:
    entrance = door.command_pipes()
    entrance.exports.unlink()
    with pytest.raises(FileNotFoundError):
        entrance.send_variables({}, lambda: False)
    entrance.close()


# ── Visitors ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class Visited:
    """What a visitor became, and what it brought."""

    def __init__(
        self, root: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[Path], bytes], more: str = ""
    ) -> None:
        variables = {"LR": "it's", "BATCH-SIZE": "3", "MORE": more}
        self.argv: list[str] = []
        self.brought = b""
        self.children: list[int] = []
        (root / "pipes").mkdir(parents=True)
        fork = os.fork

        def forked() -> int:
            child = fork()
            self.children.append(child)
            return child

        def become(program: str, argv: tuple[str, ...]) -> NoReturn:
            assert program == argv[0]
            self.argv = list(argv)
            (words,) = (root / "pipes").iterdir()
            assert stat.S_IMODE(words.stat().st_mode) == 0o666
            self.brought = read(words)
            raise Become

        monkeypatch.setattr(module.os, "fork", forked)
        monkeypatch.setattr(module.os, "execvp", become)
        with pytest.raises(Become):
            exec_in_container("podman", root, ["ls", "-l"], root / "code", variables)
        (child,) = self.children
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert list((root / "pipes").iterdir()) == [], "the pipe is gone once it was of use"


@pytest.mark.parametrize(("stdin", "stdout"), [(True, True), (True, False), (False, True)])
def test_a_visitor_is_brought_in_with_the_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stdin: bool, stdout: bool
) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: stdin, raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: stdout, raising=False)
    root = tmp_path / "node"
    found = Visited(root, monkeypatch, read_all)
    text = found.brought.decode()
    assert "export LR='it'\"'\"'s'\n" in text and "exec env -- BATCH-SIZE=3" in text
    *first, shell, option, script, name, words, program, argument = found.argv
    terminal = ["--tty"] if stdin and stdout else []
    where = [f"--workdir={root / 'code'}", container_name(root)]
    assert first == ["podman", "exec", "--interactive", *terminal, *where]
    assert (shell, option, name, program, argument) == ("sh", "-c", "stoker", "ls", "-l")
    assert script.startswith('. "$1"; shift\n') and words.startswith("/run/stoker/") and words.endswith(".exports")


def test_a_visitor_gets_more_variables_than_a_pipe_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_late(pipe: Path) -> bytes:
        with pipe.open("rb") as file:
            waiting = bytearray(4)

            def is_full() -> bool:
                fcntl.ioctl(file, termios.FIONREAD, waiting)
                return int.from_bytes(waiting, sys.byteorder) >= 60_000

            wait_for(is_full)
            return file.read()

    found = Visited(tmp_path / "node", monkeypatch, read_late, "x" * 200_000)
    assert b"export MORE=" + b"x" * 200_000 + b"\n" in found.brought
    assert found.brought.endswith(b'exec "$@"; }\n')


class Seen:
    """The child goes on when the visitor has become a program, and has looked at the pipe."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, goes_on: Callable[..., int | None]) -> None:
        self._file = folder / "became"

        def open_for_reader(*arguments: object) -> int | None:
            wait_for(self._file.exists)
            return goes_on(*arguments)

        monkeypatch.setattr(module, "_open_for_reader", open_for_reader)

    def read(self, _pipe: Path) -> bytes:
        self._file.touch()
        return b""


def test_a_visitor_that_is_not_let_in_leaves_no_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_EXEC_TIMEOUT_S", 0.0)
    seen = Seen(tmp_path, monkeypatch, module._open_for_reader)
    Visited(tmp_path / "node", monkeypatch, seen.read)


def test_a_container_that_ends_meanwhile_leaves_no_second_stoker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def removed(pipe: Path, _gone: Callable[[], bool]) -> int:
        pipe.unlink()
        raise FileNotFoundError(pipe)

    seen = Seen(tmp_path, monkeypatch, removed)
    try:
        Visited(tmp_path / "node", monkeypatch, seen.read)
    except FileNotFoundError:
        os._exit(9)  # This is the child, which went on.
