"""Approvals: a named person lets one job break one rule, until a day. Each is one object, written once.

An approval is an exemption that a person of the rule's `approvers` gives. Write access to `policy/approvals/` is the
right to approve: the identity in an approval is recorded by the client that writes it, as that of submitters is.

A withdrawal is an object beside the approval, written once, too: approvers need no right to delete, and both stay for
later readers. Its key alone withdraws the approval, for good: neither a text that cannot be read nor a later change of
the rule's approvers may bring the approval back. The job can be approved again, by another object.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
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
_APPROVAL = ".json"
_WITHDRAWAL = ".withdrawn.json"


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


@dataclass(frozen=True)
class Withdrawal:
    """The withdrawal of one approval, as it is stored. `by` is an identity, as in the approval."""

    by: str
    why: str


@dataclass(frozen=True)
class StoredApproval:
    """An approval with its key, and its withdrawal; None while the approval stands."""

    key: str
    approval: Approval
    withdrawal: Withdrawal | None = None

    @property
    def token(self) -> str:
        return self.key.removeprefix(_prefix(self.approval)).removesuffix(_APPROVAL)


class ApprovalReader:
    """Reads approvals and their withdrawals, each once: they never change."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._read: dict[str, Approval | None] = {}
        self._withdrawn: dict[str, Withdrawal] = {}

    def with_approvals(self, policy: Policy, today: date) -> Policy:
        """The policy with its valid approvals as exemptions. Asks the store only if some rule has approvers. Raises
        StoreError."""
        if not any(rule.approvers for rule in policy.rules):
            return policy
        found = self._unexpired(today)
        return replace(policy, rules=tuple(_with_approvals(rule, found) for rule in policy.rules))

    def valid(self, today: date) -> list[Approval]:
        """The approvals that have neither expired nor been withdrawn, by job and rule. Raises StoreError."""
        return [each.approval for each in self.standing(today)]

    def standing(self, today: date) -> list[StoredApproval]:
        """As `valid`, with the keys of the approvals. Raises StoreError."""
        return [each for each in self._unexpired(today) if each.withdrawal is None]

    def _unexpired(self, today: date) -> list[StoredApproval]:
        names = {meta.key for meta in self._store.list(keys.APPROVALS) if _until(meta.key) >= today.isoformat()}
        self._read = {key: approval for key, approval in self._read.items() if key in names}
        self._withdrawn = {key: withdrawal for key, withdrawal in self._withdrawn.items() if key in names}
        found = []
        for key in sorted(names):
            if key.endswith(_WITHDRAWAL):
                continue
            if key not in self._read:
                self._read[key] = self._one(key)
            approval = self._read[key]
            if approval is not None:
                found.append(StoredApproval(key, approval, self._withdrawal(_withdrawal_of(key), names)))
        return sorted(found, key=lambda each: (each.approval.job, each.approval.rule, each.approval.until))

    def _withdrawal(self, key: str, names: Collection[str]) -> Withdrawal | None:
        if key in names and key not in self._withdrawn:
            self._withdrawn[key] = self._text_of_withdrawal(key)
        return self._withdrawn.get(key)

    def _text_of_withdrawal(self, key: str) -> Withdrawal:
        """The text of a withdrawal; one that cannot be read withdraws all the same."""
        try:
            found = self._store.get(key, limit=_MOST_BYTES)
            text = Withdrawal("", "") if found is None else codec.loads(Withdrawal, found.data)
        except (StoreUnavailable, StoreDenied):
            raise
        except (CodecError, StoreError):
            text = Withdrawal("", "")
        return Withdrawal(_plain(text.by) or "an unknown person", _plain(text.why) or "no reason can be read")

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
    store.create(f"{_prefix(approval)}{token()}{_APPROVAL}", codec.dumps(approval))


def withdraw(store: Store, stored: StoredApproval, withdrawal: Withdrawal) -> bool:
    """Withdraw an approval; False: it was withdrawn before. May be repeated. Raises StoreError."""
    return store.create(_withdrawal_of(stored.key), codec.dumps(withdrawal))


def may_approve(rule: Rule, identity: str) -> bool:
    """Return whether this identity is one of the rule's approvers."""
    return any(is_submitter(wanted, identity) for wanted in rule.approvers)


def _with_approvals(rule: Rule, approvals: Iterable[StoredApproval]) -> Rule:
    """The rule with the approvals by those who are its approvers now, those that were withdrawn among them."""
    more = tuple(
        _exemption(each)
        for each in approvals
        if each.approval.rule == rule.name and may_approve(rule, each.approval.by)
    )
    return replace(rule, exempt=(*rule.exempt, *more)) if more else rule


def _exemption(stored: StoredApproval) -> Exemption:
    approval, withdrawal = stored.approval, stored.withdrawal
    return Exemption(
        job=approval.job,
        until=date.fromisoformat(approval.until),
        why=approval.why,
        approved_by=approval.by,
        external=approval.external,
        token=stored.token,
        withdrawn_by=withdrawal.by if withdrawal is not None else "",
        withdrawn_why=withdrawal.why if withdrawal is not None else "",
    )


def key_prefix(until: str, job: str, rule: str) -> str:
    """The beginning of the key of an approval; a token follows."""
    return f"{keys.APPROVALS}{until}/{job}/{quote(rule)}."


def _prefix(approval: Approval) -> str:
    return key_prefix(approval.until, approval.job, approval.rule)


def _withdrawal_of(key: str) -> str:
    """The key of the withdrawal of the approval with this key."""
    return f"{key.removesuffix(_APPROVAL)}{_WITHDRAWAL}"


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
