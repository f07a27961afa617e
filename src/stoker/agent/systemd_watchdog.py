"""Keep systemd's watchdog quiet: an agent that hangs is killed, and the next one saves what is there.

Without it only a governor would find a hung agent; without a governor its machine would run, and cost, until the end of
its maximum lifetime.
"""

from __future__ import annotations

import os
import socket
import threading

# Three messages within the time that systemd allows.
_SHARE = 3


def start_watchdog() -> None:
    """Send messages for as long as this process can. Does nothing if no supervisor asks for them.

    The variables are removed: programs that the agent starts must not send messages of their own.
    """
    address, allowed = os.environ.pop("NOTIFY_SOCKET", ""), os.environ.pop("WATCHDOG_USEC", "")
    os.environ.pop("WATCHDOG_PID", None)
    if not address or not allowed.isdigit():
        return
    every_s = int(allowed) / 1e6 / _SHARE
    threading.Thread(target=_notify, args=(address, every_s), name="watchdog", daemon=True).start()


def _notify(address: str, every_s: float) -> None:
    # An abstract socket name is written with an @ where the kernel expects a zero byte.
    target = "\0" + address[1:] if address.startswith("@") else address
    pause = threading.Event()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
        while True:
            try:
                client.sendto(b"WATCHDOG=1", target)
            except OSError:
                pass  # systemd is being restarted. Its time limit stays the same.
            pause.wait(every_s)
