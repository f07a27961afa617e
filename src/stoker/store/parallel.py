"""Run blocking calls in parallel, on threads that do not delay the end of the process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from stoker.store.base import Store

S = TypeVar("S")
T = TypeVar("T")

# Objects that are looked for at the same time.
_HEADS = 16
# Interval of the checks while a call runs.
_LOOK_S = 0.05


def run_watched(call: Callable[[], T], check: Callable[[], None]) -> T:
    """Return the result of `call`, which runs on its own thread, while `check` is called here and may raise.

    If `check` raises, the call is abandoned: its thread runs on until it or the process ends.
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
    """Return the results in order. After an error no more calls begin, and it is raised when all running calls have
    ended.

    Unlike with concurrent.futures, a call that hangs does not delay the end of the process.
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


def any_exists(store: Store, keys: Sequence[str]) -> bool:
    """Return whether the store has one of these objects. All are looked for, in parallel."""
    return any(found is not None for found in run_all([partial(store.head, key) for key in keys], _HEADS))


def each_in_order(call: Callable[[S], T], things: Sequence[S], workers: int) -> Iterator[T]:
    """Yield the results of `call` for all things in order, with `workers` calls in parallel.

    Only a few calls run ahead of the next result, so memory stays bounded however many things there are. An error is
    raised in its turn; then, or when the caller stops, no more calls begin.
    """
    results: dict[int, tuple[T | None, BaseException | None]] = {}
    begun = handed_out = 0
    stopped = False
    changed = threading.Condition()

    def may_go_on() -> bool:
        return stopped or begun < handed_out + 2 * workers

    def work() -> None:
        nonlocal begun
        while True:
            with changed:
                changed.wait_for(may_go_on)
                if stopped or begun >= len(things):
                    return
                number, begun = begun, begun + 1
            try:
                result: tuple[T | None, BaseException | None] = (call(things[number]), None)
            except BaseException as error:  # noqa: BLE001 - handed to the caller's thread below
                result = (None, error)
            with changed:
                results[number] = result
                changed.notify_all()

    for _ in range(min(workers, len(things))):
        threading.Thread(target=work, daemon=True, name="in-order").start()
    try:
        for number in range(len(things)):
            with changed:
                changed.wait_for(lambda number=number: number in results)  # type: ignore[misc]
                value, error = results.pop(number)
                handed_out += 1
                changed.notify_all()
            if error is not None:
                raise error
            yield value  # type: ignore[misc]
    finally:
        with changed:
            stopped = True
            changed.notify_all()


# Parallel reads of one pass, for remote stores where each takes a while.
READERS = 32


def read_each(read: Callable[[S], T], things: Sequence[S], *, is_local: bool) -> list[T]:
    """Read every thing, many in parallel if the store is remote. Errors are handled as by `run_all`."""
    return run_all([partial(read, thing) for thing in things], 1 if is_local else READERS)
