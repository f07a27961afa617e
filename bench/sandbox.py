"""A place of its own for a measurement: a home, a store and a code folder, and no process that outlives it."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stoker.store import job_log
from stoker.store.base import open_store

BIN = Path(sys.executable).parent
# A disk: /tmp may be memory, where nothing takes the time it takes.
_DISK = "/var/tmp"
_MEMORY = "/dev/shm"
_LEAVE_S = 30.0
# Far longer than anything here takes on two cores that have other tests to run.
LIMIT_S = 240.0
# `ioctl_iflags(2)`
_GET_FLAGS, _SET_FLAGS, _TOP_FOLDER = 0x80086601, 0x40086602, 0x00020000


class Sandbox:
    """Its `env` is what a person's shell would have, with a Stoker home of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.code = root / "code"
        self.code.mkdir()
        self.home = root / "home"
        self.store = f"file://{root}/store"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("STOKER_", "PYTHON"))}
        self.env = kept | {
            "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            # A person's own settings must not change what is measured.
            "XDG_CONFIG_HOME": str(root / "config"),
            "STOKER_HOME": str(self.home),
            "STOKER_STORE": self.store,
        }

    def script(self, name: str, text: str) -> None:
        """Put a script into the code folder."""
        (self.code / name).write_text(text, encoding="utf-8")

    def popen(self, *argv: str, **options: Any) -> subprocess.Popen[bytes]:
        """Start a program in the code folder."""
        return subprocess.Popen(argv, **{"cwd": self.code, "env": self.env, "stdin": subprocess.DEVNULL, **options})

    def run(self, *argv: str, cwd: Path | None = None) -> str:
        """Run a program to its end and answer what it printed."""
        done = subprocess.run(
            argv, cwd=cwd or self.code, env=self.env, stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(argv)} ended with {done.returncode}: {done.stderr.decode()[-2000:]}")
        return done.stdout.decode()

    def stoker(self, *argv: str, cwd: Path | None = None) -> str:
        return self.run(str(BIN / "stoker"), *argv, cwd=cwd)

    def detach(self, *argv: str, cwd: Path | None = None) -> str:
        """Submit a job that goes on by itself; its id."""
        return self.stoker("run", "--detach", *argv, cwd=cwd).strip()

    def finished(self, job: str, limit_s: float = LIMIT_S) -> dict[str, Any]:
        """Wait for the job's success, and answer all that `show` knows. Raises RuntimeError when it failed."""
        store = open_store(self.store)

        def ended() -> bool:
            # From its log: starting `stoker show` again and again would take the processor from what is measured.
            state = job_log.read(store, job)
            return state is not None and state.ended is not None

        try:
            wait_for(ended, f"{job} to end", limit_s, every_s=0.1)
        except TimeoutError as error:
            raise TimeoutError(f"{error}: {self.stoker('show', job)}\n{self.stoker('explain', job)}") from None
        shown: dict[str, Any] = json.loads(self.stoker("show", job, "--json"))
        if shown["outcome"] != "succeeded":
            raise RuntimeError(f"{job} {shown['outcome']}: {shown['reason']}")
        return shown

    def processes(self) -> dict[int, bytes]:
        """Everything that runs in this sandbox but for this program: the command lines by process."""
        mine = os.fsencode(self.root)
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                if mine in (entry / "environ").read_bytes():
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
            except OSError:
                continue  # It has ended.
        return found

    def close(self) -> None:
        """Wait until everybody has left: governors and machines leave by themselves. Who does not is ended."""
        try:
            wait_for(lambda: not self.processes(), "the processes to leave", _LEAVE_S)
        except TimeoutError:
            for pid, command in self.processes().items():
                print(f"  left over, and ended: {pid} {command.decode(errors='replace')}", file=sys.stderr)
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.root, ignore_errors=True)


@contextmanager
def sandbox(*, memory_bytes: int = 0) -> Iterator[Sandbox]:
    """A sandbox that is gone afterwards, with everything that ran in it. In memory if so much is asked for and free."""
    folder = None if "TMPDIR" in os.environ or not Path(_DISK).is_dir() else _DISK
    if memory_bytes and Path(_MEMORY).is_dir() and shutil.disk_usage(_MEMORY).free > memory_bytes:
        folder = _MEMORY
    root = Path(tempfile.mkdtemp(prefix="stoker-bench-", dir=folder))
    _spread(root)
    made = Sandbox(root)
    try:
        yield made
    finally:
        made.close()


def _spread(folder: Path) -> None:
    """Have folders made in here lie apart on the disk, where it is ext4 (`chattr +T`).

    ext4 passes over each number of a file that was deleted within the last minutes nearby, which makes a new file up
    to thirty times as slow after another program has removed thousands: such a delay is not to be measured.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        flags = struct.unpack("l", fcntl.ioctl(handle, _GET_FLAGS, struct.pack("l", 0)))[0]
        fcntl.ioctl(handle, _SET_FLAGS, struct.pack("l", flags | _TOP_FOLDER))
    except OSError:
        pass  # Another filesystem.
    finally:
        os.close(handle)


def wait_for(condition: Callable[[], bool], what: str, limit_s: float = LIMIT_S, every_s: float = 0.02) -> None:
    """Raises TimeoutError."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {limit_s:g} s for {what}")
        time.sleep(every_s)


def lines(path: Path) -> list[str]:
    """The whole lines of a file that may be growing, or not be there yet."""
    try:
        return path.read_text(encoding="utf-8").split("\n")[:-1]
    except FileNotFoundError:
        return []
