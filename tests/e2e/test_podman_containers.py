"""Jobs in containers by podman: the same as with docker, where the two differ."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from harness import World, chain, until

from tests.support.engines import IMAGE, Podman, podman, why_no_podman

pytestmark = pytest.mark.skipif(why_no_podman() is not None, reason=why_no_podman() or "")


@pytest.fixture(scope="module")
def storage() -> Iterator[Podman]:
    with podman() as made:
        yield made


@pytest.fixture
def engine(world: World, storage: Podman, monkeypatch: pytest.MonkeyPatch) -> Iterator[Podman]:
    """After `world`, which has a PATH of its own. Afterwards there is no container."""
    assert world.home.exists()
    for name, value in storage.environ.items():
        monkeypatch.setenv(name, value)
    yield storage
    until(lambda: not storage.containers(), "every container is gone", 30)


def contained(world: World, **run: Any) -> dict[str, Any]:
    run["volumes"] = [f"{world.truth}:{world.truth}"]
    return {"container": {"image": f"localhost/{IMAGE}", "engine": "podman", "run": run}}


def test_a_job_is_reclaimed_and_goes_on(world: World, engine: Podman) -> None:
    world.script("counter.py")
    job = world.submit(
        run="python train.py --steps 25 --pause 0.1",
        outputs="artifacts",
        resources={"spot": True},
        environment=contained(world, shm_size="48m"),
        setup="test $(df --output=size -k /dev/shm | tail -1) = 49152",
    )
    world.training(job, step=7)
    (name,) = engine.containers()
    seen = json.loads(engine.ask("inspect", name))[0]
    assert seen["Config"]["Labels"]["stoker.job"] == job
    world.interrupt(job, grace_s=20)
    ended = world.ended(job)
    assert ended.outcome == "succeeded" and len(ended.attempts) == 2, world.story(job)
    (interrupted,) = world.journal("interrupted")
    assert [record.step for record in world.journal("start")] == [0, interrupted.step]
    assert (world.outputs(job) / "result.txt").read_text() == chain(25)


def test_a_kill_for_want_of_memory_is_told_though_podman_does_not(world: World, engine: Podman) -> None:
    world.write("import os\nif os.environ['STOKER_ATTEMPT'] == '1':\n    bytearray(300_000_000)\n")
    ended = world.run(environment=contained(world, memory="100m", memory_swap="100m"))
    assert ended.outcome == "succeeded", world.story(ended.id)
    assert (ended.attempts[0].rule, ended.attempts[0].exit_code) == ("oom", 137), world.story(ended.id)


@pytest.mark.parametrize("victim", ["agent", "supervisor"])
def test_a_container_does_not_outlive_its_agent(world: World, engine: Podman, victim: str) -> None:
    world.script("counter.py")
    job = world.submit(run="python train.py --steps 500 --pause 0.1", environment=contained(world))
    world.training(job, step=3)
    (name,) = engine.containers()
    governors = world.processes("governor")
    for process in governors:
        process.signal(signal.SIGSTOP)
    assert world.kill(victim)
    until(lambda: name not in engine.containers(), "its container is gone", 30)
    for process in governors:
        process.signal(signal.SIGCONT)
    world.training(job, step=3, attempt=2)
    world.cli("stop", job)
    world.ended(job)
    assert not world.journal("overlap")


def test_the_exit_and_the_flags_are_the_users(world: World, engine: Podman) -> None:
    ended = world.run(run="exit 5", environment=contained(world))
    assert (ended.outcome, ended.exit_code) == ("failed", 5), world.story(ended.id)
    wrong = world.run(run="true", environment=contained(world, no_such_flag=1))
    assert wrong.outcome == "failed" and "unknown flag: --no-such-flag" in wrong.reason, world.story(wrong.id)
