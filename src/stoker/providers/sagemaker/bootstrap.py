"""A container of SageMaker's becomes a node: what its entry point runs, from its own arguments.

SageMaker has brought the agent as an input channel, so that nothing needs a network for it. This process stays, as the
first of the container: it hears SIGTERM, starts an agent that crashed once more (which saves what there is), shows the
log, and gives the container's last word: what could not be started is told in `/opt/ml/output/failure`.
"""

import hashlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path
from typing import Any

ML = Path("/opt/ml")
# An agent that crashed is started again, to save; not for ever.
_STARTS = 4
_LOOK_S = 0.5
_CHUNK = 1 << 20


class BootFailed(Exception):
    """This container cannot become a node. The message says what to do."""


def main(config: "dict[str, Any]", ml: Path = ML) -> int:
    """From a bare container to its end. The status is the container's."""
    try:
        home = ml / "stoker"
        node = home / "node"
        node.mkdir(mode=0o700, parents=True, exist_ok=True)
        asked: list[float] = []
        signal.signal(signal.SIGTERM, lambda *_: _note(node / "sigterm", asked))
        host, rank = who(ml, config["node"]["nodes"])
        agent = install(config, ml, home)
        told = dict(config["node"], rank=rank, instance=f"{config['training_job']}.{host}")
        (node / "node.json").write_text(json.dumps(told, sort_keys=True), encoding="utf-8")
        (node / "train.log").touch()
        shown = Shown(node / "train.log")
        status = supervise([sys.executable, str(agent), str(node)], environ(config, home), node)
        shown.end()
        if status:
            raise BootFailed(f"the agent ended {_STARTS} times: {_last_line(node / 'agent.log')}")
        return said(ml, node, config["node"]["nodes"])
    except BootFailed as failure:
        return failed(ml, str(failure))
    except Exception as error:  # noqa: BLE001 - whatever it is, it must reach whoever asks why
        import traceback

        traceback.print_exc()
        return failed(ml, f"{error!r}: this is a fault in Stoker or a broken image; the log says where")


def said(ml: Path, node: Path, nodes: int) -> int:
    """The status that SageMaker shows. Of several hosts it ends all the others when one of them fails, while they may
    be saving: there, how the training ended is told by Stoker alone."""
    try:
        left = json.loads((node / "left").read_text())
    except (OSError, ValueError):
        return 0
    if left["outcome"] != "failed" or nodes > 1:
        return 0
    _write_failure(ml, str(left["reason"]))
    return int(left["code"] or 0) % 256 or 1


def who(ml: Path, nodes: int) -> "tuple[str, int]":
    """This host, and its rank among all."""
    found = json.loads((ml / "input/config/resourceconfig.json").read_text())
    host, hosts = str(found["current_host"]), sorted(found["hosts"], key=lambda name: int(name.rpartition("-")[2]))
    if len(hosts) != nodes:
        raise BootFailed(f"there are {len(hosts)} hosts and {nodes} were asked for; launch it again")
    return host, hosts.index(host)


def install(config: "dict[str, Any]", ml: Path, home: Path) -> Path:
    """The agent for this Python, from the channel that SageMaker brought it by."""
    arch = {"aarch64": "arm64"}.get(platform.machine(), platform.machine())
    tag = f"cp3{min(sys.version_info[1], 11)}-{arch}"
    name = config["bundles"].get(tag)
    if name is None:
        known = ", ".join(sorted(config["bundles"]))
        raise BootFailed(f"there is no agent for {tag}, only for {known}; use an image with such a Python")
    channel = ml / "input/data" / config["channels"][tag]
    # By whatever name SageMaker gave to the one object that the channel has.
    brought = sorted(path for path in channel.rglob("*") if path.is_file())
    if len(brought) != 1:
        raise BootFailed(
            f"the channel {channel.name} brought {len(brought)} files, not the agent; submit the job again"
        )
    (archive,) = brought
    found = hashlib.sha256()
    with archive.open("rb") as file:
        for chunk in iter(lambda: file.read(_CHUNK), b""):
            found.update(chunk)
    if found.hexdigest() != name.partition("-")[0]:
        raise BootFailed("the agent is not the one that was submitted: its digest differs; submit the job again")
    agent = home / "agent"
    shutil.rmtree(str(agent), ignore_errors=True)
    with tarfile.open(str(archive)) as files:
        # Its digest says that these are Stoker's own files.
        files.extractall(str(agent))
    return agent


def environ(config: "dict[str, Any]", home: Path) -> "dict[str, str]":
    """The agent's environment, which the training inherits: the image's own, with a `python` where it has only 3."""
    programs = home / "programs"
    programs.mkdir(exist_ok=True)
    program = programs / "python"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    found = dict(os.environ)
    found["PATH"] = f"{found.get('PATH', os.defpath)}:{programs}"
    found.update(config["environ"])
    return found


def supervise(command: "list[str]", env: "dict[str, str]", node: Path) -> int:
    """Run the agent until it is done. 0: it is."""
    for _ in range(_STARTS):
        with (node / "agent.log").open("ab") as log:
            agent = subprocess.Popen(command, env=env, cwd=str(node), stdout=log, stderr=subprocess.STDOUT)
        status = _reaped(agent.pid)
        _kill_rest()
        if status == 0:
            return 0
        print(f"stoker: the agent ended with {status}", flush=True)
    return 1


def _reaped(pid: int) -> int:
    """Wait for a process, and for every orphan meanwhile: the first process of a container inherits them."""
    while True:
        done, status = os.waitpid(-1, 0)
        if done == pid:
            return os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)


def _kill_rest() -> None:
    """The next agent must find nobody, and the container ends with the last one. Only where all processes are ours."""
    if os.getpid() != 1:
        return
    try:
        os.kill(-1, signal.SIGKILL)
        while True:
            os.waitpid(-1, 0)
    except OSError:
        pass  # There is nobody left.


class Shown(threading.Thread):
    """Shows the training's log on this container's output, where SageMaker finds it for CloudWatch."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self._path = path
        self._over = threading.Event()
        self.start()

    def run(self) -> None:
        with self._path.open("rb") as file:
            while True:
                over = self._over.is_set()
                data = file.read(_CHUNK)
                if data:
                    sys.stdout.buffer.write(data)
                    sys.stdout.flush()
                elif over:
                    return
                else:
                    self._over.wait(_LOOK_S)

    def end(self) -> None:
        """Show what is left."""
        self._over.set()
        self.join(timeout=10.0)


def _note(path: Path, asked: "list[float]") -> None:
    """Write down when SageMaker asked first: that counts. The agent looks there, several times a second."""
    if not asked:
        asked.append(time.monotonic())
        draft = path.with_name(".sigterm.tmp")
        draft.write_text(str(asked[0]))
        draft.replace(path)


def failed(ml: Path, what: str) -> int:
    """SageMaker shows the first 1024 characters of that file as the reason."""
    print(f"stoker: boot failed: {what}", flush=True)
    _write_failure(ml, f"boot failed: {what}")
    return 1


def _write_failure(ml: Path, reason: str) -> None:
    try:
        (ml / "output").mkdir(exist_ok=True)
        (ml / "output/failure").write_text(reason[:1024], encoding="utf-8")
    except OSError as error:
        print(f"stoker: this cannot be written down: {error}", flush=True)


def _last_line(path: Path) -> str:
    try:
        lines = path.read_text(errors="replace").strip().splitlines()
    except OSError:
        return "it said nothing"
    return lines[-1] if lines else "it said nothing"
