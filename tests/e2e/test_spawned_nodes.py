"""Scripts for plain machines that start a process for each device themselves, unchanged, on two nodes."""

from __future__ import annotations

import pytest
from harness import HERE, World
from spawned_nodes import joined, seen

from tests.support.engines import IMAGE, Docker, why_no_docker

needs_docker = pytest.mark.skipif(why_no_docker() is not None, reason=why_no_docker() or "")


@pytest.mark.parametrize("script", ["spawn_by_names.py", "spawn_by_rank.py"])
def test_a_script_that_spawns_its_processes_on_two_nodes(world: World, script: str) -> None:
    """Nodes share this computer's address, and each has a name of its own, by which gloo finds its interface."""
    world.script(script)
    summary = world.run(nodes=2, env={"OMP_NUM_THREADS": "1"})
    assert summary.phase == "succeeded", world.story(summary.id)
    assert joined(world.lines(summary.id)) == {0: "node-0", 1: "node-0", 2: "node-1", 3: "node-1"}


def test_names_of_nodes_that_share_a_computer(world: World) -> None:
    world.script("look_at_names.py")
    summary = world.run(nodes=2)
    assert summary.phase == "succeeded", world.story(summary.id)
    assert seen(world.lines(summary.id)) == (["node-0", "node-1"], [["127.0.0.1"]] * 2)


@needs_docker
def test_names_in_containers(world: World, engine: Docker) -> None:
    text = (HERE / "scripts" / "look_at_names.py").read_text()
    world.write(f"{text}\nassert socket.gethostbyname('database') == '10.9.8.7'\n")
    run = {"extra_hosts": {"database": "10.9.8.7"}}
    summary = world.run(nodes=2, environment={"container": {"image": IMAGE, "run": run}})
    assert summary.phase == "succeeded", world.story(summary.id)
    assert seen(world.lines(summary.id)) == (["node-0", "node-1"], [["127.0.0.1"]] * 2)


@needs_docker
def test_containers_that_the_user_names_alike_say_what_a_script_sees(world: World, engine: Docker) -> None:
    world.write("import os, socket\nprint('is', socket.gethostname(), 'of', os.environ['NODES'])\n")
    summary = world.run(nodes=2, environment={"container": {"image": IMAGE, "run": {"hostname": "box"}}})
    lines = world.lines(summary.id)
    assert summary.phase == "succeeded" and lines.count("is box of node-0 node-1") == 2, world.story(summary.id)
    assert (
        len([line for line in lines if "calls itself box, a name that does not tell it from the others" in line]) == 2
    )
