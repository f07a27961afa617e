"""Names of machines and of resources beside them. A name is no proof of identity: a free name is used again."""

from __future__ import annotations

import hashlib
import re

from stoker.providers.base import LaunchOrder, launch_token

# RFC 1035, as Compute Engine wants it: https://cloud.google.com/compute/docs/naming-resources
_LENGTH = 63
_DIGEST = 8
# `-` and a rank: no gang has more nodes than these digits can number.
_RANK_LENGTH = 5


def base(order: LaunchOrder) -> str:
    """The name of an order's resources: see `of_claim`."""
    return of_claim(order.store, order.job, order.claim)


def of_claim(store: str, job: str, claim: int) -> str:
    """The name of one claim's resources: `stoker-JOB-CLAIM-DIGEST`, at most 58 characters.

    The digest is of the store and the claim's token: jobs of two stores in one project may share an id, and long ids
    are cut.
    """
    digest = hashlib.sha256(f"{store}\0{launch_token(job, claim)}".encode()).hexdigest()[:_DIGEST]
    end = f"-{claim}-{digest}"
    spelled = re.sub(r"[^a-z0-9-]", "-", job.lower())
    return f"stoker-{spelled}"[: _LENGTH - _RANK_LENGTH - len(end)].rstrip("-") + end


def of_rank(claim_name: str, rank: int) -> str:
    """The name of one node of a claim."""
    return f"{claim_name}-{rank}"


def machine(order: LaunchOrder, rank: int) -> str:
    """The name of one node: the same for every governor that finishes this claim."""
    return of_rank(base(order), rank)


def machines(order: LaunchOrder) -> tuple[str, ...]:
    """The names of all nodes, by rank."""
    return tuple(machine(order, rank) for rank in range(order.nodes))


def rank(name: str) -> int | None:
    """The rank in a machine's name; None for a name that is not Stoker's."""
    found = re.fullmatch(r"stoker-.+-([0-9]+)", name)
    return int(found[1]) if found else None
