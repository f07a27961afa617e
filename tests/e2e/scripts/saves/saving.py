"""What the programs of this folder share: a ledger outside of the job, slow writes, and a way to be told.

    python <program>.py FOLDER LEDGER HANDLER

HANDLER is `none`, `exits` (sys.exit in the handler, wherever it hits) or `saves` (a last save, then the end). A program
loads strictly at its start, then trains and saves for ever. Each save begins when the ledger's folder has a file
`go-<step>`: so the harness decides how fast saves follow one another. SIGUSR1 raises MemoryError, wherever it hits.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Between two pieces of a file: a disk that is slow enough to be hit.
PAUSE_S = 0.04
told = False


def note(ledger: Path, kind: str, step: int, **more: object) -> None:
    line = json.dumps({"kind": kind, "step": step, "at": time.monotonic(), **more}) + "\n"
    with ledger.open("a") as file:
        file.write(line)


def write_slowly(path: Path, data: bytes, pieces: int = 8) -> None:
    with path.open("wb") as file:
        for start in range(0, len(data), len(data) // pieces + 1):
            file.write(data[start : start + len(data) // pieces + 1])
            file.flush()
            time.sleep(PAUSE_S)


def slow_torch() -> Any:
    """torch, whose `save` takes a while for each tensor."""
    import torch
    import torch.serialization as serialization

    opened = serialization._open_zipfile_writer_file

    class Paced:
        def __init__(self, writer: Any) -> None:
            self._writer = writer

        def write_record(self, *arguments: object) -> None:
            self._writer.write_record(*arguments)
            time.sleep(PAUSE_S)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._writer, name)

    class Slow(opened):  # type: ignore[valid-type, misc]
        def __enter__(self) -> Any:
            return Paced(super().__enter__())

    serialization._open_zipfile_writer_file = Slow  # type: ignore[misc]
    return torch


def state_of(torch: Any, step: int) -> dict[str, Any]:
    """Tensors that all say the step."""
    return {f"layer.{n}": torch.full((64, 64), float(step)) for n in range(8)}


def check_state(torch: Any, state: dict[str, Any], step: int) -> None:
    assert sorted(state) == sorted(state_of(torch, step)), f"tensors are missing: {sorted(state)}"
    for name, tensor in state.items():
        assert bool((tensor == float(step)).all()), f"{name} is not of step {step}"


def main(load: Callable[[Path], int | None], save: Callable[[Path, int], None], *, saves_here: bool = True) -> None:
    """Run a program. `load` gives the step that was saved, None where nothing was; it raises on whatever is wrong."""
    folder, ledger, handler = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    folder.mkdir(exist_ok=True)

    def on_term(*_: object) -> None:
        global told
        told = True
        if handler == "exits":
            sys.exit(0)

    def on_memory(*_: object) -> None:
        raise MemoryError

    if handler != "none":
        signal.signal(signal.SIGTERM, on_term)
    signal.signal(signal.SIGUSR1, on_memory)
    try:
        found = load(folder)
    except Exception as error:
        if saves_here:
            note(ledger, "bad", 0, what=f"{type(error).__name__}: {error}")
        raise
    step = found or 0
    if saves_here:
        note(ledger, "start", step, pid=os.getpid())
    while True:
        step += 1
        while not told and not (ledger.parent / f"go-{step}").exists():
            time.sleep(0.01)
        if saves_here:
            note(ledger, "saving", step)
            save(folder, step)
            note(ledger, "saved", step)
        if told and handler == "saves":
            sys.exit(0)
