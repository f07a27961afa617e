"""Jobs as training jobs of SageMaker that really run: one node and two, a reclaim of spot machines, a failure, a stop.

After each no training job is left that runs.
"""

from __future__ import annotations

import json

import pytest
from harness import chain, fields
from sagemaker_world import SageMakerWorld

from stoker import client
from tests.support.sagemaker import why_no_hosts
from tests.support.servers import isolated, pytest_isolated

if why_no_hosts() is not None:
    pytest.skip(str(why_no_hosts()), allow_module_level=True)

if isolated():

    def test_one_node(training_jobs: SageMakerWorld) -> None:
        world = training_jobs
        world.script("counter.py")
        # Long enough for a governor to see the node's exit before SageMaker sees the container's end.
        world.cloud.hosts.ending_s = 5.0
        job = world.submit(params={"steps": 20}, outputs="out", tags={"project": "vision"})
        with world.governed():
            summary = world.ended(job)
        assert summary.phase == "succeeded" and summary.last_checkpoint is not None, world.story(job)
        assert any(chain(20) in line for line in world.lines(job))
        (name,) = world.cloud.names()
        told = world.cloud.describe(name)
        assert told["TrainingJobStatus"] == "Completed" and told["HyperParameters"] == {"steps": "20"}
        assert world.cloud.tags(name)["project"] == "vision" and world.cloud.tags(name)["stoker:job"] == job
        # CloudWatch has the log, too.
        assert f"finished {chain(20)}" in world.cloud.hosts.output(name)

    def test_one_command(training_jobs: SageMakerWorld) -> None:
        """As a person would: one command, and it is over when the command is."""
        world = training_jobs
        world.script("counter.py")
        (world.code / "stoker.yaml").write_text(
            f"name: one\nrun: python train.py\nparams: {{steps: 20}}\nenv: {{TRUTH: {world.truth}}}\n"
            f"metrics: {{loss: 'loss=([0-9.]+)'}}\nresources: {json.dumps(world.resources | {'spot': True})}\n"
        )
        ran = world.cli("run", "-y", timeout_s=240)
        assert ran.returncode == 0 and f"finished {chain(20)}" in ran.stdout, ran.stdout + ran.stderr
        calls = world.cloud.calls()
        assert calls["CreateTrainingJob"] == 1 and sum(calls.values()) <= 20, calls
        (job,) = [line.split()[0] for line in world.cli("ps").stdout.splitlines() if line.startswith("one-")]
        (name,) = world.cloud.names()
        shown = world.cli("show", job).stdout
        assert "ml.c5.xlarge" in shown and "spot" in shown and f"#/jobs/{name}" in shown
        assert f"finished {chain(20)}" in world.cli("logs", job).stdout
        assert world.cli("exec", job, "--", "true").returncode == 2

    def test_two_nodes_reach_each_other(training_jobs: SageMakerWorld) -> None:
        world = training_jobs
        world.write(
            "import os, socket, time\n"
            "rank, where = int(os.environ['NODE_RANK']), (os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']))\n"
            "nodes = os.environ['NODES'].split()\n"
            "assert nodes.index(socket.gethostname()) == rank and socket.gethostbyname(nodes[0]) == where[0]\n"
            "print('nodes', os.environ['NODES'], os.environ['NUM_NODES'])\n"
            "if rank == 0:\n"
            "    with socket.create_server(('', where[1])) as server:\n"
            "        print('rank 1 said', server.accept()[0].recv(100).decode())\n"
            "else:\n"
            "    for _ in range(600):\n"
            "        try:\n"
            "            socket.create_connection(where).sendall(b'hello')\n"
            "            break\n"
            "        except OSError: time.sleep(0.1)\n"
        )
        job = world.submit(nodes=2)
        with world.governed():
            summary = world.ended(job)
        assert summary.phase == "succeeded", world.story(job)
        assert "rank 1 said hello" in world.lines(job) and "nodes node-0 node-1 2" in world.lines(job)
        assert len(world.cloud.names()) == 1

    def test_a_reclaim_saves_and_the_next_attempt_loses_no_step(training_jobs: SageMakerWorld) -> None:
        world = training_jobs
        world.script("counter.py")
        job = world.submit(params={"steps": 120, "pause": 0.1, "every": 1000}, resources={"spot": True})
        with world.governed():
            world.trained(job, 5)
            world.cloud.interrupt(world.training_job(job))
            summary = world.ended(job)
        assert fields(summary, "outcome") == [("reclaimed",), ("succeeded",)], world.story(job)
        # Nothing was trained twice, and nothing left out.
        assert [one.step for one in world.steps(job)] == list(range(1, 121)), world.story(job)
        assert any(chain(120) in line for line in world.lines(job))
        first, second = world.cloud.names()
        # The governor does not let SageMaker start the first one again. The second may be stopped on its way out: its
        # node's exit ends the job, and on a busy machine a governor sees that before the container is gone.
        assert world.cloud.status(first)[0] == "Stopped"
        assert world.cloud.status(second)[0] in ("Completed", "Stopped")

    def test_a_container_that_comes_back_never_trains(training_jobs: SageMakerWorld) -> None:
        """SageMaker starts it anew, under the same name and with an empty disk, while the next attempt trains."""
        world = training_jobs
        world.script("counter.py")
        job = world.submit(params={"steps": 60, "pause": 0.1, "every": 1000}, resources={"spot": True})
        with world.governed():
            world.trained(job, 5)
            name = world.training_job(job)
            # Nobody saves: the power is gone at once.
            world.cloud.hosts.grace_s = 0.0
            world.cloud.interrupt(name)
            world.until(
                job, lambda: world.cloud.status(name)[0] in ("Completed", "Stopped"), "the old one leaves again"
            )
            summary = world.ended(job)
        assert summary.phase == "succeeded", world.story(job)
        gone_through = [each["Status"] for each in world.cloud.describe(name)["SecondaryStatusTransitions"]]
        assert gone_through.count("Training") == 2, "it was started again"
        attempts = {one.attempt for one in world.steps(job)}
        assert attempts == {1, 2} and len(world.cloud.names()) == 2, world.story(job)

    def test_two_nodes_on_spot_save_together(training_jobs: SageMakerWorld) -> None:
        world = training_jobs
        world.script("counter.py")
        params = {"steps": 80, "pause": 0.1, "every": 1000}
        job = world.submit(nodes=2, params=params, resources={"spot": True})
        with world.governed():
            world.trained(job, 5)
            world.cloud.interrupt(world.training_job(job))
            summary = world.ended(job)
        assert fields(summary, "outcome") == [("reclaimed",), ("succeeded",)], world.story(job)
        # Rank 0 saves for both; this script's ranks do not wait for each other.
        first, second = ([one.step for one in world.steps(job) if one.rank == rank] for rank in (0, 1))
        assert first == list(range(1, 81)) and second[-1] == 80, world.story(job)

    def test_where_there_are_no_machines_others_are_tried(training_jobs: SageMakerWorld) -> None:
        world = training_jobs
        world.script("counter.py")
        world.cloud.hosts.dry.add("ml.c5.xlarge")
        job = world.submit(params={"steps": 5}, resources={"machine": ["ml.c5.xlarge", "ml.m5.xlarge"]})
        with world.governed():
            summary = world.ended(job)
        assert summary.phase == "succeeded", world.story(job)
        assert fields(summary, "machine", "outcome") == [
            ("ml.c5.xlarge", "dry"),
            ("ml.m5.xlarge", "succeeded"),
        ], world.story(job)

    def test_a_failure_is_told(training_jobs: SageMakerWorld) -> None:
        world = training_jobs
        world.write("print('so far'); raise SystemExit(3)\n")
        world.cloud.hosts.ending_s = 5.0
        job = world.submit()
        with world.governed():
            summary = world.ended(job)
        assert summary.phase == "failed" and summary.exit_code == 3, world.story(job)
        assert "so far" in world.lines(job)
        # And SageMaker shows it as what it is.
        (name,) = world.cloud.names()
        told = world.cloud.describe(name)
        assert told["TrainingJobStatus"] == "Failed" and told["FailureReason"].endswith("exit code: 3"), told

    def test_a_stop_saves_first(training_jobs: SageMakerWorld) -> None:
        world = training_jobs
        world.script("counter.py")
        job = world.submit(params={"steps": 10000, "pause": 0.05, "every": 1000000})
        with world.governed():
            world.trained(job, 5)
            client.stop(job, store=world.url)
            summary = world.ended(job)
        assert summary.phase == "stopped" and summary.last_checkpoint is not None, world.story(job)

    def test_an_image_without_a_fitting_python_says_so(training_jobs: SageMakerWorld) -> None:
        world = training_jobs
        world.script("counter.py")
        bare = world.root / "bare"
        bare.mkdir()
        for program in ("sh", "tee"):
            (bare / program).symlink_to(f"/bin/{program}")
        job = world.submit(
            resources={"sagemaker": world.resources["sagemaker"] | {"overrides": {"Environment": {"PATH": str(bare)}}}}
        )
        with world.governed():
            summary = world.ended(job)
        assert summary.phase == "failed" and "no Python 3.10" in (summary.reason or ""), world.story(job)

else:

    def test_sagemaker_jobs_in_a_network_of_its_own() -> None:
        pytest_isolated(__file__)
