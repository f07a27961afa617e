"""Compare the accelerators that a machine was sold with to those that are there, and wait for a driver's installation.

Some images install their driver at the first boot, which takes minutes: until then there is no device. A machine may
also lack one for good, or have a driver that does not run. It is given back then: a training that starts on fewer
accelerators than it was promised fails late, or is slow for days.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stoker.agent.sagemaker_machine import count_neuron_cores
from stoker.model.durations import span_text

Maker = Literal["nvidia", "neuron", "habana", "tpu"]

# Accelerators of other makers by the beginning of their names, in small letters; all others are NVIDIA's. None: there
# is no way to count them.
_MAKERS: tuple[tuple[str, Maker | None], ...] = (
    ("inferentia", "neuron"),
    ("trainium", "neuron"),
    ("gaudi", "habana"),
    ("hl-", "habana"),
    ("tpu", "tpu"),
    ("radeon", None),
    ("instinct", None),
    ("mi3", None),
    ("qualcomm", None),
)
# Patterns below /dev. One driver for Gaudi and for TPUs each uses the first, another one the second.
_DEVICES: dict[Maker, tuple[str, ...]] = {
    "nvidia": ("nvidia[0-9]*",),
    "neuron": ("neuron[0-9]*",),
    "habana": ("accel/accel[0-9]*", "hl[0-9]*"),
    "tpu": ("accel[0-9]*", "vfio/[0-9]*"),
}
# The kernel modules of drivers. A TPU's driver is part of its image.
_MODULES: dict[Maker, str] = {"nvidia": "nvidia", "neuron": "neuron", "habana": "habanalabs"}
# Command lines of programs that install a driver.
_INSTALLERS: dict[Maker, re.Pattern[bytes]] = {
    "nvidia": re.compile(rb"nvidia|\bdkms\b|cuda_installer|install[-_](?:gpu[-_])?driver", re.IGNORECASE),
    "neuron": re.compile(rb"neuron|\bdkms\b", re.IGNORECASE),
    "habana": re.compile(rb"habana|\bdkms\b", re.IGNORECASE),
}
_TITLES: dict[Maker, str] = {"nvidia": "NVIDIA GPU", "neuron": "Neuron device", "habana": "Gaudi", "tpu": "TPU"}

# An image that downloads a driver at its first boot, and builds the kernel module, needs several minutes.
WAIT_S = 900.0
# Devices appear within seconds of each other once their driver runs, and a driver that is being replaced is back soon.
SETTLE_S = 180.0
# On eight GPUs without the persistence daemon nvidia-smi takes up to half a minute.
_ASK_S = 90.0
# The words of nvidia-smi while no driver is loaded, which may still be on its way.
_NOT_LOADED = ("couldn't communicate with the NVIDIA driver", "Driver Not Loaded")
_PAUSE_S = 2.0
_POLL_S = 0.05


@dataclass(frozen=True)
class Seen:
    """The accelerators that are there. `problem`: why the driver cannot say; empty if it answers, or is not there.

    `arriving`: none is there yet, and parts of their driver are, or it is being installed.
    """

    count: int
    problem: str = ""
    arriving: bool = False


@dataclass(frozen=True)
class Sold:
    """The accelerators that a machine was sold with."""

    name: str
    count: int
    maker: Maker

    @property
    def title(self) -> str:
        """Text for people: `8 × A100`."""
        return f"{self.count} × {self.name}"


def sold_accelerators(name: str | None, count: int) -> Sold | None:
    """Return the accelerators of an offering, by its words; None if it has none that can be counted."""
    title = name or "GPU"
    maker: Maker | None = next((maker for prefix, maker in _MAKERS if title.lower().startswith(prefix)), "nvidia")
    return Sold(title, count, maker) if count and maker is not None else None


class AcceleratorProbe:
    """Counts the accelerators of this machine. `check` is called meanwhile, and may raise."""

    def __init__(
        self,
        check: Callable[[], None],
        dev: Path = Path("/dev"),
        limit_s: float = _ASK_S,
        arrives: Callable[[Maker], bool] | None = None,
    ) -> None:
        self._check = check
        self._dev = dev
        self._limit_s = limit_s
        self._arrives = arrives or is_arriving

    def count(self, maker: Maker) -> Seen:
        """Count them: NVIDIA's by what their driver says, others by their device files."""
        devices = _count_devices(maker, self._dev)
        program = shutil.which("nvidia-smi") if maker == "nvidia" else None
        # Files of devices stay when a GPU has fallen off the bus, and may be missing before the first query.
        seen = Seen(devices) if program is None else self._ask(program)
        if seen.count or seen.problem or seen.arriving:
            return seen
        return Seen(0, arriving=self._arrives(maker))

    def _ask(self, program: str) -> Seen:
        with tempfile.TemporaryFile() as output:
            try:
                process = subprocess.Popen([program, "-L"], stdin=subprocess.DEVNULL, stdout=output, stderr=output)
            except OSError as error:
                return Seen(0, f"nvidia-smi does not start: {error.strerror}")
            try:
                code = self._wait(process)
            finally:
                # Never waited for: one that hangs in a broken driver survives SIGKILL.
                process.kill()
            output.seek(0)
            lines = output.read().decode(errors="replace").splitlines()
        if code is None:
            return Seen(0, f"nvidia-smi does not answer within {span_text(self._limit_s)}")
        found = [line for line in lines if line.startswith("GPU ")]
        if code == 0:
            # A GPU that fails is a line of its own, such as `Unable to determine the device handle for gpu …`.
            return Seen(len(found), next((line for line in lines if line.startswith("Unable to")), ""))
        text = " ".join(line.strip() for line in lines if line.strip()) or f"nvidia-smi ended with {code}"
        if any(words in text for words in _NOT_LOADED):
            return Seen(0, arriving=True)
        return Seen(0, text[:200])

    def _wait(self, process: subprocess.Popen[bytes]) -> int | None:
        until_s = time.monotonic() + self._limit_s
        while process.poll() is None and time.monotonic() < until_s:
            self._check()
            time.sleep(_POLL_S)
        return process.poll()


def is_arriving(maker: Maker, root: Path = Path("/")) -> bool:
    """Tell if the kernel module of the driver is loaded, or a program runs that installs the driver."""
    module, pattern = _MODULES.get(maker), _INSTALLERS.get(maker)
    if module is not None and (root / "sys/module" / module).exists():
        return True
    return pattern is not None and any(pattern.search(words) for words in _command_lines(root / "proc"))


def _command_lines(proc: Path) -> Iterator[bytes]:
    """Yield the command lines of other processes. The names of a job may be in those of the agent and its parents."""
    own, pid = set(), os.getpid()
    while pid and pid not in own:
        own.add(pid)
        pid = _parent(proc, pid)
    for folder in proc.glob("[0-9]*"):
        try:
            if int(folder.name) not in own:
                yield (folder / "cmdline").read_bytes()
        except (OSError, ValueError):
            continue  # It has ended, or may not be read.


def _parent(proc: Path, pid: int) -> int:
    try:
        text = (proc / str(pid) / "stat").read_text(errors="replace")
        return int(text.rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def count_processes(dev: Path = Path("/dev"), cores: Callable[[], int] = count_neuron_cores) -> int:
    """Count the accelerators that are no GPUs, and for which torchrun starts a process each: Gaudis, Neuron cores."""
    return _count_devices("habana", dev) or (cores() if _count_devices("neuron", dev) else 0)


def _count_devices(maker: Maker, dev: Path) -> int:
    return max(len(list(dev.glob(pattern))) for pattern in _DEVICES[maker])


@dataclass
class AcceleratorWait:
    """Waits until all accelerators are seen. `pause` sleeps this long; it and `count` may raise to end the wait.

    `wait_s` bounds the wait for a sign of their driver, `longest_s` the whole wait, `settle_s` the wait for the others
    after the first one, and for a driver that runs into an error.
    """

    sold: Sold
    count: Callable[[Maker], Seen]
    say: Callable[[str], None]
    pause: Callable[[float], None]
    wait_s: float = WAIT_S
    settle_s: float = SETTLE_S
    longest_s: float = WAIT_S
    monotonic: Callable[[], float] = time.monotonic

    def run(self) -> Seen:
        """Return what is seen at the end: all that was sold, or less after the bound."""
        began_s, bound_s = self.monotonic(), self.wait_s
        said = "", 0.0
        # Since when the driver has given the same answer, which is not "nothing yet".
        answered: tuple[Seen, float] | None = None
        while True:
            seen, now_s = self.count(self.sold.maker), self.monotonic()
            if seen.count >= self.sold.count:
                if said[0]:
                    self.say(f"{self.sold.title} are there, after {span_text(round(now_s - began_s))}")
                return seen
            if not seen.count and not seen.problem:
                answered = None
            elif answered is None or answered[0] != seen:
                answered = seen, now_s
            if seen != Seen(0):
                bound_s = self.longest_s
            until_s = began_s + bound_s
            if answered is not None:
                until_s = min(until_s, answered[1] + self.settle_s)
            if now_s >= until_s:
                return seen
            text = describe(self.sold, seen)
            if (text, bound_s) != said:
                self.say(f"{text}; waiting for it, up to {span_text(round(until_s - now_s))}")
                said = text, bound_s
            self.pause(min(_PAUSE_S, max(0.0, until_s - now_s)))


def describe(sold: Sold, seen: Seen) -> str:
    """Say what is missing: `the machine was sold with 8 × A100, and 7 are seen`."""
    title = _TITLES[sold.maker]
    count = f"only {seen.count} of them" if seen.count else f"no {title}"
    why = f" ({seen.problem})" if seen.problem else "" if seen.count else " (its driver may still be installed)"
    return f"this machine was sold with {sold.title}, and {count} can be seen{why}"
