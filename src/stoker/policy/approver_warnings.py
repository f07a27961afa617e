"""Find the approvers of a policy that are never asked."""

from __future__ import annotations

from collections.abc import Iterator

from stoker.jobfile import read_layer
from stoker.model.policy import Policy


def approver_warnings(policy: Policy, text: str, source: str) -> Iterator[str]:
    """A line for each rule with an empty list of approvers, and for each with approvers that holds no job up."""
    top = read_layer(text, source).root.value
    rules = top.get("rules") if isinstance(top, dict) else None
    written = rules.value if rules is not None and isinstance(rules.value, tuple) else ()
    for rule, node in zip(policy.rules, written, strict=False):
        approvers = node.value.get("approvers") if isinstance(node.value, dict) else None
        if approvers is None:
            continue
        if not rule.approvers:
            yield (
                f"warning: policy {rule.name}: approvers: there are none, so no job may break the rule; name people, "
                "or leave approvers out"
            )
        elif rule.audit or rule.action == "warn":
            why = "audit" if rule.audit else "then: warn"
            yield (
                f"warning: policy {rule.name}: approvers: are never asked, because the rule holds no job up ({why}); "
                f"leave approvers out, or {'audit' if rule.audit else 'then'}"
            )
