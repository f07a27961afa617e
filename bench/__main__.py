"""`python -m bench [NAME…]`: measure all figures, or these; print the table and write bench/out/latest.json.

Ends with 1 when a figure could not be measured. A target that is missed is told, and is no error: this computer may be
busy with something else.
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
from bench.figures import Figure, Measurement, document, table, text, verdict

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


def main(names: list[str]) -> int:
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
            found += _measured(measurement)
    print(table(found))
    print(f"took {time.monotonic() - began_s:.0f} s, {_load()}", file=sys.stderr)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(document(found), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return 1 if any(value is None for _, value in found) else 0


def _measured(measurement: Measurement) -> list[tuple[Figure, float | None]]:
    began_s = time.monotonic()
    values: dict[str, float] = {}
    try:
        values |= measurement.measure()
    except Exception:  # noqa: BLE001 - one figure that cannot be measured must not cost the others
        traceback.print_exc()
    found = [(figure, values.get(figure.name)) for figure in measurement.figures]
    told = ", ".join(
        f"{figure.name} {'–' if value is None else text(value)} {verdict(figure, value)}".rstrip()
        for figure, value in found
    )
    print(f"  {told}  ({time.monotonic() - began_s:.1f} s, {_load()})", file=sys.stderr, flush=True)
    return found


def _load() -> str:
    return "load {:.1f} {:.1f} {:.1f}".format(*os.getloadavg())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
