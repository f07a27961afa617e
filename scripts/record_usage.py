"""Record what a machine with a GPU shows while a training does the things that trainings do, and while it hangs.

    python3 scripts/record_usage.py FILE [SECONDS [ACTIVITY…]]

A sample a second of each, as lists of equal length, in one file of JSON. `stall` rules are tested on these recordings.
Needs PyTorch, a GPU, and nothing of Stoker.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

ACTIVITIES = {
    "steady": "one step after another, as large as the GPU likes",
    "starved": "steps that wait for a slow data loader",
    "long-steps": "steps of half a minute, without a word in between",
    "downloading": "data comes over the network, without a word",
    "compiling": "a compiler works, without a word",
    "evaluating": "metrics on the processor, without a word",
    "checkpointing": "gigabytes are written to the disk, without a word",
    "loading": "imports, and the first use of the GPU",
    "talking": "nothing but a line every few seconds",
    "deadlock": "a lock that its own thread waits for",
    "native-deadlock": "a mutex of C that is never released",
    "stuck-loader": "a worker process that waits for ever, and the training for it",
}

_COMMON = """
import ctypes, os, socket, subprocess, sys, threading, time
out = open(sys.argv[2], "a", buffering=1)
def log(text): out.write("log " + text + "\\n")
def step(n): out.write("step %d\\n" % n)
end = time.monotonic() + float(sys.argv[3])
kind = sys.argv[1]
import torch
weights = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
def work(times):
    value = weights
    for _ in range(times):
        value = torch.tanh(value @ weights)
    torch.cuda.synchronize()
work(10)
log("begun")
"""

_BODY = {
    "steady": """
n = 0
while time.monotonic() < end:
    work(2000); n += 1; step(n); log("loss")
""",
    "starved": """
n = 0
while time.monotonic() < end:
    sum(i * i for i in range(4_000_000)); work(20); n += 1; step(n)
""",
    "long-steps": """
n = 0
while time.monotonic() < end:
    began = time.monotonic()
    while time.monotonic() < began + 30: work(1000)
    n += 1; step(n)
""",
    "downloading": """
port = int(open(sys.argv[2] + ".port").read())
link = socket.create_connection(("127.0.0.1", port))
while time.monotonic() < end:
    if not link.recv(1 << 20): break
""",
    "compiling": r"""
source = "#include <map>\n#include <regex>\n#include <string>\n" + "\n".join(
    "std::map<int, std::string> f%d() { std::map<int, std::string> m; std::regex r(\"a%d+\"); m[%d] = \"\"; return m; }"
    % (i, i, i) for i in range(400))
open(sys.argv[2] + ".cpp", "w").write(source)
while time.monotonic() < end:
    subprocess.run(["g++", "-O3", "-c", "-o", os.devnull, sys.argv[2] + ".cpp"])
""",
    "evaluating": """
while time.monotonic() < end:
    sorted(hash((i, i * 31)) for i in range(2_000_000))
""",
    "checkpointing": """
state = torch.empty(1 << 30, dtype=torch.uint8)
while time.monotonic() < end:
    with open(sys.argv[2] + ".pt", "wb") as file:
        torch.save(state, file); file.flush(); os.fsync(file.fileno())
""",
    "loading": "pass",
    "talking": """
while time.monotonic() < end:
    time.sleep(3); log("still here")
""",
    "deadlock": """
lock = threading.Lock(); lock.acquire(); lock.acquire()
""",
    "native-deadlock": """
c = ctypes.CDLL(None); mutex = ctypes.create_string_buffer(64)
c.pthread_mutex_init(mutex, None); c.pthread_mutex_lock(mutex); c.pthread_mutex_lock(mutex)
""",
    "stuck-loader": """
class Data(torch.utils.data.Dataset):
    def __len__(self): return 64
    def __getitem__(self, i):
        if i >= 8: threading.Event().wait()
        return torch.zeros(4)
n = 0
for batch in torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=2):
    work(10); n += 1; step(n)
""",
}


def main(path: Path, seconds: float, names: list[str]) -> None:
    server, recorded = _server(), {}
    for name in names or ACTIVITIES:
        found = _record(path.parent, name, seconds, server)
        recorded[name] = {"about": ACTIVITIES[name], "interval_s": 1.0, **found}
        path.write_text(json.dumps(recorded))
        busy = [each for each in found["gpu"] if each is not None]
        print(name, len(found["gpu"]), "samples, GPU", f"{sum(busy) / max(1, len(busy)):.0f} %", flush=True)


def _record(folder: Path, name: str, seconds: float, port: int) -> dict[str, list[float | None]]:
    marks = folder / f"{name}.marks"
    marks.write_text("")
    Path(f"{marks}.port").write_text(str(port))
    code = textwrap.dedent(_COMMON) + textwrap.dedent(_BODY[name])
    child = subprocess.Popen([sys.executable, "-c", code, name, str(marks), str(seconds)], start_new_session=True)
    names = ("gpu", "gpu_memory", "cpu_s", "disk_bytes", "net_bytes", "step", "lines")
    found: dict[str, list[float | None]] = {each: [] for each in names}
    began = time.monotonic()
    try:
        while time.monotonic() < began + seconds and child.poll() is None:
            time.sleep(max(0.0, began + len(found["gpu"]) + 1 - time.monotonic()))
            for key, value in _sample(child.pid, marks).items():
                found[key].append(value)
    finally:
        for pid in _family(child.pid):
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                continue
        child.wait()
        for left in folder.glob(f"{marks.name}*"):
            left.unlink()
    return found


def _sample(root: int, marks: Path) -> dict[str, float | None]:
    gpu, memory = _gpu()
    family = _family(root)
    lines = marks.read_text().splitlines()
    steps = [int(line.split()[1]) for line in lines if line.startswith("step ")]
    return {
        "gpu": gpu,
        "gpu_memory": memory,
        "cpu_s": round(sum(_cpu_s(pid) for pid in family), 2),
        "disk_bytes": _total(_disk(pid) for pid in family),
        "net_bytes": _net(),
        "step": steps[-1] if steps else None,
        "lines": float(len([line for line in lines if line.startswith("log ")])),
    }


def _gpu() -> tuple[float | None, float | None]:
    query = ["nvidia-smi", "--query-gpu=utilization.gpu,memory.used", "--format=csv,noheader,nounits"]
    try:
        one, other = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split(",")
        return float(one), float(other)
    except (OSError, ValueError, subprocess.CalledProcessError):
        return None, None


def _family(root: int) -> list[int]:
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def _cpu_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        # Of children that ended, too: a compiler's.
        return sum(int(fields[n]) for n in (11, 12, 13, 14)) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0


def _disk(pid: int) -> float | None:
    try:
        lines = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
        return float(int(lines["rchar"]) + int(lines["wchar"]))
    except (OSError, ValueError, KeyError):
        return None


def _net() -> float | None:
    try:
        lines = Path("/proc/net/dev").read_text().splitlines()[2:]
        return float(sum(int(line.partition(":")[2].split()[0]) for line in lines))
    except (OSError, ValueError, IndexError):
        return None


def _total(parts: object) -> float | None:
    known = [part for part in parts if part is not None]  # type: ignore[attr-defined]
    return sum(known) if known else None


def _server() -> int:
    """Send twenty megabytes a second to each client."""
    import socket

    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            link, _ = listening.accept()
            try:
                while True:
                    link.sendall(bytes(2_000_000))
                    time.sleep(0.1)
            except OSError:
                continue

    threading.Thread(target=serve, daemon=True).start()
    return int(listening.getsockname()[1])


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 40.0, sys.argv[3:])
