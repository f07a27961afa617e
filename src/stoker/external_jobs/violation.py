"""A rule that an external job breaks. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.model.policy import RuleAction


@dataclass(frozen=True)
class RuleViolation:
    """A rule that a job in progress breaks. `then` is the action; a rule that is not enforced only warns."""

    rule: str
    reason: str
    then: RuleAction
    enforced: bool = True
