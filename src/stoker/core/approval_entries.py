"""Record in a job's log that a person approved it, or withdrew the approval. Pure."""

from __future__ import annotations

from stoker.core import policy_rules
from stoker.core.job_decision import JobDecision
from stoker.model.log_entries import Warned
from stoker.model.policy import Exemption, Rule


def record_approvals(decision: JobDecision) -> bool:
    """Record each valid approval of the job once, with its approver."""
    for rule in decision.settings.policy.rules:
        for each in policy_rules.exemptions(rule, decision.subject):
            code = _code(rule, each, "approved")
            valid = each.approved_by and policy_rules.is_valid(each, decision.now.date())
            if valid and code not in decision.state.warned:
                text = f"policy {rule.name}: approved by {each.approved_by} until {each.until}: {each.why}"
                return decision.append(Warned(code=code), text)
    return False


def record_withdrawals(decision: JobDecision) -> bool:
    """Record each withdrawal of an approval that the log has, once, with the person that withdrew it."""
    for rule in decision.settings.policy.rules:
        for each in policy_rules.exemptions(rule, decision.subject):
            code, recorded = _code(rule, each, "withdrawn"), _code(rule, each, "approved") in decision.state.warned
            if each.withdrawn_by and recorded and code not in decision.state.warned:
                return decision.append(Warned(code=code), f"policy {rule.name}: {policy_rules.withdrawn_text(each)}")
    return False


def _code(rule: Rule, approval: Exemption, what: str) -> str:
    """The code of an entry. A job may be approved again for the same day, after a withdrawal: the token differs."""
    token = f":{approval.token}" if approval.token else ""
    return f"{policy_rules.PREFIX}{rule.name}:{what}:{approval.until}{token}"
