"""Machines that jobs have at the same time, as the rules `concurrent` bound them, and the queue for them. Pure.

An open claim counts from its writing until the log says that its attempt is over. Nothing is stored besides the job
logs: every governor computes the same sums from them, so claims that race are judged as those for budgets are
(docs/decisions/budgets-without-locks.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from stoker.core.budget_reservations import LaunchRequest, Waiting
from stoker.core.hold import hold_of
from stoker.core.name_list import first_names
from stoker.core.policy_rules import Subject, applies, in_scope
from stoker.core.tag_groups import group_of, group_text
from stoker.model.job_state import Claim, JobState
from stoker.model.policy import ConcurrentRule, Policy, Rule
from stoker.model.spec import Spec

# Between two attempts a job keeps its place for this long: the next claim follows within seconds, unless there is no
# capacity.
KEPT = timedelta(minutes=10)


@dataclass(frozen=True)
class MachineUse:
    """Machines that one job has. `claim` is 0 for an external job, and `region` its region, outside of which others may
    have its name; empty for a job of Stoker. `kept`: the job is between two attempts."""

    job: str
    tags: Mapping[str, str]
    at: datetime
    nodes: int
    gpus: int
    claim: int = 0
    kept: bool = False
    region: str = ""

    def is_of(self, subject: Subject) -> bool:
        """Return whether the subject is this job."""
        region = (subject.spec.resources.region or "") if subject.is_external else ""
        return (self.job, self.region) == (subject.job, region)


@dataclass(frozen=True)
class Occupancy:
    """The state of one limit: the machines in use, and the jobs that wait for some, in order."""

    uses: tuple[MachineUse, ...] = ()
    queue: tuple[Waiting, ...] = ()


@dataclass(frozen=True)
class NoRoom:
    """The denial of a launch by a limit. `never`: the job needs more than the whole limit."""

    rule: Rule
    reason: str
    waits: str
    never: bool = False


def uses_of(state: JobState, spec: Spec, now: datetime) -> Iterator[MachineUse]:
    """The machines of a job: of open claims, held ones, and the place that it keeps between two attempts."""

    def use(claim: Claim, *, kept: bool = False) -> MachineUse:
        gpus = claim.nodes * claim.offering.gpus
        return MachineUse(state.job, spec.tags, claim.at, claim.nodes, gpus, claim.number, kept)

    if state.open_claims:
        yield from map(use, state.open_claims)
        return
    last = state.last_claim
    if state.ended is not None:
        hold = hold_of(state, spec)
        held = state.claim(hold.claim) if hold is not None and now < hold.ends_at else None
        if held is not None:
            yield use(held)
    elif state.stop is None and last is not None and _keeps_place(last, state, now):
        yield use(last, kept=True)


def _keeps_place(last: Claim, state: JobState, now: datetime) -> bool:
    """Return whether the job's last claim was an attempt that ended a moment ago, so that the next one follows."""
    ran = last.attempt is not None and last.number > state.opened_seq
    return ran and last.closed_at is not None and now - last.closed_at < KEPT


def occupancies(
    policy: Policy, uses: Iterable[MachineUse], waiting: Iterable[Waiting]
) -> dict[tuple[str, str], Occupancy]:
    """The state of every limit, by the name of its rule and the group of jobs."""
    found: dict[tuple[str, str], list[MachineUse]] = {}
    queues: dict[tuple[str, str], list[Waiting]] = {}
    rules = [(rule, rule.concurrent) for rule in policy.about("concurrent") if rule.concurrent is not None]
    for use in uses:
        for rule, limit in rules:
            if in_scope(rule, use.tags):
                found.setdefault((rule.name, group_of(limit.by, use.tags)), []).append(use)
    for each in sorted(waiting, key=lambda each: each.place):
        mine = [(rule, limit, group_of(limit.by, each.tags)) for rule, limit in rules if in_scope(rule, each.tags)]
        for rule, limit, group in mine:
            # A job that waits for one limit holds up no other job in another.
            rest = [one for one in mine if one[0] != rule and not one[0].audit and one[0].action != "warn"]
            free = all(_fits(other, each.nodes, each.gpus, found.get((one.name, at), ())) for one, other, at in rest)
            # More than the whole limit is waited for in vain.
            if free and _fits(limit, each.nodes, each.gpus, ()):
                queues.setdefault((rule.name, group), []).append(each)
    keys = found.keys() | queues.keys()
    return {key: Occupancy(tuple(found.get(key, ())), tuple(queues.get(key, ()))) for key in keys}


def no_room(
    policy: Policy, subject: Subject, limits: Mapping[tuple[str, str], Occupancy], request: LaunchRequest
) -> Iterator[NoRoom]:
    """The limits that have no room for a launch. A claim that exists already is judged by those that are no younger."""
    for rule in policy.about("concurrent"):
        if rule.concurrent is None or not applies(rule, subject):
            continue
        limit, group = rule.concurrent, group_of(rule.concurrent.by, subject.spec.tags)
        found = _judge(rule, limit, group, limits.get((rule.name, group), Occupancy()), subject, request)
        if found is not None:
            yield found


def describe_limits(policy: Policy, subject: Subject, limits: Mapping[tuple[str, str], Occupancy]) -> Iterator[str]:
    """Describe each limit of a job for a plan: `policy gpus: 8 of 16 GPUs of team=nlp are in use by a`."""
    for rule in policy.about("concurrent"):
        if rule.concurrent is None or not applies(rule, subject):
            continue
        limit, group = rule.concurrent, group_of(rule.concurrent.by, subject.spec.tags)
        uses = limits.get((rule.name, group), Occupancy()).uses
        yield f"{_title(rule)}: {_in_use(limit, group, uses)}"


# ── Small things ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _judge(
    rule: Rule, limit: ConcurrentRule, group: str, state: Occupancy, subject: Subject, request: LaunchRequest
) -> NoRoom | None:
    wanted = _amounts(limit, request.nodes, request.gpus)
    if not _fits(limit, request.nodes, request.gpus, ()):
        most = f"{_amounts_of(limit)}{_of(limit, group)} may be in use at once"
        reason = f"{_title(rule)}: nodes: {_nodes(request)}: at most {most}; ask for fewer"
        return NoRoom(rule, reason, reason, never=True)
    uses = [use for use in state.uses if not use.is_of(subject) or not use.kept]
    if request.claimed_at is not None:
        mine = [use for use in uses if use.is_of(subject) and use.claim == request.claim]
        uses = [use for use in uses if use.at <= request.claimed_at and use not in mine]
    ahead: list[Waiting] = []
    if request.claimed_at is None and not request.begun:
        # A job that has begun goes before those that have not.
        place = (request.since, subject.job or "")
        ahead = [each for each in state.queue if each.job != subject.job and (each.begun or each.place < place)]
    nodes = request.nodes + sum(each.nodes for each in ahead)
    gpus = request.gpus + sum(each.gpus for each in ahead)
    if _fits(limit, nodes, gpus, uses):
        return None
    behind = f"; {first_names([each.job for each in ahead])} {'is' if len(ahead) == 1 else 'are'} before it"
    rest = f"{_in_use(limit, group, uses)}{behind if ahead else ''}"
    return NoRoom(rule, f"{_title(rule)}: needs {wanted}: {rest}", f"{_title(rule)}: waits for {wanted}: {rest}")


def _fits(limit: ConcurrentRule, nodes: int, gpus: int, uses: Iterable[MachineUse]) -> bool:
    """Return whether so many more may be in use. What a job does not need at all never holds it up."""
    found = list(uses)
    if limit.nodes is not None and nodes and nodes + sum(use.nodes for use in found) > limit.nodes:
        return False
    return limit.gpus is None or not gpus or gpus + sum(use.gpus for use in found) <= limit.gpus


def _in_use(limit: ConcurrentRule, group: str, uses: Iterable[MachineUse]) -> str:
    found = list(uses)
    parts = []
    if limit.gpus is not None:
        parts.append(f"{sum(use.gpus for use in found)} of {_gpus(limit.gpus)}")
    if limit.nodes is not None:
        parts.append(f"{sum(use.nodes for use in found)} of {_count(limit.nodes, 'node')}")
    names = first_names(sorted({use.job for use in found}))
    return f"{' and '.join(parts)}{_of(limit, group)} are in use{f' by {names}' if names else ''}"


def _amounts(limit: ConcurrentRule, nodes: int, gpus: int) -> str:
    found = []
    if limit.gpus is not None and gpus:
        found.append(_gpus(gpus))
    if limit.nodes is not None:
        found.append(_count(nodes, "node"))
    return " and ".join(found) or _count(nodes, "node")


def _amounts_of(limit: ConcurrentRule) -> str:
    found = [] if limit.gpus is None else [_gpus(limit.gpus)]
    return " and ".join([*found, *([] if limit.nodes is None else [_count(limit.nodes, "node")])])


def _nodes(request: LaunchRequest) -> str:
    nodes = _count(request.nodes, "node")
    return f"{nodes} with {_gpus(request.gpus)}" if request.gpus else nodes


def _gpus(count: int) -> str:
    return _count(count, "GPU")


def _count(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _of(limit: ConcurrentRule, group: str) -> str:
    text = group_text(limit.by, group)
    return f" of {text}" if text else ""


def _title(rule: Rule) -> str:
    return f"policy {rule.name}{' (audit)' if rule.audit else ''}"
