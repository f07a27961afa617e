"""A container of SageMaker's as a node: how it starts, hears of its end, and is never taken for the one before it."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from stoker.agent.main import _announce
from stoker.agent.node import utcnow
from stoker.model import keys
from stoker.model.errors import StoreUnavailable
from stoker.model.node_config import NodeConfig
from stoker.providers.base import RunsInContainer, SupportsHostReplacement
from stoker.providers.sagemaker.bootstrap import host_and_rank
from stoker.providers.sagemaker.machine import ASKED, GRACE_S, SageMakerMachine
from stoker.testing.memory_store import MemoryStore

TAG = f"cp3{min(sys.version_info[1], 11)}-{ {'aarch64': 'arm64'}.get(platform.machine(), platform.machine()) }"
CONFIG = NodeConfig("s3://b/p", "sagemaker", "gpt-7f3k", 4, 1, 2, "stoker-0-gpt-7f3k-4x2.algo-2")


class Box:
    """What a container finds in /opt/ml, with an agent that is this script."""

    def __init__(self, ml: Path, agent: str, hosts: int = 2) -> None:
        self.ml = ml
        names = [f"algo-{n + 1}" for n in range(hosts)]
        (ml / "input/config").mkdir(parents=True)
        (ml / "input/config/resourceconfig.json").write_text(json.dumps({"current_host": names[-1], "hosts": names}))
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as files:
            entry = tarfile.TarInfo("__main__.py")
            entry.size = len(agent.encode())
            files.addfile(entry, io.BytesIO(agent.encode()))
        self.digest = hashlib.sha256(buffer.getvalue()).hexdigest()
        channel = ml / "input/data/stoker"
        channel.mkdir(parents=True)
        (channel / f"{self.digest}.tar.gz").write_bytes(buffer.getvalue())
        self.config: dict[str, Any] = {
            "training_job": "stoker-0-gpt-7f3k-4x2",
            "node": {"nodes": hosts, "job": "gpt-7f3k", "rank": 0, "instance": ""},
            "bundles": {TAG: f"{self.digest}-2"},
            "channels": {TAG: "stoker"},
            "environ": {"AWS_REGION": "eu-west-1"},
        }

    @property
    def node(self) -> Path:
        return self.ml / "stoker/node"

    def start(self) -> subprocess.Popen[str]:
        code = (
            "import json, sys; from pathlib import Path; from stoker.providers.sagemaker.bootstrap import main;"
            "sys.exit(main(json.loads(sys.argv[1]), Path(sys.argv[2])))"
        )
        command = [sys.executable, "-c", code, json.dumps(self.config), str(self.ml)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def run(self) -> tuple[int, str]:
        process = self.start()
        output, _ = process.communicate(timeout=60)
        return process.returncode, output

    @property
    def failure(self) -> str:
        return (self.ml / "output/failure").read_text()


def test_ranks_are_by_the_numbers_of_hosts_whatever_order_they_are_told_in(tmp_path: Path) -> None:
    names = [f"algo-{number}" for number in (10, 2, 1, 11, *range(3, 10))]
    (tmp_path / "input/config").mkdir(parents=True)
    for host, rank in (("algo-1", 0), ("algo-2", 1), ("algo-10", 9), ("algo-11", 10)):
        told = json.dumps({"current_host": host, "hosts": names})
        (tmp_path / "input/config/resourceconfig.json").write_text(told)
        assert host_and_rank(tmp_path, len(names)) == (host, rank)


def test_it_becomes_a_node_and_shows_the_log(tmp_path: Path) -> None:
    agent = (
        "import os, pathlib, sys; node = pathlib.Path(sys.argv[1]);"
        "(node / 'train.log').write_text('a step\\n' + os.environ['AWS_REGION'] + '\\n')"
    )
    box = Box(tmp_path, agent)
    code, output = box.run()
    assert (code, output) == (0, "a step\neu-west-1\n")
    told = json.loads((box.node / "node.json").read_text())
    assert (told["rank"], told["instance"]) == (1, "stoker-0-gpt-7f3k-4x2.algo-2")


def test_a_crashed_agent_is_started_again_and_not_for_ever(tmp_path: Path) -> None:
    agent = "import pathlib, sys; f = pathlib.Path(sys.argv[1], 'starts'); f.open('a').write('x'); sys.exit('no way')"
    box = Box(tmp_path, agent)
    code, output = box.run()
    assert code == 1 and (box.node / "starts").read_text() == "xxxx"
    assert "boot failed: the agent ended 4 times: no way" in box.failure and "boot failed" in output


@pytest.mark.parametrize(("nodes", "code"), [(1, 3), (2, 0)])
def test_sagemaker_shows_a_failure_where_no_other_host_suffers(tmp_path: Path, nodes: int, code: int) -> None:
    left = {"outcome": "failed", "code": 3, "reason": "exit status 3: no data"}
    agent = f"import pathlib, sys; pathlib.Path(sys.argv[1], 'left').write_text({json.dumps(left)!r})"
    box = Box(tmp_path, agent, hosts=nodes)
    assert box.run()[0] == code
    if nodes == 1:
        assert box.failure == "exit status 3: no data"


def test_what_is_wrong_with_the_agent_is_told(tmp_path: Path) -> None:
    box = Box(tmp_path / "a", "")
    box.config["bundles"] = {"cp39-vax": "0" * 64}
    assert box.run()[0] == 1 and f"there is no agent for {TAG}, only for cp39-vax" in box.failure
    box = Box(tmp_path / "b", "")
    (box.ml / f"input/data/stoker/{box.digest}.tar.gz").write_bytes(b"another")
    assert box.run()[0] == 1 and "its digest differs" in box.failure
    box = Box(tmp_path / "d", "")
    (box.ml / "input/data/stoker/more").touch()
    assert box.run()[0] == 1 and "brought 2 files, not the agent" in box.failure
    box = Box(tmp_path / "c", "")
    box.config["node"]["nodes"] = 3
    assert box.run()[0] == 1 and "there are 2 hosts and 3 were asked for" in box.failure


def test_sigterm_is_a_notice_with_two_minutes(tmp_path: Path) -> None:
    agent = (
        "import pathlib, sys, time; asked = pathlib.Path(sys.argv[1], 'sigterm');"
        "pathlib.Path(sys.argv[1], 'up').touch()\n"
        "while not asked.exists(): time.sleep(0.01)\n"
    )
    box = Box(tmp_path, agent)
    process = box.start()
    deadline = time.monotonic() + 60
    while not (box.node / "up").exists():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.01)
    machine = SageMakerMachine(box.node)
    assert machine.notice() is None
    process.send_signal(signal.SIGTERM)
    # The agent hears of it by the file, and leaves by itself.
    assert process.wait(timeout=60) == 0
    notice = machine.notice()
    assert notice is not None and notice.hard and 0 < notice.grace_s <= GRACE_S
    assert machine.notice() is notice


def test_a_torn_note_is_none(tmp_path: Path) -> None:
    (tmp_path / ASKED).write_text("")
    machine = SageMakerMachine(tmp_path)
    assert machine.notice() is None
    (tmp_path / ASKED).write_text(str(time.monotonic() - GRACE_S - 1))
    notice = machine.notice()
    assert notice is not None and notice.grace_s == 0.0
    assert isinstance(machine, RunsInContainer) and isinstance(machine, SupportsHostReplacement)


# ── Who was here before ───────────────────────────────────────────────────────────────────────────────────────────────


def test_one_that_comes_back_under_the_same_name_is_a_later_boot() -> None:
    store = MemoryStore(utcnow)
    until_s = time.monotonic() + 60
    assert [_announce(store, CONFIG, 0, until_s) for _ in range(3)] == [0, 1, 2]
    # A boot that this disk remembers is not announced again, nor another one's.
    assert _announce(store, CONFIG, 5, until_s) == 5
    key_list = [keys.heartbeat(keys.node("gpt-7f3k", 4, 1, keys.boot(CONFIG.instance, n))) for n in (0, 1, 2, 5)]
    assert sorted(meta.key for meta in store.list("")) == sorted(key_list)


def test_a_lost_reply_is_not_somebody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore(utcnow)
    create, lost = store.create, [True]

    def creating(key: str, data: bytes) -> bool:
        made = create(key, data)
        if lost and lost.pop():
            raise StoreUnavailable("the reply was lost")
        return made

    monkeypatch.setattr(store, "create", creating)
    assert _announce(store, CONFIG, 0, time.monotonic() + 60) == 0
    assert _announce(store, CONFIG, 0, time.monotonic() + 60) == 1


def test_without_the_store_nobody_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore(utcnow)

    def away(key: str, data: bytes) -> bool:
        raise StoreUnavailable("away")

    monkeypatch.setattr(store, "create", away)
    assert _announce(store, CONFIG, 0, time.monotonic() + 0.3) is None
