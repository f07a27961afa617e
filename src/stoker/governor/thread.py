"""Govern in a thread of this process, while the process does something else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from stoker.governor.loop import Governor
from stoker.store.base import open_store

# How long notifications that are still to be sent are waited for.
_NOTIFY_S = 10.0


@contextmanager
def governing_in_thread(
    store_url: str, on_pass: Callable[[], None], on_problem: Callable[[str], None]
) -> Iterator[None]:
    """Run a governor for as long as the block runs. The thread is a daemon: a second Ctrl-C need not wait for it.

    `on_pass` is called after each pass, `on_problem` with a line about an error. Both are called from the thread.
    """
    enough = threading.Event()
    governors: list[Governor] = []

    def until(_done: object) -> bool:
        on_pass()
        return enough.is_set()

    def work() -> None:
        while not enough.is_set():
            try:
                if not governors:
                    # The governor has its own connection: the other thread never blocks it.
                    governors.append(Governor(open_store(store_url)))
                governors[0].watch(until=until, on_error=lambda _error: on_pass())
            except Exception as error:  # noqa: BLE001 - the edge of the thread: without it the job has no governor
                # The terminal may be what failed.
                with suppress(OSError, ValueError):
                    on_problem(f"the governor met an error and continues ({type(error).__name__}: {error})")
                enough.wait(1.0)

    thread = threading.Thread(target=work, name="governor", daemon=True)
    thread.start()
    try:
        yield
    finally:
        enough.set()
        if any(governor.dispatcher.pending for governor in governors):
            thread.join(_NOTIFY_S)
