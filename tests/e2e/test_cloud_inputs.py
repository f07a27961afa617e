"""Inputs on machines of every cloud that really boot: the submitter's own folder, and another bucket of the cloud."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cloud_world import CloudWorld
from test_inputs_of_jobs import FILES, READER, fill, found

from stoker import client
from tests.support.machines import why_no_machines
from tests.support.servers import isolated, pytest_isolated

if why_no_machines() is not None:
    pytest.skip(str(why_no_machines()), allow_module_level=True)

if isolated():

    @pytest.fixture(params=["ec2", "gce"])
    def lent(request: pytest.FixtureRequest) -> CloudWorld:
        """A world on each cloud in turn."""
        made: CloudWorld = request.getfixturevalue(request.param)
        return made

    def test_a_folder_is_sent_once_and_comes_with_another_folder_of_the_bucket(
        lent: CloudWorld, tmp_path: Path
    ) -> None:
        lent.write(READER)
        mine = tmp_path / "mine"
        (mine / "sub").mkdir(parents=True)
        (mine / "c.txt").write_text("c")
        (mine / "sub" / "d.txt").write_text("d")
        there = fill(f"{lent.url.rpartition('/')[0]}/beside", FILES)
        (lent.code / "stoker.yaml").write_text(
            "name: inputs\nrun: python3 train.py\nenv: {TRUTH: /tmp}\nlimits: {max_runtime: 1h}\n"
            f"resources: {json.dumps(lent.resources)}\n"
            f"inputs: {{mine: {mine}, one: {mine}/c.txt, there: {there}}}\n"
        )
        ran = lent.cli("run", "-y", timeout_s=300)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert "inputs.mine: 2 files, 2 B, all to be sent" in ran.stderr
        (job,) = [line.split()[0] for line in lent.cli("ps").stdout.splitlines() if line.startswith("inputs-")]
        assert found(lent, job)[0] == {
            "STOKER_INPUT_MINE": {"c.txt": "c", "sub/d.txt": "d"},
            "STOKER_INPUT_ONE": {".": "c"},
            "STOKER_INPUT_THERE": FILES,
        }
        sent = [meta for meta in lent.store.list("inputs/") if not meta.key.endswith(".json")]
        assert len(sent) == 3
        # A second job finds them there.
        with client.prepare_any(str(lent.code / "stoker.yaml"), lent.store) as prepared:
            assert [upload.to_send for upload in prepared.uploads] == [0, 0]

else:

    def test_cloud_inputs_in_a_network_of_its_own() -> None:
        pytest_isolated(__file__)
