"""The steps of a set-up: in order, in the log, timed, and a failure that names its step."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from stoker.agent.environment import steps as steps_module
from stoker.agent.environment.error_hints import InstallErrorCause
from stoker.agent.environment.steps import SLOW_S, SetupSteps, Step, nothing_to_undo
from stoker.agent.logs.log_pump import say
from stoker.agent.runtime import Command, HostRuntime
from stoker.model.errors import SetupFailed
from stoker.processes import TRAINING, make_group


class Told(Exception):
    """Somebody wants this node to go."""


@pytest.fixture
def host(tmp_path: Path) -> Iterator[HostRuntime]:
    made = HostRuntime(make_group(TRAINING, f"steps-{os.getpid()}", sessions=tmp_path / "sessions"))
    yield made
    made.close()


def steps(host: HostRuntime, log: Path, **more: object) -> SetupSteps:
    return SetupSteps(host, log, lambda text: say(log, text), lambda: None, **more)  # type: ignore[arg-type]


def python(text: str, tmp_path: Path, **secrets: str) -> Command:
    return Command((sys.executable, "-c", text), dict(os.environ), tmp_path, secrets)


def test_steps_run_in_order_and_their_output_is_in_the_log(host: HostRuntime, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    running = steps(host, log)
    running.run(Step("first", python("print('one')", tmp_path)))
    running.run(Step("second", python("import os; print(os.environ['TOKEN'])", tmp_path, TOKEN="two")))
    lines = [line for line in log.read_text().splitlines() if " took " not in line]
    assert lines == ["[stoker] running first", "one", "[stoker] running second", "two"]


def test_a_failing_step_is_named_with_its_last_lines(host: HostRuntime, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    with pytest.raises(SetupFailed) as failure:
        steps(host, log).run(
            Step("requirements.txt", python("print('no such package'); raise SystemExit(3)", tmp_path))
        )
    assert failure.value.user
    assert failure.value.code == 3
    assert str(failure.value) == "requirements.txt: exited with 3: no such package"


def test_an_installer_is_named_by_its_field_and_quoted_from_its_error_on(host: HostRuntime, tmp_path: Path) -> None:
    text = "print('Using Python 3.11.7 environment at: /tmp/x'); print('error: no such package'); raise SystemExit(1)"
    step = Step("a.txt", python(text, tmp_path), failure_message="environment.requirements: a.txt cannot be installed")
    with pytest.raises(SetupFailed) as failure:
        steps(host, tmp_path / "train.log").run(step)
    assert str(failure.value) == "environment.requirements: a.txt cannot be installed: no such package"
    step = replace(step, command=python("raise SystemExit(1)", tmp_path))
    with pytest.raises(SetupFailed) as failure:
        steps(host, tmp_path / "train.log").run(step)
    told = "environment.requirements: a.txt cannot be installed: exited with 1 and printed nothing"
    assert str(failure.value) == told


# Fails so often as it is told to because nobody answers, then for another reason, or not at all.
FLAKY = """\
import pathlib, sys
count = pathlib.Path("count")
tries = int(count.read_text()) if count.exists() else 0
count.write_text(str(tries + 1))
if tries < int(sys.argv[1]):
    print("error: Failed to fetch: http://jane:pw@host/simple/")
    print("  cause: Connection refused (os error 111)")
    raise SystemExit(2)
if len(sys.argv) > 2:
    print(sys.argv[2])
    raise SystemExit(3)
"""
AWAY = "http://host/simple/ does not answer (Connection refused)"


def flaky(tmp_path: Path, *arguments: str, undo: Callable[[], None] | None = nothing_to_undo) -> Step:
    command = Command((sys.executable, "-c", FLAKY, *arguments), dict(os.environ), tmp_path)
    return Step("a.txt", command, failure_message="environment.requirements: a.txt cannot be installed", undo=undo)


def test_what_did_not_answer_is_asked_again(host: HostRuntime, tmp_path: Path) -> None:
    said: list[str] = []
    undone: list[int] = []
    running = SetupSteps(host, tmp_path / "train.log", said.append, lambda: None, pauses_s=(0.0, 0.01))
    running.run(flaky(tmp_path, "2", undo=lambda: undone.append(len(said))))
    again = f"a.txt: {AWAY}; trying again in 0 s"
    assert said == ["running a.txt", again, "running a.txt", again, "running a.txt"]
    assert undone == [2, 4]


def test_a_pause_lasts_as_long_as_it_says(host: HostRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock:
        now_s, slept_s = 0.0, 0.0

        def monotonic(self) -> float:
            return self.now_s

        def sleep(self, seconds: float) -> None:
            self.now_s, self.slept_s = self.now_s + seconds, self.slept_s + seconds

        def __getattr__(self, name: str) -> object:
            return getattr(time, name)

    clock = Clock()
    running = steps(host, tmp_path / "train.log")
    monkeypatch.setattr(steps_module, "time", clock)
    running._wait("a.txt", InstallErrorCause("away"), 40.0)
    assert 40.0 <= clock.slept_s < 42.0


def test_what_never_answers_is_the_machines_fault(host: HostRuntime, tmp_path: Path) -> None:
    with pytest.raises(SetupFailed) as failure:
        steps(host, tmp_path / "train.log", pauses_s=(0.0, 0.0)).run(flaky(tmp_path, "9"))
    assert not failure.value.user and failure.value.code == 2
    assert str(failure.value) == f"environment.requirements: a.txt cannot be installed: {AWAY}"
    assert (tmp_path / "count").read_text() == "3"


def test_what_fails_otherwise_is_not_tried_again(host: HostRuntime, tmp_path: Path) -> None:
    with pytest.raises(SetupFailed) as failure:
        steps(host, tmp_path / "train.log", pauses_s=(0.0, 0.0)).run(flaky(tmp_path, "1", "error: no such package"))
    assert failure.value.user
    assert str(failure.value) == "environment.requirements: a.txt cannot be installed: no such package"
    assert (tmp_path / "count").read_text() == "2"


def test_commands_that_nobody_can_undo_are_not_run_twice(host: HostRuntime, tmp_path: Path) -> None:
    with pytest.raises(SetupFailed) as failure:
        steps(host, tmp_path / "train.log", pauses_s=(0.0, 0.0)).run(flaky(tmp_path, "9", undo=None))
    assert not failure.value.user
    assert (tmp_path / "count").read_text() == "1"


def test_being_told_to_go_ends_a_pause(host: HostRuntime, tmp_path: Path) -> None:
    said: list[str] = []

    def check() -> None:
        if any("trying again" in line for line in said):
            raise Told

    running = SetupSteps(host, tmp_path / "train.log", said.append, check, pauses_s=(600.0,))
    with pytest.raises(Told):
        running.run(flaky(tmp_path, "9"))
    assert (tmp_path / "count").read_text() == "1", "it was not run again before the pause was over"


def test_a_question_to_others_is_asked_again(host: HostRuntime, tmp_path: Path) -> None:
    running = steps(host, tmp_path / "train.log", pauses_s=(0.0, 0.0))
    assert running.capture_with_retries("plan", flaky(tmp_path, "2", "error: no such package").command).code == 3
    (tmp_path / "count").unlink()
    with pytest.raises(SetupFailed, match=r"^plan: http://host/simple/ does not answer") as failure:
        running.capture_with_retries("plan", flaky(tmp_path, "9").command)
    assert not failure.value.user


def test_a_question_that_was_answered_is_not_asked_again(host: HostRuntime, tmp_path: Path) -> None:
    running = steps(host, tmp_path / "train.log", pauses_s=(0.0, 0.0))
    assert running.capture_with_retries("plan", flaky(tmp_path, "0").command).code == 0
    assert (tmp_path / "count").read_text() == "1"


def test_the_first_words_of_a_log_are_told_whole(host: HostRuntime, tmp_path: Path) -> None:
    running = SetupSteps(host, tmp_path / "train.log", lambda _text: None, lambda: None)
    with pytest.raises(SetupFailed, match=r"^setup: exited with 4: only this$"):
        running.run(Step("setup", python("print('only this'); raise SystemExit(4)", tmp_path)))


def test_a_step_that_says_nothing_is_not_blamed_with_what_another_said(host: HostRuntime, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    running = steps(host, log)
    running.run(Step("requirements.txt", python("print('Installed 3 packages')", tmp_path)))
    with pytest.raises(SetupFailed, match=r"^setup: exited with 3 and printed nothing$"):
        running.run(Step("setup", python("raise SystemExit(3)", tmp_path)))
    with pytest.raises(SetupFailed, match=r"^setup: exited with 4: only this$"):
        running.run(Step("setup", python("print('only this'); raise SystemExit(4)", tmp_path)))


def test_a_program_that_is_not_there(host: HostRuntime, tmp_path: Path) -> None:
    with pytest.raises(SetupFailed, match=r"^setup: there is no program 'no-such-program' on this machine") as failure:
        steps(host, tmp_path / "train.log").run(
            Step("setup", Command(("no-such-program",), dict(os.environ), tmp_path))
        )
    assert failure.value.user and failure.value.code == 127


def test_a_program_that_may_not_be_run(host: HostRuntime, tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    with pytest.raises(SetupFailed, match=r"^setup: .*Permission denied.* on this machine$") as failure:
        steps(host, tmp_path / "train.log").run(
            Step("setup", Command((str(tmp_path / "data"),), dict(os.environ), tmp_path))
        )
    assert failure.value.user and failure.value.code == 127


def test_a_step_that_is_killed_fails_as_in_a_shell(host: HostRuntime, tmp_path: Path) -> None:
    with pytest.raises(SetupFailed, match=r"^setup: exited with 137 and printed nothing$") as failure:
        steps(host, tmp_path / "train.log").run(Step("setup", python("import os; os.kill(os.getpid(), 9)", tmp_path)))
    assert failure.value.code == 137


def test_what_a_question_printed_is_not_for_the_log(host: HostRuntime, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    asking, text = steps(host, log), r"import os; os.write(1, b'w\xffrd'); raise SystemExit(5)"
    open_files = len(list(Path("/proc/self/fd").iterdir()))
    found = asking.capture("question", python(text, tmp_path))
    assert (found.code, found.text) == (5, "w\ufffdrd")
    assert not log.exists() and not list(tmp_path.glob("*ask-*"))
    assert len(list(Path("/proc/self/fd").iterdir())) == open_files


def test_what_a_step_leaves_running_ends_with_it(host: HostRuntime, tmp_path: Path) -> None:
    text = "import subprocess; subprocess.Popen(['sleep', '600'])"
    steps(host, tmp_path / "train.log").run(Step("setup", python(text, tmp_path)))
    assert not host.group.members()


def test_a_step_that_takes_a_second_is_told_and_a_shorter_one_is_not(host: HostRuntime, tmp_path: Path) -> None:
    times = iter([0.0, 0.9, 10.0, 11.0, 20.0, 119.0, 200.0, 300.0])
    said: list[str] = []
    running = SetupSteps(host, tmp_path / "train.log", said.append, lambda: None, monotonic=lambda: next(times))
    for name in ("quick", "slow", "slower", "slowest"):
        with running.timed(name):
            pass
    told = [line for line in said if " took " in line]
    assert told == ["slow took 1.0 s", "slower took 99.0 s", "slowest took 1.7 min"]


def test_a_long_set_up_without_advice(host: HostRuntime, tmp_path: Path) -> None:
    times = iter([0.0, SLOW_S])
    said: list[str] = []
    running = SetupSteps(host, tmp_path / "train.log", said.append, lambda: None, monotonic=lambda: next(times))
    with pytest.raises(SetupFailed), running.timed("setup"):
        raise SetupFailed("no", user=True)
    running.report()
    assert said == ["running setup", "the set-up took 5.0 min, 5.0 min of it for setup"]


def test_being_told_to_go_ends_a_step_and_is_no_failure(host: HostRuntime, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    begun = tmp_path / "begun"
    gone = threading.Event()

    def check() -> None:
        if begun.exists():
            gone.set()
            raise Told

    text = f"import pathlib, time; pathlib.Path({str(begun)!r}).touch(); time.sleep(600)"
    with pytest.raises(Told):
        SetupSteps(host, log, lambda _: None, check).run(Step("setup", python(text, tmp_path)))
    assert gone.is_set()
    assert not host.group.members()


def test_a_long_set_up_names_what_made_it_long(host: HostRuntime, tmp_path: Path) -> None:
    times = iter([0.0, SLOW_S, 1000.0, 1012.0])
    said: list[str] = []
    running = SetupSteps(host, tmp_path / "train.log", said.append, lambda: None, monotonic=lambda: next(times))
    with running.timed("conda", "pin the packages"):
        pass
    with running.timed("setup"):
        pass
    running.report()
    assert said[-1] == "the set-up took 5.2 min, 5.0 min of it for conda; pin the packages"
    quick = SetupSteps(host, tmp_path / "train.log", said.append, lambda: None)
    said.clear()
    with quick.timed("setup"):
        pass
    quick.report()
    assert said == ["running setup"]
