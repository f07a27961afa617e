"""Several blocking calls at once, on threads that never keep a process from ending."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

# How soon whoever waits hears that it should not.
_LOOK_S = 0.05


def run_watched(call: Callable[[], T], check: Callable[[], None]) -> T:
    """The result of `call`, which has a thread of its own. Meanwhile `check` is called here, and may raise.

    Then nobody waits for the call any more: it goes on by itself until it ends or the process does.
    """
    results: list[T] = []
    errors: list[BaseException] = []
    done = threading.Event()

    def work() -> None:
        try:
            results.append(call())
        except BaseException as error:  # noqa: BLE001 - handed to the caller's thread below
            errors.append(error)
        finally:
            done.set()

    threading.Thread(target=work, daemon=True, name="watched").start()
    while not done.wait(_LOOK_S):
        check()
    if errors:
        raise errors[0]
    return results[0]


def run_all(calls: Sequence[Callable[[], T]], workers: int) -> list[T]:
    """The results in order. The first error is raised when every call that had begun has ended; the rest never begin.

    Unlike concurrent.futures, a call that hangs does not hold up the end of the process.
    """
    results: dict[int, T] = {}
    errors: list[BaseException] = []
    numbers = iter(range(len(calls)))
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                number = next(numbers, None)
                if number is None or errors:
                    return
            try:
                result = calls[number]()
            except BaseException as error:  # noqa: BLE001 - handed to the caller's thread below
                with lock:
                    errors.append(error)
                return
            with lock:
                results[number] = result

    threads = [threading.Thread(target=work, daemon=True, name="transfer") for _ in range(min(workers, len(calls)) - 1)]
    for thread in threads:
        thread.start()
    work()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [results[number] for number in range(len(calls))]
