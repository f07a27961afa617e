"""Run the command line, and count how its own thread crosses from room to room until a file appears.

    python -m tests.support.crossings REPORT MARKER run -- python train.py

A crossing is a pair of functions, the calling one and the called one, in different rooms of `src/stoker`. It counts
once, however often it is called, so polling changes nothing. Left out are calls into `model/`, which holds data, and
the methods of the opened store, which are the interface of that room. A call through the standard library, a
comprehension or a lambda counts from the function of Stoker around it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import stoker
from stoker.cli import main
from stoker.store.folder import FolderStore

SOURCE = f"{Path(stoker.__file__).parent}/"
_NAMELESS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<lambda>")


def room_of(code: CodeType) -> str | None:
    """The room of a function; None for functions that are not Stoker's, and for those without a name."""
    if not code.co_filename.startswith(SOURCE) or code.co_name in _NAMELESS:
        return None
    return code.co_filename.removeprefix(SOURCE).partition("/")[0].removesuffix(".py")


def title(code: CodeType) -> str:
    return f"{code.co_filename.removeprefix(SOURCE)}:{code.co_firstlineno} {code.co_name}"


class Crossings:
    """The crossings so far, and how often YAML was parsed. Installed with `sys.setprofile`, for this thread alone."""

    def __init__(self, marker: Path) -> None:
        self.pairs: set[tuple[str, str]] = set()
        self.yaml_parsed = 0
        self._marker = marker

    def __call__(self, frame: FrameType, event: str, _argument: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        if code.co_name == "get_single_node":
            self.yaml_parsed += 1
        room = room_of(code)
        if room is None or code.co_name == "<module>":
            return
        caller = frame.f_back
        while caller is not None and room_of(caller.f_code) is None:
            caller = caller.f_back
        if caller is None or caller.f_code.co_name == "<module>" or room_of(caller.f_code) == room:
            return
        if self._marker.exists():
            sys.setprofile(None)
        elif room != "model" and not isinstance(frame.f_locals.get("self"), FolderStore):
            self.pairs.add((title(caller.f_code), title(code)))


if __name__ == "__main__":
    report, marker, *words = sys.argv[1:]
    crossings = Crossings(Path(marker))
    sys.setprofile(crossings)
    try:
        main(words)
    finally:
        sys.setprofile(None)
        Path(report).write_text(json.dumps({"pairs": sorted(crossings.pairs), "yaml": crossings.yaml_parsed}))
