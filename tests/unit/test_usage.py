"""What the machine is doing, and what it says after a death."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import types
from pathlib import Path

import pytest
from plain_store import wait_for

from stoker.agent.health import usage_sampler
from stoker.agent.health.exit_evidence import collect
from stoker.agent.health.usage_sampler import UsageSampler, UsageThread
from stoker.model.node_facts import GpuUsage, Usage


def write_proc(folder: Path, busy_s: float) -> None:
    ticks = int(busy_s * os.sysconf("SC_CLK_TCK"))
    (folder / "stat").write_text(f"cpu  {ticks} 0 0 999999 5 0 0 0 0 0\ncpu0 1 2 3\n")
    (folder / "meminfo").write_text("MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 400 kB\n")


def test_a_sample_of_this_machine() -> None:
    sampler = UsageSampler(Path("/"))
    sampler._at -= 1.0
    sample = sampler.sample()
    assert sample.cpu_percent is not None and sample.cpu_percent >= 0
    assert sample.memory_used is not None and sample.memory_total is not None
    assert 0 < sample.memory_used < sample.memory_total
    assert sample.disk_free is not None and sample.disk_free > 0


def test_cpu_is_percent_of_one_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    write_proc(tmp_path, busy_s=50.0)
    sampler = UsageSampler(tmp_path, proc=tmp_path)
    clock[0] += 10
    write_proc(tmp_path, busy_s=65.0)
    sample = sampler.sample()
    assert sample.cpu_percent == 150.0
    assert (sample.memory_used, sample.memory_total) == (600 * 1024, 1000 * 1024)
    clock[0] += 0.01
    write_proc(tmp_path, busy_s=66.0)
    assert sampler.sample().cpu_percent is None, "too soon to tell"
    clock[0] += 1.99
    assert sampler.sample().cpu_percent == 50.0


def test_what_cannot_be_read_is_none(tmp_path: Path) -> None:
    sample = UsageSampler(tmp_path / "gone", proc=tmp_path / "gone").sample()
    assert (sample.cpu_percent, sample.memory_used, sample.memory_total, sample.disk_free) == (None,) * 4
    (tmp_path / "stat").write_text("junk\n")
    (tmp_path / "meminfo").write_text("MemTotal: junk\n")
    assert UsageSampler(tmp_path, proc=tmp_path).sample().cpu_percent is None


class FakeNvml(types.ModuleType):
    """Two devices, of which the second does not tell its utilisation."""

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.inits = 0

    def nvmlInit(self) -> None:
        self.inits += 1

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, device: int) -> str | bytes:
        return b"H200" if device == 0 else "H200"

    def nvmlDeviceGetUtilizationRates(self, device: int) -> object:
        if device:
            raise RuntimeError("not supported")
        return types.SimpleNamespace(gpu=87)

    def nvmlDeviceGetMemoryInfo(self, device: int) -> object:
        return types.SimpleNamespace(used=10, total=20)

    def nvmlDeviceGetComputeRunningProcesses(self, device: int) -> list[object]:
        if device:
            raise RuntimeError("not supported")
        used = (1_234_000_000, None)
        return [types.SimpleNamespace(pid=100 + n, usedGpuMemory=used[n]) for n in range(2)]


def test_gpus_through_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(usage_sampler, "_DRIVER_SIGNS", (Path("/"),))
    sampler = UsageSampler(Path("/"))
    expected = (GpuUsage(0, "H200", 87.0, 10, 20), GpuUsage(1, "H200", None, 10, 20))
    assert sampler.sample().gpus == sampler.sample().gpus == expected
    assert nvml.inits == 1


def test_processes_on_gpus_are_told_with_their_memory_where_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    monkeypatch.setattr(usage_sampler, "_DRIVER_SIGNS", (Path("/"),))
    assert usage_sampler.GpuReader().processes() == ["0 H200: 100 has 1,234 MB", "0 H200: 101 has ?"]
    assert usage_sampler.GpuReader().utilization() == (87.0, None)


def test_a_broken_nvml_means_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(usage_sampler, "_DRIVER_SIGNS", (Path("/"),))
    assert UsageSampler(Path("/")).sample().gpus == ()


def test_without_a_driver_nvml_is_not_even_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(usage_sampler, "_DRIVER_SIGNS", (Path("/no such driver"),))
    assert UsageSampler(Path("/")).sample().gpus == ()
    assert nvml.inits == 0


def test_the_thread_samples_and_tells() -> None:
    samples: list[Usage] = []
    thread = UsageThread(UsageSampler(Path("/")), samples.append, interval_s=0.01)
    assert thread.latest is None
    thread.start()
    wait_for(lambda: len(samples) >= 2)
    thread.stop()
    assert thread.latest is not None


def test_a_thread_that_is_stopped_ends() -> None:
    before = set(threading.enumerate())
    thread = usage_sampler.UsageThread(UsageSampler(Path("/")), interval_s=0.01)
    thread.start()
    (own,) = set(threading.enumerate()) - before
    thread.stop()
    own.join(60.0)
    assert not own.is_alive()


def test_stopping_does_not_wait_for_a_hanging_driver() -> None:
    entered, release = threading.Event(), threading.Event()

    class Hanging(UsageSampler):
        def sample(self) -> Usage:
            entered.set()
            release.wait(60)
            return Usage()

    thread = UsageThread(Hanging(Path("/")), interval_s=0.01)
    thread.start()
    assert entered.wait(60)
    thread.stop()
    assert thread.latest is None
    release.set()


# ── Evidence ──────────────────────────────────────────────────────────────────────────────────────────────────────────

OOM = "oom-kill:constraint=CONSTRAINT_NONE,task_memcg=/stoker/job-1,task=python,pid=42,uid=0"
KILLED = "Out of memory: Killed process 42 (python) total-vm:1kB"
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', GPU has fallen off the bus."


class Scene:
    """A node after a death."""

    def __init__(self, tmp_path: Path) -> None:
        self.node = tmp_path
        self.kernel_log = tmp_path / "kmsg"
        self.now = time.monotonic()
        self.records: list[str] = []
        self.own_cgroup = "4:memory:/user/jane\n0::/\n"

    def kernel_said(self, text: str, ago_s: float) -> None:
        self.records.append(f"6,100,{int((self.now - ago_s) * 1e6)},-;{text}\n SUBSYSTEM=pci\n")

    def collect(self, *, code: int | None = 1, sig: int | None = None, cgroup: Path | None = None) -> tuple[str, ...]:
        self.kernel_log.write_text("".join(self.records))
        own = self.node / "own-cgroup"
        own.write_text(self.own_cgroup)
        return collect(code, sig, self.now - 1000, self.node, cgroup, kernel_log=self.kernel_log, own_cgroup=own)


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    # A machine that has only just booted has no thousand seconds to look back on.
    clock = time.monotonic() + 1_000_000
    monkeypatch.setattr(time, "monotonic", lambda: clock)
    return Scene(tmp_path)


def test_no_evidence(scene: Scene) -> None:
    scene.kernel_said("usb 1-1: new device", ago_s=5)
    assert scene.collect() == ()


def test_xid_errors_since_the_start(scene: Scene) -> None:
    scene.kernel_said(XID.replace("79", "31"), ago_s=2000)
    scene.kernel_said(XID, ago_s=900)
    scene.kernel_said(XID, ago_s=5)
    scene.kernel_said("NVRM: Xid (0000:03:00): 48, DBE", ago_s=5)
    assert scene.collect() == ("xid:48", "xid:79")


def test_out_of_memory_of_a_killed_training(scene: Scene) -> None:
    scene.kernel_said(KILLED, ago_s=500)
    assert scene.collect(code=None, sig=signal.SIGKILL) == ("oom",)
    assert scene.collect(code=137) == ("oom",)
    assert scene.collect(code=1) == (), "somebody else was killed, long ago"
    scene.kernel_said(KILLED, ago_s=5)
    assert scene.collect(code=1) == ("oom",), "a launcher exits by itself when its worker was killed"


def test_out_of_memory_before_the_start_is_not_ours(scene: Scene) -> None:
    scene.kernel_said(KILLED, ago_s=1500)
    assert scene.collect(code=None, sig=9) == ()


def test_the_cgroup_knows_best(scene: Scene, tmp_path: Path) -> None:
    group = tmp_path / "cgroup" / "stoker" / "job-1"
    group.mkdir(parents=True)
    (group / "memory.events").write_text("low 0\noom 0\noom_kill 0\n")
    scene.kernel_said(OOM.replace("job-1", "job-2"), ago_s=5)
    scene.kernel_said(KILLED, ago_s=5)
    assert scene.collect(code=137, cgroup=group) == (), "another group's"
    scene.kernel_said(OOM.replace("job-1", "job-1/worker"), ago_s=5)
    assert scene.collect(code=137, cgroup=group) == ("oom",)
    scene.records.clear()
    (group / "memory.events").write_text("low 0\noom 1\noom_kill 1\noom_group_kill 0\n")
    assert scene.collect(code=1, cgroup=group) == ("oom",)


def test_a_cgroup_that_does_not_count_memory(scene: Scene, tmp_path: Path) -> None:
    group = tmp_path / "cgroup"
    group.mkdir()
    scene.kernel_said(KILLED, ago_s=5)
    assert scene.collect(code=137, cgroup=group) == ("oom",)
    (group / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 0\n")
    assert scene.collect(code=137, cgroup=group) == ()


@pytest.mark.parametrize(
    ("own", "killed_in", "ours"),
    [
        ("4:cpu,memory:/user/jane\n0::/\n", "/tests-7", False),
        ("4:memory:/user/jane\n0::/\n", "/user/jane", True),
        ("4:memory:/user/jane\n0::/\n", "/user/jane/step-1", True),
        ("4:memory:/user/jane\n0::/\n", "/user/janet", False),
        ("0::/system.slice/stoker.service\n", "/user.slice/user-1000.slice", False),
        ("0::/system.slice/stoker.service\n", "/system.slice/stoker.service", True),
        ("0::/system.slice/stoker.service\n", "/", True),
        ("0::/\n", "/docker/5f", False),
        ("0::/\n", "/", True),
        ("", "/docker/5f", True),
    ],
)
def test_a_kill_in_a_group_of_others_is_no_evidence(scene: Scene, own: str, killed_in: str, ours: bool) -> None:
    """Where the training's own group does not count memory, its memory is counted where the agent is."""
    scene.own_cgroup = own
    scene.kernel_said(OOM.replace("/stoker/job-1", killed_in), ago_s=5)
    scene.kernel_said("Memory cgroup out of memory: Killed process 42 (python) total-vm:1kB", ago_s=5)
    assert scene.collect(code=None, sig=signal.SIGKILL) == (("oom",) if ours else ())
    # One that the kernel names no group for may be the training.
    scene.kernel_said("Out of memory: Killed process 43 (python) total-vm:1kB", ago_s=4)
    assert scene.collect(code=None, sig=signal.SIGKILL) == ("oom",)


def test_a_full_disk(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def disk(free: int, files: int = 5) -> None:
        stat = types.SimpleNamespace(f_bavail=free, f_frsize=1, f_blocks=10**12, f_files=10, f_favail=files)
        monkeypatch.setattr(os, "statvfs", lambda _path: stat)

    disk(free=10**9)
    assert scene.collect() == ()
    disk(free=4096)
    assert scene.collect() == ("disk-full",)
    disk(free=10**9, files=0)
    assert scene.collect() == ("disk-full",)


def test_nothing_readable_is_no_evidence(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    assert collect(None, 9, 0.0, gone, gone, kernel_log=gone) == ()
    assert collect(None, 9, 0.0, gone, gone, kernel_log=tmp_path) == ()


def test_the_real_kernel_log_is_read_without_blocking() -> None:
    collect(1, None, time.monotonic(), Path("/"))


def test_a_kernel_clock_that_is_a_little_behind_loses_no_evidence(scene: Scene) -> None:
    scene.kernel_said(XID, ago_s=1001.9)
    scene.kernel_said(XID.replace("79", "31"), ago_s=1002.1)
    assert scene.collect() == ("xid:79",)


def test_a_launcher_exits_within_a_minute_of_the_kill_of_its_worker(scene: Scene) -> None:
    scene.kernel_said(KILLED, ago_s=61)
    assert scene.collect(code=1) == ()
    scene.kernel_said(KILLED, ago_s=59)
    assert scene.collect(code=1) == ("oom",)


def test_an_exit_code_that_stands_for_a_kill_is_one(scene: Scene) -> None:
    scene.kernel_said(KILLED, ago_s=500)
    assert scene.collect(code=-9) == ("oom",) and scene.collect(code=9) == ()


def test_a_count_that_makes_no_sense_is_looked_for_elsewhere(scene: Scene, tmp_path: Path) -> None:
    group = tmp_path / "cgroup"
    group.mkdir()
    (group / "memory.events").write_text("oom_kill many\n")
    (group / "memory.oom_control").write_text("oom_kill 2\n")
    assert scene.collect(cgroup=group) == ("oom",)


def test_a_group_that_the_kernel_does_not_name_is_another_one(scene: Scene, tmp_path: Path) -> None:
    group = tmp_path / "cgroup"
    group.mkdir()
    (group / "memory.events").write_text("oom_kill 0\n")
    scene.kernel_said(OOM.replace("/stoker/job-1", "/"), ago_s=5)
    assert scene.collect(code=137, cgroup=group) == ()


def test_a_kernel_log_that_went_round_is_read_on(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.kernel_said(XID, ago_s=5)
    really, broken = os.read, [True]

    def read(fd: int, count: int) -> bytes:
        if broken:
            broken.clear()
            raise BrokenPipeError
        return really(fd, count)

    monkeypatch.setattr(os, "read", read)
    assert scene.collect() == ("xid:79",)


def test_lines_of_the_kernel_without_a_time_are_no_evidence(scene: Scene) -> None:
    scene.records += [f"6,100;{XID}\n", f"6,100,never,-;{XID}\n", f"{XID}\n"]
    assert scene.collect() == ()
    scene.records += [f"6,100,{int(scene.now * 1e6)};{XID}\n"]
    assert scene.collect() == ("xid:79",)


def test_a_small_disk_is_full_when_a_hundredth_of_it_is_left(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def disk(free: int, blocks: int, files: int = 10, free_files: int = 5) -> tuple[str, ...]:
        stat = types.SimpleNamespace(f_bavail=free, f_frsize=4096, f_blocks=blocks, f_files=files, f_favail=free_files)
        monkeypatch.setattr(os, "statvfs", lambda _path: stat)
        return scene.collect()

    assert disk(free=10, blocks=1000) == () and disk(free=9, blocks=1000) == ("disk-full",)
    # Of a large one, sixteen megabytes.
    assert disk(free=4096, blocks=10**9) == () and disk(free=4095, blocks=10**9) == ("disk-full",)
    # A file system that does not count its files is not full of them.
    assert disk(free=5000, blocks=10**9, files=0, free_files=0) == ()


def test_figures_of_processors_leave_out_what_waits_and_what_others_took(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("cpu 100 20 3 4000 50000 600 70 8000000 9 9\n")
    found = UsageSampler(tmp_path, proc=tmp_path)._busy_s
    assert found == (100 + 20 + 3 + 600 + 70) / os.sysconf("SC_CLK_TCK")


def test_a_counter_that_goes_back_is_no_work(tmp_path: Path) -> None:
    write_proc(tmp_path, busy_s=50.0)
    sampler = UsageSampler(tmp_path, proc=tmp_path)
    write_proc(tmp_path, busy_s=40.0)
    sampler._at -= 10.0
    assert sampler.sample().cpu_percent == 0.0
    (tmp_path / "stat").unlink()
    sampler._at -= 10.0
    assert sampler.sample().cpu_percent is None
    write_proc(tmp_path, busy_s=60.0)
    sampler._at -= 10.0
    assert sampler.sample().cpu_percent is None, "nothing is known of the time before"
    sampler._at -= 10.0
    assert sampler.sample().cpu_percent == 0.0


def test_memory_that_is_told_in_part_is_known_in_part(tmp_path: Path) -> None:
    for text, found in (
        ("MemTotal: 1000 kB\n", (None, 1000 * 1024)),
        ("MemAvailable: 1000 kB\n", (None, None)),
        ("MemTotal:\nMemAvailable: 1 kB\n", (None, None)),
    ):
        (tmp_path / "meminfo").write_text(text)
        sample = UsageSampler(tmp_path, proc=tmp_path).sample()
        assert (sample.memory_used, sample.memory_total) == found


def test_the_free_disk_is_what_the_folder_may_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []

    def statvfs(path: Path) -> object:
        asked.append(path)
        return types.SimpleNamespace(f_bavail=7, f_frsize=100, f_bfree=9)

    monkeypatch.setattr(os, "statvfs", statvfs)
    assert UsageSampler(tmp_path, proc=tmp_path).sample().disk_free == 700 and asked == [tmp_path]
