"""A training that hangs on a machine of a cloud: what it was doing is kept, though its image knows no py-spy."""

from __future__ import annotations

import pytest
from cloud_world import CloudWorld
from harness import fields
from test_standstill import HANGS, rules

from tests.support.machines import why_no_machines
from tests.support.servers import isolated, pytest_isolated

if why_no_machines() is not None:
    pytest.skip(str(why_no_machines()), allow_module_level=True)

if isolated():

    def test_the_stack_of_a_hang_is_kept(ec2: CloudWorld) -> None:
        ec2.write(HANGS)
        rules(ec2, "rules:\n- {name: hangs, stall: {window: 3s, windows: 2, after: 1s}}\n")
        job = ec2.submit(checkpoints={"grace": "1s"})
        with ec2.governed():
            summary = ec2.ended(job)
        assert fields(summary, "outcome", "rule")[0] == ("infrastructure", "policy:hangs"), ec2.story(job)
        assert summary.outcome == "succeeded", ec2.story(job)
        told = ec2.cli("logs", "--evidence", job).stdout
        assert "pthread_mutex_lock" in told and "hang (train.py" in told, told

else:

    def test_standstill_on_machines_in_a_network_of_their_own() -> None:
        pytest_isolated(__file__)
