"""Inputs of a training in a container: copies, mounts and shards, under the paths that the machine has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from container_jobs import contained
from harness import World
from test_inputs_of_jobs import FILES, READER, fill, found

from stoker.processes.unmounting import mounted_below
from tests.support.engines import Docker, why_no_docker
from tests.support.servers import isolated, pytest_isolated

pytestmark = pytest.mark.skipif(why_no_docker() is not None, reason=why_no_docker() or "")

if isolated():

    @pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="/dev/fuse cannot be used here")
    @pytest.mark.parametrize("user", ["0", "1234:1234"])
    def test_they_are_seen_inside(
        world: World,
        engine: Docker,
        s3_url: str,
        tmp_path: Path,
        user: str,
    ) -> None:
        world.write(READER)
        world.truth.chmod(0o777)
        fill(f"{s3_url}/data", FILES)
        mine = tmp_path / "mine"
        mine.mkdir()
        for name in ("a", "b", "c"):
            (mine / name).write_text(name)
        job = world.submit(
            nodes=2,
            run=["python3", "train.py"],
            environment=contained(world, user=user),
            inputs={
                "copied": f"{s3_url}/data",
                "mounted": {"from": f"{s3_url}/data", "mode": "mount"},
                "mine": {"from": str(mine), "shard": True},
            },
        )
        assert world.ended(job).outcome == "succeeded", world.story(job)
        told = found(world, job)
        for rank, own in enumerate(({"a": "a", "c": "c"}, {"b": "b"})):
            assert told[rank]["STOKER_INPUT_COPIED"] == told[rank]["STOKER_INPUT_MOUNTED"] == FILES
            assert told[rank]["STOKER_INPUT_MINE"] == own
        assert mounted_below(world.home) == []

else:

    def test_container_inputs_in_a_network_of_its_own() -> None:
        pytest_isolated(__file__)
