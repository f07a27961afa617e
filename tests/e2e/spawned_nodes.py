"""What `scripts/spawn_by_*.py` and `scripts/look_at_names.py` print."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

_JOINED = re.compile(r"rank (\d) of 4 on (\S+): all add up to 10")


def joined(lines: Sequence[str]) -> dict[int, str]:
    """The host of each rank that has joined all the others.

    Two processes of a node may print into one line: each writes its line and the end of it one after the other.
    """
    return {int(rank): host for rank, host in _JOINED.findall("\n".join(lines))}


def seen(lines: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """The names of the nodes, and the addresses of each, as all nodes saw them alike."""
    (found,) = {line.removeprefix("seen ") for line in lines if line.startswith("seen ")}
    told = json.loads(found)
    return told["nodes"], told["found"]
