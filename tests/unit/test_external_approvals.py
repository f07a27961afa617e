"""Approvals beside training jobs that others started: each covers the job that it names, and no other."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from command_line import Stoker, stoker, store
from external_world import POLICY, World, events, told

from stoker.core.policy_rules import Subject, applies
from stoker.external_jobs.clone_chain import Stopping
from stoker.policy import approvals, versions
from stoker.policy.approvals import Approval, ApprovalReader, Withdrawal
from stoker.policy.policy_file import parse_policy
from stoker.store.base import Store
from stoker.submit import identity
from tests.support.sim_data import EPOCH, make_spec

__all__ = ["stoker", "store"]

BIG = "- {name: big, max_nodes: 1, approvers: ['os:lead@*']}"
LEAD, LAST = "os:lead@laptop", "2999-12-31"


def stopped(world: World) -> list[str]:
    return [event.rule for event in events(world) if isinstance(event, Stopping)]


def test_an_approval_for_one_job_leaves_the_rule_on_for_all_others() -> None:
    world = World(BIG)
    approvals.write(world.store, Approval("other", "big", LEAD, LAST, "demo", external=True))
    world.account.clock.move(60)
    world.account.start()
    world.wake()
    assert stopped(world) == ["policy:big"], "the rule is older than the job, whatever was approved since"


@pytest.mark.parametrize("external", [True, False])
def test_an_approval_covers_external_jobs_or_jobs_of_stoker_and_never_both(store: Store, external: bool) -> None:
    approvals.write(store, Approval("bert", "big", LEAD, LAST, "demo", external))
    (rule,) = ApprovalReader(store).with_approvals(parse_policy(f"rules:\n{BIG}".encode(), "p"), EPOCH.date()).rules
    assert applies(rule, Subject(make_spec(2), EPOCH.date(), "bert", is_external=True)) is not external
    assert applies(rule, Subject(make_spec(2), EPOCH.date(), "bert")) is external
    world = World(BIG)
    approvals.write(world.store, Approval("bert", "big", LEAD, LAST, "demo", external))
    world.account.clock.move(60)
    world.account.start()
    world.wake()
    assert stopped(world) == ([] if external else ["policy:big"])


@pytest.mark.parametrize("expires", [False, True])
def test_an_external_job_whose_approval_is_withdrawn_is_stopped_as_after_an_expiry(expires: bool) -> None:
    world = World(BIG)
    # The store is asked for the approvals of today, by this computer's clock.
    world.account.clock.set(datetime.now(timezone.utc).replace(hour=12))
    last = str(world.account.clock.now().date()) if expires else LAST
    approvals.write(world.store, Approval("bert", "big", LEAD, last, "demo", external=True))
    world.account.clock.move(60)
    world.account.start(training_s=60)
    world.wake()
    assert stopped(world) == []
    if expires:
        world.account.clock.move(86400)
    else:
        (found,) = ApprovalReader(world.store).standing(EPOCH.date())
        approvals.withdraw(world.store, found, Withdrawal("os:boss@desk", "a mistake"))
    world.wake()
    assert stopped(world) == ["policy:big"]
    reason = told(world)[-1].reason
    assert ("its exemption ended on" if expires else "was withdrawn by os:boss@desk: a mistake") in reason


def test_an_exemption_of_the_policy_file_covers_both() -> None:
    text = f"{POLICY}rules:\n{BIG[:-1]}, except: [{{job: bert, until: {LAST}, why: demo}}]}}"
    (rule,) = parse_policy(text.encode(), "p").rules
    for external in (True, False):
        assert not applies(rule, Subject(make_spec(2), EPOCH.date(), "bert", is_external=external))


def test_the_name_of_an_external_job_is_approved(store: Store, stoker: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "local_user", lambda: LEAD)
    words = ("--rule", "big", "--why", "demo", "--until", LAST)
    versions.write(store, f"rules:\n{BIG}", "jane")
    assert (
        "--external: the policy governs no external jobs"
        in stoker("policy", "approve", "bert", "--external", *words)[2]
    )
    versions.write(store, f"{POLICY}rules:\n{BIG}", "jane")
    for name, more in (("bert", ()), ("roberta", ("--external",))):
        code, _, said = stoker("policy", "approve", name, *more, *words)
        assert code == 0 and f"the external job {name} may break policy big until {LAST}" in said
    lines = stoker("policy", "approvals")[1].splitlines()
    assert [line.split()[:3] for line in lines[1:]] == [[name, "(external)", "big"] for name in ("bert", "roberta")]
    code, _, said = stoker("policy", "approve", "a\x1b[2Jb", "--external", *words)
    assert code == 2 and "no training job can have this name" in said and "\x1b" not in said
    code, _, said = stoker("policy", "withdraw", "bert", "--why", "a mistake")
    assert code == 0 and f"bert (external): policy big holds again: its approval was withdrawn by {LEAD}" in said
    assert "bert (external)" not in stoker("policy", "approvals")[1].replace("roberta", "")
