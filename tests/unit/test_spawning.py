"""A program is started as a member of a group, with exactly what it was given."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import owned_groups
import pytest
from owned_groups import a_group, alone, pid_in, python, until

from stoker.processes import NODE, Process

pytestmark = pytest.mark.slow

# A fixture that all tests of groups share.
cgroup = owned_groups.cgroup


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
        assert group.kill(60.0)
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
