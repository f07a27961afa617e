"""Show on a terminal that a command is busy."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def working(text: str) -> Iterator[None]:
    """Show what is being done, where the rest of the work cannot be measured."""
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
    """A function to call with (done, total) from any thread; None where there is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    # Imported here: the import takes longer than most commands run.
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (DownloadColumn(), TransferSpeedColumn()) if of_bytes else (MofNCompleteColumn(),)
    with Progress(
        TextColumn("{task.description}"), BarColumn(), *columns, console=Console(stderr=True), transient=True
    ) as progress:
        task = progress.add_task(text, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
