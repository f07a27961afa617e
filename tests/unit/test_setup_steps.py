"""The steps of a set-up: in order, in the log, timed, and a failure that names its step."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.agent.enclosure import Command, Host
from stoker.agent.environment.steps import SLOW_S, Step, Steps
from stoker.agent.logs import say
from stoker.agent.prepare import SetupFailed
from stoker.processes import TRAINING, make_group


class Told(Exception):
    """Somebody wants this node to go."""


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(make_group(TRAINING, f"steps-{os.getpid()}", sessions=tmp_path / "sessions"))
    yield made
    made.close()


def steps(host: Host, log: Path, **more: object) -> Steps:
    return Steps(host, log, lambda text: say(log, text), lambda: None, **more)  # type: ignore[arg-type]


def python(text: str, tmp_path: Path, **secrets: str) -> Command:
    return Command((sys.executable, "-c", text), dict(os.environ), tmp_path, secrets)


def test_steps_run_in_order_and_their_output_is_in_the_log(host: Host, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    running = steps(host, log)
    running.run(Step("first", python("print('one')", tmp_path)))
    running.run(Step("second", python("import os; print(os.environ['TOKEN'])", tmp_path, TOKEN="two")))
    lines = [line for line in log.read_text().splitlines() if " took " not in line]
    assert lines == ["[stoker] running first", "one", "[stoker] running second", "two"]


def test_a_failing_step_is_named_with_its_last_lines(host: Host, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    with pytest.raises(SetupFailed) as failure:
        steps(host, log).run(
            Step("requirements.txt", python("print('no such package'); raise SystemExit(3)", tmp_path))
        )
    assert failure.value.user
    assert failure.value.code == 3
    assert str(failure.value) == "`requirements.txt` exited with 3: no such package"


def test_a_step_that_says_nothing_is_not_blamed_with_what_another_said(host: Host, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    running = steps(host, log)
    running.run(Step("requirements.txt", python("print('Installed 3 packages')", tmp_path)))
    with pytest.raises(SetupFailed, match=r"^`setup` exited with 3 and printed nothing$"):
        running.run(Step("setup", python("raise SystemExit(3)", tmp_path)))
    with pytest.raises(SetupFailed, match=r"^`setup` exited with 4: only this$"):
        running.run(Step("setup", python("print('only this'); raise SystemExit(4)", tmp_path)))


def test_a_program_that_is_not_there(host: Host, tmp_path: Path) -> None:
    with pytest.raises(SetupFailed, match="`setup`: there is no program 'no-such-program' on this machine"):
        steps(host, tmp_path / "train.log").run(
            Step("setup", Command(("no-such-program",), dict(os.environ), tmp_path))
        )


def test_being_told_to_go_ends_a_step_and_is_no_failure(host: Host, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    begun = tmp_path / "begun"
    gone = threading.Event()

    def check() -> None:
        if begun.exists():
            gone.set()
            raise Told

    text = f"import pathlib, time; pathlib.Path({str(begun)!r}).touch(); time.sleep(600)"
    with pytest.raises(Told):
        Steps(host, log, lambda _: None, check).run(Step("setup", python(text, tmp_path)))
    assert gone.is_set()
    assert not host.group.members()


def test_a_long_set_up_names_what_made_it_long(host: Host, tmp_path: Path) -> None:
    times = iter([0.0, SLOW_S, 1000.0, 1012.0])
    said: list[str] = []
    running = Steps(host, tmp_path / "train.log", said.append, lambda: None, monotonic=lambda: next(times))
    with running.timed("conda", "pin the packages"):
        pass
    with running.timed("setup"):
        pass
    running.report()
    assert said[-1] == "the set-up took 5.2 min, 5.0 min of it for conda; pin the packages"
    quick = Steps(host, tmp_path / "train.log", said.append, lambda: None)
    said.clear()
    with quick.timed("setup"):
        pass
    quick.report()
    assert said == ["running setup"]
