"""The pulse that systemd feels: an agent that hangs is killed, and the next one saves what is there.

Without it a hung agent would be found by a governor alone, and where nobody governs its machine would live, and cost,
until its longest life.
"""

from __future__ import annotations

import os
import socket
import threading

# Three beats within the time that systemd allows.
_SHARE = 3


def start_pulse() -> None:
    """Beat for as long as this process can. Does nothing where no supervisor asks for it.

    The variables are taken away: whatever the agent starts has no pulse of its own to show.
    """
    address, allowed = os.environ.pop("NOTIFY_SOCKET", ""), os.environ.pop("WATCHDOG_USEC", "")
    os.environ.pop("WATCHDOG_PID", None)
    if not address or not allowed.isdigit():
        return
    every_s = int(allowed) / 1e6 / _SHARE
    threading.Thread(target=_beat, args=(address, every_s), name="pulse", daemon=True).start()


def _beat(address: str, every_s: float) -> None:
    # An abstract name is written with an @ where the kernel wants a zero.
    target = "\0" + address[1:] if address.startswith("@") else address
    pause = threading.Event()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as door:
        while True:
            try:
                door.sendto(b"WATCHDOG=1", target)
            except OSError:
                pass  # systemd is being restarted; it asks no more than before afterwards.
            pause.wait(every_s)
