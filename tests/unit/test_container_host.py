"""What a machine has for containers: GPUs, toolkits and SELinux."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stoker.agent.container import host_devices

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes namespaces of processes everywhere")


def test_what_this_machine_has_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_devices, "count_gpus", lambda: 0)
    monkeypatch.setattr(host_devices, "_has_toolkit", lambda _engine: True)
    found = host_devices.detect_host("docker")
    assert (found.uid, found.gid, found.gpus, found.toolkit) == (os.getuid(), os.getgid(), 0, False)
    assert found.privileged is (os.getuid() == 0)
    stat = os.statvfs("/dev/shm")
    assert found.shm_bytes == stat.f_blocks * stat.f_frsize > 0
    monkeypatch.setattr(host_devices, "count_gpus", lambda: 4)
    assert host_devices.detect_host("docker").toolkit and host_devices.detect_host("docker").gpus == 4


def test_the_toolkit_is_known_by_its_programs_or_its_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_devices, "_TOOLKIT", ("no-such-hook", "some-nvidia-ctk"))
    monkeypatch.setattr(host_devices, "_DEVICE_SPECS", (str(tmp_path / "a"), str(tmp_path / "b")))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not host_devices._has_toolkit("docker") and not host_devices._has_toolkit("podman")
    program = tmp_path / "some-nvidia-ctk"
    program.write_text("")
    program.chmod(0o755)
    assert host_devices._has_toolkit("docker") and not host_devices._has_toolkit("podman")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "nvidia.yaml").touch()
    assert host_devices._has_toolkit("podman")
    program.unlink()
    assert not host_devices._has_toolkit("docker")


@pytest.mark.parametrize("folder", ["etc/cdi", "var/run/cdi"])
def test_podman_sees_gpus_that_are_described_where_others_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    monkeypatch.setattr(host_devices, "Path", lambda path: tmp_path / path.lstrip("/"))
    assert not host_devices._has_toolkit("podman")
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / folder / "nvidia.yaml").touch()
    assert host_devices._has_toolkit("podman")


@pytest.mark.parametrize("program", ["nvidia-container-runtime-hook", "nvidia-container-runtime", "nvidia-ctk"])
def test_docker_sees_gpus_by_any_program_of_the_toolkit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / program).touch(0o755)
    assert host_devices._has_toolkit("docker")


@pytest.mark.parametrize(("text", "enforced"), [("1\n", True), ("0\n", False), (None, False)])
def test_whether_selinux_is_enforced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, enforced: bool
) -> None:
    monkeypatch.setattr(host_devices, "Path", lambda path: tmp_path / path.lstrip("/"))
    if text is not None:
        (tmp_path / "sys/fs/selinux").mkdir(parents=True)
        (tmp_path / "sys/fs/selinux/enforce").write_text(text)
    assert host_devices.detect_host("docker").selinux is enforced


def test_a_machine_without_shared_memory_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_path: str) -> os.statvfs_result:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(host_devices.os, "statvfs", missing)
    assert host_devices.detect_host("docker").shm_bytes == 0
