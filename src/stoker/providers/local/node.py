"""The machine: hypervisor, power supply and service manager of one local node, in one small process.

    python -m stoker.providers.local.node NODE_DIR [LOCK_FD]

It owns every process of the node, starts the agent and ends the node: when the agent is done, when its longest
life or the grace of a notice is over, when somebody asks. An agent that crashes takes everything else on the node
with it; it is started again to flush what is there, three times at most. The node is gone when nobody is left and
the lock on `alive`, held for this process's whole life, is free.

SIGTERM is the power switch; SIGUSR1 says that a request lies in the folder.
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
from stoker.processes.unmounting import unmount_below
from stoker.processes.warden import Guarded, spawn_guarded
from stoker.providers.local.folder import (
    NodeFolder,
    NodePhase,
    State,
    computer,
    open_lock,
    read_json,
    ring,
    stamp,
    try_lock,
    write_json,
)

# Requests arrive with a signal; this is the net below it.
POLL_S = 1.0
# Without cgroups, how often new sessions are looked for: those found are known even after this process's death.
LOOK_S = 5.0
# A restarted agent only flushes and exits; one that crashes again and again has a cause that stays.
MOST_RESTARTS = 3
FIRST_PAUSE_S = 0.2
# How long maskers of output have for what is left in their pipes.
MASKERS_S = 2.0


class Supervisor:
    """One node, from power-on to power-off. Single-threaded: whatever happens, happens between two ticks."""

    def __init__(self, node: NodeFolder, lock: int) -> None:
        self._node = node
        self._lock = lock
        self._born = time.monotonic()
        config = read_json(node.config) or {}
        settings = read_json(node.settings) or {}
        self._life_s: float | None = config.get("max_life_s")
        self._reclaim_after_s: float | None = settings.get("reclaim_after_s")
        self._grace_s: float = settings.get("grace_s", 30.0)
        self._me = Process.me()
        # The agent's process, or its warden's where there are no cgroups.
        self._agent: int | None = None
        self._warden: Guarded | None = None
        self._start_at: float | None = self._born
        self._restarts = 0
        self._notice_deadline: float | None = None
        # A notice that is given but not written yet.
        self._notice: dict[str, Any] | None = None
        self._looked = self._born
        self._switched_off = False
        self._clean = False
        self._off = False

    def run(self) -> None:
        """Returns when the machine is off."""
        become_subreaper()
        self._listen()
        self._group = make_group(NODE, self._node.owner, sessions=self._node.sessions)
        # From here on others may signal this process, and know where to look should it be killed.
        self._node.write_state(self._state("running", ""))
        try:
            why = self._tick()
            while why is None:
                self._sleep()
                why = self._tick()
            self._power_off(why)
        finally:
            # Whatever went wrong in here: a machine without its supervisor is off.
            if not self._off:
                self._kill_everybody()

    def _tick(self) -> str | None:
        """Do what is due; the reason to power off, if there is one."""
        now = time.monotonic()
        why = self._reap(now)
        if why is not None:
            return why
        if self._node.terminate.exists():
            return "terminated"
        if self._switched_off:
            return "switched off"
        if self._life_s is not None and now >= self._born + self._life_s:
            return "reached its longest life"
        self._take_notice(now)
        if self._notice_deadline is not None and now >= self._notice_deadline:
            return "reclaimed"
        if self._start_at is not None and now >= self._start_at:
            why = self._start_agent()
            if why is not None:
                return why
        if self._group.folder is None and now >= self._looked + LOOK_S:
            self._group.members()
            self._looked = now
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
            self._say(f"the agent cannot be started: {error}")
            return self._agent_ended(126, time.monotonic())
        return None

    def _spawn(self, argv: list[str], log: int) -> int:
        # Not inside the node's folder: Python would import from there, and the user's code lies in it.
        cwd = self._node.root
        if self._group.folder is None:
            if self._warden is not None:
                self._warden.close()
            names = (NODE, self._node.owner)
            self._warden = spawn_guarded(
                self._group, names, argv, sessions=self._node.sessions, cwd=cwd, output=log, held=self._lock
            )
            return self._warden.pid
        agent = self._group.spawn(argv, cwd=cwd, stdout=log, stderr=log, dies_with_parent=True)
        # All children are waited for in `_reap`, so the Popen must not.
        agent.returncode = 0
        return agent.pid

    def _reap(self, now: float) -> str | None:
        """Wait for every child that ended: the agent, and whatever was orphaned on this node."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return None
            if pid == 0:
                return None
            if pid == self._agent:
                self._agent = None
                why = self._agent_ended(os.waitstatus_to_exitcode(status), now)
                if why is not None:
                    return why

    def _agent_ended(self, code: int, now: float) -> str | None:
        if code == 0:
            self._clean = True
            return "the agent was done"
        self._say(f"the agent ended with {code}")
        # Training dies with its agent, at once: nobody watches over it any more.
        self._let_maskers_end()
        self._kill_everybody()
        if self._restarts >= MOST_RESTARTS:
            return f"the agent failed {self._restarts + 1} times"
        self._start_at = now + FIRST_PAUSE_S * 2**self._restarts
        self._restarts += 1
        return None

    def _let_maskers_end(self) -> None:
        """What stands between the training and its log may have its last words yet, and ends when all others have."""
        until_s = time.monotonic() + MASKERS_S
        while time.monotonic() < until_s:
            members = self._group.members()
            maskers = {pid for pid in members if _is_masker(pid)}
            if not maskers:
                return
            others = {pid: process for pid in members - maskers if (process := Process.of(pid)) is not None}
            # Looked at again, now that they are known: none of them can be somebody who has only got a member's number.
            for pid in others.keys() & self._group.members():
                with suppress(PermissionError):
                    others[pid].signal(signal.SIGKILL)
            time.sleep(0.005)

    # ── notices ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _take_notice(self, now: float) -> None:
        if self._reclaim_after_s is not None and now >= self._born + self._reclaim_after_s:
            self._give_notice("the simulated spot market", self._grace_s, now)
            self._reclaim_after_s = None
        request = read_json(self._node.interrupt)
        if request is not None:
            self._give_notice(request["source"], request["grace_s"], now)
            self._node.interrupt.unlink(missing_ok=True)
        if self._notice is not None:
            try:
                write_json(self._node.notice, self._notice)
                self._notice = None
            except OSError as error:
                # A full disk. The deadline stands; the agent is told as soon as there is room.
                self._say(f"the notice cannot be written: {error}")

    def _give_notice(self, source: str, grace_s: float, now: float) -> None:
        """A notice is final: a second one can only shorten the grace."""
        deadline = now + grace_s
        if self._notice_deadline is not None and deadline >= self._notice_deadline:
            return
        self._notice_deadline = deadline
        self._notice = {
            "hard": True,
            "source": source,
            "at": stamp(),
            "grace_s": grace_s,
            "deadline": deadline,
        }
        self._say(f"notice from {source}: {grace_s:g} s")
        ring(self._node.root)

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _power_off(self, why: str) -> None:
        self._say(f"powering off: {why}")
        self._write_state("stopping", why)
        self._kill_everybody()
        self._group.close()
        if self._clean or self._node.left.exists():
            self._tidy()
        self._write_state("gone", why)
        self._off = True
        os.close(self._lock)
        # After the lock is free, so that whoever is woken by this finds the node gone.
        ring(self._node.root)

    def _kill_everybody(self) -> None:
        self._sweep()
        while not self._group.kill(timeout_s=5.0):
            # Stuck in the kernel, a dead network disk for one. A machine that still has processes is not off.
            self._say(f"cannot be killed yet: {sorted(self._group.members())}")
        # Whoever served them is dead now; what is mounted is not of the node's own disk, and must not be tidied up.
        unmount_below(self._node.path)

    def _sweep(self) -> None:
        """End the container of the node's agent, whose processes may be no processes of this node.

        First, and after its agent alone: podman has a process here that tidies up when a container ends.
        """
        if not self._node.container.exists():
            return
        from stoker.processes.container_sweep import sweep

        if self._agent is not None:
            # Nobody has waited for it, so the number is still its own.
            os.kill(self._agent, signal.SIGKILL)
        sweep(self._node.path)

    def _tidy(self) -> None:
        """Code, inputs and checkpoints are in the store; logs and JSON stay for a while, for people."""
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
        """Signals wake the loop. Handlers instead of SIG_IGN: what is ignored would stay ignored in the agent."""
        self._bell, bell = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(bell, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGUSR1, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, _nothing)
        signal.signal(signal.SIGTERM, self._switch_off)

    def _switch_off(self, _number: int, _frame: Any) -> None:
        self._switched_off = True

    def _sleep(self) -> None:
        moments = [self._start_at, self._notice_deadline]
        moments += [self._born + span for span in (self._life_s, self._reclaim_after_s) if span is not None]
        now = time.monotonic()
        due_s = min((moment - now for moment in moments if moment is not None), default=POLL_S)
        select.select([self._bell], [], [], max(0.0, min(due_s, POLL_S)))
        try:
            while os.read(self._bell, 512):
                pass
        except BlockingIOError:
            pass

    def _state(self, phase: NodePhase, reason: str) -> State:
        return State(phase, self._me, self._group.folder, computer(), time.time(), reason)

    def _write_state(self, phase: NodePhase, reason: str) -> None:
        try:
            self._node.write_state(self._state(phase, reason))
        except OSError as error:
            # A full disk must not keep a machine from going off; a free lock and no processes say as much.
            self._say(f"the state cannot be written: {error}")

    def _say(self, text: str) -> None:
        try:
            os.write(2, f"{stamp()} {text}\n".encode())
        except OSError:
            return  # A full disk.


def _is_masker(pid: int) -> bool:
    """By its arguments, which anybody can have: whoever pretends lives a moment longer, and no more."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(word.endswith(b"/stoker/secrets/masker.py") for word in words[:5])


def _nothing(_number: int, _frame: Any) -> None:
    """The wake-up is enough."""


def main(argv: list[str]) -> int:
    """Run the node in this process. 1: it has its supervisor, or had one: a machine is started once."""
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
    # At once, without Python's tidying up: the node was just called gone, so nothing of it should be seen any more.
    os._exit(main(sys.argv[1:]))
