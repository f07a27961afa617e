"""Machines at the same time: of a user, a team and the store; a job over the limit waits, and says for what."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from external_world import HOUR_S, World, events
from scripted_cloud import ScriptedWorld
from test_reservations import PolicyWorld, settings

from stoker.core.budget_reservations import LaunchRequest, Need
from stoker.core.budget_state import compute_budget_state
from stoker.core.budget_verdict import LaunchDenied, judge
from stoker.core.concurrency import KEPT, uses_of
from stoker.core.policy_rules import Subject
from stoker.external_jobs.aws_account import accelerators_of
from stoker.external_jobs.clone_chain import RuleWarning
from stoker.external_jobs.training_job import ExternalJob
from stoker.governor.external_costs import read_rows
from stoker.governor.external_costs import uses_of as external_uses
from stoker.model.errors import SpecError
from stoker.model.log_entries import Claimed, Closed, Ended, Launched, StopAsked
from stoker.model.observed import Known
from stoker.model.offerings import Offering
from stoker.model.policy import Policy
from stoker.model.resources import Resources
from stoker.model.spec import Limits, Retry, Spec
from stoker.policy.policy_file import parse_policy
from stoker.policy.versions import current, parsed_policy
from stoker.submit.policy_check import check_policy, forecast_budgets
from tests.support.sim_data import EPOCH, ON_DEMAND, SPOT_A, at, make_spec, make_state, nodes

SPOTLESS = {"EnableManagedSpotTraining": False, "StoppingCondition": {"MaxRuntimeInSeconds": 432000}}
FOUR, EIGHT = replace(ON_DEMAND, machine="m4", gpus=4), replace(ON_DEMAND, machine="m8", gpus=8)


def spec(count: int = 1, **tags: str) -> Spec:
    return replace(make_spec(count), tags=tags)


def world(*rules: str, offerings: tuple[Offering, ...] = (FOUR,)) -> PolicyWorld:
    return PolicyWorld(settings(*rules), offerings)


def waiting(found: PolicyWorld, job: str) -> str:
    return found.look(job).waiting.get(job, "")


@pytest.mark.parametrize(
    ("rule", "first", "second", "third", "whose"),
    [
        ("by: team", {"team": "nlp"}, {"team": "nlp"}, {"team": "vision"}, " of team=nlp"),
        ("by: submitter", {"submitter": "jane"}, {"submitter": "jane"}, {"submitter": "joe"}, " of submitter=jane"),
        (
            "by: [team, project]",
            {"team": "nlp", "project": "x"},
            {"team": "nlp", "project": "x"},
            {"team": "nlp", "project": "y"},
            " of team=nlp and project=x",
        ),
        ("by: team", {}, {}, {"team": "nlp"}, " of jobs without team"),
    ],
)
def test_a_job_over_the_limit_waits_and_another_group_does_not(
    rule: str, first: dict[str, str], second: dict[str, str], third: dict[str, str], whose: str
) -> None:
    found = world(f"name: fair, concurrent: {{gpus: 6, {rule}}}")
    for job, tags in (("a", first), ("b", second), ("c", third)):
        found.submit(job, spec(**tags))
        found.look(job)
    assert found.running() == ["a", "c"]
    assert waiting(found, "b") == f"policy fair: waits for 4 GPUs: 4 of 6 GPUs{whose} are in use by a"
    found.now_s += 60
    found.end("a")
    found.look("b")
    assert found.running() == ["b", "c"]


def test_the_whole_store_has_a_limit_of_nodes() -> None:
    found = world("name: store, concurrent: {nodes: 3}", offerings=(SPOT_A,))
    for job, count in (("a", 2), ("b", 2), ("c", 1)):
        found.submit(job, spec(count))
        found.now_s += 1
        found.look(job)
    assert found.running() == ["a"]
    assert waiting(found, "b") == "policy store: waits for 2 nodes: 2 of 3 nodes are in use by a"
    assert waiting(found, "c").endswith("2 of 3 nodes are in use by a; b is before it"), "a small job does not overtake"


def test_a_job_that_waits_for_its_teams_limit_holds_up_no_other_team() -> None:
    found = world("name: team, concurrent: {gpus: 4, by: team}", "name: all, concurrent: {gpus: 12}")
    for job, team in (("a", "nlp"), ("b", "nlp"), ("c", "vision")):
        found.submit(job, spec(team=team))
        found.now_s += 1
        found.look(job)
    assert found.running() == ["a", "c"]


def test_a_job_of_processors_alone_waits_for_no_gpus() -> None:
    found = world("name: gpus, concurrent: {gpus: 4}", offerings=(FOUR,))
    found.submit("a", spec())
    found.look("a")
    found.offerings = (ON_DEMAND,)
    found.submit("b", spec())
    found.look("b")
    assert found.running() == ["a", "b"]


def test_a_smaller_machine_that_fits_is_taken() -> None:
    found = world("name: gpus, concurrent: {gpus: 12}", offerings=(EIGHT, FOUR))
    for job in ("a", "b"):
        found.submit(job, spec())
        found.now_s += 1
        found.look(job)
    assert [found.state(job).open_claims[0].offering.machine for job in ("a", "b")] == ["m8", "m4"]


def test_a_job_that_now_waits_for_an_approval_holds_up_no_younger_job() -> None:
    limit = "name: gpus, concurrent: {gpus: 4}"
    found = world(limit)
    for job, tags in (("a", {}), ("b", {"team": "nlp"}), ("c", {})):
        found.submit(job, spec(**tags))
        found.now_s += 1
        found.look(job)
    assert waiting(found, "c").endswith("b is before it")
    found.by = settings(limit, "name: nlp, machines: [m8], for: {team: nlp}, approvers: [lead]")
    found.end("a")
    assert "it waits for an approval by lead" in waiting(found, "b")
    found.look("c")
    assert found.running() == ["c"]
    found.by = settings(limit)
    assert "in use by c" in waiting(found, "b"), "once approved, it queues again"


def test_a_job_that_now_waits_for_a_price_holds_up_no_younger_job() -> None:
    found = world("name: gpus, concurrent: {gpus: 4}")
    for job, limits in (("a", Limits()), ("b", Limits(max_cost=50.0)), ("c", Limits())):
        found.submit(job, replace(spec(), limits=limits))
        found.now_s += 1
        found.look(job)
    found.offerings = (replace(FOUR, price=None, on_demand_price=None),)
    found.end("a")
    assert "price" in waiting(found, "b")
    found.look("c")
    assert found.running() == ["c"]


def test_a_job_whose_preferred_machine_can_never_fit_queues_for_the_next_best() -> None:
    found = world("name: gpus, concurrent: {gpus: 4}", offerings=(EIGHT, FOUR))
    for job in ("a", "b", "c"):
        found.submit(job, spec())
        found.now_s += 1
        found.look(job)
    assert found.running() == ["a"]
    assert waiting(found, "b") == "policy gpus: waits for 4 GPUs: 4 of 4 GPUs are in use by a"
    assert waiting(found, "c").endswith("b is before it"), "it has its place in the queue"


def test_between_two_attempts_a_job_keeps_its_place_for_a_while() -> None:
    found = world("name: one, concurrent: {nodes: 1}")
    found.submit("a", spec())
    found.look("a")
    found.now_s = 100.0
    found.submit("b", spec())
    found.reclaim("a")
    assert "in use by a" in waiting(found, "b")
    found.look("a")
    assert found.running() == ["a"], "it goes on before the other begins"
    found.reclaim("a")
    found.now_s += KEPT.total_seconds() + 1
    found.look("b")
    assert found.running() == ["b"], "a job without capacity does not keep others from theirs"
    assert "in use by b" in waiting(found, "a")


def test_a_hand_over_needs_room_for_both() -> None:
    state = make_state(Claimed(offering=FOUR, nodes=1), Launched(2, nodes(2)), Claimed(FOUR, 1, successor_of=2))
    assert [use.claim for use in uses_of(state, spec(), at(60))] == [2, 4]


def test_what_has_ended_or_is_stopped_takes_no_room_and_a_held_machine_does() -> None:
    ran = (Claimed(offering=FOUR, nodes=2), Launched(2, nodes(2, 2)))
    closing = Closed(claim=2, outcome="failed", rule="user-error", hold_s=600.0)
    failed = make_state(*ran, Ended("failed", "user-error", 2, closing=closing))
    held = replace(spec(2), retry=Retry(hold_on_failure_s=600.0))
    assert [(use.nodes, use.gpus) for use in uses_of(failed, held, at(60))] == [(2, 8)]
    assert not list(uses_of(failed, held, at(6000))) and not list(uses_of(failed, spec(2), at(60)))
    stopped = make_state(*ran, StopAsked("jane"), Closed(claim=2, outcome="stopped", rule="stop"))
    assert not list(uses_of(stopped, spec(), at(60)))
    assert not list(uses_of(make_state(), spec(), at(60)))


@pytest.mark.parametrize(
    ("then", "audit", "goes"),
    [("wait", "", False), ("refuse", "", False), ("warn", "", True), ("wait", ", audit: true", True)],
)
def test_what_happens_to_a_job_over_the_limit(then: str, audit: str, goes: bool) -> None:
    found = world(f"name: one, concurrent: {{nodes: 1}}, then: {then}{audit}")
    for job in ("a", "b"):
        found.submit(job, spec())
        found.look(job)
    assert (found.running() == ["a", "b"]) is goes
    if goes:
        assert "policy:one:room" in found.state("b").warned
    assert (found.state("b").ended is not None) is (then == "refuse"), "that never had a machine"


# ── At submission ─────────────────────────────────────────────────────────────────────────────────────────────────────


def policy(text: str) -> Policy:
    return parse_policy(f"rules:\n- {{{text}}}\n".encode(), "p.yaml")


def test_a_job_that_can_never_fit_is_refused_at_submission_and_another_is_told_what_is_in_use() -> None:
    store = ScriptedWorld().store
    found = forecast_budgets(store, policy("name: g, concurrent: {gpus: 8, nodes: 4}"), spec(4), (FOUR,))
    ((reason, then),) = found.exceeded
    assert then == "refuse"
    assert reason == (
        "policy g: nodes: 4 nodes with 16 GPUs: at most 8 GPUs and 4 nodes may be in use at once; ask for fewer"
    )
    fits = check_policy(policy("name: g, concurrent: {gpus: 8}"), spec(1), (FOUR,), store)
    assert fits.notes == ("policy g: 0 of 8 GPUs are in use",) and not fits.warnings


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("concurrent: {by: team}", "rules[0].concurrent: has at least one of gpus and nodes"),
        ("concurrent: {gpus: -1}", "rules[0].concurrent.gpus: must be at least 0"),
        ("concurrent: {nodes: 1, by: [a, a]}", "rules[0].concurrent.by: names a twice"),
        ("concurrent: {nodes: 1, by: []}", "rules[0].concurrent.by: is empty"),
        ("concurrent: {nodes: 1, by: ['a b=c']}", "rules[0].concurrent.by[0]: expected the name of a tag"),
        ("concurrent: {nodes: 1}, then: stop", "rules[0].then: stop cannot be what happens for concurrent"),
    ],
)
def test_mistakes(text: str, told: str) -> None:
    with pytest.raises(SpecError) as error:
        policy(text)
    assert told in str(error.value)


# ── Jobs of others ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_training_jobs_of_others_take_room_and_are_warned() -> None:
    found = World("- {name: all, concurrent: {nodes: 2}}")
    found.account.start(training_s=HOUR_S)
    found.wake()
    by = parsed_policy(current(found.store))
    (use,) = external_uses(read_rows(found.store, by))
    assert (use.job, use.nodes, use.claim) == ("bert", 2, 0) and use.gpus > 0
    request = LaunchRequest(Need(0.0, 0.0, ""), EPOCH, use.at + timedelta(seconds=1), nodes=use.nodes)
    of = replace(spec(), resources=Resources(region="us-east-1"))
    subject = Subject(of, EPOCH.date(), "other")
    books = compute_budget_state(by, [], [], use.at + timedelta(minutes=1), external_uses=[use])
    (denied,) = judge(by, subject, Known(books), books.at, request)
    assert isinstance(denied, LaunchDenied) and "2 of 2 nodes are in use by bert" in denied.reason
    mine = replace(subject, job="bert", is_external=True)
    assert not judge(by, mine, Known(books), books.at, replace(request, claimed_at=use.at)), "it does not deny itself"


def test_training_jobs_of_one_name_in_two_regions_count_against_each_other() -> None:
    found = World("- {name: all, concurrent: {nodes: 3}}")
    found.account.start(training_s=HOUR_S)
    found.wake()
    by = parsed_policy(current(found.store))
    (row,) = read_rows(found.store, by)
    uses = external_uses([row, replace(row, region="eu-west-1", created_at=row.created_at - timedelta(hours=1))])
    books = Known(compute_budget_state(by, [], [], row.created_at + timedelta(minutes=1), external_uses=uses))
    request = LaunchRequest(Need(0.0, 0.0, ""), EPOCH, row.created_at, nodes=row.nodes)
    mine = Subject(replace(spec(), resources=Resources(region=row.region)), EPOCH.date(), "bert", is_external=True)
    (denied,) = judge(by, mine, books, books.value.at, request)
    assert isinstance(denied, LaunchDenied) and "2 of 3 nodes are in use by bert" in denied.reason
    first = replace(mine, spec=replace(mine.spec, resources=Resources(region="eu-west-1")))
    request = replace(request, claimed_at=row.created_at - timedelta(hours=1))
    assert not judge(by, first, books, books.value.at, request), "it does not deny itself, nor does a later one"


def groups(**counts: int) -> dict[str, Any]:
    types = {"gpus": "ml.p4d.24xlarge", "half": "ml.g5.12xlarge", "plain": "ml.c5.xlarge"}
    return {
        "InstanceGroups": [
            {"InstanceType": types[name], "InstanceCount": count, "InstanceGroupName": name}
            for name, count in counts.items()
        ]
    }


@pytest.mark.parametrize(
    ("resources", "count"),
    [
        ({"InstanceType": "ml.trn1.32xlarge", "InstanceCount": 2}, 32),
        ({"InstanceType": "ml.p4d.24xlarge", "InstanceCount": 2}, 16),
        ({"InstanceType": "ml.c5.xlarge", "InstanceCount": 2}, 0),
        (groups(gpus=1, half=3, plain=9), 20),
    ],
)
def test_accelerators_of_every_maker_and_group_count_against_a_limit(resources: dict[str, Any], count: int) -> None:
    found = World(f"- {{name: room, concurrent: {{gpus: {max(0, count - 1)}}}, then: refuse}}")
    found.account.start(ResourceConfig={"VolumeSizeInGB": 1, **resources}, **SPOTLESS)
    found.wake()
    assert found.account.job().status == ("Stopping" if count else "InProgress")
    (row,) = read_rows(found.store, parsed_policy(current(found.store)))
    assert [use.gpus for use in external_uses([row])] == [count]
    older = replace(row, accelerators=None, gpus=4, nodes=2)
    assert [use.gpus for use in external_uses([older])] == [8], "a row that an earlier version wrote"


def test_where_the_groups_are_unknown_each_machine_may_be_the_largest() -> None:
    job = ExternalJob("bert", "us-east-1", "InProgress", "", machines=("ml.c5.xlarge", "ml.p4d.24xlarge"), nodes=3)
    assert (accelerators_of(job), accelerators_of(replace(job, machines=()))) == (24, 0)


@pytest.mark.parametrize("then", ["wait", "refuse"])
def test_a_training_job_of_others_that_begins_without_room_is_told_or_stopped(then: str) -> None:
    found = World(f"- {{name: room, concurrent: {{nodes: 3, by: team}}, then: {then}}}")
    found.account.start("first", training_s=HOUR_S, **SPOTLESS)
    found.wake("first")
    found.account.start(**SPOTLESS)
    found.account.start("other", Tags=[{"Key": "team", "Value": "vision"}], **SPOTLESS)
    for _ in range(2):
        found.wake()
        found.wake("other")
    stopped = "Stopping" if then == "refuse" else "InProgress"
    assert found.account.statuses() == {"first": "InProgress", "bert": stopped, "other": "InProgress"}
    told = [event.rule for event in events(found) if isinstance(event, RuleWarning)]
    assert told == (["policy:room"] if then == "wait" else [])
    found.wake("first")
    assert found.account.job("first").status == "InProgress", "one that trains is left alone"


def test_the_own_jobs_of_the_store_wait_for_those_of_others() -> None:
    found = World("- {name: room, concurrent: {nodes: 3, by: team}}")
    found.account.start(training_s=HOUR_S, **SPOTLESS)
    found.wake()
    by = parsed_policy(current(found.store))
    exceeded = forecast_budgets(found.store, by, spec(2, team="nlp"), (FOUR,)).exceeded
    assert exceeded == (("policy room: needs 2 nodes: 2 of 3 nodes of team=nlp are in use by bert", "wait"),)
    assert not forecast_budgets(found.store, by, spec(1, team="nlp"), (FOUR,)).exceeded
