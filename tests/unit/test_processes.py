"""Owning processes. Scenarios with groups run in a process of their own: a subreaper owns all its descendants."""

from __future__ import annotations

import functools
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from stoker.processes import (
    NODE,
    TRAINING,
    Group,
    Process,
    boot_id,
    find_group,
    make_group,
    open_for_writing,
    process_table,
    stat_of,
)
from stoker.processes.cgroup import Mount, find_mount, find_path
from stoker.processes.cgroup import make as make_cgroup

PATIENCE_S = 60.0
ROOT = Path(__file__).parents[2]
# The groups of this process, to be ended with it.
made: list[Group] = []


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"waited {PATIENCE_S:g} s for {what}"
        time.sleep(0.005)


def alone(scenario: Callable[..., None]) -> Callable[..., None]:
    """Run a test in a pytest of its own, so that what it owns is its own.

    Not in a fork: a worker of the test run has threads, and a fork would inherit their locks for ever.
    """

    @functools.wraps(scenario)
    def run(*args: object, **kwargs: object) -> None:
        if os.environ.get("STOKER_TEST_ALONE"):
            try:
                scenario(*args, **kwargs)
            finally:
                for group in made:
                    group.kill(PATIENCE_S)
                    group.close()
            return
        test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
        with tempfile.TemporaryDirectory() as folder:
            options = ["-q", "-p", "no:xdist", "-p", "no:cacheprovider", "--basetemp", f"{folder}/tmp"]
            done = subprocess.run(
                [sys.executable, "-m", "pytest", *options, test],
                cwd=ROOT,
                env={**os.environ, "STOKER_TEST_ALONE": "1"},
                capture_output=True,
                text=True,
                check=False,
            )
        assert done.returncode == 0, f"{done.stdout}{done.stderr}"
        assert "1 passed" in done.stdout

    return run


@pytest.fixture(params=["cgroup", "marks"])
def cgroup(request: pytest.FixtureRequest) -> bool:
    """Both ways of holding a group together."""
    if request.param == "marks":
        return False
    folder = make_cgroup(f"stoker-probe-{uuid.uuid4().hex}")
    if folder is None:
        pytest.skip("no cgroup can be made here")
    Path(folder).rmdir()
    return True


def a_group(cgroup: bool, mark: str = NODE, **kwargs: object) -> Group:
    group = make_group(mark, uuid.uuid4().hex, cgroup=cgroup, **kwargs)  # type: ignore[arg-type]
    made.append(group)
    return group


def pid_in(path: Path) -> int:
    until(lambda: path.exists() and path.read_text().endswith("\n"), f"{path.name} to be written")
    return int(path.read_text())


def python(code: str, *args: object) -> list[str]:
    return [sys.executable, "-S", "-c", code, *map(str, args)]


# Leaves its parent, its session and, with `env`, its environment. Writes down its pid at the end of it.
DAEMON = """
import os, sys
path, env = sys.argv[1], {} if sys.argv[2] == "scrub" else dict(os.environ)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        code = "import os, sys, time; print(os.getpid(), file=open(sys.argv[1], 'w'), flush=True); time.sleep(3600)"
        os.execve(sys.executable, [sys.executable, "-S", "-c", code, path], env)
    os._exit(0)
os.wait()
"""


# ── identity ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class TestProcess:
    def test_me(self) -> None:
        me = Process.me()
        assert me == Process.of(os.getpid())
        assert me.alive
        assert me.boot == boot_id()

    def test_a_zombie_is_not_alive(self) -> None:
        child = subprocess.Popen(["true"])
        until(lambda: (stat := stat_of(child.pid)) is not None and stat.state == "Z", "the zombie")
        assert Process.of(child.pid) is None
        child.wait()
        assert stat_of(child.pid) is None

    def test_a_leader_that_ended_before_its_threads_is_alive(self) -> None:
        code = "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(3600,)).start(); "
        child = subprocess.Popen(python(code + "ctypes.CDLL(None).pthread_exit(None)"))
        until(lambda: (stat := stat_of(child.pid)) is not None and stat.state == "Z", "the leader to end")
        process = Process.of(child.pid)
        assert process is not None
        process.signal(signal.SIGKILL)
        child.wait()
        assert not process.alive

    def test_a_signal_reaches_the_process_and_no_other(self) -> None:
        child = subprocess.Popen(["sleep", "3600"])
        process = Process.of(child.pid)
        assert process is not None
        for mistaken in (process._replace(started=process.started + 1), process._replace(boot="another")):
            assert not mistaken.alive
            assert not mistaken.signal(signal.SIGKILL)
        assert process.alive
        assert process.signal(signal.SIGTERM)
        assert child.wait() == -signal.SIGTERM
        assert not process.signal(signal.SIGTERM)

    def test_without_pidfd(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(pid: int, flags: int = 0) -> int:
            raise OSError(38, "not implemented")

        monkeypatch.setattr(os, "pidfd_open", refuse)
        child = subprocess.Popen(["sleep", "3600"])
        process = Process.of(child.pid)
        assert process is not None
        assert not process._replace(started=1).signal(signal.SIGKILL)
        assert process.signal(signal.SIGTERM)
        assert child.wait() == -signal.SIGTERM

    def test_names_cannot_confuse_the_table(self, tmp_path: Path) -> None:
        program = tmp_path / ") Z 1 ("
        program.symlink_to("/bin/sleep")
        child = subprocess.Popen([program, "3600"])
        try:
            until(lambda: Path(f"/proc/{child.pid}/comm").read_text() == ") Z 1 (\n", "the program to be started")
            stat = process_table()[child.pid]
            assert (stat.parent, stat.alive) == (os.getpid(), True)
        finally:
            child.kill()
            child.wait()


# ── spawning ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class TestSpawn:
    @alone
    def test_the_program_gets_exactly_what_was_given(self, cgroup: bool, tmp_path: Path) -> None:
        group = a_group(cgroup)
        # A shell would lose the second and the third.
        env = {"PATH": os.environ["PATH"], "BASH_FUNC_load%%": "() { :; }", "dotted.name": "x", "UMLAUT": "ü\udcff"}
        child = group.spawn(["env", "-0"], env=env, cwd=tmp_path, stdout=subprocess.PIPE)
        out = child.communicate()[0].decode(errors="surrogateescape")
        got = dict(word.split("=", 1) for word in out.split("\0") if word)
        assert got.pop(NODE)
        assert got == env
        child = group.spawn(["pwd"], cwd=tmp_path, stdout=subprocess.PIPE)
        assert child.communicate()[0].decode().strip() == str(tmp_path)

    @alone
    def test_signals_are_as_at_the_start_of_a_session(self, cgroup: bool) -> None:
        group = a_group(cgroup)
        child = group.spawn(["cat", "/proc/self/status", "/proc/self/stat"], stdout=subprocess.PIPE)
        lines = child.communicate()[0].decode().splitlines()
        status = dict(line.split(":", 1) for line in lines[:-1])
        assert int(status["SigIgn"], 16) & (1 << (signal.SIGPIPE - 1)) == 0
        assert int(status["SigBlk"], 16) == 0
        assert int(lines[-1].rsplit(")", 1)[1].split()[3]) == child.pid  # Leader of its session.

    @alone
    def test_it_is_a_member_from_its_first_instruction(self, cgroup: bool) -> None:
        group = a_group(cgroup)
        code = "import os; print(os.environ['STOKER_NODE'], open('/proc/self/cgroup').read().split('0::')[1].strip())"
        word, path = group.spawn(python(code), stdout=subprocess.PIPE).communicate()[0].decode().split()
        assert word
        if cgroup:
            assert group.folder is not None
            assert path.endswith(Path(group.folder).name)
            assert word in path
            group.close()

    @alone
    def test_what_is_not_there_is_told(self, cgroup: bool, tmp_path: Path) -> None:
        group = a_group(cgroup)
        plain = tmp_path / "plain"
        plain.touch()
        for program in ("no-such-program-anywhere", "./nothing", str(tmp_path / "nothing")):
            with pytest.raises(FileNotFoundError):
                group.spawn([program], cwd=tmp_path)
        with pytest.raises(PermissionError):
            group.spawn(["./plain"], cwd=tmp_path)
        with pytest.raises(FileNotFoundError):
            group.spawn(["true"], cwd=tmp_path / "nowhere")
        assert group.members() == set()
        group.close()

    @alone
    def test_dying_with_the_parent(self, cgroup: bool, tmp_path: Path) -> None:
        group = a_group(cgroup)
        here = str(Path(__file__).parent)
        code = f"""
import sys, time
sys.path.insert(0, {here!r})
from stoker.processes import make_group
inner = make_group("STOKER_TRAINING", {uuid.uuid4().hex!r}, cgroup={cgroup})
for name in ("bound", "free"):
    child = inner.spawn(["sleep", "3600"], dies_with_parent=name == "bound")
    print(child.pid, file=open(sys.argv[1] + "/" + name, "w"), flush=True)
time.sleep(3600)
"""
        parent = group.spawn([sys.executable, "-c", code, str(tmp_path)])
        bound, free = (Process.of(pid_in(tmp_path / name)) for name in ("bound", "free"))
        assert bound is not None
        assert free is not None
        # `sleep` itself, not the step before it, which might be killed before it could ask.
        until(lambda: Path(f"/proc/{bound.pid}/comm").read_text() == "sleep\n", "the program")
        parent.kill()
        parent.wait()
        until(lambda: not bound.alive, "the child to die with its parent")
        assert free.alive
        assert group.kill()
        assert not free.alive
        group.close()

    def test_a_parent_that_died_before_the_call_counts(self) -> None:
        text = (
            "import os, signal\n"
            "from stoker.processes import set_parent_death_signal\n"
            "set_parent_death_signal(signal.SIGKILL, parent=os.getpid())\n"
        )
        done = subprocess.run([sys.executable, "-c", text], check=False)
        assert done.returncode == -signal.SIGKILL


# ── groups ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class TestGroup:
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
        assert group.kill()
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


def _cpu(pid: int) -> list[str]:
    """User and system time of a process, in ticks."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]


# ── where cgroups are ─────────────────────────────────────────────────────────────────────────────────────────────────


class TestWhereCgroupsAre:
    def test_alone_beside_version_1_and_in_a_container(self) -> None:
        pure = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
        mixed = (
            "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw\n"
        )
        mixed += "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
        inner = "30 23 0:26 /docker/abc /sys/fs/my\\040cgroup ro shared:4 master:1 - cgroup2 cgroup rw\n"
        assert find_mount(pure) == Mount("/sys/fs/cgroup", "/")
        assert find_mount(mixed) == Mount("/sys/fs/cgroup/unified", "/")
        assert find_mount(inner) == Mount("/sys/fs/my cgroup", "/docker/abc")
        assert find_mount("31 23 0:28 / /sys/fs/cgroup rw - tmpfs cgroup2 rw\n") is None

    def test_the_own_path(self) -> None:
        assert find_path("12:pids:/x\n0::/user.slice/a.scope\n") == "/user.slice/a.scope"
        assert find_path("12:pids:/x\n") is None

    @pytest.mark.parametrize(
        ("mount", "path", "folder"),
        [
            (Mount("/sys/fs/cgroup", "/"), "/", "/sys/fs/cgroup"),
            (Mount("/sys/fs/cgroup", "/"), "/user.slice/a.scope", "/sys/fs/cgroup/user.slice/a.scope"),
            (Mount("/cg", "/docker/abc"), "/docker/abc", "/cg"),
            (Mount("/cg", "/docker/abc"), "/docker/abc/x", "/cg/x"),
            (Mount("/cg", "/docker/abc"), "/docker/abcd", None),
            (Mount("/cg", "/docker/abc"), "/", None),
        ],
    )
    def test_folders_and_paths(self, mount: Mount, path: str, folder: str | None) -> None:
        assert mount.folder(path) == folder
        if folder is not None:
            assert mount.path(folder + "/x") == path.rstrip("/") + "/x"


# ── open files ────────────────────────────────────────────────────────────────────────────────────────────────────────


class TestOpenForWriting:
    def test_what_may_still_change(self, tmp_path: Path) -> None:
        folder = tmp_path / "folder"
        (folder / "deep").mkdir(parents=True)
        for name in ("read", "append", "deep/both", "mapped", "private", "closed", "deleted"):
            (folder / name).write_bytes(b"x" * 4096)
        (tmp_path / "folder-beside").write_bytes(b"")
        link = tmp_path / "link"
        link.symlink_to(folder)
        me = {os.getpid()}
        with (
            (folder / "read").open("rb"),
            (folder / "append").open("ab"),
            (folder / "deep/both").open("r+b"),
            (folder / "deleted").open("wb"),
            (folder / "new").open("wb"),
            (tmp_path / "folder-beside").open("wb"),
        ):
            (folder / "deleted").unlink()
            with (folder / "mapped").open("r+b") as file:
                shared = mmap.mmap(file.fileno(), 4096)
            with (folder / "private").open("rb") as file:
                private = mmap.mmap(file.fileno(), 4096, flags=mmap.MAP_PRIVATE)
            # CPython keeps its own descriptor of what it maps; another process would not.
            expected = {"append", "deep/both", "new", "mapped"}
            assert open_for_writing(me, folder) == {folder / name for name in expected}
            assert open_for_writing(me, link) == {link / name for name in expected}
            assert open_for_writing([], folder) == set()
            shared.close()
            private.close()
        assert open_for_writing(me, folder) == set()

    def test_a_mapping_alone_counts(self, tmp_path: Path) -> None:
        path = tmp_path / "mapped"
        path.write_bytes(b"x" * 4096)
        code = """
import mmap, os, sys, time
file = os.open(sys.argv[1], os.O_RDWR)
kept = mmap.mmap(file, 4096)
os.closerange(3, 64)
print("ready", flush=True)
time.sleep(3600)
"""
        child = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
            held = {os.readlink(f"/proc/{child.pid}/fd/{n}") for n in os.listdir(f"/proc/{child.pid}/fd")}  # noqa: PTH115, PTH208
            assert str(path) not in held
            assert open_for_writing({child.pid}, tmp_path) == {path}
        finally:
            child.kill()
            child.wait()
        assert open_for_writing({child.pid}, tmp_path) == set()
