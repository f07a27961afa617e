"""Find the cause of a failed training job, from SageMaker's FailureReason and the end of the job's log. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from stoker.core import failure_diagnosis
from stoker.core.attempt_verdict import matches_failure
from stoker.core.policy_rules import PREFIX
from stoker.model.policy import Rule

# `machine`: the script is not at fault. `script`: a restart would fail again. `policy`: a rule of the policy wants a
# restart.
Blame = Literal["machine", "script", "policy", "unexplained"]

# The rule of failures of SageMaker itself.
INTERNAL = "internal"
# How FailureReason begins where SageMaker itself failed, or had no capacity.
_MACHINE = re.compile(r"(InternalServerError|InternalError|CapacityError|InsufficientCapacity\w*|ServiceUnavailable)\b")
# How FailureReason begins where the request is wrong: a role, a bucket, an image.
_REQUEST = re.compile(r"(ClientError|ResourceLimitExceeded|ValidationError|AccessDenied\w*)\b")
_EXIT_CODE = re.compile(r"[Ee]xit\s?[Cc]ode:?\s*\"?(\d{1,3})\b")
# The part of FailureReason that a reason quotes.
_MAX_CHARS = 300


@dataclass(frozen=True)
class ExternalJobFailure:
    """The cause of a failure: the blame, the rule that found it, and the reason for people."""

    blame: Blame
    rule: str
    reason: str


def diagnose(failure: str, tail: Sequence[str], diagnoses: Sequence[Rule]) -> ExternalJobFailure:
    """Find the cause. The policy's own failure rules come first."""
    lines = (*tail, failure)
    excerpt = " ".join(failure.split())[:_MAX_CHARS] or "SageMaker does not say why it failed"
    for rule in diagnoses:
        assert rule.failure is not None
        if matches_failure(rule.failure, lines, exit_code(failure), ()):
            blame: Blame = "policy" if rule.action == "restart" else "script"
            return ExternalJobFailure(blame, f"{PREFIX}{rule.name}", f"policy {rule.name}: {excerpt}")
    if _MACHINE.match(failure):
        return ExternalJobFailure("machine", INTERNAL, excerpt)
    if _REQUEST.match(failure):
        return ExternalJobFailure("script", "request", excerpt)
    # FailureReason quotes the end of the script's output; the log has more of it.
    for lines_to_match in ((failure,), tuple(tail)):
        found = failure_diagnosis.diagnose(lines_to_match)
        if found is not None and found.blame != "script":
            return ExternalJobFailure("machine", found.name, f"the log ends with a {found.name} error; {excerpt}")
    return ExternalJobFailure("unexplained", "resumed", excerpt)


def exit_code(failure: str) -> int | None:
    """The script's exit status, where FailureReason has it."""
    found = _EXIT_CODE.search(failure)
    return int(found[1]) if found else None
