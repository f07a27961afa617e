"""Containers on machines of every cloud that really boot, by the docker that their own systemd runs."""

from __future__ import annotations

import json
from typing import Any

import boto3
import pytest
from cloud_world import CloudWorld
from ec2_world import Ec2World
from harness import chain, fields

from stoker import client
from stoker.model import keys
from tests.support.engines import IMAGE, why_no_docker_machines
from tests.support.servers import isolated, pytest_isolated

if why_no_docker_machines() is not None:
    pytest.skip(str(why_no_docker_machines()), allow_module_level=True)

SEEN = """\
import json, os, sys
from pathlib import Path
from stoker import train
with train.checkpoint("one", step=1) as folder:
    (folder / "state").write_text("saved")
Path(os.environ["STOKER_OUTPUT_DIR"], "result").write_text("made inside")
told = {name: value for name, value in os.environ.items()}
init = Path("/proc/1/comm").read_text().strip()
host, argv = Path("/proc/sys/kernel/hostname").read_text().strip(), sys.argv[1:]
print("seen", json.dumps({"environ": told, "host": host, "cwd": os.getcwd(), "init": init, "argv": argv}), flush=True)
"""

LAST_WORDS = """\
import os, time
from pathlib import Path
print("it is", os.environ["TOKEN"], flush=True)
while not Path("speak").exists():
    time.sleep(0.02)
print("last words:", os.environ["TOKEN"], flush=True)
Path("said").touch()
time.sleep(600)
"""

# The masker is halted, so that what is said stays in the pipe; it goes on when the agent and the training are dead.
KILL_AGENT_WITH_A_FULL_PIPE = """\
cd /var/lib/stoker/node/code || exit
masker=$(pgrep -f masker[.]py) && kill -STOP $masker && touch speak || exit
timeout 10 sh -c 'until [ -e said ]; do sleep 0.02; done' && echo said
systemctl kill --kill-whom=main --signal=KILL stoker-agent
timeout 10 sh -c 'while pgrep -f train[.]py >/dev/null; do sleep 0.02; done' && echo dead
kill -CONT $masker && echo heard
"""

if isolated():

    @pytest.fixture(params=["ec2", "gce"])
    def lent(request: pytest.FixtureRequest) -> CloudWorld:
        """A world on each cloud in turn."""
        found: CloudWorld = request.getfixturevalue(request.param)
        return found

    def submit(lent: CloudWorld, *, container: dict[str, Any] | None = None, **job: Any) -> str:
        """A job in a container, on a machine that has a docker."""
        job["resources"] = {"image": lent.docker_image, **job.get("resources", {})}
        job.setdefault("run", "python train.py --steps 100 --pause 0.1 --every 1000")
        return lent.submit(environment={"container": {"image": IMAGE, **(container or {})}}, **job)

    def containers(lent: CloudWorld, job: str) -> list[str]:
        return lent.machine(job).run("docker", "ps", "--all", "--format={{.Names}}").split()

    def test_the_training_is_inside_and_what_it_saves_is_kept(lent: CloudWorld) -> None:
        lent.write(SEEN)
        job = submit(lent, run=["python", "train.py"], params={"lr": 0.5}, outputs="artifacts")
        with lent.governed():
            summary = lent.ended(job)
        assert summary.phase == "succeeded", lent.story(job)
        (told,) = [line.removeprefix("seen ") for line in lent.lines(job) if line.startswith("seen ")]
        seen = json.loads(told)
        environ = seen["environ"]
        assert (seen["cwd"], seen["init"], seen["argv"]) == (
            "/var/lib/stoker/node/code",
            "docker-init",
            ["--lr", "0.5"],
        )
        assert environ["STOKER_JOB"] == job and environ["STOKER_ATTEMPT"] == "1" and environ["FROM_IMAGE"] == "yes"
        assert environ["NODES"] == seen["host"] and not {"STOKER_STORE", "STOKER_HOME"} & set(environ)
        assert summary.last_checkpoint is not None
        (attempt,) = summary.attempts
        assert (attempt.image or "").startswith("sha256:")
        (result,) = [meta.key for meta in lent.store.list(keys.outputs(job, attempt.claim))]
        assert result.endswith("/result") and lent.store.get_from(result, 0) == b"made inside"

    def test_a_spot_notice_hands_over_in_the_same_image(lent: CloudWorld) -> None:
        lent.script("counter.py")
        job = submit(lent, resources={"spot": True})
        with lent.governed():
            lent.trained(job, 5)
            lent.notice(job)
            summary = lent.ended(job)
        assert fields(summary, "outcome") == [("reclaimed",), ("succeeded",)], lent.story(job)
        # One signal through the shell that `run` is. Nothing was trained twice, and nothing left out.
        assert [one.step for one in lent.steps(job)] == list(range(1, 101)), lent.story(job)
        assert any(chain(100) in line for line in lent.lines(job))
        first, second = summary.attempts
        assert first.image == second.image is not None
        assert first.save is not None and first.save.saved_s is not None and first.save.saved_s < 10

    def test_a_machine_that_is_switched_off_stops_its_docker_last(lent: CloudWorld) -> None:
        """Else the training would be killed while it saves."""
        lent.script("counter.py")
        job = submit(lent)
        with lent.governed():
            lent.trained(job, 5)
            lent.machine(job).run("systemctl", "--no-block", "poweroff")
            summary = lent.ended(job)
        assert len(summary.attempts) == 2 and summary.phase == "succeeded", lent.story(job)
        assert [one.step for one in lent.steps(job)] == list(range(1, 101)), lent.story(job)

    # The next two are between the agent, systemd and docker, whose units are the same on every cloud.

    def test_the_exit_of_a_failing_training_is_its_own(ec2: Ec2World) -> None:
        ec2.write("import sys\nprint('it goes wrong')\nsys.exit(7)\n")
        job = submit(ec2, run="python train.py")
        with ec2.governed():
            summary = ec2.ended(job)
        assert (summary.phase, summary.rule, summary.exit_code) == ("failed", "user-error", 7), ec2.story(job)
        assert "it goes wrong" in ec2.lines(job) and len(summary.attempts) == 1

    def test_a_container_ends_with_its_agent(ec2: Ec2World) -> None:
        ec2.script("counter.py")
        job = submit(ec2, run="python train.py --steps 60 --pause 0.1 --every 5")
        with ec2.governed():
            ec2.trained(job, 12)
            machine = ec2.machine(job)
            (name,) = containers(ec2, job)
            # From inside, at once: the next agent switches the machine off.
            watch = f"while docker inspect {name} >/dev/null 2>&1; do sleep 0.05; done; echo gone"
            kill = "systemctl kill --kill-whom=main --signal=KILL stoker-agent"
            assert machine.run("sh", "-c", f"{kill}; {watch}", check=False).endswith("gone\n")
            summary = ec2.ended(job)
        assert fields(summary, "outcome", "rule") == [("infrastructure", "agent"), ("succeeded", "finished")], (
            ec2.story(job)
        )
        assert (summary.attempts[1].first_step or 0) >= 11
        assert any(chain(60) in line for line in ec2.lines(job))

    @pytest.mark.parametrize("image", [IMAGE, None])
    def test_the_last_words_are_not_lost_with_the_agent(ec2: Ec2World, image: str | None) -> None:
        """Though they were still in the pipe to the masker, which systemd does not end with the agent's service."""
        ssm = boto3.client("ssm", endpoint_url=ec2.cloud.endpoint, region_name="us-east-1")
        ssm.put_parameter(Name="/team/token", Value="hunter2-and-more", Type="SecureString", Overwrite=True)
        ec2.write(LAST_WORDS)
        job = ec2.submit(
            run=["python3", "train.py"],
            secrets={"TOKEN": "aws-ssm:/team/token"},
            resources={"image": ec2.docker_image},
            environment={"container": {"image": image}} if image else {},
        )
        with ec2.governed():
            ec2.until(job, lambda: "it is ***" in ec2.lines(job), "it trains")
            machine = ec2.machine(job)
            ended = machine.run("sh", "-c", KILL_AGENT_WITH_A_FULL_PIPE, check=False)
            assert ended.split() == ["said", "dead", "heard"], ended
            ec2.until(job, lambda: ec2.summary(job).attempts[0].outcome is not None, "the next agent has left")
            client.stop(job, store=ec2.url)
            ec2.ended(job)
        assert ec2.summary(job).attempts[0].rule == "agent", ec2.story(job)
        said = [line for line in ec2.lines(job) if line.startswith("last words")]
        assert said[:1] == ["last words: ***"], ec2.story(job)

else:

    def test_containers_on_machines_in_a_network_of_their_own() -> None:
        pytest_isolated(__file__)
