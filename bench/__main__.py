"""`python -m bench [--short] [NAME…]`: measure all figures, or these; print the table, write bench/out/latest.json.

`--short` takes a few seconds for each, to see that everything works: its numbers mean nothing, and are not written.

Ends with 1 when a figure could not be measured. A target that is missed is reported, and is no error: this computer may
be busy with something else.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
import traceback
from pathlib import Path

from bench import (
    agent,
    checkpoints,
    containers,
    ec2,
    environments,
    gce,
    inputs,
    logs,
    reclaim,
    scale,
    serverless,
    standstill,
    startup,
)
from bench.figures import FULL, SHORT, Figure, Measurement, Size, document, table, text, verdict

MEASUREMENTS: tuple[Measurement, ...] = (
    *startup.MEASUREMENTS,
    *reclaim.MEASUREMENTS,
    *logs.MEASUREMENTS,
    *agent.MEASUREMENTS,
    *checkpoints.MEASUREMENTS,
    *scale.MEASUREMENTS,
    *environments.MEASUREMENTS,
    *containers.MEASUREMENTS,
    *inputs.MEASUREMENTS,
    *ec2.MEASUREMENTS,
    *gce.MEASUREMENTS,
    *standstill.MEASUREMENTS,
    *serverless.MEASUREMENTS,
)
OUT = Path(__file__).parent / "out" / "latest.json"


def main(arguments: list[str]) -> int:
    names = [name for name in arguments if name != "--short"]
    size = FULL if names == arguments else SHORT
    known = {name for measurement in MEASUREMENTS for name in measurement.names}
    for name in names:
        if name not in known:
            print(f"bench: there is no figure {name}; there are: {', '.join(sorted(known))}", file=sys.stderr)
            return 2
    began_s = time.monotonic()
    print(f"{os.cpu_count()} cores, Python {platform.python_version()}, {_load()}", file=sys.stderr)
    found: list[tuple[Figure, float | None]] = []
    for measurement in MEASUREMENTS:
        if not names or set(names) & set(measurement.names):
            found += _measured(measurement, size)
    print(table(found))
    print(f"took {time.monotonic() - began_s:.0f} s, {_load()}", file=sys.stderr)
    if not size.short:
        OUT.parent.mkdir(parents=True, exist_ok=True)
        OUT.write_text(json.dumps(document(found), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return 1 if any(value is None for _, value in found) else 0


def _measured(measurement: Measurement, size: Size) -> list[tuple[Figure, float | None]]:
    began_s = time.monotonic()
    values: dict[str, float] = {}
    try:
        if (why := measurement.why_not()) is not None:
            raise RuntimeError(why)
        values |= measurement.measure(size)
    except Exception:  # noqa: BLE001 - one figure that cannot be measured must not cost the others
        traceback.print_exc()
    found = [(figure, values.get(figure.name)) for figure in measurement.figures]
    measured = ", ".join(
        f"{figure.name} {'–' if value is None else text(value)} {verdict(figure, value)}".rstrip()
        for figure, value in found
    )
    print(f"  {measured}  ({time.monotonic() - began_s:.1f} s, {_load()})", file=sys.stderr, flush=True)
    return found


def _load() -> str:
    return "load {:.1f} {:.1f} {:.1f}".format(*os.getloadavg())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
