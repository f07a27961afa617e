"""Nothing starts before the accelerators are seen that a machine was sold with; one that lacks some is given back."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from agent_world import OFFERING, AgentWorld
from plain_store import wait_for

from stoker.agent import runtime as agent_runtime
from stoker.agent.environment import apt
from stoker.agent.health import accelerators
from stoker.agent.health.accelerators import (
    AcceleratorProbe,
    AcceleratorWait,
    Seen,
    Sold,
    count_processes,
    is_arriving,
    sold_accelerators,
)
from stoker.agent.phases.accelerators import promised
from stoker.agent.phases.context import AttemptContext
from stoker.core.attempt_verdict import RULES, Verdict
from stoker.model.node_facts import Exit
from stoker.model.resources import Gpus, Resources
from stoker.model.spec import Container, Environment, Spec
from stoker.providers.ec2 import catalog as ec2_catalog
from stoker.providers.gce import catalog as gce_catalog

A100 = "GPU {}: NVIDIA A100-SXM4-40GB (UUID: GPU-6d9bbd7c-6d60-4a3c-9b8f-0e8b1a2d5f0{})"
# What nvidia-smi prints, and how it ends, in each state of a driver.
NOT_LOADED = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
    "Make sure that the latest NVIDIA driver is installed and running."
)
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 570.133"
TOLD = "Failed to initialize NVML: Driver/library version mismatch NVML library version: 570.133"


# ── What is there ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs, first on the PATH. It has no nvidia-smi yet."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def smi(programs: Path, script: str) -> None:
    draft = programs / ".draft"
    draft.write_text(f"#!/bin/sh\n{script}\n")
    draft.chmod(0o755)
    draft.rename(programs / "nvidia-smi")


def lists(count: int) -> str:
    lines = "\n".join(A100.format(number, number) for number in range(count))
    return f"[ \"$*\" = -L ] || exit 2\ncat <<'END'\n{lines}\nEND"


def fails(text: str, code: int) -> str:
    return f"cat <<'END'\n{text}\nEND\nexit {code}"


def probe(dev: Path, limit_s: float = 30.0) -> AcceleratorProbe:
    return AcceleratorProbe(lambda: None, dev, limit_s, lambda _: False)


@pytest.mark.parametrize(
    ("script", "seen"),
    [
        (lists(8), Seen(8)),
        (
            f"{lists(1)}\necho '  MIG 1g.5gb Device 0: (UUID: MIG-1)'\necho '  MIG 1g.5gb Device 1: (UUID: MIG-2)'",
            Seen(1),
        ),
        (fails(NOT_LOADED, 9), Seen(0, arriving=True)),
        (fails("Failed to initialize NVML: Driver Not Loaded", 9), Seen(0, arriving=True)),
        (fails(MISMATCH, 18), Seen(0, TOLD)),
        (fails("No devices were found", 6), Seen(0, "No devices were found")),
        (
            f"{lists(7)}\necho 'Unable to determine the device handle for gpu 0000:00:1E.0: Unknown Error'",
            Seen(7, "Unable to determine the device handle for gpu 0000:00:1E.0: Unknown Error"),
        ),
        ("exit 3", Seen(0, "nvidia-smi ended with 3")),
    ],
)
def test_what_the_driver_of_nvidia_says(programs: Path, tmp_path: Path, script: str, seen: Seen) -> None:
    smi(programs, script)
    # Files of devices that are gone prove nothing.
    for number in range(8):
        (tmp_path / f"nvidia{number}").touch()
    assert probe(tmp_path).count("nvidia") == seen


def test_a_driver_that_hangs_does_not_hang_the_agent(programs: Path, tmp_path: Path) -> None:
    smi(programs, "exec sleep 1000")
    assert probe(tmp_path, 0.2).count("nvidia") == Seen(0, "nvidia-smi does not answer within 0.2 s")

    def leave() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        AcceleratorProbe(leave, tmp_path).count("nvidia")


def test_a_driver_that_cannot_be_asked(programs: Path, tmp_path: Path) -> None:
    (programs / "nvidia-smi").write_bytes(b"\x7fELF of another processor")
    (programs / "nvidia-smi").chmod(0o755)
    assert probe(tmp_path).count("nvidia") == Seen(0, "nvidia-smi does not start: Exec format error")
    (programs / "nvidia-smi").unlink()
    assert probe(tmp_path).count("nvidia") == Seen(0)
    (tmp_path / "nvidia0").touch()
    (tmp_path / "nvidiactl").touch()
    assert probe(tmp_path).count("nvidia") == Seen(1)


@pytest.mark.parametrize(
    ("maker", "files"),
    [
        ("neuron", ["neuron0", "neuron1"]),
        ("habana", ["accel/accel0", "accel/accel1", "accel/accel_controlD0", "accel/accel_controlD1"]),
        ("habana", ["hl0", "hl1", "hl_controlD0", "hl_controlD1"]),
        ("tpu", ["accel0", "accel1"]),
        ("tpu", ["vfio/0", "vfio/1", "vfio/vfio"]),
    ],
)
def test_devices_of_other_makers(tmp_path: Path, maker: Any, files: list[str]) -> None:
    assert probe(tmp_path).count(maker) == Seen(0)
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert probe(tmp_path).count(maker) == Seen(2)


def test_torchrun_starts_a_process_for_each_device_that_is_there(tmp_path: Path) -> None:
    assert count_processes(tmp_path, lambda: 2) == 0, "there is no device"
    (tmp_path / "neuron0").touch()
    assert count_processes(tmp_path, lambda: 2) == 2
    (tmp_path / "accel").mkdir()
    for number in range(8):
        (tmp_path / f"accel/accel{number}").touch()
    assert count_processes(tmp_path, lambda: 0) == 8


def test_signs_of_a_driver_that_is_being_installed(tmp_path: Path) -> None:
    def runs(pid: int, *argv: str, parent: int = 1) -> Path:
        folder = tmp_path / f"proc/{pid}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in argv))
        (folder / "stat").write_text(f"{pid} (a (b) c) S {parent} 1 1")
        return folder

    assert not is_arriving("nvidia", tmp_path), "there is no /proc"
    runs(1, "/sbin/init")
    # A job may have any name.
    runs(os.getpid(), "python", "-m", "stoker.agent", "nvidia-job", parent=7)
    runs(7, "sh", "-c", "agent nvidia-job")
    (tmp_path / "proc/8").mkdir()
    assert not is_arriving("nvidia", tmp_path) and not is_arriving("tpu", tmp_path)
    for argv in (
        ("/bin/sh", "/tmp/NVIDIA-Linux-x86_64-570.133.20.run", "--silent"),
        ("/usr/sbin/dkms", "build", "-m", "nvidia/570"),
        ("apt-get", "install", "-y", "nvidia-driver-570"),
        ("python3", "cuda_installer.pyz", "install_driver"),
        ("bash", "/opt/deeplearning/install-driver.sh"),
    ):
        folder = runs(9, *argv)
        assert is_arriving("nvidia", tmp_path), argv
        shutil.rmtree(folder)
    assert not is_arriving("nvidia", tmp_path)
    for maker, module in (("nvidia", "nvidia"), ("neuron", "neuron"), ("habana", "habanalabs")):
        assert not is_arriving(maker, tmp_path)
        (tmp_path / "sys/module" / module).mkdir(parents=True)
        assert is_arriving(maker, tmp_path)


def test_a_driver_that_shows_itself_is_arriving(programs: Path, tmp_path: Path) -> None:
    dev = tmp_path / "dev"
    dev.mkdir()
    asked = AcceleratorProbe(lambda: None, dev, 30.0, lambda maker: maker == "nvidia")
    assert asked.count("nvidia") == Seen(0, arriving=True) and asked.count("tpu") == Seen(0)
    smi(programs, lists(2))
    assert asked.count("nvidia") == Seen(2)


# ── What was sold ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "maker"),
    [
        ("A100-40GB", "nvidia"),
        ("RTX PRO Server 6000", "nvidia"),
        (None, "nvidia"),
        ("Inferentia2", "neuron"),
        ("Trainium", "neuron"),
        # As DescribeInstanceTypes names dl1's.
        ("Gaudi HL-205", "habana"),
        ("TPU-v5e", "tpu"),
        ("Radeon Pro V520", None),
    ],
)
def test_the_maker_of_what_was_sold(name: str | None, maker: str | None) -> None:
    sold = sold_accelerators(name, 4)
    assert (sold.maker if sold else None) == maker
    assert sold_accelerators(name, 0) is None, "a part of a GPU cannot be counted"


def test_every_accelerator_in_the_tables_has_its_maker() -> None:
    others = ("Inferentia", "Trainium", "Gaudi", "TPU", "Radeon", "Qualcomm")
    machines = [*ec2_catalog.table().values(), *gce_catalog.table().values()]
    for name in {machine.gpu for machine in machines if machine.gpu}:
        sold = sold_accelerators(name, 1)
        assert (sold is not None and sold.maker == "nvidia") is not name.startswith(others), name


def test_a_job_that_wants_none_is_promised_none() -> None:
    offering = replace(OFFERING, gpu="A100-40GB", gpus=8)
    named = Resources(provider="ec2", machine=("p4d.24xlarge",))
    assert promised(Spec(name="job", run="true", resources=named), offering) == Sold("A100-40GB", 8, "nvidia")
    assert promised(Spec(name="job", run="true", resources=replace(named, gpus=Gpus("", 0))), offering) is None
    assert promised(Spec(name="job", run="true", resources=named), OFFERING) is None


# ── How long it is waited for ─────────────────────────────────────────────────────────────────────────────────────────


class Driver:
    """Answers from a story: what is seen from which second on. Its clock moves by pauses alone."""

    def __init__(self, *story: tuple[float, Seen]) -> None:
        self.story = story
        self.now_s = 0.0
        self.said: list[str] = []

    def pause(self, seconds: float) -> None:
        self.now_s += seconds

    def count(self, _maker: object) -> Seen:
        return [seen for at_s, seen in self.story if at_s <= self.now_s][-1]

    def wait(self, wait_s: float = 900.0) -> Seen:
        sold = Sold("A100", 8, "nvidia")
        clock = lambda: self.now_s  # noqa: E731
        return AcceleratorWait(sold, self.count, self.said.append, self.pause, wait_s, 180.0, 900.0, clock).run()


def test_what_is_there_is_not_waited_for() -> None:
    driver = Driver((0, Seen(8)))
    assert driver.wait() == Seen(8) and driver.said == [] and driver.now_s == 0
    assert Driver((0, Seen(16))).wait() == Seen(16)


def test_a_driver_that_is_still_being_installed_is_waited_for_with_a_word() -> None:
    driver = Driver((0, Seen(0)), (400, Seen(3)), (403, Seen(8)))
    assert driver.wait() == Seen(8)
    sold = "this machine was sold with 8 × A100, and"
    assert driver.said == [
        f"{sold} no NVIDIA GPU can be seen (its driver may still be installed); waiting for it, up to 15 min",
        f"{sold} only 3 of them can be seen; waiting for it, up to 3 min",
        "8 × A100 are there, after 6 min 44 s",
    ]


@pytest.mark.parametrize(
    ("story", "last", "until_s"),
    [
        ([(0, Seen(0))], Seen(0), 900),
        ([(0, Seen(7))], Seen(7), 180),
        ([(0, Seen(0)), (100, Seen(7))], Seen(7), 280),
        ([(0, Seen(0, TOLD))], Seen(0, TOLD), 180),
        # Another answer is a movement, and begins anew; the whole stays bounded.
        ([(0, Seen(0, TOLD)), (100, Seen(6)), (200, Seen(7))], Seen(7), 380),
        ([(at, Seen(at // 100 % 2 + 1)) for at in range(0, 2000, 100)], Seen(2), 900),
        # A driver that was replaced while the machine booted.
        ([(0, Seen(0, TOLD)), (60, Seen(0)), (300, Seen(8))], Seen(8), 300),
    ],
)
def test_the_wait_is_bounded(story: list[tuple[float, Seen]], last: Seen, until_s: float) -> None:
    driver = Driver(*story)
    assert driver.wait() == last
    assert until_s <= driver.now_s <= until_s + 2.0


@pytest.mark.parametrize(
    ("story", "last", "until_s"),
    [
        ([(0, Seen(0))], Seen(0), 180),
        # Whatever shows that a driver is on its way is waited for as long as any driver.
        ([(0, Seen(0, arriving=True))], Seen(0, arriving=True), 900),
        ([(0, Seen(0)), (170, Seen(0, arriving=True)), (300, Seen(0)), (600, Seen(8))], Seen(8), 600),
        ([(0, Seen(0)), (170, Seen(0, TOLD)), (300, Seen(8))], Seen(8), 300),
        ([(0, Seen(0)), (170, Seen(7))], Seen(7), 350),
        ([(0, Seen(0)), (200, Seen(8))], Seen(0), 180),
    ],
)
def test_a_driver_that_may_never_come_is_waited_for_briefly(
    story: list[tuple[float, Seen]], last: Seen, until_s: float
) -> None:
    driver = Driver(*story)
    assert driver.wait(180.0) == last
    assert until_s <= driver.now_s <= until_s + 2.0


def test_a_longer_wait_is_told() -> None:
    driver = Driver((0, Seen(0)), (100, Seen(0, arriving=True)), (102, Seen(0)), (400, Seen(8)))
    assert driver.wait(180.0) == Seen(8)
    text = (
        "this machine was sold with 8 × A100, and no NVIDIA GPU can be seen (its driver may still be installed); "
        "waiting for it, up to"
    )
    assert driver.said == [f"{text} 3 min", f"{text} 13 min 20 s", "8 × A100 are there, after 6 min 40 s"]


# ── An attempt ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AgentWorld]:
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(accelerators, "_PAUSE_S", 0.02)
    monkeypatch.setattr(accelerators, "is_arriving", lambda _: False)
    yield AgentWorld(tmp_path)
    signal.signal(signal.SIGTERM, before)


def an_attempt(world: AgentWorld, run: str = "nvidia-smi -L", **spec: Any) -> AttemptContext:
    resources = spec.pop("resources", {"gpus": Gpus("A100", 2)})
    world.submit("sh", "-c", run, resources=Resources(provider="gce", **resources), **spec)
    return world.life(world.claim(offering=replace(OFFERING, gpu="A100-40GB", gpus=2)))


def logged(life: AttemptContext) -> str:
    return life.paths.train_log.read_text() if life.paths.train_log.exists() else ""


def until_logged(life: AttemptContext, text: str) -> Callable[[], None]:
    return lambda: wait_for(lambda: text in logged(life))


@pytest.mark.slow
def test_nothing_starts_before_the_driver_is_there(world: AgentWorld, programs: Path) -> None:
    life = an_attempt(world, setup="nvidia-smi -L")
    told = "[stoker] this machine was sold with 2 × A100-40GB, and no NVIDIA GPU can be seen"

    def install() -> None:
        assert "running setup" not in logged(life)
        smi(programs, lists(2))

    world.meanwhile(until_logged(life, told), install)
    assert world.run(life).outcome == "succeeded", logged(life)
    lines = logged(life).splitlines()
    there = next(number for number, line in enumerate(lines) if "2 × A100-40GB are there, after" in line)
    assert not any(line.startswith("GPU ") for line in lines[:there])
    assert len([line for line in lines if line.startswith("GPU 1:")]) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "why"),
    [
        (lists(1), "only 1 of them can be seen"),
        (fails(MISMATCH, 18), f"no NVIDIA GPU can be seen ({TOLD})"),
        (None, "no NVIDIA GPU can be seen (its driver may still be installed)"),
    ],
)
def test_a_machine_that_lacks_some_is_given_back(
    world: AgentWorld, programs: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, why: str
) -> None:
    monkeypatch.setattr(accelerators, "WAIT_S", 0.1)
    monkeypatch.setattr(accelerators, "SETTLE_S", 0.1)
    if script:
        smi(programs, script)
    life = an_attempt(world, "echo trained")
    found = world.run(life)
    reason = f"this machine was sold with 2 × A100-40GB, and {why}; it is given back"
    assert (found.outcome, found.reason) == ("infrastructure", reason)
    assert "trained\n" not in logged(life).replace("was trained", "")
    # Another attempt follows, which does not count against the user.
    assert verdict(found) == Verdict("infrastructure", found.why, reason, restart=True, counted=False)


def verdict(found: Exit) -> Verdict:
    evidence: Any = SimpleNamespace(left=[found])
    (rule,) = [rule for rule in RULES if rule.__name__ == "_infrastructure"]
    judged = rule(evidence)
    assert judged is not None
    return judged


@pytest.mark.slow
def test_a_setup_may_install_the_driver(world: AgentWorld, programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerators, "WAIT_S", 0.1)
    smi(programs, lists(2))
    (programs / "nvidia-smi").rename(programs / "later")
    life = an_attempt(world, setup=f"cp {programs}/later {programs}/nvidia-smi")
    assert world.run(life).outcome == "succeeded", logged(life)
    assert "setup is run, which may install the driver" in logged(life)
    # One that does not is no reason to train without.
    (programs / "nvidia-smi").unlink()
    monkeypatch.setattr(accelerators, "SETTLE_S", 0.1)
    other = AgentWorld(world.root / "other")
    assert other.run(an_attempt(other, setup="true")).outcome == "infrastructure"


BARE = {"gpus": Gpus("A100", 2), "image": "ubuntu/24.04"}


@pytest.mark.slow
@pytest.mark.parametrize("step", ["setup", "environment.apt"])
def test_the_set_up_installs_the_driver_of_a_bare_image_at_once(
    world: AgentWorld, programs: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Such an image has no driver that could come by itself. What was installed may need a while to be there."""
    monkeypatch.setattr(accelerators, "SETTLE_S", 0.1)
    monkeypatch.setattr(agent_runtime, "count_gpus", lambda: 2 if (programs / "nvidia-smi").exists() else 0)
    if step == "setup":
        life = an_attempt(world, 'echo "gpus=$PET_NPROC_PER_NODE"', resources=dict(BARE), setup="echo installed")
    else:
        # Stands for apt-get, which runs with a PATH of its own.
        monkeypatch.setattr(apt, "SCRIPT", "echo installed")
        environment = Environment(apt=("nvidia-driver-570-server",))
        life = an_attempt(world, 'echo "gpus=$PET_NPROC_PER_NODE"', resources=dict(BARE), environment=environment)
    told = f"no NVIDIA GPU can be seen (its driver may still be installed); {step} is run, which may install the driver"

    def again() -> None:
        wait_for(lambda: "installed\n" in logged(life).partition(told)[2] and logged(life).count("waiting for it") == 2)

    world.meanwhile(again, lambda: smi(programs, lists(2)))
    assert world.run(life).outcome == "succeeded", logged(life)
    # The training knows of GPUs that came after the set-up.
    assert "gpus=2" in logged(life).splitlines(), logged(life)


@pytest.mark.slow
def test_a_container_installs_no_driver(world: AgentWorld, programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerators, "WAIT_S", 0.1)
    environment = Environment(apt=("nvidia-driver-570",), container=Container("x"))
    life = an_attempt(world, resources=dict(BARE), setup="true", environment=environment)
    assert world.run(life).outcome == "infrastructure" and "which may install" not in logged(life)


@pytest.mark.slow
def test_a_job_that_asks_for_no_gpu_on_an_image_without_driver_trains(
    world: AgentWorld, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It may never have one, so that it is not waited for as long as one that is on its way.
    monkeypatch.setattr(accelerators, "SETTLE_S", 0.1)
    life = an_attempt(world, "echo trained", resources={"machine": ("a2-highgpu-2g",), "image": "debian/12"})
    assert world.run(life).outcome == "succeeded", logged(life)
    assert "the job goes on, since it asks for no GPU" in logged(life)


@pytest.mark.slow
def test_a_stop_ends_the_wait(world: AgentWorld, programs: Path) -> None:
    life = an_attempt(world)
    world.meanwhile(until_logged(life, "waiting for it"), lambda: life.take_signal(0, None))
    assert world.run(life).outcome == "interrupted"
