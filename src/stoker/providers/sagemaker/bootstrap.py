"""Turn a container of SageMaker's into a node: run by its entry point, from the container's own arguments.

SageMaker delivers the agent as an input channel, so that its installation needs no network. This process stays as the
container's first process: it receives SIGTERM, restarts a crashed agent (which then saves), forwards the log, and sets
the container's exit status. The reason of a failed start is written to `/opt/ml/output/failure`.
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
# A crashed agent is started again, so that it saves, but only so often.
_STARTS = 4
_LOOK_S = 0.5
_CHUNK = 1 << 20


class ContainerBootFailed(Exception):
    """This container cannot become a node. The message says what to do."""


def main(config: "dict[str, Any]", ml: Path = ML) -> int:
    """Run the node from the bare container to its end. Returns the container's exit status."""
    try:
        home = ml / "stoker"
        node = home / "node"
        node.mkdir(mode=0o700, parents=True, exist_ok=True)
        asked: list[float] = []
        signal.signal(signal.SIGTERM, lambda *_: _note(node / "sigterm", asked))
        host, rank = host_and_rank(ml, config["node"]["nodes"])
        agent = install(config, ml, home)
        node_config = dict(config["node"], rank=rank, instance=f"{config['training_job']}.{host}")
        (node / "node.json").write_text(json.dumps(node_config, sort_keys=True), encoding="utf-8")
        if config.get("contract"):
            keep_channels(config, ml, node)
        (node / "train.log").touch()
        shown = LogForwarder(node / "train.log")
        status = supervise([sys.executable, str(agent), str(node)], environ(config, home), node)
        shown.end()
        if status:
            raise ContainerBootFailed(f"the agent ended {_STARTS} times: {_last_line(node / 'agent.log')}")
        return final_status(ml, node, config["node"]["nodes"])
    except ContainerBootFailed as failure:
        return failed(ml, str(failure))
    except Exception as error:  # noqa: BLE001 - the edge of the process: every error must reach SageMaker's console
        import traceback

        traceback.print_exc()
        return failed(ml, f"{error!r}: this is a fault in Stoker or a broken image; the log says where")


def final_status(ml: Path, node: Path, nodes: int) -> int:
    """The exit status that SageMaker shows.

    Of several hosts SageMaker ends all others when one fails, while they may be saving. For several hosts the status is
    therefore 0, and the outcome is recorded by Stoker alone.
    """
    try:
        left = json.loads((node / "left").read_text())
    except (OSError, ValueError, RecursionError):
        return 0
    if left["outcome"] != "failed" or nodes > 1:
        return 0
    _write_failure(ml, str(left["reason"]))
    return int(left["code"] or 0) % 256 or 1


def host_and_rank(ml: Path, nodes: int) -> "tuple[str, int]":
    """The name of this host, and its rank among all hosts."""
    found = json.loads((ml / "input/config/resourceconfig.json").read_text())
    host, hosts = str(found["current_host"]), sorted(found["hosts"], key=lambda name: int(name.rpartition("-")[2]))
    if len(hosts) != nodes:
        raise ContainerBootFailed(f"there are {len(hosts)} hosts and {nodes} were asked for; launch it again")
    return host, hosts.index(host)


def install(config: "dict[str, Any]", ml: Path, home: Path) -> Path:
    """Install the agent for this Python from the channel by which SageMaker delivered it."""
    arch = {"aarch64": "arm64"}.get(platform.machine(), platform.machine())
    tag = f"cp3{min(sys.version_info[1], 11)}-{arch}"
    name = config["bundles"].get(tag)
    if name is None:
        known = ", ".join(sorted(config["bundles"]))
        raise ContainerBootFailed(f"there is no agent for {tag}, only for {known}; use an image with such a Python")
    channel = ml / "input/data" / config["channels"][tag]
    # The channel has one object, under a name that SageMaker chooses.
    brought = sorted(path for path in channel.rglob("*") if path.is_file())
    if len(brought) != 1:
        raise ContainerBootFailed(
            f"the channel {channel.name} brought {len(brought)} files, not the agent; submit the job again"
        )
    (archive,) = brought
    found = hashlib.sha256()
    with archive.open("rb") as file:
        for chunk in iter(lambda: file.read(_CHUNK), b""):
            found.update(chunk)
    if found.hexdigest() != name.partition("-")[0]:
        raise ContainerBootFailed(
            "the agent is not the one that was submitted: its digest differs; submit the job again"
        )
    agent = home / "agent"
    shutil.rmtree(str(agent), ignore_errors=True)
    with tarfile.open(str(archive)) as files:
        # The digest proves that these are Stoker's own files.
        files.extractall(str(agent))
    return agent


def keep_channels(config: "dict[str, Any]", ml: Path, node: Path) -> None:
    """Note which inputs SageMaker brought, and remove the agent's channels: the script sees only the job's own."""
    brought = json.loads((ml / "input/config/inputdataconfig.json").read_text())
    for name in config["channels"].values():
        brought.pop(name, None)
        shutil.rmtree(str(ml / "input/data" / name), ignore_errors=True)
    (node / "channels.json").write_text(json.dumps(brought), encoding="utf-8")


def environ(config: "dict[str, Any]", home: Path) -> "dict[str, str]":
    """The agent's environment, which the training inherits: the image's own, with a `python` where it has only
    `python3`."""
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
    """Run the agent until it ends by itself. Returns 0 when it did, 1 after too many crashes."""
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
    """Wait for a process, and reap every orphan meanwhile: the first process of a container inherits them."""
    while True:
        done, status = os.waitpid(-1, 0)
        if done == pid:
            return os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)


def _kill_rest() -> None:
    """Kill all other processes, which the next agent must not meet, and which would keep the container running. Only as
    the container's first process, when all processes are the job's."""
    if os.getpid() != 1:
        return
    try:
        os.kill(-1, signal.SIGKILL)
        while True:
            os.waitpid(-1, 0)
    except OSError:
        pass  # No process is left.


class LogForwarder(threading.Thread):
    """Copies the training's log to this container's output, from where SageMaker sends it to CloudWatch."""

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
        """Copy the rest of the log, and stop."""
        self._over.set()
        self.join(timeout=10.0)


def _note(path: Path, asked: "list[float]") -> None:
    """Record when SageMaker first asked for the end, in a file that the agent reads several times a second."""
    if not asked:
        asked.append(time.monotonic())
        draft = path.with_name(".sigterm.tmp")
        draft.write_text(str(asked[0]))
        draft.replace(path)


def failed(ml: Path, what: str) -> int:
    """Report a failed boot. SageMaker shows the first 1024 characters of the failure file as the reason."""
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
