"""A real job tells what happens to it, through a real webhook."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from harness import World, until

from tests.support.webhooks import Hook, webhook


@pytest.fixture
def hook() -> Iterator[Hook]:
    with webhook() as found:
        yield found


def kinds(hook: Hook, job: str) -> list[str]:
    return [kind for kind, of in hook.events if of == job]


def test_a_life_with_a_reclaim_is_told_in_order_and_once(world: World, hook: Hook) -> None:
    """Several governors beside the one in the background; both the job and the policy name the address."""
    world.script("counter.py")
    policy = world.root / "policy.yaml"
    policy.write_text(f"notify:\n- {{to: '{hook.url}', name: team}}\n")
    told = world.cli("policy", "set", str(policy))
    assert told.returncode == 0, told.stderr
    world.start("govern", "--watch")
    world.start("govern", "--watch")
    job = world.submit(notify=[hook.url], params={"steps": 60})
    world.training(job, step=3)
    world.interrupt(job, grace_s=30)
    summary = world.ended(job)
    assert summary.outcome == "succeeded"
    until(lambda: "finished" in kinds(hook, job), "its end is told")
    assert kinds(hook, job) == ["started", "reclaimed", "resumed", "finished"]
    (last,) = [told for body in hook.bodies for told in body["events"] if told["kind"] == "finished"]
    assert (last["name"], last["attempt"]) == ("job", 2)
    assert Counter(told["id"] for body in hook.bodies for told in body["events"]).most_common(1)[0][1] == 1


def test_the_end_is_told_before_the_command_line_leaves(world: World, hook: Hook) -> None:
    world.write("print('hello')")
    ran = world.cli("run", "--yes", "--set", f"notify={hook.url}", "--", "python", "train.py")
    assert ran.returncode == 0, ran.stderr
    assert [kind for kind, _ in hook.events] == ["started", "finished"]
    assert "s3cr3t" not in ran.stdout + ran.stderr


def test_a_channel_that_hangs_harms_no_job(world: World, hook: Hook) -> None:
    hook.hangs_s = 600.0
    world.write("print('hello')")
    job = world.submit(notify=[hook.url])
    summary = world.ended(job)
    assert summary.outcome == "succeeded"
    assert summary.ended_at is not None
    assert (summary.ended_at - summary.submitted_at).total_seconds() < 20
    # Whoever governed it stays until that is told, for a while.
    hook.bodies.clear()
    hook.hangs_s = 0.0
    until(lambda: "finished" in kinds(hook, job), "its end to be told", 60)


def test_run_leaves_somebody_behind_for_what_waits(world: World, hook: Hook) -> None:
    hook.status = 503
    policy = world.root / "policy.yaml"
    policy.write_text(f"notify: [{{to: '{hook.url}', name: team}}]")
    assert world.cli("policy", "set", str(policy)).returncode == 0
    world.write("import sys; sys.exit(3)")
    assert world.cli("run", "--yes", "--", "python", "train.py").returncode != 0
    hook.bodies.clear()
    hook.status = 204
    until(lambda: [kind for kind, _ in hook.events if kind == "failed"], "its end to be told", 60)
