"""Names of training jobs and of their hosts.

`stoker-<store>-<job>-<claim>x<nodes>`: the same for every governor that launches a claim, and never reused in an
account and region, so that the name itself is the launch token. The name identifies its owner without another call; a
job's name that is too long is shortened, and read from the tags.
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
class TrainingJobName:
    """A parsed name. `job` is None where the name was too short for it."""

    job: str | None
    claim: int
    nodes: int


def prefix(store: str) -> str:
    """The prefix of the names of a store's training jobs."""
    return f"stoker-{hashlib.sha256(store.encode()).hexdigest()[:_DIGITS]}-"


def training_job(store: str, job: str, claim: int, nodes: int) -> str:
    """The name of a claim's training job."""
    begin, end = prefix(store), f"-{claim}x{nodes}"
    room = _MOST - len(begin) - len(end)
    if len(job) > room:
        digest = hashlib.sha256(job.encode()).hexdigest()[:8]
        job = f"{job[: room - 10].rstrip('-')}--{digest}"
    return f"{begin}{job}{end}"


def read(name: str) -> TrainingJobName | None:
    """Parse a name; None for one that is not Stoker's."""
    found = _OURS.fullmatch(name)
    if found is None:
        return None
    job = None if found["short"] else found["job"]
    return TrainingJobName(job, int(found["claim"]), int(found["nodes"]))


def host(training: str, rank: int) -> str:
    """The id of a host. SageMaker names hosts `algo-1`, `algo-2`, …"""
    return f"{training}.algo-{rank + 1}"


def training_job_of(instance: str) -> str | None:
    """The training job of a host; None where the id is not that of a host."""
    found = _HOST.fullmatch(instance)
    return found["training"] if found else None
