"""The tags that identify Stoker's training jobs, and SageMaker's limits for tags."""

from __future__ import annotations

import re
from collections.abc import Mapping

from stoker.providers.base import LaunchOrder
from stoker.providers.ec2.tags import CLAIM, JOB, STORE, SUBMITTER, from_aws, store_tag, to_aws
from stoker.providers.job_tags import check_tags

__all__ = ["CLAIM", "JOB", "STORE", "SUBMITTER", "check", "from_aws", "of_order", "store_tag", "to_aws"]

_OURS = "stoker:"
# https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_Tag.html
_MOST_TAGS = 50
_KEY_LENGTH = 128
_VALUE_LENGTH = 256
_FORBIDDEN = re.compile(r"[^\w\s.:/=+\-@]")


def of_order(order: LaunchOrder) -> dict[str, str]:
    """All tags of an order's training job."""
    return {
        JOB: order.job,
        CLAIM: str(order.claim),
        STORE: store_tag(order.store),
        SUBMITTER: _FORBIDDEN.sub("_", order.submitter)[:_VALUE_LENGTH],
        **order.spec.written_tags,
    }


def check(tags: Mapping[str, str]) -> None:
    """Raise UserError for a job's tag that SageMaker would refuse."""
    check_tags("SageMaker", tags, _MOST_TAGS - 4, _problem)


def _problem(key: str, value: str) -> str | None:
    if key.startswith(_OURS):
        return "is set by Stoker; choose another name"
    if key.lower().startswith("aws:"):
        return "names that begin with aws: belong to AWS; choose another"
    for what, text, most in (("name", key, _KEY_LENGTH), ("value", value, _VALUE_LENGTH)):
        if len(text) > most:
            return f"the {what} has {len(text)} characters; SageMaker takes {most}"
        if _FORBIDDEN.search(text):
            return f"SageMaker takes letters, digits, spaces and _ . : / = + - @ in a tag's {what}; choose another"
    return None
