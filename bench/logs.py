"""The cost of following the log, and its delay."""

from __future__ import annotations

import subprocess
import time
from statistics import median

from bench.figures import Figure, Measurement, Size
from bench.sandbox import BIN, Sandbox, lines, sandbox

TICKS = 120
TICK_S = 0.05
LINES_PER_S = 100_000
PACED_LINES = 500_000
PACED_REPEATS = 3
UNPACED_LINES = 1_000_000
UNPACED_REPEATS = 2

TICK = """\
import os, sys, time
print(repr(time.time()), flush=True)
while not os.path.exists(sys.argv[3]):
    time.sleep(0.01)
for _ in range(int(sys.argv[1])):
    print(repr(time.time()), flush=True)
    time.sleep(float(sys.argv[2]))
"""

# A line at a time, as scripts print. The pace is kept against the clock, so a slow stretch is made up for if it can be.
PACED = """\
import sys, time
out, count, rate = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
began = time.monotonic()
for n in range(count):
    print(f"step {n} loss 0.123456 lr 0.0003")
    if n % 500 == 499 and rate:
        ahead = began + (n + 1) / rate - time.monotonic()
        if ahead > 0:
            time.sleep(ahead)
sys.stdout.flush()
took = time.monotonic() - began
with open(out, "a") as file:
    file.write(f"{took}\\n")
"""


def log_latency(size: Size) -> dict[str, float]:
    """A script prints a line, and once that has arrived at a reader of `stoker logs -f`, the time every 50 ms;
    the median of (arrival − printed) of these."""
    ticks = size.choose(TICKS, 10)
    with sandbox() as place:
        place.script("tick.py", TICK)
        followed = place.root / "followed"
        job = place.detach("--", "python", "tick.py", str(ticks), str(TICK_S), str(followed))
        follower = place.popen(str(BIN / "stoker"), "logs", "-f", job, stdout=subprocess.PIPE)
        assert follower.stdout is not None
        arrived: list[tuple[float, float]] = []
        for line in follower.stdout:
            now = time.time()
            try:
                arrived.append((now, float(line)))
            except ValueError:
                continue  # A line of Stoker itself.
            followed.touch()
        follower.wait()
        place.finished(job)
    if len(arrived) != 1 + ticks:
        raise RuntimeError(f"{len(arrived)} of {1 + ticks} lines arrived")
    return {"log_latency_p50_s": median(now - printed for now, printed in arrived[1:])}


def log_slowdown(size: Size) -> dict[str, float]:
    """How long a script takes, by its own clock, to print 500,000 lines at 100,000 a second: under Stoker over bare
    with its output in a file on the same disk, each with its default buffering; best of interleaved runs."""
    with sandbox() as place:
        place.script("paced.py", PACED)
        through, bare = [], []
        count = size.choose(PACED_LINES, 5_000)
        for _ in range(size.choose(PACED_REPEATS, 1)):
            bare.append(_bare_s(place, count, LINES_PER_S))
            through.append(_through_s(place, count, LINES_PER_S))
    return {"log_slowdown_ratio": min(through) / min(bare)}


def log_unpaced(size: Size) -> dict[str, float]:
    """The same for 1,000,000 lines as fast as they come, unbuffered on both sides; and over bare Python as it comes,
    which gathers lines that go to a file: the cost of seeing each line at once, by any program."""
    with sandbox() as place:
        place.script("paced.py", PACED)
        through, bare, gathered = [], [], []
        count = size.choose(UNPACED_LINES, 5_000)
        for _ in range(size.choose(UNPACED_REPEATS, 1)):
            bare.append(_bare_s(place, count, 0, PYTHONUNBUFFERED="1"))
            gathered.append(_bare_s(place, count, 0))
            through.append(_through_s(place, count, 0))
    return {
        "log_unpaced_ratio": min(through) / min(bare),
        "log_unpaced_buffered_ratio": min(through) / min(gathered),
    }


def _bare_s(place: Sandbox, count: int, rate: float, **environment: str) -> float:
    out = place.root / "bare"
    with (place.root / "output").open("wb") as output:
        argv = ("python", "paced.py", str(out), str(count), str(rate))
        if place.popen(*argv, stdout=output, env=place.env | environment).wait() != 0:
            raise RuntimeError("the script failed")
    return float(lines(out)[-1])


def _through_s(place: Sandbox, count: int, rate: float) -> float:
    out = place.root / "through"
    place.finished(place.detach("--", "python", "paced.py", str(out), str(count), str(rate)))
    return float(lines(out)[-1])


MEASUREMENTS = (
    Measurement((Figure("log_latency_p50_s", "s", 0.5),), log_latency),
    Measurement((Figure("log_slowdown_ratio", "×", 1.05),), log_slowdown),
    Measurement((Figure("log_unpaced_ratio", "×"), Figure("log_unpaced_buffered_ratio", "×")), log_unpaced),
)
