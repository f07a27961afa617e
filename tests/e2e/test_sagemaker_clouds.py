"""The contract of SageMaker's scripts on machines that really boot: two nodes that know each other by name."""

from __future__ import annotations

import json

import pytest
from cloud_world import CloudWorld

from tests.support.machines import why_no_machines
from tests.support.servers import isolated, pytest_isolated

if why_no_machines() is not None:
    pytest.skip(str(why_no_machines()), allow_module_level=True)

if isolated():

    @pytest.fixture(params=["ec2", "gce"])
    def lent(request: pytest.FixtureRequest) -> CloudWorld:
        """A world on each cloud in turn."""
        found: CloudWorld = request.getfixturevalue(request.param)
        return found

    def test_two_nodes_know_each_other_by_name(lent: CloudWorld) -> None:
        lent.write(
            "import json, os, pathlib, socket\n"
            "seen = {'cwd': os.getcwd(), 'type': os.environ['SM_CURRENT_INSTANCE_TYPE'],\n"
            "        'hosts': {h: socket.gethostbyname(h) for h in json.loads(os.environ['SM_HOSTS'])},\n"
            "        'nodes': [*map(socket.gethostbyname, os.environ['NODES'].split())],\n"
            "        'opt': sorted(os.listdir('/opt')),\n"
            "        'interface': os.environ['SM_NETWORK_INTERFACE_NAME'], 'set up': os.listdir('/opt/added')}\n"
            "pathlib.Path('/opt/ml/checkpoints/saved').write_text('saved')\n"
            "pathlib.Path('/opt/ml/model/model').write_text('model')\n"
            "print('seen', os.environ['SM_CURRENT_HOST'], json.dumps(seen))\n"
        )
        # What a set-up adds beside the tree is there for the training.
        setup = "mkdir -p /opt/added; touch /opt/added/one"
        job = lent.submit(nodes=2, setup=setup, environment={"contract": "sagemaker"})
        with lent.governed():
            summary = lent.ended(job)
        assert summary.phase == "succeeded", lent.story(job)
        assert summary.last_checkpoint is not None
        told = [line.split(" ", 2) for line in lent.lines(job) if line.startswith("seen ")]
        seen = {host: json.loads(text) for _, host, text in told}
        assert set(seen) == {"algo-1", "algo-2"}
        for one in seen.values():
            assert one["cwd"] == "/opt/ml/code"
            assert [one["hosts"][host] for host in ("algo-1", "algo-2")] == one["nodes"]
            assert one["type"].startswith("ml.") == (lent.resources["provider"] == "ec2")
            assert one["interface"] not in ("lo", "")
            assert one["set up"] == ["one"]

else:

    def test_clouds_in_a_network_of_their_own() -> None:
        pytest_isolated(__file__)
