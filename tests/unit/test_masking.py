"""A command that knows secrets: its output goes past a masker, all of it, and the masker is no part of the command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from stoker.agent.runtime import Command, HostRuntime
from stoker.processes import NODE, TRAINING, make_group, stat_of
from stoker.secrets import masked_output, masker

TOKEN = "hf_0123456789abcdefghij"


@pytest.fixture(params=["cgroup", "marks"])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[HostRuntime]:
    try:
        group = make_group(
            TRAINING, f"mask-{os.getpid()}", sessions=tmp_path / "sessions", cgroup=request.param == "cgroup"
        )
    except OSError:
        pytest.skip("no cgroup can be made here")
    made = HostRuntime(group)
    yield made
    made.close()


def python(text: str, tmp_path: Path, **secrets: str) -> Command:
    return Command((sys.executable, "-u", "-c", text), dict(os.environ), tmp_path, secrets)


def maskers() -> set[int]:
    """Of this process."""
    found = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if os.fsencode(masker.__file__) in words and parent == os.getpid():
            found.add(int(entry.name))
    return found


def eventually(condition: Callable[[], object]) -> None:
    until_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.01)


def test_everything_is_in_the_log_when_the_command_has_ended(host: HostRuntime, tmp_path: Path) -> None:
    log = tmp_path / "log"
    text = f"import os\nfor n in range(20000): print(n, os.environ['TOKEN'], {TOKEN!r}[:4])"
    run = host.spawn(python(text, tmp_path, TOKEN=TOKEN), log)
    eventually(lambda: run.poll() is not None)
    host.group.kill()
    assert run.wait() == 0
    assert log.read_text() == "".join(f"{n} *** hf_0\n" for n in range(20000))
    assert not maskers()


def test_without_secrets_there_is_nobody_between(host: HostRuntime, tmp_path: Path) -> None:
    for secrets in ({}, {"PIN": "123"}):
        log = tmp_path / f"log{len(secrets)}"
        text = "import os, stat; print(stat.S_ISREG(os.fstat(1).st_mode))"
        run = host.spawn(python(text, tmp_path, **secrets), log)
        assert run.wait() == 0
        assert log.read_text() == "True\n"


def test_the_masker_is_no_member_and_is_neither_frozen_nor_killed(host: HostRuntime, tmp_path: Path) -> None:
    log = tmp_path / "log"
    text = f"import time; print({TOKEN!r}, end='', flush=True); time.sleep(600)"
    run = host.spawn(python(text, tmp_path, TOKEN=TOKEN), log)
    (mask,) = maskers()
    assert mask not in host.group.members()
    assert run.pid in host.group.members()
    eventually(lambda: log.read_text() == "***")
    assert host.group.freeze(60.0)
    stat = stat_of(mask)
    assert stat is not None and not stat.halted
    host.group.kill()
    assert run.wait() == -signal.SIGKILL
    assert not maskers()


def test_what_was_forked_and_holds_the_output_is_waited_for_only_until_it_is_killed(
    host: HostRuntime, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    child = "os.setsid(); os.write(1, b'child\\n'); time.sleep(600)"
    text = f"import os, time\nif os.fork() == 0:\n    {child}\nos.write(1, b'parent\\n')"
    run = host.spawn(python(text, tmp_path, TOKEN=TOKEN), log)
    eventually(lambda: run.poll() is not None and b"child" in log.read_bytes())
    host.group.kill()
    began_s = time.monotonic()
    assert run.wait() == 0
    assert time.monotonic() - began_s < 3
    assert sorted(log.read_text().split()) == ["child", "parent"]


def test_a_masker_that_is_killed_is_started_again(host: HostRuntime, tmp_path: Path) -> None:
    log = tmp_path / "log"
    text = f"import sys\nfor line in open({str(tmp_path / 'fifo')!r}): print(line.strip(), {TOKEN!r})"
    os.mkfifo(tmp_path / "fifo")
    run = host.spawn(python(text, tmp_path, TOKEN=TOKEN), log)
    with (tmp_path / "fifo").open("w", buffering=1) as told:
        told.write("one\n")
        eventually(lambda: log.read_text() == "one ***\n")
        (mask,) = maskers()
        os.kill(mask, signal.SIGKILL)
        eventually(lambda: run.poll() is None and maskers() not in (set(), {mask}))
        told.write("two\n")
        eventually(lambda: log.read_text() == "one ***\ntwo ***\n")
        (mask,) = maskers()
    os.kill(mask, signal.SIGKILL)
    # Whatever was in the pipe then is still masked, and there.
    host.group.kill()
    run.wait()
    assert log.read_text() == "one ***\ntwo ***\n"


def test_a_masker_that_systemd_does_not_let_out_stays_inside(
    host: HostRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert masked_output.way_out() == ()
    monkeypatch.setattr(masked_output, "way_out", lambda: ("false", "--"))
    log = tmp_path / "log"
    text = "import os, time; print('it is', os.environ['TOKEN'])"
    run = host.spawn(python(text, tmp_path, TOKEN=TOKEN), log)
    eventually(lambda: run.poll() is not None)
    assert run.wait() == 0 and log.read_text() == "it is ***\n"
    assert not maskers()


def test_a_program_that_is_not_there_leaves_no_masker(host: HostRuntime, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        host.spawn(Command(("no-such-program",), dict(os.environ), tmp_path, {"TOKEN": TOKEN}), tmp_path / "log")
    assert not maskers()


def test_an_agent_that_is_killed_loses_nothing_that_was_printed(tmp_path: Path) -> None:
    """The training dies with it; the masker goes on to the end of what is in the pipe."""
    (tmp_path / "train.py").write_text(
        "import os, pathlib, time\n"
        "for n in range(200000): print(n, os.environ['TOKEN'])\n"
        "print('end', flush=True)\n"
        "pathlib.Path('printed').touch()\n"
        "time.sleep(600)\n"
    )
    (tmp_path / "agent.py").write_text(
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from stoker.agent.runtime import Command, HostRuntime\n"
        "from stoker.processes import TRAINING, make_group\n"
        "host = HostRuntime(make_group(TRAINING, f'mask-{os.getpid()}', cgroup=False))\n"
        "command = Command((sys.executable, 'train.py'), dict(os.environ), Path('.'), {'TOKEN': sys.argv[1]})\n"
        "host.spawn(command, Path('log'))\n"
        "while not Path('printed').exists(): time.sleep(0.001)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "agent.py", TOKEN], cwd=tmp_path, check=False)
    expected = "".join(f"{n} ***\n" for n in range(200000)) + "end\n"
    log = tmp_path / "log"
    eventually(lambda: log.stat().st_size >= len(expected))
    assert log.read_text() == expected


# ── The way of the output ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("cgroup", "program", "expected"),
    [
        ("0::/system.slice/stoker-agent.service\n", "/bin/systemd-run", ("/bin/systemd-run", "--scope", "--")),
        ("0::/system.slice/stoker-agent.service\n", None, ()),
        ("0::/user.slice\n", "/bin/systemd-run", ()),
        (None, "/bin/systemd-run", ()),
    ],
)
def test_a_masker_of_a_service_gets_out_of_it(
    monkeypatch: pytest.MonkeyPatch, cgroup: str | None, program: str | None, expected: tuple[str, ...]
) -> None:
    def read(path: Path, **_: object) -> str:
        assert path == Path("/proc/self/cgroup")
        if cgroup is None:
            raise OSError("no such file")
        return cgroup

    monkeypatch.setattr(masked_output.Path, "read_text", read)
    monkeypatch.setattr(masked_output.shutil, "which", lambda name: program if name == "systemd-run" else None)
    assert masked_output.way_out() == expected


class Ended:
    """A command that is over."""

    pid = 4711

    def poll(self) -> int | None:
        return 3

    def wait(self) -> int:
        return 3


def test_output_without_secrets_is_appended_and_with_some_it_is_masked(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    for secrets in ({}, {"SHORT": "abc"}):
        with masked_output.open_output(log, secrets) as output:
            assert not output.masked
            os.write(output.stream, b"plain abc\n")
            run = Ended()
            assert output.of(run) is run
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(output.stream)
    with masked_output.open_output(log, {"A": "abcd", "TOKEN": TOKEN}) as output:
        assert output.masked
        os.write(output.stream, f"abcd {TOKEN}\n".encode())
        masked = output.of(Ended())
    assert (masked.pid, masked.poll(), masked.wait(), masked.wait()) == (4711, 3, 3, 3)
    assert log.read_text() == "before\n" + "plain abc\n" * 2 + "*** ***\n"


def test_a_command_that_may_not_write_to_the_log_is_piped_without_secrets_too(tmp_path: Path) -> None:
    with masked_output.open_output(tmp_path / "log", {}, piped=True) as output:
        assert output.masked
        os.write(output.stream, b"through a pipe\n")
        masked = output.of(Ended())
    masked.wait()
    assert (tmp_path / "log").read_text() == "through a pipe\n"


def test_a_named_pipe_is_opened_by_the_command_itself(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with masked_output.open_output(tmp_path / "log", {"TOKEN": TOKEN}, tmp_path / "pipe") as output:
        writer = os.open(tmp_path / "pipe", os.O_WRONLY | os.O_NONBLOCK)
        os.write(writer, TOKEN.encode())
        os.close(writer)
        masked = output.of(Ended())
    masked.wait()
    assert (tmp_path / "log").read_text() == "***"


def open_handles(folder: Path) -> int:
    """Of pipes, and of files in this folder."""
    found = []
    for handle in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.append(str(handle.readlink()))
    return sum(one.startswith(("pipe:", str(folder))) for one in found)


def test_nothing_stays_open_however_it_ends(tmp_path: Path) -> None:
    before = open_handles(tmp_path)
    with masked_output.open_output(tmp_path / "log", {"TOKEN": TOKEN}) as output:
        masked = output.of(Ended())
    masked.wait()
    assert open_handles(tmp_path) == before
    with pytest.raises(KeyError), masked_output.open_output(tmp_path / "log", {"TOKEN": TOKEN}):
        raise KeyError
    assert open_handles(tmp_path) == before and not maskers()
    with pytest.raises(FileNotFoundError), masked_output.open_output(tmp_path / "no" / "log", {"TOKEN": TOKEN}):
        pass
    assert open_handles(tmp_path) == before


def test_output_that_another_program_holds_open_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masked_output, "_DRAIN_S", 0.05)
    with masked_output.open_output(tmp_path / "log", {"TOKEN": TOKEN}) as output:
        held = os.dup(output.stream)
        masked = output.of(Ended())
    masked.wait()
    assert not maskers()
    os.close(held)


def test_a_masker_that_was_killed_leaves_no_word_in_the_pipe(tmp_path: Path) -> None:
    with masked_output.open_output(tmp_path / "log", {"TOKEN": TOKEN}) as output:
        (mask,) = maskers()
        os.kill(mask, signal.SIGKILL)
        masked = output.of(Ended())
        masked._masking._process.wait()  # type: ignore[attr-defined]
        os.write(output.stream, f"it is {TOKEN}\n".encode())
    masked.wait()
    assert (tmp_path / "log").read_text() == "it is ***\n"


def test_the_masker_has_no_variable_of_the_agent_but_its_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NODE, "a-node")
    monkeypatch.setenv("OTHER", "x")
    with masked_output.open_output(tmp_path / "log", {"TOKEN": TOKEN}) as output:
        (mask,) = maskers()
        environ = Path(f"/proc/{mask}/environ").read_bytes()
        masked = output.of(Ended())
    masked.wait()
    assert environ == f"{NODE}=a-node\0".encode()
