"""Approvals: a named person lets one job break one rule, until a day. Each is one object, written once.

An approval is an exemption that a person of the rule's `approvers` gives. Write access to `policy/approvals/` is the
right to approve: the identity in an approval is recorded by the client that writes it, as that of submitters is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import date

from stoker.core.policy_patterns import is_submitter
from stoker.model import codec, keys
from stoker.model.errors import CodecError, StoreDenied, StoreError, StoreUnavailable
from stoker.model.key_segments import quote
from stoker.model.policy import Exemption, Policy, Rule
from stoker.store.base import Store
from stoker.store.job_log import new_token

_MOST_BYTES = 64 * 1024
_LONGEST_WHY = 500


@dataclass(frozen=True)
class Approval:
    """One approval, as it is stored. `by` is the identity that the cloud of the store knows, as for submitters; `until`
    is the last day, as `2026-12-31`, in UTC. `external`: `job` is the name of an external job."""

    job: str
    rule: str
    by: str
    until: str
    why: str
    external: bool = False


class ApprovalReader:
    """Reads approvals, each once: they never change."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._read: dict[str, Approval | None] = {}

    def with_approvals(self, policy: Policy, today: date) -> Policy:
        """The policy with its valid approvals as exemptions. Asks the store only if some rule has approvers. Raises
        StoreError."""
        if not any(rule.approvers for rule in policy.rules):
            return policy
        found = self.valid(today)
        return replace(policy, rules=tuple(_with_approvals(rule, found) for rule in policy.rules))

    def valid(self, today: date) -> list[Approval]:
        """The approvals that have not expired, by job and rule. Raises StoreError."""
        names = [meta.key for meta in self._store.list(keys.APPROVALS) if _until(meta.key) >= today.isoformat()]
        self._read = {key: approval for key, approval in self._read.items() if key in set(names)}
        for key in names:
            if key not in self._read:
                self._read[key] = self._one(key)
        known = [approval for approval in self._read.values() if approval is not None]
        return sorted(known, key=lambda each: (each.job, each.rule, each.until))

    def _one(self, key: str) -> Approval | None:
        """One approval; None where it cannot be read, which approves nothing."""
        try:
            found = self._store.get(key, limit=_MOST_BYTES)
            approval = None if found is None else codec.loads(Approval, found.data)
        except (StoreUnavailable, StoreDenied):
            raise
        except (CodecError, StoreError):
            return None
        # The key is what counts as expired, so the text may not say more than it.
        if approval is None or not key.startswith(_prefix(approval)) or not _is_day(approval.until):
            return None
        # Names are compared, so none is changed: one that could steer a terminal approves nothing.
        if not all(map(str.isprintable, (approval.job, approval.rule, approval.by))):
            return None
        return replace(approval, why=_plain(approval.why))


def write(store: Store, approval: Approval, *, token: Callable[[], str] = new_token) -> None:
    """Record an approval. Raises StoreError."""
    store.create(f"{_prefix(approval)}{token()}.json", codec.dumps(approval))


def may_approve(rule: Rule, identity: str) -> bool:
    """Return whether this identity is one of the rule's approvers."""
    return any(is_submitter(wanted, identity) for wanted in rule.approvers)


def _with_approvals(rule: Rule, approvals: Iterable[Approval]) -> Rule:
    """The rule with the approvals by those who are its approvers now."""
    more = tuple(
        Exemption(
            job=each.job,
            until=date.fromisoformat(each.until),
            why=each.why,
            approved_by=each.by,
            external=each.external,
        )
        for each in approvals
        if each.rule == rule.name and may_approve(rule, each.by)
    )
    return replace(rule, exempt=(*rule.exempt, *more)) if more else rule


def key_prefix(until: str, job: str, rule: str) -> str:
    """The beginning of the key of an approval; a token follows."""
    return f"{keys.APPROVALS}{until}/{job}/{quote(rule)}."


def _prefix(approval: Approval) -> str:
    return key_prefix(approval.until, approval.job, approval.rule)


def _is_day(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _plain(text: str) -> str:
    """A text of any writer as one line without control characters, for logs and terminals."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return line if len(line) <= _LONGEST_WHY else f"{line[: _LONGEST_WHY - 1]}…"


def _until(key: str) -> str:
    """The last day of an approval, from its key."""
    return key.removeprefix(keys.APPROVALS).partition("/")[0]
