"""Rules of the policy, from the command line to the end of a job that reaches one."""

from __future__ import annotations

import json
from pathlib import Path

from harness import World

from stoker.policy import versions
from stoker.store.base import open_store


def rules(world: World, text: str) -> None:
    path = world.root / "policy.yaml"
    path.write_text(text)
    told = world.cli("policy", "set", str(path), "--note", "a test")
    assert told.returncode == 0, told.stderr


def test_what_the_policy_refuses_is_not_submitted(world: World) -> None:
    world.write("print('hello')")
    rules(world, "rules:\n- {name: who-pays, tags: {project: [vision]}}\n- {max_nodes: 1}\n")
    refused = world.cli("run", "--yes", "--", "python", "train.py")
    assert refused.returncode == 2
    assert (
        refused.stderr.strip().splitlines()[-1].startswith("stoker: policy who-pays: tags.project is missing; add it")
    )
    assert json.loads(world.cli("ps", "--json").stdout) == []
    two = world.cli("run", "--yes", "--set", "tags.project=vision", "--nodes", "2", "--", "python", "train.py")
    assert (two.returncode, two.stderr.splitlines()[-1]) == (
        2,
        "stoker: policy max-nodes: 2 nodes are more than 1; ask for fewer",
    )
    ran = world.cli("run", "--yes", "--set", "tags.project=vision", "--", "python", "train.py")
    assert ran.returncode == 0 and "hello" in ran.stdout
    (listed,) = json.loads(world.cli("policy", "history", "--json").stdout)
    assert (listed["version"], listed["note"]) == (1, "a test")
    tested = world.cli("policy", "test", "--json", str(_job_file(world)))
    assert (tested.returncode, json.loads(tested.stdout)["refused"]) == (1, True)


def _job_file(world: World) -> Path:
    path = world.code / "stoker.yaml"
    path.write_text("run: python train.py\n")
    return path


def test_a_bound_of_the_policy_ends_a_job_that_has_none_and_it_saves_first(world: World) -> None:
    world.script("counter.py")
    rules(world, "rules:\n- {name: short, max_runtime: 3s}\n- {name: watched, max_cost: 1, audit: true}\n")
    summary = world.run(run=["python", "train.py", "--steps", "100000", "--pause", "0.05"])
    assert (summary.phase, summary.rule) == ("failed", "policy:short"), world.story(summary.id)
    assert summary.last_checkpoint is not None
    current = versions.current(open_store(world.url))
    assert current is not None
    decisions = [
        json.loads(path.read_text()) for path in sorted((world.root / "store" / "jobs" / summary.id / "log").iterdir())
    ]
    assert {each["policy"] for each in decisions if each["event"]["kind"] in ("claimed", "draining", "ended")} == {
        versions.policy_digest(current)
    }
    told = world.cli("explain", summary.id).stdout
    assert "policy:short" in told and "policy short (3 s of training) is reached" in told
