"""Jobs with inputs: copied from buckets, shared, sharded, mounted; through notices, kills and a bucket that is away."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from harness import EXAMPLES, World, fields, until

from stoker import client
from stoker.model.errors import UserError
from stoker.processes import Process
from stoker.processes.unmounting import mounted_below
from stoker.store.base import open_store
from tests.support.machines.store_door import StoreDoor
from tests.support.servers import S3Server, isolated, pytest_isolated

# Says what it finds: every file with what is in it, by the variable that names the input.
READER = """
import json, os, pathlib, sys, time
found = {}
for name, where in sorted(os.environ.items()):
    if name.startswith("STOKER_INPUT_"):
        path = pathlib.Path(where)
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        found[name] = where if "://" in where else {
            str(one.relative_to(path)): one.read_text() for one in files if one.is_file()
        }
print("found", os.environ["NODE_RANK"], json.dumps(found), flush=True)
truth = pathlib.Path(os.environ["TRUTH"])
(truth / f"read-{os.environ['STOKER_JOB']}-{os.environ['STOKER_ATTEMPT']}").touch()
while "--wait" in sys.argv and not (truth / "go").exists():
    time.sleep(0.05)
"""


# Reads what nobody has read before, once it may.
LATE_READER = """
import os, pathlib, time
truth = pathlib.Path(os.environ["TRUTH"])
(truth / "up").touch()
while not (truth / "go").exists():
    time.sleep(0.05)
print(len(pathlib.Path(os.environ["STOKER_INPUT_DATA"], "late").read_bytes()))
"""


class SilentDoor:
    """Leads to an S3 on loopback. Once it is silent, `asked` is set when somebody asks, and nobody is answered."""

    def __init__(self, port: int) -> None:
        self._upstream = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.silent = False
        self.asked = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, _ = self._listener.accept()
            far = socket.create_connection(("127.0.0.1", self._upstream))
            for source, target in ((near, far), (far, near)):
                threading.Thread(target=self._pass_on, args=(source, target), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if self.silent:
                    self.asked.set()
                else:
                    target.sendall(data)
            target.shutdown(socket.SHUT_WR)


def servers(folder: Path) -> list[Process]:
    """Those that serve what is mounted below a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            words = (entry / "cmdline").read_bytes() if entry.name.isdecimal() else b""
            process = Process.of(int(entry.name)) if words.startswith((b"rclone", b"s3fs")) else None
            if process is not None and os.fsencode(folder) + b"/" in words:
                found.append(process)
    return found


def found(world: World, job: str) -> dict[int, dict[str, object]]:
    """What each rank of a job said, last."""
    told = {}
    for line in world.lines(job):
        if line.startswith("found "):
            _, rank, tree = line.split(" ", 2)
            told[int(rank)] = json.loads(tree)
    return told


def fill(url: str, files: dict[str, str]) -> str:
    store = open_store(url)
    for key, text in files.items():
        store.put(key, text.encode())
    return url


FILES = {"a.txt": "a", "sub/b.txt": "b"}

if isolated():

    @pytest.fixture(params=["s3", "gs"])
    def data(request: pytest.FixtureRequest, s3_url: str, gcs_url: str) -> str:
        """A bucket of each cloud that is not the store's."""
        url = s3_url if request.param == "s3" else gcs_url
        return fill(f"{url}/data", FILES)

    def test_copied_streamed_and_in_place(world: World, data: str, tmp_path: Path) -> None:
        world.write(READER)
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "c.txt").write_text("c")
        job = world.submit(
            inputs={
                "train-set": data,
                "one": f"{data}/sub/b.txt",
                "streamed": {"from": data, "mode": "stream"},
                "mine": str(tmp_path / "mine"),
            }
        )
        assert world.ended(job).outcome == "succeeded", world.story(job)
        assert found(world, job)[0] == {
            "STOKER_INPUT_MINE": {"c.txt": "c"},
            "STOKER_INPUT_ONE": {".": "b"},
            "STOKER_INPUT_STREAMED": data,
            "STOKER_INPUT_TRAIN_SET": FILES,
        }
        assert f"[stoker] inputs.train-set: fetching 2 files, 2 B from {data}" in world.lines(job)

    def test_the_example(world: World) -> None:
        job = client.submit(str(EXAMPLES / "inputs" / "stoker.yaml"), store=world.url, detach=True)
        assert world.ended(job).outcome == "succeeded", world.story(job)
        lines = sorted(line for line in world.lines(job) if line.startswith("node "))
        assert lines == [
            "node 0 read part-0.csv, part-2.csv: y = 3.0 x -1.0",
            "node 1 read part-1.csv, part-3.csv: y = 3.0 x -1.0",
        ]

    def test_two_jobs_at_once_share_it(world: World, data: str) -> None:
        world.write(READER)
        jobs = [world.submit(inputs={"data": data}, run=["python", "train.py", "--wait"]) for _ in range(2)]
        until(lambda: len(list(world.truth.glob("read-*"))) == 2, "both read")
        (world.truth / "go").touch()
        assert [world.ended(job).outcome for job in jobs] == ["succeeded"] * 2
        assert [found(world, job)[0]["STOKER_INPUT_DATA"] for job in jobs] == [FILES] * 2
        lines = [line for job in jobs for line in world.lines(job) if line.startswith("[stoker] inputs.")]
        assert len([line for line in lines if ": fetching " in line]) == 1, lines
        assert len([line for line in lines if line.endswith("already on this machine")]) == 1, lines

    def test_the_next_attempt_finds_it(world: World, data: str) -> None:
        world.write(READER)
        job = world.submit(inputs={"data": data}, run=["python", "train.py", "--wait"])
        until(lambda: list(world.truth.glob("read-*-1")), "the first reads")
        world.interrupt(job, grace_s=5)
        until(lambda: list(world.truth.glob("read-*-2")), "the second reads")
        (world.truth / "go").touch()
        summary = world.ended(job)
        assert fields(summary, "outcome") == [("reclaimed",), ("succeeded",)], world.story(job)
        assert len([line for line in world.lines(job) if "already on this machine" in line]) == 1

    def test_nodes_take_their_shards(world: World, s3_url: str, tmp_path: Path) -> None:
        world.write(READER)
        fill(f"{s3_url}/data", {f"{n}": str(n) for n in range(5)})
        mine = tmp_path / "mine"
        mine.mkdir()
        for n in range(3):
            (mine / f"m{n}").write_text(str(n))
        job = world.submit(
            nodes=2,
            inputs={
                "data": {"from": f"{s3_url}/data", "shard": True},
                "whole": f"{s3_url}/data",
                "mine": {"from": str(mine), "shard": True},
            },
        )
        assert world.ended(job).outcome == "succeeded", world.story(job)
        told = found(world, job)
        assert told[0]["STOKER_INPUT_DATA"] == {"0": "0", "2": "2", "4": "4"}
        assert told[1]["STOKER_INPUT_DATA"] == {"1": "1", "3": "3"}
        assert told[0]["STOKER_INPUT_WHOLE"] == told[1]["STOKER_INPUT_WHOLE"] == {f"{n}": str(n) for n in range(5)}
        assert told[0]["STOKER_INPUT_MINE"] == {"m0": "0", "m2": "2"} and told[1]["STOKER_INPUT_MINE"] == {"m1": "1"}

    def test_a_source_that_is_not_there_fails_the_job(world: World, s3_url: str) -> None:
        world.write(READER)
        nothing = f"{s3_url}/nothing"
        with pytest.raises(UserError, match=rf"^inputs\.data: there is nothing at {nothing}; check the URL$"):
            world.submit(inputs={"data": nothing})
        # It is gone when somebody comes for it.
        fill(nothing, {"a": "a"})
        job = world.submit(detach=False, inputs={"data": nothing})
        open_store(nothing).delete(["a"])
        summary = client.wait(job, world.url)
        assert summary.outcome == "failed" and len(summary.attempts) == 1, world.story(job)
        assert f"inputs.data: there is nothing at {s3_url}/nothing" in "\n".join(world.lines(job))

    def test_a_notice_while_it_is_fetched_and_a_bucket_that_is_away(
        world: World, s3: S3Server, s3_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The first attempt is reclaimed while its bucket is away; the second fetches when it is back."""
        world.write(READER)
        fill(f"{s3_url}/data", FILES)
        door = StoreDoor("127.0.0.1", int(s3.endpoint.rpartition(":")[2]))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{door.port}")
        door.shut("everyone")
        job = world.submit(inputs={"data": f"{s3_url}/data"})
        until(lambda: any("trying again" in line for line in world.lines(job)), "it is told that the bucket is away")
        world.interrupt(job, grace_s=20)
        until(lambda: world.state(job).attempts[0].closed is not None, "the first leaves")
        door.shut("nobody")
        summary = world.ended(job)
        assert fields(summary, "outcome")[-1] == ("succeeded",), world.story(job)
        assert found(world, job)[0]["STOKER_INPUT_DATA"] == FILES

    @pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="/dev/fuse cannot be used here")
    @pytest.mark.skipif(not (shutil.which("rclone") or shutil.which("s3fs")), reason="nothing mounts buckets here")
    class TestMounted:
        def test_it_is_read_and_nothing_is_left(self, world: World, s3_url: str) -> None:
            world.write(READER)
            fill(f"{s3_url}/data", FILES)
            job = world.submit(inputs={"data": {"from": f"{s3_url}/data", "mode": "mount"}})
            assert world.ended(job).outcome == "succeeded", world.story(job)
            assert found(world, job)[0]["STOKER_INPUT_DATA"] == FILES
            assert any(f"{s3_url}/data is mounted read-only with " in line for line in world.lines(job))
            assert mounted_below(world.home) == []
            assert open_store(f"{s3_url}/data").head("a.txt") is not None

        @pytest.mark.parametrize("role", ["agent", "supervisor"])
        def test_after_a_kill_nothing_is_left_and_the_next_attempt_reads(
            self, world: World, s3_url: str, role: str
        ) -> None:
            world.write(READER)
            fill(f"{s3_url}/data", FILES)
            job = world.submit(
                inputs={"data": {"from": f"{s3_url}/data", "mode": "mount"}}, run=["python", "train.py", "--wait"]
            )
            until(lambda: list(world.truth.glob("read-*-1")), "the first reads")
            assert world.kill(role)
            until(lambda: list(world.truth.glob("read-*-2")), "the second reads")
            (world.truth / "go").touch()
            assert world.ended(job).outcome == "succeeded", world.story(job)
            assert mounted_below(world.home) == []
            assert sorted(meta.key for meta in open_store(f"{s3_url}/data").list("")) == sorted(FILES)

        @pytest.mark.parametrize("where", ["run", "setup"])
        def test_one_that_does_not_answer_holds_up_no_stop(
            self, world: World, s3: S3Server, s3_url: str, monkeypatch: pytest.MonkeyPatch, where: str
        ) -> None:
            """Who reads from it cannot be killed as long as it is there."""
            world.write(LATE_READER)
            fill(f"{s3_url}/data", {"late": "x" * 100_000})
            door = SilentDoor(int(s3.endpoint.rpartition(":")[2]))
            monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{door.port}")
            commands = {"run": "true"} | {where: "python train.py"}
            inputs = {"data": {"from": f"{s3_url}/data", "mode": "mount"}}
            job = world.submit(inputs=inputs, checkpoints={"grace": 2}, **commands)
            until((world.truth / "up").exists, "it runs")
            (server,) = servers(world.home)
            door.silent = True
            (world.truth / "go").touch()
            assert door.asked.wait(30)
            # It has the question, and will never answer.
            server.signal(signal.SIGSTOP)
            asked_s = time.monotonic()
            world.cli("stop", job)
            world.ended(job)
            assert time.monotonic() - asked_s < 12, world.story(job)
            until(lambda: not server.alive, "nobody serves it any more")
            assert mounted_below(world.home) == []

else:

    def test_inputs_of_jobs_in_a_network_of_its_own() -> None:
        pytest_isolated(__file__)
