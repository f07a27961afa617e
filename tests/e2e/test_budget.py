"""A budget of the policy, from the first job that spends it to the one that waits, and what `stoker costs` says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from harness import World, until

from stoker.model import keys
from stoker.model.log_entries import Waste
from tests.support.webhooks import webhook

FULL = "rules:\n- {name: money, budget: {dollars: 1, period: month}}\n"


NEARLY = "rules:\n- {name: money, budget: {dollars: 2, period: month, warn_at: 0.1%}}\n"
# At a dollar a minute; half a dollar is set aside for saving.
COSTS = {"resources": {"local": {"price": 60.0}}, "limits": {"max_cost": 2}, "checkpoints": {"grace": "1s"}}


def rules(world: World, text: str) -> None:
    path = world.root / "policy.yaml"
    path.write_text(text)
    told = world.cli("policy", "set", str(path))
    assert told.returncode == 0, told.stderr


def test_what_the_first_job_spent_the_second_waits_for(world: World) -> None:
    world.script("counter.py")
    dear, cheap = ({"local": {"price": price}} for price in (60000.0, 6.0))
    first = world.run(params={"steps": 5, "pause": 0.05}, resources=dear, tags={"team": "vision"})
    assert first.phase == "succeeded", world.story(first.id)
    rules(world, FULL)
    assert list(world.store.list(keys.SPENT)), "what it spent is written down"
    told = world.cli("policy", "test", "--json", str(_job_file(world)))
    assert told.returncode == 0 and "no new machines until then" in json.loads(told.stdout)["budgets"][0]["reason"]

    limits = {"limits": {"max_cost": 0.5}, "checkpoints": {"grace": "1s"}}
    second = world.submit(params={"steps": 5, "pause": 0.05}, resources=cheap, **limits)
    summary = until(lambda: s if "policy money" in (s := world.summary(second)).reason else None, "it waits")
    assert (summary.phase, summary.attempts) == ("queued", ()), world.story(second)
    explained = world.cli("explain", second).stdout
    assert "policy money" in explained and "a month are spent" in explained and "UTC" in explained

    # The first is removed: its money is spent all the same.
    assert world.cli("rm", "--yes", first.id).returncode == 0
    costs = json.loads(world.cli("costs", "--by", "team", "--json").stdout)
    assert [row["name"] for row in costs["rows"]] == ["vision"]
    assert costs["total"]["spent"] == pytest.approx(first.cost, abs=1e-5)

    rules(world, FULL.replace("dollars: 1", "dollars: 100000"))
    summary = world.ended(second)
    assert summary.phase == "succeeded", world.story(second)


@pytest.mark.parametrize("then", ["wait", "refuse"])
def test_that_it_is_nearly_spent_is_told_once_though_no_job_is_left_to_tell_it(world: World, then: str) -> None:
    world.script("counter.py")
    with webhook() as hook:
        channel = f"notify:\n- {{to: '{hook.url}', events: [budget]}}\n"
        rules(world, NEARLY.replace("}}", f"}}, then: {then}}}") + channel)
        first = world.run(params={"steps": 3, "pause": 0.01}, **COSTS)
        assert first.phase == "succeeded", world.story(first.id)
        until(lambda: hook.events, "the budget is told")
        for _ in range(2):
            assert world.cli("govern").returncode == 0
        (told,) = [told for body in hook.bodies for told in body["events"]]
    assert (told["kind"], told["rule"]) == ("budget", "policy:money")
    assert " of $2.00 a month are spent (" in told["reason"] and told["reason"].endswith("UTC")


def test_a_submission_is_refused_or_told_that_it_will_wait(world: World) -> None:
    world.script("counter.py")
    flags = ("--yes", "--set", "resources.local.price=60000", "--set", "params.steps=3")
    assert world.cli("run", *flags, "--", "python", "train.py").returncode == 0
    flags = ("--yes", "--set", "resources.local.price=6", "--set", "params.steps=3", "--set", "limits.max_cost=0.5")
    rules(world, FULL.replace("}}", "}, then: refuse}"))
    refused = world.cli("run", *flags, "--", "python", "train.py")
    assert refused.returncode == 2
    assert refused.stderr.strip().splitlines()[-1].startswith("stoker: policy money: $")
    rules(world, FULL.replace("}}", "}, then: warn}"))
    ran = world.cli("run", *flags, "--", "python", "train.py")
    assert ran.returncode == 0 and "policy money: $" in ran.stderr


def test_jobs_that_come_at_once_reserve_what_they_may_cost_and_take_turns(world: World) -> None:
    world.write("import time\ntime.sleep(3)\n")
    rules(world, "rules:\n- {name: money, budget: {dollars: 5, period: month}}\n")
    jobs = [world.submit(**COSTS) for _ in range(4)]
    third = until(lambda: s if "waits for $2.00" in (s := world.summary(jobs[2])).reason else None, "the third waits")
    assert "policy money: waits for $2.00 of $5.00 a month" in third.reason and jobs[0] in third.reason
    (budget,) = json.loads(world.cli("costs", "--json").stdout)["budgets"]
    assert 0 < budget["reserved"] <= 4.0 and budget["left"] < 2.0
    for job in jobs:
        assert world.ended(job).phase == "succeeded", world.story(job)
    began = [next(claim.at for claim in world.state(job).attempts) for job in jobs]
    assert began == sorted(began)


def test_a_job_that_can_never_fit_is_told_so_at_once(world: World) -> None:
    world.script("counter.py")
    rules(world, "rules:\n- {name: money, budget: {dollars: 5, period: month}}\n")
    flags = ("--yes", "--set", "resources.local.price=60", "--set", "params.steps=3")
    refused = world.cli("run", *flags, "--", "python", "train.py")
    assert refused.returncode == 2
    told = refused.stderr.strip().splitlines()[-1]
    assert told.startswith(
        "stoker: policy money: needs $1,440.00 (an estimate, 24 h at $60.00/h: limits.max_cost is not"
    )
    assert told.endswith("can never have so much; set limits.max_cost to at most $5.00")
    ran = world.cli("run", *flags, "--set", "limits.max_cost=4", "--", "python", "train.py")
    assert ran.returncode == 0, ran.stderr
    shown = ran.stdout + ran.stderr
    assert "$0.00 spent, $0.00 reserved, $5.00 left; this job reserves $4.00 (limits.max_cost)" in shown


def test_an_attempt_tells_what_it_lost(world: World) -> None:
    """Killed in the middle: what was trained since the last checkpoint is lost, and the log has it."""
    world.script("counter.py")
    job = world.submit(params={"steps": 60, "pause": 0.05}, resources={"local": {"price": 60.0}, "spot": True})
    world.training(job, step=3)
    world.interrupt(job, grace_s=20)
    summary = world.ended(job)
    assert summary.phase == "succeeded", world.story(job)
    closes = [claim.closed for claim in world.state(job).attempts]
    assert len(closes) == 2 and all(each is not None and isinstance(each.waste, Waste) for each in closes)
    first, last = (each.waste for each in closes if each is not None)
    assert first is not None and last is not None
    assert first.lost_s is not None and first.lost_s <= closes[0].trained_s  # type: ignore[union-attr]
    assert (last.lost_s, last.idle_s) == (0.0, 0.0) or last.idle_s is None
    costs = json.loads(world.cli("costs", "--by", "job", "--json").stdout)
    (row,) = costs["rows"]
    assert row["spent"] == pytest.approx(summary.cost, rel=1e-3)
    assert row["startup"] > 0 and row["startup"] + row["lost"] + row["waiting"] <= row["spent"]
    assert row["saved_share"] == pytest.approx(summary.saved_share, rel=1e-3)


def _job_file(world: World) -> Path:
    path = world.code / "stoker.yaml"
    path.write_text("run: python train.py\n")
    return path
