"""Sample the usage of the machine: processor, memory, disk, accelerators.

Figures are of the whole machine, not of the training's processes: a node belongs to one job, and everything else on it
(data loaders of a container, the kernel's own work) is part of its cost. A value that cannot be read is None, never 0.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from stoker.model.node_facts import GpuUsage, Usage

INTERVAL_S = 10.0
# The kernel counts in hundredths of a second: over less than this a percentage is mostly rounding.
_SHORTEST_S = 0.2
_DRIVER_SIGNS = (Path("/dev/nvidiactl"), Path("/proc/driver/nvidia/version"), Path("/dev/dxg"))


class UsageSampler:
    """Takes samples. The CPU value covers the time since the last sample; the first one, since creation."""

    def __init__(self, folder: Path, proc: Path = Path("/proc")) -> None:
        self._folder = folder
        self._proc = proc
        self._gpus = GpuReader()
        self._busy_s = self._cpu_seconds()
        self._at = time.monotonic()

    def sample(self) -> Usage:
        """Take a sample. Never raises. May block as long as a broken GPU driver does."""
        used, total = self._memory()
        return Usage(
            cpu_percent=self._cpu_percent(),
            memory_used=used,
            memory_total=total,
            disk_free=self._disk_free(),
            gpus=self._gpus.sample(),
        )

    def _cpu_percent(self) -> float | None:
        busy_s, now = self._cpu_seconds(), time.monotonic()
        before_s, passed_s = self._busy_s, now - self._at
        if passed_s < _SHORTEST_S:
            return None
        self._busy_s, self._at = busy_s, now
        if busy_s is None or before_s is None:
            return None
        return round(max(0.0, 100 * (busy_s - before_s) / passed_s), 1)

    def _cpu_seconds(self) -> float | None:
        """Return the seconds that all cores together have been busy since boot."""
        try:
            with (self._proc / "stat").open("rb") as file:
                fields = [int(word) for word in file.readline().split()[1:9]]
            user, nice, system, _idle, _iowait, irq, softirq, _steal = fields
            return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError):
            return None

    def _memory(self) -> tuple[int | None, int | None]:
        found: dict[bytes, int] = {}
        try:
            with (self._proc / "meminfo").open("rb") as file:
                for line in file:
                    name, _, value = line.partition(b":")
                    if name in (b"MemTotal", b"MemAvailable"):
                        found[name] = int(value.split()[0]) * 1024
                    if len(found) == 2:
                        break
        except (OSError, ValueError, IndexError):
            return None, None
        total, available = found.get(b"MemTotal"), found.get(b"MemAvailable")
        return (None if total is None or available is None else total - available), total

    def _disk_free(self) -> int | None:
        try:
            stat = os.statvfs(self._folder)
        except OSError:
            return None
        return stat.f_bavail * stat.f_frsize


class GpuReader:
    """Reads GPUs through NVML, which is loaded at the first sample and only if there is a driver."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._devices: list[tuple[Any, str]] = []
        self._tried = False

    def utilization(self) -> tuple[float | None, ...]:
        """Return the utilization of each GPU in percent."""
        return tuple(each.utilization for each in self.sample())

    def sample(self) -> tuple[GpuUsage, ...]:
        return tuple(self._read(index, device, name) for index, (device, name) in enumerate(self._opened()))

    def processes(self) -> list[str]:
        """Return one line for each process on each GPU; none if the driver does not tell."""
        found = []
        for index, (device, name) in enumerate(self._opened()):
            with suppress(Exception):
                for each in self._nvml.nvmlDeviceGetComputeRunningProcesses(device):
                    used = f"{each.usedGpuMemory / 1e6:,.0f} MB" if each.usedGpuMemory is not None else "?"
                    found.append(f"{index} {name}: {each.pid} has {used}")
        return found

    def _opened(self) -> list[tuple[Any, str]]:
        if not self._tried:
            self._tried = True
            if any(sign.exists() for sign in _DRIVER_SIGNS):
                self._load()
        return self._devices

    def _load(self) -> None:
        try:
            import pynvml

            pynvml.nvmlInit()
            for index in range(pynvml.nvmlDeviceGetCount()):
                device = pynvml.nvmlDeviceGetHandleByIndex(index)
                name = pynvml.nvmlDeviceGetName(device)
                self._devices.append((device, name.decode() if isinstance(name, bytes) else str(name)))
            self._nvml = pynvml
        except Exception:  # noqa: BLE001 - pynvml raises anything: without a working NVML there are no GPU figures
            return

    def _read(self, index: int, device: Any, name: str) -> GpuUsage:
        utilization: float | None = None
        used: int | None = None
        total: int | None = None
        with suppress(Exception):
            utilization = float(self._nvml.nvmlDeviceGetUtilizationRates(device).gpu)
        with suppress(Exception):
            memory = self._nvml.nvmlDeviceGetMemoryInfo(device)
            used, total = int(memory.used), int(memory.total)
        return GpuUsage(index=index, name=name, utilization=utilization, memory_used=used, memory_total=total)


class UsageThread:
    """Samples in a thread of its own, since NVML can hang when a GPU falls off the bus."""

    def __init__(
        self,
        sampler: UsageSampler,
        sink: Callable[[Usage], None] | None = None,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._sampler = sampler
        self._sink = sink
        self._interval_s = interval_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="usage", daemon=True)
        self._latest: Usage | None = None

    @property
    def latest(self) -> Usage | None:
        return self._latest

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread. Does not wait for a sample that hangs."""
        self._stopping.set()

    def _run(self) -> None:
        # The first sample comes soon, so that short jobs have one too.
        delay_s = min(1.0, self._interval_s)
        while not self._stopping.wait(delay_s):
            delay_s = self._interval_s
            self._latest = self._sampler.sample()
            if self._sink is not None:
                self._sink(self._latest)
