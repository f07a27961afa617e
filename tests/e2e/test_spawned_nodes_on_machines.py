"""Scripts for plain machines that start a process for each device themselves, unchanged, on two machines that boot."""

from __future__ import annotations

import re
from typing import Any

import pytest
from cloud_world import CloudWorld
from spawned_nodes import joined, seen

from tests.support.engines import IMAGE, why_no_docker_machines
from tests.support.machines import why_no_machines
from tests.support.machines.with_torch import PLACE, why_no_torch_machines
from tests.support.servers import isolated, pytest_isolated

if why_no_machines() is not None:
    pytest.skip(str(why_no_machines()), allow_module_level=True)

if isolated():

    @pytest.fixture
    def lent(request: pytest.FixtureRequest) -> CloudWorld:
        """A world on the cloud that the test names."""
        found: CloudWorld = request.getfixturevalue(request.param)
        return found

    @pytest.mark.skipif(why_no_torch_machines() is not None, reason=why_no_torch_machines() or "")
    @pytest.mark.parametrize(
        ("lent", "script", "named"),
        [("ec2", "spawn_by_rank.py", r"ip-10-\d+-\d+-\d+"), ("gce", "spawn_by_names.py", r"stoker-\S+")],
        indirect=["lent"],
    )
    def test_a_script_that_spawns_its_processes(lent: CloudWorld, script: str, named: str) -> None:
        """The shape of the programs for EC2 and for Compute Engine. Gloo joins their processes across the machines."""
        lent.script(script)
        job = lent.submit(
            nodes=2, env={"PYTHONPATH": PLACE, "OMP_NUM_THREADS": "1"}, resources={"image": lent.torch_image}
        )
        with lent.governed():
            summary = lent.ended(job)
        assert summary.phase == "succeeded", lent.story(job)
        hosts = joined(lent.lines(job))
        assert sorted(hosts) == [0, 1, 2, 3], lent.story(job)
        assert hosts[0] == hosts[1] != hosts[2] == hosts[3]
        assert all(re.fullmatch(named, host) for host in hosts.values()), hosts

    @pytest.mark.parametrize(
        ("lent", "what", "named"),
        [
            ("gce", "plain", r"stoker-\S+"),
            ("ec2", "clones", r"node-[01]"),
            pytest.param(
                "ec2",
                "containers",
                r"ip-10-\d+-\d+-\d+",
                marks=pytest.mark.skipif(why_no_docker_machines() is not None, reason=why_no_docker_machines() or ""),
            ),
        ],
        indirect=["lent"],
    )
    def test_names(lent: CloudWorld, what: str, named: str) -> None:
        """No DNS knows these machines. Two that were made from one image may even call themselves the same."""
        lent.script("look_at_names.py")
        job: dict[str, Any] = {}
        if what == "clones":
            job["setup"] = "hostname clone"
        elif what == "containers":
            job |= {"environment": {"container": {"image": IMAGE}}, "resources": {"image": lent.docker_image}}
        submitted = lent.submit(nodes=2, **job)
        with lent.governed():
            summary = lent.ended(submitted)
        assert summary.phase == "succeeded", lent.story(submitted)
        nodes, ((first,), (second,)) = seen(lent.lines(submitted))
        assert first != second and not [one for one in (first, second) if one.startswith("127.")]
        assert len(set(nodes)) == 2 and all(re.fullmatch(named, node) for node in nodes), nodes

else:

    def test_spawned_nodes_in_a_network_of_their_own() -> None:
        pytest_isolated(__file__)
