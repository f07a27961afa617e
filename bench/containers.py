"""The cost of a container beyond the time that its engine takes."""

from __future__ import annotations

import time
from statistics import median

from bench.figures import Figure, Measurement, Size
from bench.sandbox import BIN, Sandbox, lines, sandbox
from tests.support.engines import IMAGE, docker, why_no_docker

REPEATS = 7

# The first statement takes the time; everything else comes after it.
FIRST = """\
import time; first = time.time()
import os
with open(os.environ["OUT"], "a") as out:
    out.write(f"{first}\\n")
"""


def container_overhead(size: Size) -> dict[str, float]:
    """How much later a script's first statement comes when `stoker run` has it in a container instead of on the machine
    itself, minus how much later it comes when `docker run` by hand does; medians of interleaved runs, each by the
    computer's one clock. Docker is Debian's, the image is here."""
    with docker() as engine, sandbox() as place:
        place.script("first.py", FIRST)
        place.env |= {"DOCKER_HOST": engine.host, "OUT": str(place.root / "first")}
        by_hand = ["docker", "run", "--rm", "--network=host", f"--volume={place.root}:{place.root}"]
        by_hand += [f"--workdir={place.code}", f"--env=OUT={place.root / 'first'}", "--entrypoint=python", IMAGE]
        container = f"environment.container={{image: {IMAGE}, run: {{volumes: ['{place.root}:{place.root}']}}}}"
        stoker = [str(BIN / "stoker"), "run", "--env", f"OUT={place.root / 'first'}"]
        ways: dict[str, list[str]] = {
            "bare": ["python", "first.py"],
            "docker": [*by_hand, "first.py"],
            "stoker": [*stoker, "--", "python", "first.py"],
            "contained": [*stoker, "--set", container, "--", "python", "first.py"],
        }
        took = {name: median(times) for name, times in _interleaved(place, ways, size.choose(REPEATS, 1)).items()}
    added_s, needed_s = took["contained"] - took["stoker"], took["docker"] - took["bare"]
    return {"container_overhead_s": added_s - needed_s}


def _interleaved(place: Sandbox, ways: dict[str, list[str]], repeats: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, argv in ways.items():
            times[name].append(_until_first(place, argv))
    return times


def _until_first(place: Sandbox, argv: list[str]) -> float:
    out = place.root / "first"
    out.unlink(missing_ok=True)
    began = time.time()
    place.run(*argv)
    return float(lines(out)[0]) - began


MEASUREMENTS = (
    Measurement((Figure("container_overhead_s", "s", 0.5, difference=True),), container_overhead, why_no_docker),
)
