"""What only Compute Engine does, on machines that really boot: little time, three ways to hear of it, its own logs."""

from __future__ import annotations

import json

import pytest
from gce_world import GceWorld
from harness import chain, fields

from tests.support.gce import PROJECT, why_no_gce
from tests.support.servers import isolated, pytest_isolated

if why_no_gce() is not None:
    pytest.skip(str(why_no_gce()), allow_module_level=True)

if isolated():

    def handed_over(gce: GceWorld, job: str) -> None:
        """The attempt that was taken away saved at its last step, and the next one went on from there."""
        summary = gce.ended(job)
        assert fields(summary, "outcome") == [("reclaimed",), ("succeeded",)], gce.story(job)
        assert [one.step for one in gce.steps(job)] == list(range(1, 201)), gce.story(job)
        assert any(chain(200) in line for line in gce.lines(job))

    def start(gce: GceWorld) -> str:
        gce.script("counter.py")
        return gce.submit(params={"steps": 200, "pause": 0.1, "every": 1000}, resources={"spot": True})

    def test_eleven_seconds_are_enough(gce: GceWorld) -> None:
        """The metadata says it, the button follows at once, and the power goes eleven seconds later."""
        job = start(gce)
        with gce.governed():
            gce.trained(job, 5)
            gce.cloud.machine(gce.instance(job)).preempt(11.0, notice_s=0.0)
            handed_over(gce, job)

    def test_a_shutdown_script_that_never_runs(gce: GceWorld) -> None:
        """Nothing but the metadata tells, and the power goes without a button."""
        job = start(gce)
        with gce.governed():
            gce.trained(job, 5)
            gce.cloud.machine(gce.instance(job)).preempt(15.0, notice_s=0.0, shutdown_script=False, button=False)
            handed_over(gce, job)

    @pytest.mark.parametrize("script", [True, False])
    def test_metadata_that_say_nothing(gce: GceWorld, script: bool) -> None:
        """The shutdown script tells it, or systemd does by stopping the agent."""
        job = start(gce)
        with gce.governed():
            gce.trained(job, 5)
            machine = gce.cloud.machine(gce.instance(job))
            machine.preempt(30.0, notice_s=0.0, metadata_says=False, shutdown_script=script)
            handed_over(gce, job)

    def test_a_machine_that_may_not_delete_itself_is_deleted_by_a_governor(gce: GceWorld) -> None:
        gce.cloud.faults.node_may_delete(False)
        gce.script("counter.py")
        job = gce.submit(params={"steps": 5})
        with gce.governed():
            summary = gce.ended(job)
        assert summary.phase == "succeeded", gce.story(job)
        assert set(gce.machines().values()) == {"terminated"}

    def test_its_log_is_in_cloud_logging_and_found_by_a_query(gce: GceWorld) -> None:
        gce.script("counter.py")
        job = gce.submit(params={"steps": 5}, logs={"cloud_logging": "stoker"})
        with gce.governed():
            assert gce.ended(job).phase == "succeeded", gce.story(job)
        entries = [entry for entry in gce.cloud.entries() if entry["labels"]["job"] == job]
        texts = [str(entry["textPayload"]) for entry in entries]
        assert any(chain(5) in text for text in texts), texts
        (instance,) = gce.machines()
        number = instance.partition(".")[2]
        assert {entry["resource"]["labels"]["instance_id"] for entry in entries} == {number}
        (node,) = json.loads(gce.cli("show", job, "--json").stdout)["attempts"][0]["nodes"]
        assert node["logs_query"] == f'resource.type="gce_instance" AND resource.labels.instance_id="{number}"'
        assert f"instances/{number}?project={PROJECT}" in node["link"]
        assert number in gce.cli("show", job).stdout

    def test_an_interruption_is_rehearsed(gce: GceWorld) -> None:
        job = start(gce)
        with gce.governed():
            gce.trained(job, 5)
            ran = gce.cli("interrupt", job)
            assert "simulated maintenance" in ran.stdout + ran.stderr
            handed_over(gce, job)

    def test_a_training_on_a_tpu_machine_is_told_of_its_slice(gce: GceWorld) -> None:
        """No chip is there, and no JAX: what is shown is what the script would read."""
        (gce.code / "train.py").write_text(
            "import os\nprint(sorted(f'{k}={v}' for k, v in os.environ.items() if k.startswith(('TPU_', 'PJRT_'))))\n"
        )
        resources = {"machine": ["ct6e-standard-4t"], "image": "tpu/ubuntu-22.04"}
        job = gce.submit(resources=resources, env={"TPU_WORKER_ID": "7"})
        with gce.governed():
            assert gce.ended(job).phase == "succeeded", gce.story(job)
        (told,) = [line for line in gce.lines(job) if "PJRT_DEVICE" in line]
        # The job's own variables come last.
        for each in ("PJRT_DEVICE=TPU", "TPU_ACCELERATOR_TYPE=v6e-4", "TPU_TOPOLOGY=2x2", "TPU_WORKER_ID=7"):
            assert repr(each) in told

    def test_a_wrong_name_is_said_before_anything_is_written(gce: GceWorld) -> None:
        gce.script("counter.py")
        gce.cloud.calls(reset=True)
        resources = json.dumps(gce.resources | {"gce": {"placement_policy": "close"}})
        ran = gce.cli("run", "--set", f"resources={resources}", "-y", "--", "python3", "train.py")
        assert ran.returncode == 2
        (line,) = [line for line in ran.stderr.splitlines() if "resources." in line]
        assert "resources.gce.placement_policy: there is no placement policy close in us-central1; leave it out" in line
        assert list(gce.store.list("")) == [] and gce.launches() == 0

else:

    def test_gce_alone_with_itself() -> None:
        pytest_isolated(__file__)
