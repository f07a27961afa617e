"""The steps of a set-up, one after another, each with its output and its time in the job's log."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stoker.agent.enclosure import Command, Enclosure
from stoker.agent.logs import PREFIX, last_lines
from stoker.agent.prepare import SetupFailed

# A set-up that takes longer is worth a word about how to make it quick.
SLOW_S = 300.0
# Shorter ones are not worth a line of their own.
_WORTH_TELLING_S = 1.0
# Between two looks whether a command has ended: short ones are not made longer by being waited for.
_FIRST_LOOK_S = 0.002
_LOOK_EVERY_S = 0.05
_QUOTED_LINES = 3


@dataclass(frozen=True)
class Step:
    """One command of a set-up. `name` is what people know it by; `remedy` is how to have it done sooner."""

    name: str
    command: Command
    remedy: str = ""


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
    ) -> None:
        self._enclosure = enclosure
        self._log = log
        self._say = say
        self._check = check
        self._monotonic = monotonic
        self._took: list[tuple[float, str, str]] = []

    def run(self, step: Step) -> None:
        """Run it to its end. Raises SetupFailed with its name and last lines, and whatever `check` raises."""
        with self.timed(step.name, step.remedy):
            began = self._log.stat().st_size if self._log.exists() else 0
            code = self._run(step.name, step.command, self._log)
        if code:
            said = [
                line for line in last_lines(self._log, 2 * _QUOTED_LINES, since=began) if not line.startswith(PREFIX)
            ]
            telling = [" ".join(line.split()) for line in said if line.strip()][-_QUOTED_LINES:]
            what = f": {' | '.join(telling)}" if telling else " and printed nothing"
            raise SetupFailed(f"`{step.name}` exited with {code}{what}", user=True, code=code)

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
            raise SetupFailed(f"`{name}`: {what} on this machine", user=True, code=127) from error
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


def _seconds(seconds: float) -> str:
    return f"{seconds / 60:.1f} min" if seconds >= 100 else f"{seconds:.1f} s"
