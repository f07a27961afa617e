"""Dump the stacks of all processes of a training, to explain a standstill. The job's log asks for dumps.

The dump is collected before any node is asked to leave, and stored beside the log: a hang is rarely seen twice. Best
effort: the dump states which parts are missing, and nothing here may keep the node from going on.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from stoker.agent.heartbeat import HeartbeatThread
from stoker.agent.logs.log_pump import last_lines
from stoker.agent.node import AgentNode
from stoker.model import keys
from stoker.model.job_state import JobState
from stoker.secrets.masked_output import mask
from stoker.store.parallel import run_all

# One stuck process must not keep the others from being dumped, and all together must not delay the governor's next
# measure: ranks have `GovernorSettings.evidence_s` for a dump.
_STACK_LIMIT_S = 20.0
_STACKS_LIMIT_S = 45.0
# A GPU that fell off the bus never answers: the dump goes on without it.
_GPUS_LIMIT_S = 10.0
_AT_ONCE = 8
_MOST_PROCESSES = 64
_MOST_WORDS = 300
_LOG_LINES = 50
# People read it; a store keeps it.
_MOST_BYTES = 4 * 1024 * 1024
_PYTHON = "python"


_log = logging.getLogger(__name__)


class StackDumpRequests:
    """The requests to one boot of an agent, answered in threads of their own and reported in the heartbeat.

    `collect` returns the text of a dump.
    """

    def __init__(self, node: AgentNode, heartbeat: HeartbeatThread, collect: Callable[[], bytes]) -> None:
        self._node = node
        self._heartbeat = heartbeat
        self._collect = collect
        self._started: list[str] = []
        # One dump after another: two cannot look into the same process at once.
        self._turn = threading.Lock()

    def start_requested(self, state: JobState | None) -> None:
        """Start a dump for each request of this claim in the log that has none yet. Quick."""
        own = f":{self._node.config.claim}"
        for code in state.evidence_codes if state is not None else ():
            if code.endswith(own) and code not in self._started:
                self._started.append(code)
                number = len(self._started)
                threading.Thread(target=self._work, args=(code, number), name="stack-dump", daemon=True).start()

    def _work(self, code: str, number: int) -> None:
        with self._turn:
            try:
                text = self._collect()
                self._node.store.put(keys.evidence(self._node.key, number), text)
                self._node.say("a stack dump of its processes is stored; `stoker logs --evidence` shows it")
            except Exception as error:  # noqa: BLE001 - edge of a thread: the governor waits for the report below
                _log.warning("no stack dump could be stored: %s", error)
            # Reported either way: the governor need not wait any longer.
            self._heartbeat.change(evidence=(*self._heartbeat.now.evidence, code))


def find_py_spy() -> Path | None:
    """Return the installed py-spy: beside this Python, else on the PATH; None if there is none."""
    beside = Path(sysconfig.get_path("scripts")) / "py-spy"
    if os.access(beside, os.X_OK):
        return beside
    found = shutil.which("py-spy")
    return Path(found) if found else None


def collect_stack_dump(
    members: Iterable[int],
    log: Path,
    secrets: Mapping[str, str],
    *,
    spy: Path | None,
    gpu_processes: Callable[[], list[str]],
    agent: bool = False,
    proc: Path = Path("/proc"),
) -> bytes:
    """Return a text for people, without secrets. `agent`: the stacks of this process are part of it."""
    pids = sorted(members)[:_MOST_PROCESSES]
    pythons = [pid for pid in pids if _is_python(proc, pid)]
    ends_s = time.monotonic() + _STACKS_LIMIT_S
    stacks = run_all([partial(_stack, spy, proc, pid, ends_s) for pid in pythons], _AT_ONCE)
    parts = [
        _titled("processes", [_process(proc, pid) for pid in pids]),
        *(_titled(f"stack of {pid}", [stack]) for pid, stack in zip(pythons, stacks, strict=True)),
        *([_titled("the agent", _own_stacks())] if agent else []),
        _titled("processes on accelerators", _within(_GPUS_LIMIT_S, gpu_processes)),
        _titled(f"the last {_LOG_LINES} lines of the log", last_lines(log, _LOG_LINES)),
    ]
    return mask("\n".join(parts).encode(errors="replace"), secrets)[:_MOST_BYTES]


def _within(limit_s: float, ask: Callable[[], list[str]]) -> list[str]:
    """Return the answer of `ask`, called in a thread of its own: a call that hangs is left behind."""
    found: list[str] = []
    done = threading.Event()

    def work() -> None:
        try:
            found.extend(ask())
        except Exception as error:  # noqa: BLE001 - edge of a thread: a broken driver must not cost the rest of the dump
            found.append(f"({error!r})")
        done.set()

    threading.Thread(target=work, name="gpu-processes", daemon=True).start()
    return found if done.wait(limit_s) else ["(the driver does not answer)"]


def _titled(title: str, lines: Iterable[str]) -> str:
    body = "\n".join(lines)
    return f"── {title}\n{body or '(none)'}\n"


def _process(proc: Path, pid: int) -> str:
    """Describe a process: its number, its state, what it waits for in the kernel, and its command."""
    folder = proc / str(pid)
    try:
        head, _, rest = (folder / "stat").read_text(errors="replace").rpartition(")")
        state, parent, threads = (rest.split()[number] for number in (0, 1, 17))
        words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except (OSError, IndexError):
        return f"{pid} is gone"
    waits = ""
    with suppress(OSError):
        waits = (folder / "wchan").read_text().strip().strip("0")
    name = words[:_MOST_WORDS] or f"[{head.partition('(')[2]}]"
    counted = f"{threads} thread" if threads == "1" else f"{threads} threads"
    return f"{pid} of {parent}, {state}, {counted}{f', in {waits}' if waits else ''}: {name}"


def _is_python(proc: Path, pid: int) -> bool:
    try:
        return _PYTHON in os.path.basename(os.readlink(proc / str(pid) / "exe"))  # noqa: PTH115, PTH119
    except OSError:
        return False


def _stack(spy: Path | None, proc: Path, pid: int, ends_s: float) -> str:
    """Return the stacks of a process, with native frames if possible. `ends_s` is the monotonic time limit."""
    if spy is None:
        return f"(there is no py-spy on this machine)\n{_kernel_stack(proc, pid)}"
    problem = "there was no time left to look"
    for more in (("--native",), ()):
        left_s = ends_s - time.monotonic()
        if left_s <= 0:
            break
        try:
            ran = subprocess.run(
                [spy, "dump", *more, "--pid", str(pid)],
                capture_output=True,
                text=True,
                timeout=min(_STACK_LIMIT_S, left_s),
                check=False,
                errors="replace",
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            problem = str(error)
            continue
        if ran.returncode == 0:
            return ran.stdout
        problem = ran.stderr.strip()
    return f"({problem})\n{_kernel_stack(proc, pid)}"


def _own_stacks() -> list[str]:
    """Return the stacks of this process. py-spy would stop the very process that must end py-spy when it hangs."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames().items()
    return [f"{names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}" for ident, frame in frames]


def _kernel_stack(proc: Path, pid: int) -> str:
    with suppress(OSError):
        return (proc / str(pid) / "stack").read_text()
    return ""
