"""The parts of a machine's own side that clouds share: see `stoker.providers.base.Machine`."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable
from typing import NoReturn

_log = logging.getLogger(__name__)

_ADDRESS_LIMIT_S = 30.0


def wait_for_address(ask: Callable[[], str | None], failure: type[Exception]) -> str | None:
    """The machine's address, which `ask` gets from the metadata service; None where that gives none in time."""
    until_s = time.monotonic() + _ADDRESS_LIMIT_S
    while True:
        try:
            found = ask()
            if found:
                return found
        except failure as error:
            _log.warning("%s", error)
        if time.monotonic() >= until_s:
            return None
        time.sleep(0.5)


def end_process() -> NoReturn:
    """End this process, from any thread, and print what is buffered."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
