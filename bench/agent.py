"""The share of a training machine that its agent uses."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from bench.figures import Figure, Measurement, Size
from bench.sandbox import Sandbox, sandbox, wait_for

WARM_UP_S = 3.0
SAMPLE_S = 20.0

# Prints nothing, reports a step a second, and computes in between without taking the core from what is measured.
QUIET = """\
import os, sys, time
from stoker import train
step = 0
open(sys.argv[1], "w").close()
while not os.path.exists(sys.argv[2]) and not train.interrupted():
    time.sleep(0.1)
    step += 1
    if step % 10 == 0:
        train.report(step=step, loss=1 / step)
"""


@dataclass(frozen=True)
class _Sample:
    """One process at one moment: seconds of CPU it has used so far, bytes it holds."""

    cpu_s: float
    rss_bytes: int


def agent_cost(size: Size) -> dict[str, float]:
    """While a script reports a step a second and prints nothing: the CPU time of the agent's process over 20 s of wall
    time (100 is one core), and the most memory it held; the machine's supervisor beside it, without a target."""
    with sandbox() as place:
        place.script("quiet.py", QUIET)
        begun, done = place.root / "begun", place.root / "done"
        job = place.detach("--", "python", "quiet.py", str(begun), str(done))
        wait_for(begun.exists, "the training to begin")
        time.sleep(size.choose(WARM_UP_S, 0.0))
        agent = _process(place, b"-m stoker.agent ")
        supervisor = _process(place, b"-m stoker.providers.local.supervisor ")
        agent_cpu, agent_rss = [_sample(agent)], 0
        supervisor_cpu = [_sample(supervisor)]
        began_s = time.monotonic()
        while time.monotonic() - began_s < size.choose(SAMPLE_S, 1.0):
            time.sleep(size.choose(1.0, 0.5))
            agent_rss = max(agent_rss, _sample(agent).rss_bytes)
        span_s = time.monotonic() - began_s
        agent_cpu.append(_sample(agent))
        supervisor_cpu.append(_sample(supervisor))
        done.touch()
        place.finished(job)
    return {
        "agent_cpu_percent": 100 * (agent_cpu[1].cpu_s - agent_cpu[0].cpu_s) / span_s,
        "agent_rss_mb": agent_rss / 1e6,
        "supervisor_cpu_percent": 100 * (supervisor_cpu[1].cpu_s - supervisor_cpu[0].cpu_s) / span_s,
        "supervisor_rss_mb": supervisor_cpu[1].rss_bytes / 1e6,
    }


def _process(place: Sandbox, command: bytes) -> int:
    found = [pid for pid, line in place.processes().items() if command in line]
    if len(found) != 1:
        raise RuntimeError(f"{len(found)} processes run {command.decode()}")
    return found[0]


def _sample(pid: int) -> _Sample:
    # The name, in brackets, may hold anything; user and system time are the 12th and 13th field behind it.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    status = Path(f"/proc/{pid}/status").read_text()
    rss = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return _Sample(cpu_s, int(rss.split()[1]) * 1024)


MEASUREMENTS = (
    Measurement(
        (
            Figure("agent_cpu_percent", "%", 1.0),
            Figure("agent_rss_mb", "MB", 60.0),
            Figure("supervisor_cpu_percent", "%"),
            Figure("supervisor_rss_mb", "MB"),
        ),
        agent_cost,
    ),
)
