"""A training that lets processes loose: nothing of it is left when it is over, however it ends."""

from __future__ import annotations

import os

import pytest
from harness import World, until

from stoker import client
from stoker.processes import Process

# Each tries another way out: a daemon (double fork, session of its own), ignoring SIGTERM, an empty environment, the
# root as working folder, a new process group, output elsewhere, the end of its first thread. Their pids are written
# down where Stoker does not look.
SCRIPT = """\
import os, signal, subprocess, sys, time
from pathlib import Path

SLEEPER = '''
import os, signal, sys, time
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT): signal.signal(number, signal.SIG_IGN)
with open(sys.argv[1], "a") as file: file.write(f"{os.getpid()}\\\\n")
time.sleep(600)
'''
# Looks like a zombie, and goes on.
LEADERLESS = '''
import ctypes, os, sys, threading, time
def work():
    with open(sys.argv[1], "a") as file: file.write(f"{os.getpid()}\\\\n")
    time.sleep(600)
threading.Thread(target=work).start()
ctypes.CDLL(None).syscall(93 if os.uname().machine == "aarch64" else 60, 0)
'''
record = os.environ["TRUTH"] + "/pids"
clean = {"PATH": os.environ["PATH"]}

def daemon(env):
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    os.chdir("/")
    null = os.open("/dev/null", os.O_RDWR)
    for target in (0, 1, 2): os.dup2(null, target)
    os.execve(sys.executable, [sys.executable, "-c", SLEEPER, record], env)

daemon(dict(os.environ))
daemon(clean)
for env in (clean, None):
    subprocess.Popen([sys.executable, "-c", SLEEPER, record], env=env, cwd="/", start_new_session=True)
    subprocess.Popen([sys.executable, "-c", SLEEPER, record], env=env, cwd="/", preexec_fn=os.setpgrp)
subprocess.Popen([sys.executable, "-c", LEADERLESS, record], env=clean, cwd="/", start_new_session=True)
while len(Path(record).read_text().split() if Path(record).exists() else ()) < 7:
    time.sleep(0.02)
print("they are loose", flush=True)
if sys.argv[1] == "stay":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
"""


KILLS = ["kill-agent", "kill-supervisor", "kill-warden"]


def running(pid: int) -> bool:
    return Process.of(pid) is not None


@pytest.mark.parametrize("cgroup", [True, False], ids=["cgroup", "no-cgroup"])
@pytest.mark.parametrize("end", ["finish", "stop", "reclaim", "terminate", *KILLS])
def test_nothing_is_left(world: World, monkeypatch: pytest.MonkeyPatch, cgroup: bool, end: str) -> None:
    if not cgroup:
        monkeypatch.setenv("STOKER_NO_CGROUP", "1")
    elif end == "kill-warden":
        pytest.skip("a cgroup needs none")
    world.write(SCRIPT)
    run = ["python", "train.py", "finish" if end == "finish" else "stay"]
    job = world.submit(run=run, checkpoints={"grace": "1s"})
    record = world.truth / "pids"
    until(lambda: "they are loose" in world.lines(job), "they are loose")
    first = [int(word) for word in record.read_text().split()]
    assert len(first) == 7
    try:
        if end == "reclaim":
            world.interrupt(job, grace_s=1)
        elif end == "terminate":
            world.terminate(world.instance(job))
        elif end.startswith("kill-"):
            assert world.kill(end.removeprefix("kill-"))
        if end in ("reclaim", "terminate", *KILLS):
            until(lambda: len(world.state(job).attempts) > 1, "another attempt takes over")
            until(lambda: not [pid for pid in first if running(pid)], "those of the first attempt are gone")
        if end != "finish":
            client.stop(job, world.url)
        phase = world.ended(job).phase
        assert phase == ("succeeded" if end == "finish" else "stopped"), world.story(job)
        # At once: an ended job whose machines are gone has nobody left.
        assert not [pid for pid in map(int, record.read_text().split()) if running(pid)]
    finally:
        for pid in map(int, record.read_text().split()):
            if running(pid):
                os.kill(pid, 9)
