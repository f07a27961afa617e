"""Machines: a Debian with its own systemd, address and metadata service, over one shared image.

Everything a machine is made of belongs to this process (descriptors, mounts in its mount namespace, processes in its
process namespace), so nothing outlives it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, Protocol, TypeVar

from tests.support.machines.cgroups import Cgroups
from tests.support.machines.images import Tree, images_folder
from tests.support.machines.network import Namespace, Network

# How a machine came to its end: it powered itself off, was told to, or lost its power.
End = Literal["powered off", "told to", "cut"]

_LOOK_EVERY_S = 0.02
# What nspawn ends with when the machine wants to boot again.
_REBOOTS = 133
_PRESS_EVERY_S = 0.5
_WAKE_EVERY_S = 0.2


class Service(Protocol):
    """What tells a machine about itself, inside its own network namespace."""

    def close(self) -> None: ...


S = TypeVar("S", bound=Service)


@dataclass(frozen=True)
class Ran:
    """What a command inside a machine answered."""

    status: int
    output: bytes


class Machine(Generic[S]):
    """One machine. `boot` once; then it runs until it powers off, or is told to, or is cut off its power."""

    def __init__(self, tree: Tree, folder: Path, console: Path, network: Network, cgroups: Cgroups) -> None:
        self._folder = folder
        self._tree = tree
        self._console = console
        self._network = network
        self._cgroups = cgroups
        self._namespace = Namespace()
        self.address, self._link = network.plug(self._namespace)
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._end: End = "powered off"
        self._cut = False
        self.gone = threading.Event()
        self.metadata: S | None = None

    def boot(
        self,
        name: str,
        hostname: str,
        serve: Callable[[Namespace], S],
        ended: Callable[[End], None],
        files: Mapping[str, str] | None = None,
    ) -> None:
        """Start it under a name that no other machine has. `serve` starts its metadata service.

        `ended` is called once, from another thread, when it runs no more and nothing of it is left. `files` are laid
        over those of the image before it starts.
        """
        try:
            self.metadata = serve(self._namespace)
            root = self._mount(files or {})
            group = self._cgroups.make(name)
            with self._lock:
                if not self._cut:  # it may be told to go before it came
                    self._process = self._start(root, name, hostname, group)
        finally:
            again = (lambda: self._start(root, name, hostname, group)) if self._process is not None else None
            threading.Thread(target=self._watch, args=(name, ended, again), daemon=True).start()

    def wait_up(self) -> None:
        """Return when its init runs, or when it is gone."""
        while not self._leader() and not self.gone.wait(timeout=_LOOK_EVERY_S):
            pass

    def power_off(self, patience_s: float) -> None:
        """Press the button; pull the plug if it is still on after `patience_s`. Returns at once."""
        with self._lock:
            self._end = "told to"
            if self._process is None:
                self._cut = True
                return
        threading.Thread(target=self._press, args=(patience_s,), daemon=True).start()

    def _press(self, patience_s: float) -> None:
        give_up = time.monotonic() + patience_s
        while time.monotonic() < give_up:
            # A systemd that is not up yet takes no notice, and one that shuts down does not mind: press again.
            leader = self._leader()
            if leader:
                _send(leader, signal.SIGRTMIN + 4)
            if self.gone.wait(timeout=_PRESS_EVERY_S if leader else _LOOK_EVERY_S):
                return
        self._pull()

    def cut(self) -> None:
        """A power cut: every process ends at once, without a word."""
        with self._lock:
            self._end = "cut"
            self._cut = True
        self._pull()

    def _pull(self) -> None:
        with self._lock:
            process = self._process
        if process is None:
            return
        leader = self._leader()
        if leader:
            _send(leader, signal.SIGKILL)
        else:
            process.kill()

    def run(self, command: Sequence[str], limit_s: float) -> Ran:
        """Run a command inside, as root. Raises LookupError if the machine is not up."""
        leader = self._leader()
        if not leader:
            raise LookupError("this machine is not up")
        # nspawn's init is the first process of the machine: its namespaces are the machine's.
        entering = ["nsenter", "--target", str(leader), "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup"]
        told = ["--root", "--wd", "--", "env", "-i", "HOME=/root", f"PATH={_PATH}", "LC_ALL=C.UTF-8", *command]
        process = subprocess.Popen(
            entering + told, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        output = _output(process, limit_s)
        return Ran(process.returncode, output)

    def console(self) -> bytes:
        """What it wrote to its console so far. Stays readable when the machine is gone."""
        return self._console.read_bytes() if self._console.exists() else b""

    def connect(self, connected: bool) -> None:
        """Pull the network cable, or plug it in again."""
        self._network.connect(self._link, connected)

    def _mount(self, files: Mapping[str, str]) -> Path:
        parts = {name: self._folder / name for name in ("upper", "work", "root")}
        for part in parts.values():
            part.mkdir(parents=True)
        for name, text in files.items():
            file = parts["upper"] / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            file.chmod(0o755 if text.startswith("#!") else 0o644)
        for place, kept in self._tree.disks:
            disk = self._disk(place)
            disk.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(["cp", "-a", "--no-target-directory", str(images_folder() / kept), str(disk)], check=True)
        lower = ":".join(str(layer) for layer in self._tree.layers)
        options = f"lowerdir={lower},upperdir={parts['upper']},workdir={parts['work']}"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, str(parts["root"])], check=True)
        return parts["root"]

    def _disk(self, place: str) -> Path:
        return self._folder / "disks" / place.strip("/")

    def _start(self, root: Path, name: str, hostname: str, group: Sequence[Path]) -> subprocess.Popen[bytes]:
        with self._console.open("ab") as console:
            return subprocess.Popen(
                [
                    # Each machine needs a control group of its own, or two would fight over one.
                    *("sh", "-c", 'for g in $GROUPS_TO_JOIN; do echo $$ > "$g/cgroup.procs"; done; exec "$@"', "sh"),
                    *("systemd-nspawn", "--quiet", "--boot", "--register=no", "--keep-unit", "--link-journal=no"),
                    *("--resolv-conf=off", "--timezone=off", "--console=read-only", f"--directory={root}"),
                    f"--machine={name}",
                    f"--hostname={hostname}",
                    f"--uuid={uuid.uuid5(uuid.NAMESPACE_OID, name)}",
                    f"--network-namespace-path={self._namespace.path}",
                    # What nspawn keeps from its containers and a machine may do: to have containers of its own.
                    *("--capability=CAP_NET_ADMIN", "--system-call-filter=@keyring bpf"),
                    *(f"--bind={self._disk(place)}:{place}" for place, _ in self._tree.disks),
                    *(f"--bind-ro={here}:{place}" for place, here in self._tree.lent),
                ],
                env={
                    "PATH": _PATH,
                    "GROUPS_TO_JOIN": " ".join(str(path) for path in group),
                    # As on machines of today, whatever this host has.
                    "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1",
                    "SYSTEMD_COLORS": "0",
                },
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
            )

    def _leader(self) -> int:
        """The process that is the machine's init, as numbered here; 0 if there is none."""
        process = self._process
        if process is None or process.poll() is not None:
            return 0
        try:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            return next((int(each) for each in children if _is_init(int(each))), 0)
        except OSError:
            return 0

    def _watch(
        self, name: str, ended: Callable[[End], None], again: Callable[[], subprocess.Popen[bytes]] | None
    ) -> None:
        while self._process is not None and self._process.wait() == _REBOOTS and again is not None:
            with self._lock:
                # Told to go while it came back: it stays off.
                if self._end != "powered off":
                    break
                self._process = again()
        if self.metadata is not None:
            self.metadata.close()
        self._namespace.close()
        subprocess.run(["umount", "--lazy", str(self._folder / "root")], check=False, stderr=subprocess.DEVNULL)
        shutil.rmtree(self._folder, ignore_errors=True)
        self._cgroups.remove(name)
        self.gone.set()
        ended(self._end)


_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def _is_init(pid: int) -> bool:
    # The last number is the one inside its own namespace.
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("NSpid:"):
            return line.split()[-1] == "1"
    return False


def _output(nsenter: subprocess.Popen[bytes], limit_s: float) -> bytes:
    """What the command wrote until it ended. Raises TimeoutExpired, with the command killed."""
    give_up = time.monotonic() + limit_s
    while True:
        try:
            return nsenter.communicate(timeout=_WAKE_EVERY_S)[0]
        except subprocess.TimeoutExpired:
            if time.monotonic() > give_up:
                nsenter.kill()
                raise
            # A machine that powers off stops all processes inside before it kills them, and nsenter, outside, stops
            # with its child: it would never wake to bury it, and the machine would wait for that for ever.
            nsenter.send_signal(signal.SIGCONT)


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass  # it went by itself
