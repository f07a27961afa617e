"""Run the steps of a set-up in order, each with its output and duration in the job's log."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stoker.agent.environment.error_hints import InstallErrorCause, read_cause
from stoker.agent.logs.log_pump import last_lines
from stoker.agent.runtime import Command, Runtime
from stoker.core.failure_diagnosis import AGENT_PREFIX
from stoker.model.errors import SetupFailed

# A set-up that takes longer gets a hint about how to make it quicker.
SLOW_S = 300.0
# The duration of a shorter step is not logged.
_LOG_FROM_S = 1.0
# Pauses between two polls of a command: the first is short, so that short commands are not delayed.
_FIRST_POLL_S = 0.002
_POLL_S = 0.05
# The part of a command's output that is searched for the cause of its failure.
_LINES = 400
_BYTES = 64 * 1024
# Pauses between tries after a server did not answer. The next attempt may begin at once and the number of attempts is
# limited: an index that is down for a moment must not use them up.
_PAUSES_S = (10.0, 30.0)


@dataclass(frozen=True)
class Step:
    """One command of a set-up. `name` is shown to the user; `remedy` says how to make the step quicker."""

    name: str
    command: Command
    remedy: str = ""
    # The message of a failure, before the cause. Empty: the name and the exit code.
    failure_message: str = ""
    # Removes what a failed command left, so that it can be repeated; None: the command must not be repeated.
    undo: Callable[[], None] | None = None


def nothing_to_undo() -> None:
    """The `undo` of a step that continues where a failed one stopped."""


@dataclass(frozen=True)
class CommandResult:
    """Exit code and output of a command."""

    code: int
    text: str


class SetupSteps:
    """Runs steps in a runtime.

    `check` is called continuously and may raise to end this node's work, which is no failure.
    """

    def __init__(
        self,
        runtime: Runtime,
        log: Path,
        say: Callable[[str], None],
        check: Callable[[], None],
        *,
        monotonic: Callable[[], float] = time.monotonic,
        pauses_s: Sequence[float] = _PAUSES_S,
    ) -> None:
        self._runtime = runtime
        self._log = log
        self._say = say
        self._check = check
        self._monotonic = monotonic
        self._pauses_s = tuple(pauses_s)
        self._durations: list[tuple[float, str, str]] = []

    def run(self, step: Step) -> None:
        """Run a step to its end. Repeat it a few times if a server does not answer and the step can be repeated.

        Raises SetupFailed, with the name of the step and the cause, and whatever `check` raises.
        """
        for pause_s in (*(self._pauses_s if step.undo is not None else ()), None):
            with self.timed(step.name, step.remedy):
                began = self._log.stat().st_size if self._log.exists() else 0
                code = self._run(step.name, step.command, self._log)
            if not code:
                return
            printed = last_lines(self._log, _LINES, _BYTES, since=began)
            cause = read_cause([line for line in printed if not line.startswith(AGENT_PREFIX)])
            if pause_s is None or not cause.transient:
                raise _failed(step, code, cause)
            self._wait(step.name, cause, pause_s)
            assert step.undo is not None
            step.undo()

    def capture_with_retries(self, name: str, command: Command) -> CommandResult:
        """As `capture`, with a few retries while a server does not answer. Raises SetupFailed after the last one."""
        for pause_s in (*self._pauses_s, None):
            answer = self.capture(name, command)
            cause = read_cause(answer.text.splitlines()) if answer.code else InstallErrorCause("")
            if not cause.transient:
                break
            if pause_s is None:
                raise SetupFailed(f"{name}: {cause.text}", user=False, code=answer.code)
            self._wait(name, cause, pause_s)
        return answer

    def _wait(self, name: str, cause: InstallErrorCause, pause_s: float) -> None:
        self._say(f"{name}: {cause.text}; trying again in {pause_s:.0f} s")
        until_s = time.monotonic() + pause_s
        while time.monotonic() < until_s:
            self._check()
            time.sleep(_POLL_S)

    def capture(self, name: str, command: Command) -> CommandResult:
        """Run a command and return its output, which is not logged. Raises SetupFailed if it cannot be started."""
        handle, path = tempfile.mkstemp(prefix=".ask-", dir=self._log.parent)
        os.close(handle)
        output = Path(path)
        try:
            code = self._run(name, command, output)
            return CommandResult(code, output.read_text(encoding="utf-8", errors="replace"))
        finally:
            output.unlink(missing_ok=True)

    @contextmanager
    def timed(self, name: str, remedy: str = "") -> Iterator[None]:
        """Log and measure a step that the agent does itself."""
        self._say(f"running {name}")
        began_s = self._monotonic()
        try:
            yield
        finally:
            took_s = self._monotonic() - began_s
            self._durations.append((took_s, name, remedy))
        if took_s >= _LOG_FROM_S:
            self._say(f"{name} took {_seconds(took_s)}")

    def report(self) -> None:
        """Log what made a long set-up long, and what would make it shorter."""
        total_s = sum(took_s for took_s, _, _ in self._durations)
        if total_s < SLOW_S:
            return
        took_s, name, remedy = max(self._durations)
        advice = f"; {remedy}" if remedy else ""
        self._say(f"the set-up took {_seconds(total_s)}, {_seconds(took_s)} of it for {name}{advice}")

    def _run(self, name: str, command: Command, log: Path) -> int:
        try:
            run = self._runtime.spawn(command, log)
        except OSError as error:
            what = f"there is no program {error.filename!r}" if isinstance(error, FileNotFoundError) else str(error)
            raise SetupFailed(f"{name}: {what} on this machine", user=True, code=127) from error
        try:
            pause_s = _FIRST_POLL_S
            while run.poll() is None:
                self._check()
                time.sleep(pause_s)
                pause_s = min(_POLL_S, pause_s * 1.5)
        finally:
            self._runtime.group.kill()
            code = run.wait()
        return code if code >= 0 else 128 - code


def _failed(step: Step, code: int, cause: InstallErrorCause) -> SetupFailed:
    exited = f"exited with {code}"
    if not cause.text:
        message = f"{step.failure_message or step.name}: {exited} and printed nothing"
    else:
        message = f"{step.failure_message or f'{step.name}: {exited}'}: {cause.text}"
    return SetupFailed(message, user=not cause.transient, code=code)


def _seconds(seconds: float) -> str:
    return f"{seconds / 60:.1f} min" if seconds >= 100 else f"{seconds:.1f} s"
