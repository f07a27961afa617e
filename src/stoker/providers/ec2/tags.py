"""The tags that mark Stoker's resources, and EC2's rules for tags."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from stoker.providers.base import LaunchOrder
from stoker.providers.job_tags import check_tags

STORE = "stoker:store"
JOB = "stoker:job"
CLAIM = "stoker:claim"
SUBMITTER = "stoker:submitter"
NAME = "Name"
_OURS = "stoker:"

# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/Using_Tags.html
_MOST_TAGS = 50
_KEY_LENGTH = 128
_VALUE_LENGTH = 256
# Tags are readable on the machine, whose metadata service allows no spaces and slashes in a tag's name.
_KEY = re.compile(r"[A-Za-z0-9+\-=.,_:@]+")
_NO_KEYS = frozenset({".", "..", "_index"})


def store_tag(url: str) -> str:
    """The value of `stoker:store`: the store's address, or its digest if the address is too long for a tag."""
    return url if len(url) <= _VALUE_LENGTH else f"sha256:{hashlib.sha256(url.encode()).hexdigest()}"


def of_order(order: LaunchOrder, rank: int | None) -> dict[str, str]:
    """Every tag of an order's resources. `rank` is None for a resource that serves all ranks."""
    return {
        NAME: name(order.job, order.attempt, rank),
        JOB: order.job,
        CLAIM: str(order.claim),
        STORE: store_tag(order.store),
        SUBMITTER: _fitting(order.submitter),
        **order.spec.written_tags,
    }


def name(job: str, attempt: int, rank: int | None) -> str:
    """The name under which the console lists a machine. A gang is launched by one request, so it has one name."""
    return f"{job}-{attempt}" + ("" if rank is None else f"-{rank}")


def to_aws(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Convert tags to the form of EC2's requests."""
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def from_aws(tags: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Convert tags from the form of EC2's answers."""
    return {str(tag.get("Key", "")): str(tag.get("Value", "")) for tag in tags}


def owner_of(found: Mapping[str, Any], store: str) -> tuple[str, int] | None:
    """The job and claim of a resource; None if it is not of this store.

    EC2's filters interpret wildcards, so the store's tag is compared once more.
    """
    tags = from_aws(found.get("Tags", ()))
    job, claim = tags.get(JOB), tags.get(CLAIM, "")
    return (job, int(claim)) if job and claim.isdigit() and tags.get(STORE) == store else None


def check(tags: Mapping[str, str]) -> None:
    """Raise UserError for a job's tag that EC2, or the metadata service on the machine, would refuse."""
    check_tags("EC2", tags, _MOST_TAGS - 5, _problem)


def _problem(key: str, value: str) -> str | None:
    if key == NAME or key.startswith(_OURS):
        return "is set by Stoker; choose another name"
    if key.lower().startswith("aws:"):
        return "names that begin with aws: belong to AWS; choose another"
    if len(key) > _KEY_LENGTH:
        return f"the name has {len(key)} characters; EC2 takes {_KEY_LENGTH}"
    if key in _NO_KEYS or not _KEY.fullmatch(key):
        return "EC2's metadata takes letters, digits and + - = . , _ : @ in a tag's name; choose another"
    if len(value) > _VALUE_LENGTH:
        return f"the value has {len(value)} characters; EC2 takes {_VALUE_LENGTH}"
    return None


def _fitting(text: str) -> str:
    return text[:_VALUE_LENGTH]
