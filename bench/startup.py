"""How long it takes until something happens."""

from __future__ import annotations

import sys
import time
from statistics import median

from bench.figures import Figure, Measurement, Size
from bench.sandbox import BIN, Sandbox, lines, sandbox

HELP_REPEATS = 15
SUBMIT_REPEATS = 7

# The first statement takes the time; everything else comes after it.
FIRST = """\
import time; first = time.time()
import sys
with open(sys.argv[1], "a") as out:
    out.write(f"{first}\\n")
"""


def cli_help_ratio(size: Size) -> dict[str, float]:
    """The median wall time of `stoker --help` over that of `python -c pass`, same interpreter, one after the other."""
    with sandbox() as place:
        helps, bares = [], []
        for _ in range(size.choose(HELP_REPEATS, 1)):
            helps.append(_wall_s(place, str(BIN / "stoker"), "--help"))
            bares.append(_wall_s(place, sys.executable, "-c", "pass"))
    return {"cli_help_ratio": median(helps) / median(bares)}


def submit_overhead(size: Size) -> dict[str, float]:
    """From starting `stoker run -- python first.py` to the script's first statement, minus the same for
    `python first.py`; medians of interleaved runs, each by the computer's one clock."""
    with sandbox() as place:
        place.script("first.py", FIRST)
        through, bare = [], []
        for _ in range(size.choose(SUBMIT_REPEATS, 1)):
            through.append(_until_first(place, str(BIN / "stoker"), "run", "--", "python", "first.py"))
            bare.append(_until_first(place, "python", "first.py"))
    return {"submit_overhead_s": median(through) - median(bare)}


def bare_start_s(place: Sandbox, repeats: int = 5) -> float:
    """The time that `python first.py` by itself takes to its first statement."""
    place.script("first.py", FIRST)
    return median(_until_first(place, "python", "first.py") for _ in range(repeats))


def _wall_s(place: Sandbox, *argv: str) -> float:
    began_s = time.monotonic()
    place.run(*argv)
    return time.monotonic() - began_s


def _until_first(place: Sandbox, *argv: str) -> float:
    out = place.root / "first"
    out.unlink(missing_ok=True)
    began = time.time()
    place.run(*argv, str(out))
    return float(lines(out)[0]) - began


MEASUREMENTS = (
    Measurement((Figure("cli_help_ratio", "×", 8.0),), cli_help_ratio),
    Measurement((Figure("submit_overhead_s", "s", 1.0, difference=True),), submit_overhead),
)
