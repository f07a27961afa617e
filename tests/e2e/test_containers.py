"""Jobs in containers, by a real docker: what is seen inside, how it ends, and that nothing is left."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from container_jobs import contained
from harness import World, chain, until

from stoker.model.errors import UserError
from tests.support.engines import IMAGE, Docker, why_no_docker
from tests.support.package_index import make_wheel

pytestmark = pytest.mark.skipif(why_no_docker() is not None, reason=why_no_docker() or "")


def test_the_training_is_inside_with_everything_it_was_promised(world: World, engine: Docker) -> None:
    world.write(
        """
import json, os, sys
from pathlib import Path
from stoker import train
with train.checkpoint("one", step=1) as folder:
    (folder / "state").write_text("saved")
Path(os.environ["STOKER_OUTPUT_DIR"], "result").write_text("made inside")
Path(os.environ["TRUTH"], "seen").write_text(json.dumps({
    "environ": dict(os.environ), "cwd": os.getcwd(), "python": sys.executable,
    "data": Path(os.environ["STOKER_INPUT_DATA"], "x").read_text(),
    "root": os.listdir("/"), "argv": sys.argv[1:], "init": Path("/proc/1/comm").read_text().strip(),
}))
"""
    )
    data = world.root / "data"
    data.mkdir()
    (data / "x").write_text("an input")
    ended = world.run(params={"lr": 0.5}, outputs="artifacts", inputs={"data": str(data)}, environment=contained(world))
    assert ended.outcome == "succeeded", world.story(ended.id)
    seen = json.loads((world.truth / "seen").read_text())
    environ = seen["environ"]
    assert seen["python"].startswith("/usr/") and seen["init"] == "docker-init"
    assert environ["FROM_IMAGE"] == "yes" and environ["PATH"].startswith("/usr/local/sbin")
    assert "FROM_ENTRY" not in environ
    assert seen["cwd"].endswith("/code") and environ["STOKER_JOB"] == ended.id
    assert environ["PYTHONPATH"].split(":")[0] == "/from/image"
    assert seen["data"] == "an input" and seen["argv"] == ["--lr", "0.5"]
    assert not {"STOKER_HOME", "STOKER_STORE", "VIRTUAL_ENV", "DOCKER_HOST"} & set(environ)
    assert (world.root / "store").exists()
    assert ended.last_checkpoint is not None


def test_a_reclaimed_training_saves_and_the_next_one_goes_on_in_the_same_image(world: World, engine: Docker) -> None:
    world.script("counter.py")
    job = world.submit(
        run="python train.py --steps 30 --pause 0.1",
        outputs="artifacts",
        resources={"spot": True},
        environment=contained(world),
    )
    world.training(job, step=7)
    # The name means another image from now on. This job goes on with the one that it began with.
    engine.ask("tag", IMAGE, "stoker-test:kept")
    engine.ask("rmi", IMAGE)
    try:
        world.interrupt(job, grace_s=20)
        ended = world.ended(job)
    finally:
        engine.ask("tag", "stoker-test:kept", IMAGE)
        engine.ask("rmi", "stoker-test:kept")
    assert ended.outcome == "succeeded", world.story(job)
    assert len(ended.attempts) == 2
    # Through the shell that `run` is: one signal, and what it saved is what the next attempt began with.
    (interrupted,) = world.journal("interrupted")
    assert [record.step for record in world.journal("start")] == [0, interrupted.step]
    assert (world.outputs(job) / "result.txt").read_text() == chain(30)
    assert not world.journal("overlap")
    save = ended.attempts[0].save
    assert save is not None and save.saved_s is not None and save.saved_s < 5
    assert world.cli("show", job).stdout.count("sha256:") == 1


def test_a_training_that_will_not_go_is_halted_and_killed(world: World, engine: Docker) -> None:
    world.script("counter.py")
    job = world.submit(
        run="python train.py --steps 600 --pause 0.05 --every 3 --stubborn 1",
        resources={"spot": True},
        environment=contained(world),
    )
    world.training(job, step=7)
    world.interrupt(job, grace_s=2)
    world.training(job, step=12, attempt=2)
    world.cli("stop", job)
    until(lambda: world.summary(job).phase in ("stopping", "stopped"), "it is asked to go")
    starts = [record.step for record in world.journal("start")]
    # What it saved last is whole, though it was killed in the middle of something.
    assert len(starts) == 2 and starts[1] >= 6
    for instance in {world.instance(job)} if world.state(job).open_claims else set():
        world.terminate(instance)
    world.ended(job)
    assert not world.journal("overlap")


@pytest.mark.parametrize(
    ("run", "code", "word"),
    [
        ("exit 3", 3, "exit code 3"),
        (["python", "-c", "import sys; sys.exit(4)"], 4, "exit code 4"),
        (["no-such-program"], 127, "there is no program 'no-such-program'"),
    ],
)
def test_a_failing_command_is_the_users(world: World, engine: Docker, run: Any, code: int, word: str) -> None:
    ended = world.run(run=run, environment=contained(world))
    assert (ended.outcome, ended.rule, ended.exit_code) == ("failed", "user-error", code), world.story(ended.id)
    assert word in ended.reason


def test_a_kill_for_want_of_memory_is_told(world: World, engine: Docker) -> None:
    world.write(
        """
import os, pathlib
pathlib.Path(os.environ["TRUTH"], os.environ["STOKER_ATTEMPT"]).touch()
if os.environ["STOKER_ATTEMPT"] == "1":
    x = bytearray(300_000_000)
    print("never")
"""
    )
    ended = world.run(environment=contained(world, memory="100m", memory_swap="100m"))
    assert ended.outcome == "succeeded", world.story(ended.id)
    first = ended.attempts[0]
    assert (first.rule, first.exit_code) == ("oom", 137), world.story(ended.id)


def test_flags_are_seen_inside_and_steps_stay_there(world: World, engine: Docker) -> None:
    world.write(
        """
import json, os, re
from pathlib import Path
status = Path("/proc/self/status").read_text()
Path(os.environ["TRUTH"], "seen").write_text(json.dumps({
    "shm": os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize,
    "caps": re.search(r"CapEff:\\s*(\\w+)", status)[1],
    "extra": Path("/extra/file").read_text(),
    "files": re.search(r"Max open files\\s+(\\d+)", Path("/proc/self/limits").read_text())[1],
    "links": sorted(os.listdir("/sys/class/net")),
    "made": Path("/usr/local/made-by-setup").read_text(),
    "entry": os.environ.get("FROM_ENTRY"),
}))
"""
    )
    extra = world.root / "extra"
    extra.mkdir()
    (extra / "file").write_text("mounted")
    flags = {
        "shm_size": "48m",
        "cap_add": ["SYS_ADMIN", "NET_RAW"],
        "ulimits": {"nofile": "512:512"},
        "network": "none",
        "volumes": [f"{extra}:/extra:ro"],
        "pids_limit": 200,
    }
    environment = contained(world, **flags)
    environment["container"]["entrypoint"] = True
    ended = world.run(environment=environment, setup='echo once > /usr/local/made-by-setup; test -z "$FROM_ENTRY"')
    assert ended.outcome == "succeeded", world.story(ended.id)
    seen = json.loads((world.truth / "seen").read_text())
    assert seen["shm"] == 48 * 1024 * 1024
    assert int(seen["caps"], 16) & 1 << 21
    assert (seen["extra"], seen["files"], seen["links"]) == ("mounted", "512", ["lo"])
    assert seen["made"] == "once\n"
    assert seen["entry"] == "python train.py"


def test_no_secret_is_shown_to_anybody(world: World, engine: Docker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "hunter2-and-more")
    world.write(
        """
import os, pathlib, time
truth = pathlib.Path(os.environ["TRUTH"])
print("it is", os.environ["TOKEN"], flush=True)
(truth / "length").write_text(str(len(os.environ["TOKEN"])))
while not (truth / "go").exists():
    time.sleep(0.05)
"""
    )
    job = world.submit(secrets={"TOKEN": "env"}, environment=contained(world))
    until(lambda: (world.truth / "length").exists(), "it has its secret")
    (name,) = engine.containers()
    assert "hunter2" not in json.dumps(engine.inspect(name))
    assert "hunter2" not in engine.ask("logs", name, check=False)
    shown = [entry / "cmdline" for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    assert not [path for path in shown if path.exists() and b"hunter2" in path.read_bytes()]
    places = (world.home, world.folder, engine.folder / "data")
    kept = [path for place in places for path in place.rglob("*") if path.is_file() and not path.is_symlink()]
    assert len(kept) > 1000
    assert not [path for path in kept if b"hunter2" in _content(path)]
    (world.truth / "go").touch()
    ended = world.ended(job)
    assert ended.outcome == "succeeded" and (world.truth / "length").read_text() == "16"
    assert "it is ***" in world.lines(job)


def _content(path: Path) -> bytes:
    """Nothing of a file that was replaced since it was listed, such as a chunk of the log."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


@pytest.mark.parametrize("victim", ["agent", "supervisor", "both"])
def test_a_container_does_not_outlive_its_agent(world: World, engine: Docker, victim: str) -> None:
    world.script("counter.py")
    job = world.submit(run="python train.py --steps 500 --pause 0.1", environment=contained(world))
    world.training(job, step=3)
    (name,) = engine.containers()
    init = int(engine.inspect(name)["State"]["Pid"])
    assert _threads(init) > 1
    victims = world.processes("agent") + world.processes("supervisor")
    if victim != "both":
        victims = world.processes(victim)
    # Nobody is left who could ask the engine for anything: a governor would clean up after the machine.
    governors = world.processes("governor")
    for process in governors:
        process.signal(signal.SIGSTOP)
    for process in victims:
        process.signal(signal.SIGKILL)
    until(lambda: name not in engine.containers(), "its container is off the disk", 30)
    assert not Path(f"/proc/{init}").exists()
    for process in governors:
        process.signal(signal.SIGCONT)
    world.training(job, step=3, attempt=2)
    world.cli("stop", job)
    world.ended(job)
    assert not world.journal("overlap")


def _threads(init: int) -> int:
    children = Path(f"/proc/{init}/task/{init}/children")
    return 1 + len(children.read_text().split()) if children.exists() else 2


def test_what_the_engine_refuses_is_told_as_what_it_is(
    world: World, engine: Docker, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.write("print('never')")
    wrong = contained(world)
    wrong["container"]["image"] = "localhost:1/no/such:image"
    flags = contained(world, no_such_flag=True)
    for environment, rule, words in (
        (flags, "user-error", "environment.container.run.no_such_flag: docker: unknown flag: --no-such-flag; `docker"),
        (contained(world, shmsize="1g"), "user-error", "environment.container.run.shmsize: docker: unknown flag"),
        (contained(world, memory="much"), "user-error", "environment.container.run.memory: docker: "),
        # What is told has the signs of a registry that does not answer, and is none.
        (contained(world, stop_timeout="abc"), "user-error", '"abc" for "--stop-timeout"'),
        (contained(world, mounts=[{"type": "bind", "src": "/no/503", "dst": "/x"}]), "user-error", "/no/503"),
        (contained(world, device="/dev/no-such"), "user-error", "/dev/no-such"),
        # Either the image's first process may not fork, or the engine's own may start no thread.
        (
            contained(world, pids_limit=1),
            "user-error",
            r"\(exit code \d+\): (\[FATAL tini \(1\)\] fork failed|runtime: )",
        ),
    ):
        ended = world.run(environment=environment)
        assert (ended.outcome, ended.rule, len(ended.attempts)) == ("failed", rule, 1), world.story(ended.id)
        assert re.search(words, ended.reason), ended.reason
        assert not [noise for noise in ("Usage:", "failed to start containers", "Run '") if noise in ended.reason]
    for flag, word in (("name", "Stoker names the container"), ("help", "is not yours"), ("e", "long name")):
        refused = world.cli("run", "--set", f"environment.container={{image: x, run: {{{flag}: x}}}}", "--", "true")
        assert refused.returncode == 2 and word in refused.stderr and f"run.{flag}" in refused.stderr, refused.stderr


@pytest.mark.parametrize("user", ["1000:1000", "nobody"])
def test_another_user_inside_can_work_and_is_cleaned_up_after(world: World, engine: Docker, user: str) -> None:
    world.script("counter.py")
    world.truth.chmod(0o777)
    job = world.submit(
        run="id -u; python train.py --steps 12 --pause 0.1",
        outputs="artifacts",
        resources={"spot": True},
        environment=contained(world, user=user),
    )
    world.training(job, step=6)
    world.interrupt(job, grace_s=20)
    ended = world.ended(job)
    assert ended.outcome == "succeeded" and len(ended.attempts) == 2, world.story(job)
    assert ("1000" if user.startswith("1000") else "65534") in world.lines(job)
    assert (world.outputs(job) / "result.txt").read_text() == chain(12)
    assert not list(world.home.glob("nodes/*/*/code"))


def test_a_visitor_is_inside_and_holds_nobody_up(world: World, engine: Docker) -> None:
    world.script("counter.py")
    job = world.submit(
        name="visited",
        run="python train.py --steps 500 --pause 0.1",
        env={"COLOUR": "green"},
        environment=contained(world),
    )
    world.training(job, step=2)
    told = world.cli("exec", job, "--", "sh", "-c", 'cat /proc/1/comm; ls train.py; echo "$COLOUR $FROM_IMAGE"; exit 9')
    assert (told.returncode, told.stdout) == (9, "docker-init\ntrain.py\ngreen yes\n"), told.stderr
    missing = world.cli("exec", job, "--", "no-such-program")
    assert missing.returncode == 127 and "no program 'no-such-program' in the container" in missing.stderr
    world.start("exec", job, "--", "sleep", "1000")
    until(lambda: "sleep 1000" in engine.ask("top", engine.containers()[0]), "somebody visits")
    began = time.monotonic()
    world.cli("stop", job)
    world.ended(job)
    assert time.monotonic() - began < 30


def test_an_image_that_cannot_be_had_is_told_as_what_it_is(world: World, engine: Docker) -> None:
    environment = contained(world)
    environment["container"]["image"] = "stoker-no-such"
    job = world.submit(run="true", environment=environment)
    # Nothing can be reached from here: that is no mistake of the user's, and is tried again, with pauses.
    until(lambda: any("trying again in 8 s" in line for line in world.lines(job)), "it was tried three times", 60)
    (first, *_) = [line for line in world.lines(job) if "cannot be pulled now" in line]
    assert "stoker-no-such cannot be pulled now: " in first and first.endswith("trying again in 2 s")
    # Nobody who wants to stop waits for a registry.
    began = time.monotonic()
    world.cli("stop", job)
    ended = world.ended(job)
    assert time.monotonic() - began < 7
    assert (ended.outcome, len(ended.attempts)) == ("stopped", 1), world.story(job)


def test_a_daemon_that_is_not_there_is_the_submitters_to_start(
    world: World, engine: Docker, monkeypatch: pytest.MonkeyPatch
) -> None:
    socket = Path(os.environ["DOCKER_HOST"].removeprefix("unix://"))
    link = socket.with_name("link")
    link.symlink_to(socket)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{link}")
    job = world.submit(detach=False, run="true", environment=contained(world))
    link.unlink()
    with pytest.raises(UserError, match=r"^environment.container: docker's daemon does not answer: .*set DOCKER_HOST$"):
        world.submit(run="true", environment=contained(world))
    # One that goes later is waited for.
    world.start("govern", "--watch")
    until(lambda: any("waiting for it" in line for line in world.lines(job)), "it is missed")
    link.symlink_to(socket)
    ended = world.ended(job)
    assert (ended.outcome, len(ended.attempts)) == ("succeeded", 1), world.story(job)
    link.unlink()


def test_a_container_that_somebody_removes_is_lost_and_not_the_users_fault(world: World, engine: Docker) -> None:
    world.script("counter.py")
    job = world.submit(run="python train.py --steps 25 --pause 0.1 --every 2", environment=contained(world))
    world.training(job, step=5)
    engine.ask("rm", "--force", *engine.containers())
    ended = world.ended(job)
    assert ended.outcome == "succeeded", world.story(job)
    assert (ended.attempts[0].outcome, ended.attempts[0].reason) == (
        "infrastructure",
        "the container was ended from outside",
    )
    assert [record.text for record in world.journal("finish")] == [chain(25)]


def test_two_nodes_find_each_other(world: World, engine: Docker) -> None:
    world.write(
        """
import os, socket, sys, time
rank, port = int(os.environ["NODE_RANK"]), int(os.environ["MASTER_PORT"])
if rank == 0:
    with socket.create_server((os.environ["MASTER_ADDR"], port)) as server:
        peer, _ = server.accept()
        sys.exit(peer.recv(10) != b"hello")
for _ in range(200):
    try:
        socket.create_connection((os.environ["MASTER_ADDR"], port)).sendall(b"hello")
        break
    except OSError:
        time.sleep(0.05)
else:
    sys.exit(1)
"""
    )
    ended = world.run(nodes=2, environment=contained(world))
    assert ended.outcome == "succeeded", world.story(ended.id)


def test_a_script_of_sagemakers_finds_its_tree(world: World, engine: Docker) -> None:
    world.write(
        """
import os, pathlib, socket
assert os.environ["SM_HP_BATCH-SIZE"] == "4" and os.environ["SM_HP_LR"] == "0.5"
assert os.listdir(os.environ["SM_CHANNEL_TRAIN-DATA"]) == ["x"]
pathlib.Path("/opt/ml/model/weights").write_text(os.environ["SM_MODEL_DIR"])
pathlib.Path("/opt/ml/checkpoints/one").write_text("x")
assert os.getcwd() == "/opt/ml/code" and os.path.exists("/opt/ml/input/config/hyperparameters.json")
socket.gethostbyname(os.environ["SM_CURRENT_HOST"])
"""
    )
    data = world.root / "data"
    data.mkdir()
    (data / "x").touch()
    environment = contained(world) | {"contract": "sagemaker"}
    params = {"batch-size": 4, "lr": 0.5}
    ended = world.run(environment=environment, params=params, inputs={"train-data": str(data)})
    assert ended.outcome == "succeeded", world.story(ended.id)
    assert [path.read_text() for path in world.outputs(ended.id).rglob("weights")] == ["/opt/ml/model"]
    assert ended.last_checkpoint is not None


def test_packages_are_installed_for_the_images_own_python(world: World, engine: Docker) -> None:
    wheels = world.root / "wheels"
    wheels.mkdir()
    wheel = make_wheel("leaf", "1.0")
    (wheels / wheel.filename).write_bytes(wheel.data)
    (world.code / "requirements.txt").write_text(f"--no-index\n--find-links {wheels}\nleaf\n")
    world.write(
        """
import leaf, os, pathlib, sys
pathlib.Path(os.environ["TRUTH"], "seen").write_text(f"{leaf.__file__} {sys.base_prefix}")
"""
    )
    ended = world.run(environment=contained(world, volumes=[f"{wheels}:{wheels}:ro"]))
    assert ended.outcome == "succeeded", world.story(ended.id)
    where, base = (world.truth / "seen").read_text().split()
    assert where.startswith(str(world.home / "environments")) and base == "/usr"
