"""What a failed training job of SageMaker's died of, from what SageMaker says and the end of its log. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from stoker.core import failure_patterns
from stoker.core.policy_rules import PREFIX
from stoker.core.retry import told_by
from stoker.model.policy import Rule

# `machine`: what no script can help. `script`: what starting it again cannot help. `house`: the house says itself that
# it is started again.
Blame = Literal["machine", "script", "house", "unexplained"]

# How FailureReason begins where SageMaker itself failed, or had nothing left.
_MACHINE = re.compile(r"(InternalServerError|InternalError|CapacityError|InsufficientCapacity\w*|ServiceUnavailable)\b")
# What is wrong with the request: a role, a bucket, an image.
_REQUEST = re.compile(r"(ClientError|ResourceLimitExceeded|ValidationError|AccessDenied\w*)\b")
_EXIT_CODE = re.compile(r"[Ee]xit\s?[Cc]ode:?\s*\"?(\d{1,3})\b")
# A line of FailureReason in a reason.
_MOST_CHARS = 300


@dataclass(frozen=True)
class Cause:
    """Who is to blame, by which rule, in words."""

    blame: Blame
    rule: str
    reason: str


def diagnose(failure: str, tail: Sequence[str], diagnoses: Sequence[Rule]) -> Cause:
    """The house's own rules come first, as everywhere."""
    lines = (*tail, failure)
    said = " ".join(failure.split())[:_MOST_CHARS] or "SageMaker does not say why it failed"
    for rule in diagnoses:
        assert rule.failure is not None
        if told_by(rule.failure, lines, exit_code(failure), ()):
            blame: Blame = "house" if rule.action == "restart" else "script"
            return Cause(blame, f"{PREFIX}{rule.name}", f"policy {rule.name}: {said}")
    if _MACHINE.match(failure):
        return Cause("machine", "internal", said)
    if _REQUEST.match(failure):
        return Cause("script", "request", said)
    # FailureReason quotes the end of the script's words; the log has more of them.
    for told in ((failure,), tuple(tail)):
        found = failure_patterns.diagnose(told)
        if found is not None and found.blame != "script":
            return Cause("machine", found.name, f"the log ends with a {found.name} error; {said}")
    return Cause("unexplained", "resumed", said)


def exit_code(failure: str) -> int | None:
    """The script's exit status, where FailureReason has it."""
    found = _EXIT_CODE.search(failure)
    return int(found[1]) if found else None
