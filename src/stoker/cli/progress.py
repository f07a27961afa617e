"""What takes time says so, on a terminal only."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def working(text: str) -> Iterator[None]:
    """Say what is being done while it is being done, where how much is left cannot be told."""
    if not sys.stderr.isatty():
        yield
        return
    sys.stderr.write(f"\r\x1b[2m{text} …\x1b[0m" if not os.environ.get("NO_COLOR") else f"\r{text} …")
    sys.stderr.flush()
    try:
        yield
    finally:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


@contextmanager
def progress_bar(text: str, *, of_bytes: bool = True) -> Iterator[Callable[[int, int], None] | None]:
    """A function to call with (done, total) from any thread; None where nobody watches."""
    if not sys.stderr.isatty():
        yield None
        return
    # Imported here: it takes longer than most commands do.
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (DownloadColumn(), TransferSpeedColumn()) if of_bytes else (MofNCompleteColumn(),)
    with Progress(
        TextColumn("{task.description}"), BarColumn(), *columns, console=Console(stderr=True), transient=True
    ) as progress:
        task = progress.add_task(text, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
