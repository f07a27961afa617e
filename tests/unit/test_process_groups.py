"""A group holds whatever its members start: found, frozen and killed, and nobody else with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import owned_groups
import pytest
from owned_groups import DAEMON, LEADERLESS, PATIENCE_S, a_group, alone, made, pid_in, python, until

from stoker.processes import NODE, TRAINING, Group, Process, boot_id, end_remains, find_group, make_group, stat_of
from stoker.processes.cgroup import CgroupGroup

pytestmark = pytest.mark.slow

# A fixture that all tests of groups share.
cgroup = owned_groups.cgroup


def _cpu(pid: int) -> list[str]:
    """User and system time of a process, in ticks."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]


# Writes on and on, without its first thread, from a daemon in a session of its own.
LEADERLESS_DAEMON = (
    LEADERLESS
    + """
def work():
    open(sys.argv[1], "w").write(f"{os.getpid()}\\n")
    n = 0
    while True:
        n += 1
        open(sys.argv[2], "w").write(str(n))
        time.sleep(0.001)
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
goes_on(work)
"""
)


def a_leaderless_member(group: Group, folder: Path) -> Process:
    group.spawn(python(LEADERLESS_DAEMON, folder / "pid", folder / "writes")).wait()
    pid = pid_in(folder / "pid")
    until(lambda: (stat := stat_of(pid)) is not None and stat.leaderless, "its first thread to end")
    process = Process.of(pid)
    assert process is not None
    return process


class TestGroup:
    @alone
    def test_a_process_whose_first_thread_has_ended_is_a_member_and_is_killed(
        self, cgroup: bool, tmp_path: Path
    ) -> None:
        group = a_group(cgroup)
        process = a_leaderless_member(group, tmp_path)
        assert group.members() == {process.pid}
        assert group.freeze(PATIENCE_S)
        before = (tmp_path / "writes").stat().st_mtime_ns
        time.sleep(0.1)  # Not a wait for anything: time in which nothing may happen.
        assert (tmp_path / "writes").stat().st_mtime_ns == before
        group.thaw()
        assert group.kill(PATIENCE_S)
        assert not process.alive and group.members() == set()
        # What follows in the group is not frozen.
        assert group.spawn(["true"]).wait(PATIENCE_S) == 0
        group.close()

    @alone
    def test_killing_it_takes_no_longer_than_killing_others(self, cgroup: bool, tmp_path: Path) -> None:
        group = a_group(cgroup)
        a_leaderless_member(group, tmp_path)
        began_s = time.monotonic()
        assert group.kill(20.0)
        assert time.monotonic() - began_s < 4, "a quarter of the time was for a freeze that never came about"
        group.close()

    @alone
    def test_it_is_found_by_its_mark_after_the_death_of_its_owner(self, tmp_path: Path) -> None:
        group = a_group(cgroup=False)
        process = a_leaderless_member(group, tmp_path)
        me = Process.me()
        other = find_group(NODE, group._owner, Process(0, 0, me.boot), folder=None)
        assert other is not None and other.members() == {process.pid}
        assert other.kill(PATIENCE_S) and not process.alive

    def test_it_is_a_member_where_the_kernel_lists_only_its_other_threads(self, tmp_path: Path) -> None:
        """Linux before 5.2."""
        child = subprocess.Popen(["sleep", "3600"])
        try:
            for name, text in (("procs", ""), ("events", "populated 1\nfrozen 0\n"), ("threads", f"{child.pid}\n")):
                (tmp_path / f"cgroup.{name}").write_text(text)
            group = CgroupGroup(str(tmp_path), TRAINING, "x")
            assert group.members() == {child.pid}
            (tmp_path / "cgroup.events").write_text("populated 0\nfrozen 0\n")
            assert group.members() == set()
        finally:
            child.kill()
            child.wait()

    @alone
    def test_what_an_earlier_process_left_is_ended(self, cgroup: bool, tmp_path: Path) -> None:
        name = uuid.uuid4().hex
        group = make_group(TRAINING, name, cgroup=cgroup)
        made.append(group)
        process = a_leaderless_member(group, tmp_path)
        assert end_remains(TRAINING, uuid.uuid4().hex) and process.alive
        assert end_remains(TRAINING, name)
        assert not process.alive

    @pytest.mark.parametrize("env", ["keep", "scrub"])
    @alone
    def test_daemons_are_members_and_are_killed(self, cgroup: bool, tmp_path: Path, env: str) -> None:
        group = a_group(cgroup)
        root = group.spawn(python(DAEMON, tmp_path / "pid", env))
        daemon = pid_in(tmp_path / "pid")
        process = Process.of(daemon)
        assert process is not None
        root.wait()
        stranger = Process.of(os.getppid())
        assert group.members() == {daemon}
        assert group.kill(PATIENCE_S)
        assert not process.alive
        assert group.members() == set()
        assert stranger is not None
        assert stranger.alive
        group.close()

    @alone
    def test_a_full_disk_keeps_no_member_from_being_killed(self, tmp_path: Path) -> None:
        group = make_group(TRAINING, uuid.uuid4().hex, cgroup=False, sessions="/dev/full")
        made.append(group)
        root = group.spawn(python(DAEMON, tmp_path / "pid", "scrub"))
        daemon = pid_in(tmp_path / "pid")
        root.wait()
        assert group.members() == {daemon}
        assert group.kill(PATIENCE_S)
        assert group.members() == set()

    @alone
    def test_zombies_do_not_count(self, cgroup: bool) -> None:
        group = a_group(cgroup)
        child = group.spawn(["true"])
        until(lambda: (stat := stat_of(child.pid)) is not None and stat.state == "Z", "the zombie")
        assert group.members() == set()
        assert group.kill(0.0)
        group.close()

    @alone
    def test_a_signal_reaches_every_member(self, cgroup: bool, tmp_path: Path) -> None:
        group = a_group(cgroup)
        code = """
import os, signal, sys, time
def note(name):
    print(os.getpid(), file=open(sys.argv[1] + "/" + name + str(os.getpid()), "w"))
signal.signal(signal.SIGUSR1, lambda *_: (note("got"), os._exit(0)))
if os.fork() == 0:
    os.setsid()
note("up")
time.sleep(3600)
"""
        group.spawn(python(code, tmp_path))
        until(lambda: len(list(tmp_path.glob("up*"))) == 2, "both to be up")
        assert group.signal(signal.SIGUSR1) == 2
        until(lambda: len(list(tmp_path.glob("got*"))) == 2, "both to get the signal")
        assert group.kill(60.0)
        group.close()

    @alone
    def test_the_frozen_do_nothing_until_they_are_thawed(self, cgroup: bool, tmp_path: Path) -> None:
        group = a_group(cgroup)
        code = """
import os, sys
os.fork(); os.setsid() if os.getpid() != os.getsid(0) else None
n = 0
while True:
    n += 1
    open(sys.argv[1] + "/" + str(os.getpid()), "w").write(str(n))
"""
        group.spawn(python(code, tmp_path))
        until(lambda: len(list(tmp_path.iterdir())) == 2, "both to run")
        assert group.freeze(PATIENCE_S)
        before = [path.stat().st_mtime_ns for path in sorted(tmp_path.iterdir())]
        ticks = [_cpu(pid) for pid in sorted(group.members())]
        time.sleep(0.2)  # Not a wait for anything: time in which nothing may happen.
        assert [path.stat().st_mtime_ns for path in sorted(tmp_path.iterdir())] == before
        assert [_cpu(pid) for pid in sorted(group.members())] == ticks
        group.thaw()
        for path, was in zip(sorted(tmp_path.iterdir()), before, strict=True):
            until(lambda p=path, w=was: p.stat().st_mtime_ns != w, "it to go on")  # type: ignore[misc]
        assert group.freeze(PATIENCE_S)
        assert group.kill(PATIENCE_S)  # The frozen can be killed.
        group.close()

    @alone
    def test_forking_does_not_outrun_killing(self, cgroup: bool, tmp_path: Path) -> None:
        group = a_group(cgroup)
        # Each generation forks the next and ends, in a session of its own; bounded, should killing fail.
        code = """
import os, sys, time
os.nice(10)
print(os.getpid(), file=open(sys.argv[1], "w"), flush=True)
deadline = time.monotonic() + 60
while time.monotonic() < deadline:
    if os.fork():
        os._exit(0)
    os.setsid()
"""
        for n in range(3):
            group.spawn(python(code, tmp_path / str(n)))
        for n in range(3):
            pid_in(tmp_path / str(n))
        assert group.kill(PATIENCE_S)
        for _ in range(3):
            assert group.members() == set()
        group.close()

    @alone
    def test_a_group_inside_a_group(self, cgroup: bool, tmp_path: Path) -> None:
        outer = a_group(cgroup)
        here = str(Path(__file__).parent)
        code = f"""
import sys, time
sys.path.insert(0, {here!r})
from stoker.processes import make_group
inner = make_group("STOKER_TRAINING", {uuid.uuid4().hex!r}, cgroup={cgroup})
child = inner.spawn(["sleep", "3600"], env={{"PATH": "/usr/bin:/bin"}})
print(child.pid, file=open(sys.argv[1] + "/child", "w"), flush=True)
sys.stdin.readline()
print(int(inner.kill()), file=open(sys.argv[1] + "/killed", "w"), flush=True)
inner.close()
inner.spawn(["sleep", "3600"]) if not {cgroup} else None
time.sleep(3600)
"""
        agent = outer.spawn([sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE)
        child = Process.of(pid_in(tmp_path / "child"))
        assert child is not None
        assert outer.members() == {agent.pid, child.pid}
        words = Path(f"/proc/{child.pid}/environ").read_bytes().split(b"\0")
        marks = {word.partition(b"=")[0].decode() for word in words}
        assert cgroup or {NODE, TRAINING} <= marks  # The child of a member carries the outer mark too.
        assert agent.stdin is not None
        agent.stdin.write(b"\n")
        agent.stdin.flush()
        assert pid_in(tmp_path / "killed") == 1
        assert not child.alive
        assert agent.poll() is None  # Killing the inner group leaves its owner.
        assert outer.kill(PATIENCE_S)
        agent.wait()
        outer.close()
        assert outer.folder is None or not Path(outer.folder).exists()

    @alone
    def test_somebody_elses_group_is_found(self, cgroup: bool, tmp_path: Path) -> None:
        owner = uuid.uuid4().hex
        sessions = tmp_path / "sessions"
        maker = os.fork()
        if maker == 0:
            group = make_group(NODE, owner, cgroup=cgroup, sessions=sessions)
            (tmp_path / "folder").write_text(group.folder or "")
            for env in ("keep", "scrub"):
                group.spawn(python(DAEMON, tmp_path / env, env)).wait()
                pid_in(tmp_path / env)
            group.members()  # What is seen once is remembered, whatever it made of its environment.
            (tmp_path / "ready").touch()
            time.sleep(3600)
        until((tmp_path / "ready").exists, "the group")
        made_by = Process.of(maker)
        assert made_by is not None
        processes = [Process.of(pid_in(tmp_path / env)) for env in ("keep", "scrub")]
        folder = (tmp_path / "folder").read_text() or None
        os.kill(maker, signal.SIGKILL)
        os.waitpid(maker, 0)
        assert all(process is not None and process.alive for process in processes)
        assert find_group(NODE, owner, made_by._replace(boot="another"), folder=folder, sessions=sessions) is None
        found = find_group(NODE, owner, made_by, folder=folder, sessions=sessions)
        assert found is not None
        assert found.members() == {process.pid for process in processes if process is not None}
        assert found.kill(PATIENCE_S)
        assert not any(process.alive for process in processes if process is not None)
        found.close()

    @alone
    def test_a_session_number_that_was_used_again_is_not_ours(self, tmp_path: Path) -> None:
        stranger = subprocess.Popen(["sleep", "3600"], start_new_session=True)
        who = Process.of(stranger.pid)
        assert who is not None
        sessions = tmp_path / "sessions"
        maker = who._replace(started=1)
        sessions.write_text(f"{who.pid} {who.started - 1} {boot_id()}\n{who.pid} 5")
        group = find_group(NODE, "nobody", maker, folder=None, sessions=sessions)
        assert group is not None
        assert group.members() == set()
        sessions.write_text(f"{who.pid} {who.started} {boot_id()}\n")
        group = find_group(NODE, "nobody", maker, folder=None, sessions=sessions)
        assert group is not None
        assert group.members() == {who.pid}
        stranger.kill()
        stranger.wait()

    @alone
    def test_orphans_are_reaped_and_children_are_not(self, tmp_path: Path) -> None:
        group = a_group(False)
        own = group.spawn(["sh", "-c", "exit 3"])
        other = subprocess.Popen(["sh", "-c", "exit 4"])
        group.spawn(python(DAEMON, tmp_path / "pid", "keep")).wait()
        orphan = pid_in(tmp_path / "pid")
        until(lambda: (stat := stat_of(orphan)) is not None and stat.parent == os.getpid(), "the adoption")
        os.kill(orphan, signal.SIGKILL)
        for pid in (own.pid, other.pid, orphan):
            until(lambda p=pid: (stat := stat_of(p)) is not None and stat.state == "Z", "a zombie")  # type: ignore[misc]
        group.reap()
        assert stat_of(orphan) is None
        assert (own.wait(), other.wait()) == (3, 4)

    @alone
    def test_a_closed_group_is_empty_and_closing_again_is_harmless(self, cgroup: bool) -> None:
        group = a_group(cgroup)
        for _ in range(2):
            group.close()
            assert group.members() == set()
            assert group.kill(0.0)
            assert group.freeze(0.0)
            group.thaw()
            assert group.signal(signal.SIGTERM) == 0

    def test_cgroups_can_be_forbidden(self, monkeypatch: pytest.MonkeyPatch) -> None:
        @alone
        def scenario() -> None:
            os.environ["STOKER_NO_CGROUP"] = "1"
            assert make_group(NODE, uuid.uuid4().hex).folder is None

        scenario()
