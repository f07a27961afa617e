"""What a training job is called, and its hosts.

`stoker-<store>-<job>-<claim>x<nodes>`: the same for everybody who launches a claim, and never given twice in an account
and region, so that the name itself is the launch token. It tells whose it is without another question; a job whose own
name is too long for that is shortened, and asked for by its tags.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

_MOST = 63
_DIGITS = 10
_OURS = re.compile(
    r"stoker-[0-9a-f]{10}-(?P<job>[a-z0-9-]+?)(?P<short>--[0-9a-f]{8})?-(?P<claim>[0-9]+)x(?P<nodes>[0-9]+)"
)
_HOST = re.compile(r"(?P<training>[A-Za-z0-9-]{1,63})\.algo-(?P<number>[0-9]{1,4})")


@dataclass(frozen=True)
class Named:
    """What a name tells. `job` is None where there was no room for it."""

    job: str | None
    claim: int
    nodes: int


def prefix(store: str) -> str:
    """How the names of a store's training jobs begin."""
    return f"stoker-{hashlib.sha256(store.encode()).hexdigest()[:_DIGITS]}-"


def training_job(store: str, job: str, claim: int, nodes: int) -> str:
    """The training job of a claim."""
    begin, end = prefix(store), f"-{claim}x{nodes}"
    room = _MOST - len(begin) - len(end)
    if len(job) > room:
        digest = hashlib.sha256(job.encode()).hexdigest()[:8]
        job = f"{job[: room - 10].rstrip('-')}--{digest}"
    return f"{begin}{job}{end}"


def read(name: str) -> Named | None:
    """What such a name tells; None for one that is none of Stoker's."""
    found = _OURS.fullmatch(name)
    if found is None:
        return None
    job = None if found["short"] else found["job"]
    return Named(job, int(found["claim"]), int(found["nodes"]))


def host(training: str, rank: int) -> str:
    """What a host goes by: SageMaker calls them `algo-1`, `algo-2`, …"""
    return f"{training}.algo-{rank + 1}"


def training_of(instance: str) -> str | None:
    """The training job of a host; None for what is no host."""
    found = _HOST.fullmatch(instance)
    return found["training"] if found else None
