"""The steps of a set-up, one after another, each with its output and its time in the job's log."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stoker.agent.environment.error_hints import Cause, read_cause
from stoker.agent.logs.log_pump import PREFIX, last_lines
from stoker.agent.runtime import Command, Enclosure
from stoker.model.errors import SetupFailed

# A set-up that takes longer is worth a word about how to make it quick.
SLOW_S = 300.0
# Shorter ones are not worth a line of their own.
_WORTH_TELLING_S = 1.0
# Between two looks whether a command has ended: short ones are not made longer by being waited for.
_FIRST_LOOK_S = 0.002
_LOOK_EVERY_S = 0.05
# Of what a command printed, for the cause of its failure.
_LINES = 400
_BYTES = 64 * 1024
# Between two tries of what failed because somebody did not answer. The next attempt may begin at once, and there are
# only so many: an index that is away for a moment must not use them up.
_PAUSES_S = (10.0, 30.0)


@dataclass(frozen=True)
class Step:
    """One command of a set-up. `name` is what people know it by; `remedy` is how to have it done sooner."""

    name: str
    command: Command
    remedy: str = ""
    # What is told of it when it fails, before the cause. Empty: its name, and how it exited.
    failing: str = ""
    # Takes away what a failed one left, so that the command can be run again; None: nobody knows what it left.
    undo: Callable[[], None] | None = None


def nothing_to_undo() -> None:
    """Of a step that goes on where a failed one ended."""


@dataclass(frozen=True)
class Answer:
    """How a command ended that was run for its output."""

    code: int
    text: str


class Steps:
    """Runs them in an enclosure. `check` is asked all the time, and may raise: being told to go is no failure."""

    def __init__(
        self,
        enclosure: Enclosure,
        log: Path,
        say: Callable[[str], None],
        check: Callable[[], None],
        *,
        monotonic: Callable[[], float] = time.monotonic,
        pauses_s: Sequence[float] = _PAUSES_S,
    ) -> None:
        self._enclosure = enclosure
        self._log = log
        self._say = say
        self._check = check
        self._monotonic = monotonic
        self._pauses_s = tuple(pauses_s)
        self._took: list[tuple[float, str, str]] = []

    def run(self, step: Step) -> None:
        """Run it to its end. Where somebody does not answer, and it can be run again, it is, a few times.

        Raises SetupFailed, with its name and why it failed, and whatever `check` raises.
        """
        for pause_s in (*(self._pauses_s if step.undo is not None else ()), None):
            with self.timed(step.name, step.remedy):
                began = self._log.stat().st_size if self._log.exists() else 0
                code = self._run(step.name, step.command, self._log)
            if not code:
                return
            printed = last_lines(self._log, _LINES, _BYTES, since=began)
            cause = read_cause([line for line in printed if not line.startswith(PREFIX)])
            if pause_s is None or not cause.silent:
                raise _failed(step, code, cause)
            self._wait(step.name, cause, pause_s)
            assert step.undo is not None
            step.undo()

    def ask_index(self, name: str, command: Command) -> Answer:
        """As `ask`, of a command that asks others: a few times where they do not answer. Then raises SetupFailed."""
        for pause_s in (*self._pauses_s, None):
            answer = self.ask(name, command)
            cause = read_cause(answer.text.splitlines()) if answer.code else Cause("")
            if not cause.silent:
                break
            if pause_s is None:
                raise SetupFailed(f"{name}: {cause.text}", user=False, code=answer.code)
            self._wait(name, cause, pause_s)
        return answer

    def _wait(self, name: str, cause: Cause, pause_s: float) -> None:
        self._say(f"{name}: {cause.text}; trying again in {pause_s:.0f} s")
        until_s = time.monotonic() + pause_s
        while time.monotonic() < until_s:
            self._check()
            time.sleep(_LOOK_EVERY_S)

    def ask(self, name: str, command: Command) -> Answer:
        """Run a command for its output, which is not for the log. Raises SetupFailed where it cannot be started."""
        handle, path = tempfile.mkstemp(prefix=".ask-", dir=self._log.parent)
        os.close(handle)
        output = Path(path)
        try:
            code = self._run(name, command, output)
            return Answer(code, output.read_text(encoding="utf-8", errors="replace"))
        finally:
            output.unlink(missing_ok=True)

    @contextmanager
    def timed(self, name: str, remedy: str = "") -> Iterator[None]:
        """A step that the agent does itself."""
        self._say(f"running {name}")
        began_s = self._monotonic()
        try:
            yield
        finally:
            took_s = self._monotonic() - began_s
            self._took.append((took_s, name, remedy))
        if took_s >= _WORTH_TELLING_S:
            self._say(f"{name} took {_seconds(took_s)}")

    def report(self) -> None:
        """Tell what made a long set-up long, and what would make it short."""
        total_s = sum(took_s for took_s, _, _ in self._took)
        if total_s < SLOW_S:
            return
        took_s, name, remedy = max(self._took)
        advice = f"; {remedy}" if remedy else ""
        self._say(f"the set-up took {_seconds(total_s)}, {_seconds(took_s)} of it for {name}{advice}")

    def _run(self, name: str, command: Command, log: Path) -> int:
        try:
            run = self._enclosure.spawn(command, log)
        except OSError as error:
            what = f"there is no program {error.filename!r}" if isinstance(error, FileNotFoundError) else str(error)
            raise SetupFailed(f"{name}: {what} on this machine", user=True, code=127) from error
        try:
            pause_s = _FIRST_LOOK_S
            while run.poll() is None:
                self._check()
                time.sleep(pause_s)
                pause_s = min(_LOOK_EVERY_S, pause_s * 1.5)
        finally:
            self._enclosure.group.kill()
            code = run.wait()
        return code if code >= 0 else 128 - code


def _failed(step: Step, code: int, cause: Cause) -> SetupFailed:
    exited = f"exited with {code}"
    if not cause.text:
        told = f"{step.failing or step.name}: {exited} and printed nothing"
    else:
        told = f"{step.failing or f'{step.name}: {exited}'}: {cause.text}"
    return SetupFailed(told, user=not cause.silent, code=code)


def _seconds(seconds: float) -> str:
    return f"{seconds / 60:.1f} min" if seconds >= 100 else f"{seconds:.1f} s"
