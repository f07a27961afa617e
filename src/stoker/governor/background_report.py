"""Reports of the background governor, in its lock file: whether the process that holds the lock governs.

The file holds nothing while the process starts, then `ok` or the error of its last pass. A process that dies at its
start is never taken for a governor.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from stoker.model.errors import StokerError

# A governor that starts reports within this time: it imports its modules and reads the store once.
REPORTS_WITHIN_S = 30.0
POLL_S = 0.02
# The report after a pass that succeeded. Otherwise the lock file holds one line, why it did not.
OK = "ok"
_MOST_REPORT_BYTES = 1000
INSTEAD = "keep `stoker govern --watch` running instead"
# The most of a log that is read for its last line.
_MOST_LOG_BYTES = 1024 * 1024


def await_report(child: subprocess.Popen[bytes], lock: Path, until_s: float, last_line: Callable[[], str]) -> str:
    """Wait for the first report of a governor that was just started; empty if it does not come in time.

    Raises StokerError if the process ends without one.
    """
    while True:
        # In this order: a process that ends well reports before.
        code = child.poll()
        try:
            report = lock.read_text(encoding="utf-8", errors="replace").partition("\n")[0]
        except OSError:
            report = ""
        if code:
            why = last_line() or report or f"exit code {code}"
            raise StokerError(f"no governor runs: the one started in the background has ended: {why}; {INSTEAD}")
        if report or code is not None or time.monotonic() > until_s:
            return report or (OK if code is not None else "")
        time.sleep(POLL_S)


def judge(report: str, output: Path) -> str | None:
    """Return the error that a governor reports; None if it reports none. Raises StokerError without a report."""
    if not report:
        raise StokerError(
            f"no governor is known to run: the one in the background has reported nothing for {REPORTS_WITHIN_S:g} s; "
            f"its log is {output}; {INSTEAD}"
        )
    if report == OK:
        return None
    return f"the governor in the background runs, but its last pass failed: {report}; its log is {output}"


def last_line_since(output: Path, began: int) -> Callable[[], str]:
    """A function that reads the last line that was written to the log after `began`, without its time."""

    def read() -> str:
        try:
            with output.open("rb") as log:
                log.seek(began)
                lines = log.read(_MOST_LOG_BYTES).decode(errors="replace").splitlines()
        except OSError:
            return ""
        return re.sub(r"^\S+Z ", "", next((line.strip() for line in reversed(lines) if line.strip()), ""))

    return read


def write_report(handle: int, text: str) -> None:
    """Write what the process that holds the lock reports: one line. Never raises: governing comes first."""
    line = " ".join(text.split()).encode()[: _MOST_REPORT_BYTES - 1] + b"\n" if text else b""
    with suppress(OSError):
        # Readers see the first line only, so the rest of a longer report before does no harm.
        os.pwrite(handle, line, 0)
        os.ftruncate(handle, len(line))


def read_report(handle: int) -> str:
    return os.pread(handle, _MOST_REPORT_BYTES, 0).decode(errors="replace").partition("\n")[0]
