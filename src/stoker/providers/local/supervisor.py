"""The supervisor of one local node: its power supply and service manager, in one small process.

    python -m stoker.providers.local.supervisor NODE_DIR [LOCK_FD]

It owns every process of the node and starts the agent. It ends the node when the agent is done, when the node's time
limit or the grace of a notice is over, or on request. An agent that crashes takes everything else on the node with it;
it is restarted, three times at most, to upload what is left. The node is gone when it has no processes and the lock on
`alive`, which the supervisor holds for its whole life, is free.

SIGTERM is the power switch; SIGUSR1 announces a request in the folder.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from stoker.processes import NODE, Process, become_subreaper, make_group
from stoker.processes.exec_sessions import kill_joined
from stoker.processes.unmounting import unmount_below
from stoker.processes.warden import GuardedCommand, spawn_guarded
from stoker.providers.local.folder import (
    NodeFolder,
    NodePhase,
    NodeState,
    computer_id,
    open_lock,
    read_json,
    try_lock,
    utc_now,
    wake_waiters,
    write_json,
)

# Requests come with a signal; polling is the fallback.
POLL_S = 1.0
# How often new sessions are searched for without cgroups: recorded sessions are known even after this process's death.
SESSION_SEARCH_S = 5.0
# A restarted agent only uploads and exits; one that crashes repeatedly has a lasting cause.
MOST_RESTARTS = 3
FIRST_PAUSE_S = 0.2
# How long maskers of output have to drain their pipes.
MASKERS_S = 2.0


class _Notices:
    """The notices of one node: requested by a person, or drawn from the simulated spot market."""

    def __init__(self, node: NodeFolder, born: float) -> None:
        settings = read_json(node.settings) or {}
        self._node = node
        reclaim_after_s: float | None = settings.get("reclaim_after_s")
        self._market_at = None if reclaim_after_s is None else born + reclaim_after_s
        self._grace_s: float = settings.get("grace_s", 30.0)
        self.deadline: float | None = None
        # A notice that is given but not written yet.
        self._unwritten: dict[str, Any] | None = None

    @property
    def next_events(self) -> tuple[float | None, ...]:
        """The times at which the market reclaims the machine, and at which the grace is over."""
        return (self._market_at, self.deadline)

    def update(self, now: float) -> None:
        """Give the notices that are due, and write the last one for the agent."""
        if self._market_at is not None and now >= self._market_at:
            self._give("the simulated spot market", self._grace_s, now)
            self._market_at = None
        request = read_json(self._node.interrupt)
        if request is not None:
            self._give(request["source"], request["grace_s"], now)
            self._node.interrupt.unlink(missing_ok=True)
        if self._unwritten is not None:
            try:
                write_json(self._node.notice, self._unwritten)
                self._unwritten = None
            except OSError as error:
                # A full disk. The deadline stands; the agent gets the notice as soon as there is space.
                _say(f"the notice cannot be written: {error}")

    def _give(self, source: str, grace_s: float, now: float) -> None:
        """A notice is final: a second one can only shorten the grace."""
        deadline = now + grace_s
        if self.deadline is not None and deadline >= self.deadline:
            return
        self.deadline = deadline
        self._unwritten = {
            "hard": True,
            "source": source,
            "at": utc_now(),
            "grace_s": grace_s,
            "deadline": deadline,
        }
        _say(f"notice from {source}: {grace_s:g} s")
        wake_waiters(self._node.root)


class Supervisor:
    """One node, from power-on to power-off. Single-threaded: every change happens in a tick."""

    def __init__(self, node: NodeFolder, lock: int) -> None:
        self._node = node
        self._lock = lock
        born = time.monotonic()
        max_life_s: float | None = (read_json(node.config) or {}).get("max_life_s")
        self._end_of_life = None if max_life_s is None else born + max_life_s
        self._notices = _Notices(node, born)
        self._me = Process.me()
        # The pid of the agent, or of its warden on a computer without cgroups.
        self._agent: int | None = None
        self._warden: GuardedCommand | None = None
        self._start_at: float | None = born
        self._restarts = 0
        self._searched_at = born
        self._switched_off = False
        self._agent_done = False
        self._is_off = False

    def run(self) -> None:
        """Run the node. Returns when the machine is off."""
        become_subreaper()
        self._listen()
        self._group = make_group(NODE, self._node.owner, sessions=self._node.sessions)
        # From here on other processes can signal this one, and clean up after it if it is killed.
        self._node.write_state(self._state("running", ""))
        try:
            reason = self._tick()
            while reason is None:
                self._sleep()
                reason = self._tick()
            self._power_off(reason)
        finally:
            # Also after an unexpected error: a machine without its supervisor is off.
            if not self._is_off:
                self._kill_all()

    def _tick(self) -> str | None:
        """Do everything that is due. Returns the reason to power off, if there is one."""
        now = time.monotonic()
        reason = self._reap(now)
        if reason is not None:
            return reason
        if self._node.terminate.exists():
            return "terminated"
        if self._switched_off:
            return "switched off"
        if self._end_of_life is not None and now >= self._end_of_life:
            return "reached its longest life"
        self._notices.update(now)
        if self._notices.deadline is not None and now >= self._notices.deadline:
            return "reclaimed"
        if self._start_at is not None and now >= self._start_at:
            reason = self._start_agent()
            if reason is not None:
                return reason
        if self._group.folder is None and now >= self._searched_at + SESSION_SEARCH_S:
            self._group.members()
            self._searched_at = now
        return None

    # ── the agent ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _start_agent(self) -> str | None:
        command = os.environ.get("STOKER_AGENT_COMMAND")
        if command:
            import shlex

            argv = [*shlex.split(command), str(self._node.path)]
        else:
            argv = [sys.executable, "-m", "stoker.agent", str(self._node.path)]
        self._start_at = None
        try:
            with self._node.agent_log.open("ab") as log:
                self._agent = self._spawn(argv, log.fileno())
        except OSError as error:
            _say(f"the agent cannot be started: {error}")
            return self._agent_ended(126, time.monotonic())
        return None

    def _spawn(self, argv: list[str], log: int) -> int:
        # Not in the node's folder: Python would import from there, and it holds the user's code.
        cwd = self._node.root
        if self._group.folder is None:
            if self._warden is not None:
                self._warden.close()
            names = (NODE, self._node.owner)
            self._warden = spawn_guarded(
                self._group, names, argv, sessions=self._node.sessions, cwd=cwd, output=log, lock=self._lock
            )
            return self._warden.pid
        agent = self._group.spawn(argv, cwd=cwd, stdout=log, stderr=log, dies_with_parent=True)
        # `_reap` waits for all children, so the Popen must not.
        agent.returncode = 0
        return agent.pid

    def _reap(self, now: float) -> str | None:
        """Wait for every child that ended: the agent, and orphans of this node."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return None
            if pid == 0:
                return None
            if pid == self._agent:
                self._agent = None
                reason = self._agent_ended(os.waitstatus_to_exitcode(status), now)
                if reason is not None:
                    return reason

    def _agent_ended(self, code: int, now: float) -> str | None:
        if code == 0:
            self._agent_done = True
            return "the agent was done"
        _say(f"the agent ended with {code}")
        # The training dies with its agent, at once: it would run without supervision.
        self._let_maskers_end()
        self._kill_all()
        if self._restarts >= MOST_RESTARTS:
            return f"the agent failed {self._restarts + 1} times"
        self._start_at = now + FIRST_PAUSE_S * 2**self._restarts
        self._restarts += 1
        return None

    def _let_maskers_end(self) -> None:
        """Let the maskers between the training and its log drain their pipes: they end once all other processes
        have."""
        until_s = time.monotonic() + MASKERS_S
        while time.monotonic() < until_s:
            members = self._group.members()
            maskers = {pid for pid in members if _is_masker(pid)}
            if not maskers:
                return
            others = {pid: process for pid in members - maskers if (process := Process.of(pid)) is not None}
            # Read the members again: a pid that is a member in both readings, with its identity taken between them,
            # cannot belong to an unrelated process that reused the number.
            for pid in others.keys() & self._group.members():
                with suppress(PermissionError):
                    others[pid].signal(signal.SIGKILL)
            time.sleep(0.005)

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _power_off(self, reason: str) -> None:
        _say(f"powering off: {reason}")
        self._write_state("stopping", reason)
        self._kill_all()
        self._group.close()
        if self._agent_done or self._node.left.exists():
            self._tidy()
        self._write_state("gone", reason)
        self._is_off = True
        os.close(self._lock)
        # After the lock is free, so that the woken process finds the node gone.
        wake_waiters(self._node.root)

    def _kill_all(self) -> None:
        self._sweep()
        while not (self._group.kill(timeout_s=5.0) and kill_joined(self._node.owner)):
            # Stuck in the kernel, for example on a dead network disk. A machine that still has processes is not off.
            _say(f"cannot be killed yet: {sorted(self._group.members())}")
        # The processes that served the mounts are dead now. Mounted files are not on the node's own disk and must not
        # be removed.
        unmount_below(self._node.path)

    def _sweep(self) -> None:
        """End the agent's container, whose processes may not be processes of this node.

        This comes before other processes are killed, and after the agent alone: podman has a process here that cleans
        up when a container ends.
        """
        if not self._node.container.exists():
            return
        from stoker.processes.container_sweep import sweep

        if self._agent is not None:
            # This process has not waited for the agent, so the pid is still the agent's.
            os.kill(self._agent, signal.SIGKILL)
        sweep(self._node.path)

    def _tidy(self) -> None:
        """Remove code, inputs and checkpoints, which are in the store. Logs and JSON files stay for a while, for
        people."""
        from stoker.processes.tree_removal import remove_tree

        for entry in list(self._node.path.iterdir()):
            if entry.suffix in (".json", ".log") or entry.name in ("alive", "boots"):
                continue
            if entry.is_dir() and not entry.is_symlink():
                remove_tree(entry)
            else:
                entry.unlink(missing_ok=True)

    # ── the rest ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _listen(self) -> None:
        """Let signals wake the loop. Handlers instead of SIG_IGN: the agent would inherit ignored signals."""
        self._wakeup_fd, write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGUSR1, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, _nothing)
        signal.signal(signal.SIGTERM, self._switch_off)

    def _switch_off(self, _number: int, _frame: Any) -> None:
        self._switched_off = True

    def _sleep(self) -> None:
        moments = [self._start_at, self._end_of_life, *self._notices.next_events]
        now = time.monotonic()
        due_s = min((moment - now for moment in moments if moment is not None), default=POLL_S)
        select.select([self._wakeup_fd], [], [], max(0.0, min(due_s, POLL_S)))
        try:
            while os.read(self._wakeup_fd, 512):
                pass
        except BlockingIOError:
            pass

    def _state(self, phase: NodePhase, reason: str) -> NodeState:
        return NodeState(phase, self._me, self._group.folder, computer_id(), time.time(), reason)

    def _write_state(self, phase: NodePhase, reason: str) -> None:
        try:
            self._node.write_state(self._state(phase, reason))
        except OSError as error:
            # A full disk must not keep a machine from going off; a free lock without processes has the same meaning.
            _say(f"the state cannot be written: {error}")


def _say(text: str) -> None:
    """Write a line to the supervisor's log."""
    try:
        os.write(2, f"{utc_now()} {text}\n".encode())
    except OSError:
        return  # A full disk.


def _is_masker(pid: int) -> bool:
    """Return True if the process looks like a masker.

    The test reads the arguments, which any process can fake: such a process lives a moment longer, and no more.
    """
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(argument.endswith(b"/stoker/secrets/masker.py") for argument in arguments[:5])


def _nothing(_number: int, _frame: Any) -> None:
    """Do nothing: the wake-up is enough."""


def main(argv: list[str]) -> int:
    """Run the node in this process. Returns 1 if the node has or had a supervisor: a machine is started once."""
    node = NodeFolder(Path(argv[0]).absolute())
    if len(argv) > 1:
        # The launcher took the lock and passed it on: it was never free in between.
        lock = int(argv[1])
        os.set_inheritable(lock, False)
    else:
        lock = open_lock(node.alive)
        if not try_lock(lock, exclusive=True):
            return 1
    if node.state.exists():
        return 1
    os.chdir(node.path)
    Supervisor(node, lock).run()
    return 0


if __name__ == "__main__":
    # Exit at once, without Python's cleanup: the node is recorded as gone, so no part of it should still be visible.
    os._exit(main(sys.argv[1:]))
