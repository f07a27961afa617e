"""To resume a job starts its own bounds anew, and never those of the policy: those count all of its attempts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stoker import client
from stoker.core.decide import decide_job
from stoker.core.governor_settings import DEFAULT, GovernorSettings
from stoker.core.prior_usage import used_before
from stoker.core.snapshot import Append, JobSnapshot
from stoker.model.errors import UserError
from stoker.model.job_state import JobState
from stoker.model.log_entries import (
    Claimed,
    Closed,
    Draining,
    Ended,
    Event,
    Launched,
    Record,
    ResumeAsked,
    StopAsked,
    Warned,
)
from stoker.model.node_facts import CheckpointRef
from stoker.model.observed import Known
from stoker.model.offerings import Offering
from stoker.model.spec import Limits, Retry, Spec
from stoker.policy import versions
from stoker.policy.policy_file import parse_policy
from stoker.store import job_log
from stoker.store.base import Store, open_store
from stoker.submit.policy_check import check_used_limits
from tests.support.sim_data import ON_DEMAND, at, make_beat, make_facts, make_snapshot, make_spec, make_state, nodes

HOUR = 3600.0
# Three dollars an hour.
PAST: tuple[tuple[Event, float], ...] = (
    (Claimed(ON_DEMAND, 1), 0.0),
    (Launched(2, nodes(2)), 0.0),
    (Closed(2, "failed", "user-error", trained_s=3 * HOUR), 4 * HOUR),
    (Ended("failed", "user-error", 2), 4 * HOUR),
    (ResumeAsked("joe"), 5 * HOUR),
)
AGAIN: tuple[tuple[Event, float], ...] = ((Claimed(ON_DEMAND, 1), 5 * HOUR), (Launched(7, nodes(7)), 5 * HOUR))


def settings(*texts: str) -> GovernorSettings:
    text = "rules:\n" + "".join(f"- {{{each}}}\n" for each in texts)
    return replace(DEFAULT, policy=parse_policy(text.encode(), "p.yaml", version=1))


def decided(job: JobSnapshot, by: GovernorSettings, now_s: float) -> list[tuple[Event, str]]:
    plan = decide_job(job, by, at(now_s))
    return [(action.event, action.reason) for action in plan.actions if isinstance(action, Append)]


def running(now_s: float, trained_s: float = 0.0, **limits: float) -> JobSnapshot:
    """The job that was resumed after five hours, and trains again."""
    saved = CheckpointRef("00000007/000001-ckpt", "ckpt")
    facts = make_facts(7, beat=make_beat(now_s, trained_s=trained_s, checkpoint=saved))
    return make_snapshot(make_state(*PAST, *AGAIN), facts, spec=make_spec(limits=Limits(**limits)))


def waiting(*more: Event, **limits: float) -> JobSnapshot:
    """The same, without a machine yet."""
    offered = Known((ON_DEMAND,))
    return make_snapshot(make_state(*PAST, *more), offerings=offered, spec=make_spec(limits=Limits(**limits)))


# ── Governors ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_money_of_the_policy_counts_all_attempts() -> None:
    by = settings("max_cost: 15")
    assert decided(running(5.5 * HOUR), by, 5.5 * HOUR) == []
    ((event, reason),) = decided(running(6 * HOUR), by, 6 * HOUR)
    assert event == Draining(claim=7, outcome="limit", rule="policy:max-cost")
    assert reason == "policy max-cost ($15) is reached: $15.00 spent, $0.08 set aside for saving"


def test_time_of_the_policy_counts_all_attempts() -> None:
    by, now_s = settings("max_runtime: 4h"), 6 * HOUR
    assert decided(running(now_s, 0.9 * HOUR), by, now_s) == []
    ((event, reason),) = decided(running(now_s, HOUR), by, now_s)
    assert event == Draining(claim=7, outcome="limit", rule="policy:max-runtime")
    assert reason == "policy max-runtime (4 h of training) is reached"


def test_the_jobs_own_count_anew() -> None:
    for limits in ({"max_cost": 15.0}, {"max_runtime_s": 4 * HOUR}):
        assert decided(running(6 * HOUR, HOUR, **limits), DEFAULT, 6 * HOUR) == []
    assert decided(running(9 * HOUR, max_cost=12.0), DEFAULT, 9 * HOUR)[0][1].startswith("limits.max_cost ($12)")


def test_of_both_the_one_that_leaves_less_counts() -> None:
    ((event, reason),) = decided(running(7 * HOUR, max_cost=6.0), settings("max_cost: 100"), 7 * HOUR)
    assert event == Draining(claim=7, outcome="limit", rule="max_cost")
    assert reason.startswith("limits.max_cost ($6) is reached: $6.00 spent")
    ((event, _),) = decided(running(7 * HOUR, max_cost=20.0), settings("max_cost: 18"), 7 * HOUR)
    assert event == Draining(claim=7, outcome="limit", rule="policy:max-cost")


def test_one_that_only_warns_counts_so_too() -> None:
    ((event, reason),) = decided(running(6 * HOUR), settings("name: dear, max_cost: 15, then: warn"), 6 * HOUR)
    assert event == Warned(code="policy:dear") and reason == "policy dear ($15) is reached: $15.00 spent"


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ("max_cost: 12", "policy max-cost ($12) is reached: $12.00 spent"),
        ("max_runtime: 3h", "policy max-runtime (3 h of training) is reached"),
    ],
)
def test_a_job_that_was_resumed_past_the_client_ends_at_once(rule: str, reason: str) -> None:
    ((event, told),) = decided(waiting(), settings(rule), 5 * HOUR)
    assert isinstance(event, Ended) and event.rule.startswith("policy:max-") and told == reason


def test_what_is_left_has_to_pay_for_saving() -> None:
    ((event, told),) = decided(waiting(), settings("max_cost: 12.01"), 5 * HOUR)
    assert isinstance(event, Ended) and event.rule == "policy:max-cost"
    assert told.startswith("policy max-cost: $12.00 of $12.01 is spent, and what is left does not pay for saving")


def test_a_job_that_is_exempt_starts_anew() -> None:
    exempt = settings("max_cost: 12, except: [{job: job-1, until: 2030-01-01, why: x}]")
    ((event, _),) = decided(waiting(), exempt, 5 * HOUR)
    assert isinstance(event, Claimed)


# ── Held machines ─────────────────────────────────────────────────────────────────────────────────────────────────────


def ended(*more: tuple[Event, float]) -> JobState:
    """One of two machines that cost three dollars an hour each, and that may be held for ten hours after the first."""
    offering = replace(ON_DEMAND, price=3.0)
    closing = Closed(2, "failed", "user-error")
    first = [(Claimed(offering, 2), 0.0), (Launched(2, nodes(2, 2)), 0.0)]
    return make_state(*first, (Ended("failed", "user-error", 2, closing=closing), HOUR), *more)


def test_what_was_held_counts_until_it_was_given_back() -> None:
    spec = replace(make_spec(2), retry=Retry(hold_on_failure_s=10 * HOUR))

    def dollars(*more: tuple[Event, float]) -> float:
        return used_before(ended(*more), spec, at(40 * HOUR)).dollars

    resumed = (ResumeAsked("joe"), 30 * HOUR)
    assert dollars(resumed) == pytest.approx(6 + 60)
    assert dollars((ResumeAsked("joe"), 4 * HOUR)) == pytest.approx(6 + 18), "who resumes gives it back"
    assert dollars((StopAsked("joe"), 3 * HOUR), resumed) == pytest.approx(6 + 12)
    later = (Claimed(ON_DEMAND, 2), 35 * HOUR)
    assert dollars((StopAsked("joe"), 3 * HOUR), resumed, later) == pytest.approx(6 + 12)
    assert dollars() == 0.0, "the job was opened once"


# ── People ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    return open_store(str(tmp_path / "store"))


def test_who_is_over_a_bound_of_the_policy_is_not_resumed(store: Store) -> None:
    job = client.submit(Spec(name="x", run="python train.py"), store=store)
    closed = Closed(2, "stopped", "stop", trained_s=3 * HOUR)
    events = (Claimed(ON_DEMAND, 1), Launched(2, nodes(2)), closed, Ended("stopped", "stop", 2))
    for seq, event in enumerate(events, start=2):
        assert job_log.append(store, job, seq, Record(job_log.new_token(), "test", "x", event))
    versions.write(store, "rules:\n- {name: days, max_runtime: 3h}\n", "jane")
    before = [meta.key for meta in store.list("")]
    with pytest.raises(UserError) as raised:
        client.resume(job, store)
    assert str(raised.value) == (
        "policy days (3 h of training) counts all attempts of a job, and it has trained for 3 h; "
        f"the owner of the policy can raise the limit, or list {job} under the rule's `except`"
    )
    assert [meta.key for meta in store.list("")] == before
    versions.write(store, "rules:\n- {max_runtime: 4h}\n- {name: days, max_runtime: 3h, audit: true}\n", "jane")
    assert client.resume(job, store) == job


def refusal(rule: str, *offerings: Offering) -> str | None:
    """What is said to who resumes a job that has spent $12."""
    try:
        check_used_limits(settings(rule).policy, make_spec(), make_state(*PAST[:-1]), offerings)
    except UserError as error:
        return str(error)
    return None


def test_nor_is_who_has_spent_what_the_policy_allows() -> None:
    advice = "the owner of the policy can raise the limit, or list job-1 under the rule's `except`"
    told = "policy max-cost ($12) counts all attempts of a job, and $12.00 are spent"
    assert refusal("max_cost: 12") == f"{told}; {advice}"
    assert refusal("max_cost: 13", ON_DEMAND) is None
    assert refusal("max_cost: 12, then: warn", ON_DEMAND) is None
    # Bounds set aside what saving costs: a job that ended at one has a little left.
    told = refusal("max_cost: 12.05", ON_DEMAND) or ""
    assert told.startswith("policy max-cost: $12.00 of $12.05 is spent, and what is left does not pay for saving")
    assert told.endswith(advice)
    assert refusal("max_cost: 12.05") is None, "what a machine costs is for a governor to find out"
