"""Jobs on EC2 machines that really boot: one node and two, reclaims, losses, dry zones, outages. Nothing is left."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from ec2_world import BOOT_S, Ec2World
from harness import chain, fields, until

from stoker import client
from stoker.errors import UserError
from stoker.governor import apply
from stoker.governor.govern import Governor
from stoker.providers.ec2.provider import Ec2Provider
from stoker.testing.ec2 import why_no_machines
from stoker.testing.servers import isolated, pytest_isolated

if why_no_machines() is not None:
    pytest.skip(str(why_no_machines()), allow_module_level=True)

if isolated():

    def test_one_node(ec2: Ec2World) -> None:
        """As a person would: one command, and it is over when the command is."""
        ec2.script("counter.py")
        (ec2.code / "stoker.yaml").write_text(
            "name: one\nrun: python3 train.py\nparams: {steps: 20}\nenv: {TRUTH: /tmp}\noutputs: out\n"
            "tags: {project: vision}\n"
            "resources: {provider: ec2, machine: [c7i.large], image: debian/12, spot: true}\n"
        )
        ran = ec2.cli("run", "-y", timeout_s=240)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert f"finished {chain(20)}" in ran.stdout
        (job,) = [line.split()[0] for line in ec2.cli("ps").stdout.splitlines() if line.startswith("one-")]
        summary = ec2.summary(job)
        assert summary.phase == "succeeded" and summary.last_checkpoint is not None
        shown = ec2.cli("show", job).stdout
        assert next(iter(ec2.machines())) in ec2.cli("show", job, "--json").stdout
        assert "c7i.large in us-east-1" in shown and "spot" in shown
        calls = ec2.cloud.calls()
        assert sum(calls.values()) <= 20, calls

    def test_another_debian_and_an_image_by_its_name(ec2: Ec2World) -> None:
        ec2.script("counter.py")
        job = ec2.submit(params={"steps": 5}, resources={"image": "debian-13-amd64-*", "disk": "20GB"})
        with ec2.governed():
            summary = ec2.ended(job)
        assert summary.phase == "succeeded", ec2.story(job)
        assert any(chain(5) in line for line in ec2.lines(job))

    def test_two_nodes_reach_each_other(ec2: Ec2World) -> None:
        ec2.write(
            "import os, socket, time\n"
            "rank, where = int(os.environ['NODE_RANK']), (os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']))\n"
            "print('nodes', os.environ['NODES'], os.environ['NUM_NODES'])\n"
            "if rank == 0:\n"
            "    with socket.create_server(('', where[1])) as server:\n"
            "        peer, address = server.accept()\n"
            "        print('rank 1 came from', address[0], 'and said', peer.recv(100).decode())\n"
            "else:\n"
            "    for _ in range(600):\n"
            "        try:\n"
            "            socket.create_connection(where).sendall(b'hello')\n"
            "            break\n"
            "        except OSError: time.sleep(0.1)\n"
        )
        job = ec2.submit(nodes=2)
        with ec2.governed():
            summary = ec2.ended(job)
        assert summary.phase == "succeeded", ec2.story(job)
        (said,) = [line for line in ec2.lines(job) if line.startswith("rank 1 came from")]
        _, _, address = said.removesuffix(" and said hello").rpartition(" ")
        (nodes,) = {line.split()[1] for line in ec2.lines(job) if line.startswith("nodes ")}
        assert nodes.split(",")[1] == address, said
        assert said.endswith("and said hello")
        calls = ec2.cloud.calls()
        names = aws_cli(ec2, "ec2", "describe-instances", "--filters", f"Name=tag:stoker:job,Values={job}")
        assert sorted(names) == [f"{job}-1-0", f"{job}-1-1"]
        assert calls["CreatePlacementGroup"] == calls["DeletePlacementGroup"] == calls["RunInstances"] == 1

    def test_a_spot_notice_hands_over(ec2: Ec2World) -> None:
        ec2.script("counter.py")
        job = ec2.submit(params={"steps": 200, "pause": 0.1, "every": 1000}, resources={"spot": True})
        with ec2.governed():
            ec2.trained(job, 5)
            ec2.machine(job).notice(in_s=120)
            summary = ec2.ended(job)
        assert fields(summary, "outcome") == [("reclaimed",), ("succeeded",)], ec2.story(job)
        # Nothing was trained twice, and nothing left out.
        assert [one.step for one in ec2.steps(job)] == list(range(1, 201))
        assert any(chain(200) in line for line in ec2.lines(job))
        first, second = summary.attempts
        assert first.left_at is not None and second.training_since is not None
        assert summary.interruptions == 1

    def test_a_machine_taken_away_before_it_could_speak(ec2: Ec2World) -> None:
        ec2.script("counter.py")
        job = ec2.submit(params={"steps": 5}, resources={"spot": True})
        with ec2.governed():
            ec2.until(job, lambda: any(claim.launched for claim in ec2.state(job).open_claims), "it has a machine")
            ec2.machine(job).notice(in_s=0)
            summary = ec2.ended(job)
        assert fields(summary, "outcome") == [("reclaimed",), ("succeeded",)], ec2.story(job)

    def test_a_hint_asks_for_a_save_and_no_more(ec2: Ec2World) -> None:
        ec2.write(
            "import time\n"
            "from stoker import train\n"
            "for step in range(1, 10000):\n"
            "    train.report(step=step); print('step', step); time.sleep(0.1)\n"
            "    assert not train.interrupted()\n"
            "    if train.save_requested():\n"
            "        with train.checkpoint(f'step-{step}', step=step) as folder: (folder / 'x').touch()\n"
            "        print('saved, and goes on')\n"
            "    if train.latest() and train.wait_durable(60): break\n"
        )
        job = ec2.submit(resources={"spot": True})
        with ec2.governed():
            ec2.until(job, lambda: "step 3" in ec2.lines(job), "it trains")
            ec2.machine(job).rebalance()
            summary = ec2.ended(job)
        assert fields(summary, "outcome") == [("succeeded",)], ec2.story(job)
        assert "saved, and goes on" in ec2.lines(job) and len(ec2.checkpoints(job)) == 1

    def test_a_machine_killed_without_notice(ec2: Ec2World) -> None:
        ec2.script("counter.py")
        job = ec2.submit(params={"steps": 60, "pause": 0.1, "every": 10, "sure": 1})
        with ec2.governed():
            until(lambda: ec2.checkpoints(job), "a checkpoint is durable", 240)
            ec2.machine(job).kill()
            summary = ec2.ended(job)
        assert fields(summary, "outcome") == [("lost",), ("succeeded",)], ec2.story(job)
        assert (summary.attempts[1].first_step or 0) >= 11
        assert any(chain(60) in line for line in ec2.lines(job))

    def test_the_agent_is_killed(ec2: Ec2World) -> None:
        ec2.script("counter.py")
        job = ec2.submit(params={"steps": 60, "pause": 0.1, "every": 5})
        with ec2.governed():
            ec2.trained(job, 12)
            machine = ec2.machine(job)
            machine.run("systemctl", "kill", "--kill-whom=main", "--signal=KILL", "stoker-agent")
            summary = ec2.ended(job)
        assert fields(summary, "outcome", "rule") == [("infrastructure", "agent"), ("succeeded", "finished")], (
            ec2.story(job)
        )
        # The training died with its agent; the next agent made durable what was there, and switched the machine off.
        assert (summary.attempts[1].first_step or 0) >= 11
        assert machine.state() == "terminated"

    def test_the_agent_hangs(ec2: Ec2World) -> None:
        """systemd ends it, whether or not anybody governs; the next agent saves, and gives the machine back."""
        ec2.script("counter.py")
        ec2.cloud.faults.shut_store("machines")
        job = ec2.submit(params={"steps": 400, "pause": 0.1, "every": 5})
        with ec2.governed():
            ec2.until(job, lambda: any(claim.launched for claim in ec2.state(job).open_claims), "a launch")
            machine = ec2.machine(job)
            machine.wait_console("is rank 0 of", BOOT_S)
            # It waits for its agent: time enough to make systemd less patient with that than anybody would wish.
            folder = "/run/systemd/system/stoker-agent.service.d"
            machine.run("sh", "-c", f"mkdir -p {folder} && printf '[Service]\\nWatchdogSec=15\\n' >{folder}/hurry.conf")
            ec2.cloud.faults.shut_store("nobody")
            ec2.trained(job, 200)
            assert len(ec2.summary(job).attempts) == 1, "an agent that lives shows its pulse"
        machine.run("systemctl", "kill", "--kill-whom=main", "--signal=STOP", "stoker-agent")
        machine.wait_gone(BOOT_S)
        with ec2.governed():
            summary = ec2.ended(job)
        assert fields(summary, "outcome", "rule") == [("infrastructure", "agent"), ("succeeded", "finished")], (
            ec2.story(job)
        )
        assert (summary.attempts[1].first_step or 0) >= 199

    def test_an_agent_that_keeps_dying(ec2: Ec2World) -> None:
        """The machine gives itself back, though nobody governs and no agent could say a word."""
        ec2.script("counter.py")
        job = ec2.submit(params={"steps": 400, "pause": 0.1})
        with ec2.governed():
            ec2.trained(job, 3)
        machine = ec2.machine(job)
        ec2.cloud.faults.shut_store("machines")

        def dies() -> bool:
            try:
                machine.run("systemctl", "kill", "--kill-whom=main", "--signal=KILL", "stoker-agent", check=False)
            except LookupError:
                pass  # It is off.
            return machine.state() == "terminated"

        until(dies, "the machine is off", BOOT_S)
        ec2.cloud.faults.shut_store("nobody")
        client.stop(job, store=ec2.url)
        with ec2.governed():
            ec2.ended(job)

    def test_a_governor_that_dies_between_claim_and_launch(ec2: Ec2World, monkeypatch: pytest.MonkeyPatch) -> None:
        class Killed(BaseException):
            pass

        def dies(*_: object) -> None:
            raise Killed

        ec2.script("counter.py")
        job = ec2.submit(params={"steps": 5})
        with monkeypatch.context() as patch:
            patch.setattr(Ec2Provider, "launch", dies)
            with pytest.raises(Killed):
                Governor(ec2.store).run_pass()
        assert ec2.state(job).open_claims and not ec2.machines()
        # Another one, whose launch goes through and whose reply is lost.
        ec2.cloud.faults.lose_replies("RunInstances", times=9)
        Governor(ec2.store).run_pass()
        assert ec2.state(job).attempts == ()
        ec2.cloud.faults.clear()
        with ec2.governed():
            summary = ec2.ended(job)
        assert summary.phase == "succeeded" and len(summary.attempts) == 1, ec2.story(job)
        assert len(ec2.machines()) == 1

    def test_no_capacity_in_the_first_zone(ec2: Ec2World) -> None:
        ec2.script("counter.py")
        ec2.cloud.faults.no_capacity(zone="us-east-1a")
        job = ec2.submit(params={"steps": 5}, resources={"zones": ["us-east-1a", "us-east-1b"]})
        with ec2.governed():
            summary = ec2.ended(job)
        assert summary.phase == "succeeded", ec2.story(job)
        assert fields(summary, "zone") == [("us-east-1b",)]
        # The next job need not find out by itself.
        job = ec2.submit(params={"steps": 5}, resources={"zones": ["us-east-1a", "us-east-1b"]})
        ec2.cloud.calls(reset=True)
        with ec2.governed():
            assert fields(ec2.ended(job), "zone") == [("us-east-1b",)]
        assert ec2.cloud.calls()["RunInstances"] == 1

    @pytest.mark.parametrize("code", ["VcpuLimitExceeded", "UnauthorizedOperation"])
    def test_what_a_person_must_change_is_told_and_not_looped_on(ec2: Ec2World, code: str) -> None:
        ec2.script("counter.py")
        ec2.cloud.faults.refuse_launch(code)
        job = ec2.submit(params={"steps": 5}, resources={"zones": ["us-east-1a"]})
        ec2.cloud.calls(reset=True)
        with ec2.governed():
            summary = ec2.ended(job)
        assert summary.phase == "failed" and code in summary.reason, ec2.story(job)
        assert ec2.cloud.calls()["RunInstances"] == 1

    def test_no_quota_for_spot_is_no_reason_not_to_train(ec2: Ec2World) -> None:
        ec2.script("counter.py")
        ec2.cloud.faults.refuse_launch("MaxSpotInstanceCountExceeded", lifecycle="spot")
        job = ec2.submit(params={"steps": 5}, resources={"spot": "prefer"})
        with ec2.governed():
            summary = ec2.ended(job)
        assert summary.phase == "succeeded" and fields(summary, "spot") == [(False,)], ec2.story(job)

    def test_what_the_job_names_and_ec2_does_not_have_is_refused_before_anything_is_written(ec2: Ec2World) -> None:
        ec2.script("counter.py")
        with pytest.raises(UserError, match=r"^resources\.ec2\.profile: .*nobody"):
            ec2.submit(resources={"ec2": {"profile": "nobody"}})
        with pytest.raises(UserError, match=r"^resources\.ec2\.security_groups: "):
            ec2.submit(resources={"ec2": {"security_groups": ["sg-0123"]}})
        with pytest.raises(UserError, match=r"^resources\.ec2\.key: .*'mine'"):
            ec2.submit(resources={"ec2": {"key": "mine"}})
        with pytest.raises(UserError, match=r"^resources\.image: .*nothing-\*"):
            ec2.submit(nodes=2, resources={"image": "nothing-*"})
        assert not list(ec2.store.list("")), "nothing is left of them"

    def test_a_boot_that_fails_says_why(ec2: Ec2World) -> None:
        ec2.script("counter.py")
        job = ec2.submit(params={"steps": 5}, resources={"image": "debian-11-amd64-*"})
        with ec2.governed():
            summary = ec2.ended(job)
        assert (summary.phase, summary.rule) == ("failed", "boot-failed"), ec2.story(job)
        assert "(3.9.2)" in summary.reason and "Python 3.10" in summary.reason and len(summary.attempts) == 2
        assert "3.10" in ec2.cli("show", job).stdout

    def test_outages_restart_nothing(ec2: Ec2World) -> None:
        """EC2 answers 500 for a minute, and the bucket for two."""
        ec2.script("counter.py")
        job = ec2.submit(params={"steps": 1600, "pause": 0.1, "every": 50})
        with ec2.governed():
            ec2.trained(job, 20)
            ec2.cloud.faults.internal_error(for_s=60)
            ec2.cloud.faults.shut_store()
            # The length of an outage is what is tested: nothing can be waited for instead.
            time.sleep(120)
            ec2.cloud.faults.shut_store("nobody")
            summary = ec2.ended(job)
        assert fields(summary, "outcome") == [("succeeded",)], ec2.story(job)
        assert [one.step for one in ec2.steps(job)] == list(range(1, 1601)), "a line is missing, or came twice"
        assert len(ec2.machines()) == 1

    def test_the_longest_life(ec2: Ec2World, monkeypatch: pytest.MonkeyPatch) -> None:
        """An agent that hangs keeps nobody's machine: the machine minds its own end."""
        monkeypatch.setattr(apply, "_LIFE_MARGIN_S", 30.0)
        ec2.script("counter.py")
        job = ec2.submit(params={"steps": 100_000}, limits={"max_runtime": "5s"}, retry={"user_errors": 0})
        with ec2.governed():
            ec2.trained(job, 3)
            machine = ec2.machine(job)
            machine.run("systemctl", "kill", "--kill-whom=all", "--signal=STOP", "stoker-agent")
            client.stop(job, ec2.url)
        # Nobody governs any more. It is switched off all the same.
        machine.wait_gone(120)
        with ec2.governed():
            assert ec2.ended(job).phase == "stopped"

else:

    def test_ec2_in_a_network_of_its_own() -> None:
        pytest_isolated(__file__)


def aws_cli(world: Ec2World, *words: str) -> list[str]:
    """What the real command line says the instances are called."""
    names = "Reservations[].Instances[].Tags[?Key=='Name'].Value[]"
    command = [str(Path(sys.executable).parent / "aws"), *words, "--query", names, "--output", "text"]
    ran = subprocess.run(command, env=world.environ(), capture_output=True, text=True, check=True)
    return ran.stdout.split()
