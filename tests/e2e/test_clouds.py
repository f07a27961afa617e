"""Jobs on machines of every cloud that really boot: one node and two, reclaims, losses, dry zones, outages.

After each nothing is left that is paid for.
"""

from __future__ import annotations

import json
import time
from typing import Literal

import pytest
from cloud_world import BOOT_S, CloudWorld
from ec2_world import Ec2World
from harness import chain, fields, until

from stoker import client
from stoker.core import longest_life
from stoker.governor.loop import Governor
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

    def test_one_node(lent: CloudWorld) -> None:
        """As a person would: one command, and it is over when the command is."""
        lent.script("counter.py")
        (lent.code / "stoker.yaml").write_text(
            "name: one\nrun: python3 train.py\nparams: {steps: 20}\nenv: {TRUTH: /tmp}\noutputs: out\n"
            "tags: {project: vision}\n"
            f"resources: {json.dumps(lent.resources | {'spot': True})}\n"
        )
        ran = lent.cli("run", "-y", timeout_s=240)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert f"finished {chain(20)}" in ran.stdout
        (job,) = [line.split()[0] for line in lent.cli("ps").stdout.splitlines() if line.startswith("one-")]
        summary = lent.summary(job)
        assert summary.phase == "succeeded" and summary.last_checkpoint is not None
        shown = lent.cli("show", job).stdout
        assert next(iter(lent.machines())) in lent.cli("show", job, "--json").stdout
        assert f"{lent.resources['machine'][0]} in {lent.zones[0][:-2]}" in shown and "spot" in shown
        calls = lent.cloud.calls()
        assert sum(calls.values()) <= 20, calls

    def test_two_nodes_reach_each_other(lent: CloudWorld) -> None:
        lent.write(
            "import os, socket, time\n"
            "rank, where = int(os.environ['NODE_RANK']), (os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']))\n"
            "print('nodes', *map(socket.gethostbyname, os.environ['NODES'].split()), os.environ['NUM_NODES'])\n"
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
        job = lent.submit(nodes=2)
        with lent.governed():
            summary = lent.ended(job)
        assert summary.phase == "succeeded", lent.story(job)
        (said,) = [line for line in lent.lines(job) if line.startswith("rank 1 came from")]
        _, _, address = said.removesuffix(" and said hello").rpartition(" ")
        (nodes,) = {tuple(line.split()[1:]) for line in lent.lines(job) if line.startswith("nodes ")}
        assert nodes[1:] == (address, "2"), said
        assert said.endswith("and said hello")
        assert lent.launches() == 1

    def test_a_spot_notice_hands_over(lent: CloudWorld) -> None:
        lent.script("counter.py")
        job = lent.submit(params={"steps": 200, "pause": 0.1, "every": 1000}, resources={"spot": True})
        with lent.governed():
            lent.trained(job, 5)
            lent.notice(job)
            summary = lent.ended(job)
        assert fields(summary, "outcome") == [("reclaimed",), ("succeeded",)], lent.story(job)
        # Nothing was trained twice, and nothing left out.
        assert [one.step for one in lent.steps(job)] == list(range(1, 201))
        assert any(chain(200) in line for line in lent.lines(job))
        first, second = summary.attempts
        assert first.left_at is not None and second.training_since is not None
        assert summary.interruptions == 1

    def test_a_machine_taken_away_before_it_could_speak(lent: CloudWorld) -> None:
        lent.script("counter.py")
        job = lent.submit(params={"steps": 5}, resources={"spot": True})
        with lent.governed():
            lent.until(job, lambda: lent.has_machine(job), "it has a machine")
            lent.notice(job, in_s=0)
            summary = lent.ended(job)
        assert fields(summary, "outcome") == [("reclaimed",), ("succeeded",)], lent.story(job)

    def test_a_hint_asks_for_a_save_and_no_more(lent: CloudWorld) -> None:
        lent.write(
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
        job = lent.submit(resources={"spot": True})
        with lent.governed():
            lent.until(job, lambda: "step 3" in lent.lines(job), "it trains")
            lent.hint(job)
            summary = lent.ended(job)
        assert fields(summary, "outcome") == [("succeeded",)], lent.story(job)
        assert "saved, and goes on" in lent.lines(job) and len(lent.checkpoints(job)) == 1

    def test_a_machine_killed_without_notice(lent: CloudWorld) -> None:
        lent.script("counter.py")
        job = lent.submit(params={"steps": 60, "pause": 0.1, "every": 10, "sure": 1})
        with lent.governed():
            until(lambda: lent.checkpoints(job), "a checkpoint is durable", 240)
            lent.machine(job).kill()
            summary = lent.ended(job)
        assert fields(summary, "outcome") == [("lost",), ("succeeded",)], lent.story(job)
        assert (summary.attempts[1].first_step or 0) >= 11
        assert any(chain(60) in line for line in lent.lines(job))

    def test_the_agent_is_killed(lent: CloudWorld) -> None:
        lent.script("counter.py")
        job = lent.submit(params={"steps": 60, "pause": 0.1, "every": 5})
        with lent.governed():
            lent.trained(job, 12)
            machine = lent.machine(job)
            machine.run("systemctl", "kill", "--kill-whom=main", "--signal=KILL", "stoker-agent")
            summary = lent.ended(job)
        assert fields(summary, "outcome", "rule") == [("infrastructure", "agent"), ("succeeded", "finished")], (
            lent.story(job)
        )
        # The training died with its agent; the next agent made durable what was there, and switched the machine off.
        assert (summary.attempts[1].first_step or 0) >= 11
        assert machine.state() == "terminated"

    def test_the_agent_hangs(ec2: Ec2World) -> None:
        """systemd ends it, whether or not anybody governs; the next agent saves, and gives the machine back.

        On one cloud: the service is the same on all.
        """
        ec2.script("counter.py")
        ec2.cloud.faults.shut_store("machines")
        job = ec2.submit(params={"steps": 400, "pause": 0.1, "every": 5})
        with ec2.governed():
            ec2.until(job, lambda: ec2.has_machine(job), "a launch")
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

    def test_an_agent_that_keeps_dying(lent: CloudWorld) -> None:
        """The machine gives itself back, though nobody governs and no agent could say a word."""
        lent.script("counter.py")
        job = lent.submit(params={"steps": 400, "pause": 0.1})
        with lent.governed():
            lent.trained(job, 3)
        machine = lent.machine(job)
        lent.cloud.faults.shut_store("machines")
        # From inside, and no longer than until systemd gives it up: whoever still runs there delays the machine's end.
        kill = "systemctl kill --kill-whom=main --signal=KILL stoker-agent"
        loop = f"until systemctl is-failed -q stoker-agent; do {kill}; sleep 0.2; done"
        machine.run("sh", "-c", loop, limit_s=120, check=False)
        machine.wait_gone(BOOT_S)
        lent.cloud.faults.shut_store("nobody")
        client.stop(job, store=lent.url)
        with lent.governed():
            lent.ended(job)

    def test_a_governor_that_dies_between_claim_and_launch(lent: CloudWorld, monkeypatch: pytest.MonkeyPatch) -> None:
        class Killed(BaseException):
            pass

        def dies(*_: object) -> None:
            raise Killed

        lent.script("counter.py")
        job = lent.submit(params={"steps": 5})
        with monkeypatch.context() as patch:
            patch.setattr(lent.provider, "launch", dies)
            with pytest.raises(Killed):
                Governor(lent.store).run_pass()
        assert lent.state(job).open_claims and not lent.machines()
        # Another one, whose launch goes through and whose reply is lost.
        lent.lose_launch_replies()
        Governor(lent.store).run_pass()
        assert lent.state(job).attempts == ()
        lent.cloud.faults.clear()
        with lent.governed():
            summary = lent.ended(job)
        assert summary.phase == "succeeded" and len(summary.attempts) == 1, lent.story(job)
        assert len(lent.machines()) == 1

    def test_no_capacity_in_the_first_zone(lent: CloudWorld) -> None:
        lent.script("counter.py")
        first, second = lent.zones
        lent.cloud.faults.no_capacity(zone=first)
        job = lent.submit(params={"steps": 5}, resources={"zones": [first, second]})
        with lent.governed():
            summary = lent.ended(job)
        assert summary.phase == "succeeded", lent.story(job)
        assert fields(summary, "zone") == [(second,)]
        # The next job need not find out by itself.
        job = lent.submit(params={"steps": 5}, resources={"zones": [first, second]})
        lent.cloud.calls(reset=True)
        with lent.governed():
            assert fields(lent.ended(job), "zone") == [(second,)]
        assert lent.launches() == 1

    @pytest.mark.parametrize("what", ["quota", "permission"])
    def test_what_a_person_must_change_is_told_and_not_looped_on(
        lent: CloudWorld, what: Literal["quota", "permission"]
    ) -> None:
        lent.script("counter.py")
        code = lent.refuse_launch(what)
        job = lent.submit(params={"steps": 5}, resources={"zones": [lent.zones[0]]})
        lent.cloud.calls(reset=True)
        with lent.governed():
            summary = lent.ended(job)
        assert summary.phase == "failed" and code in summary.reason, lent.story(job)
        assert lent.launches() == 1

    def test_a_boot_that_fails_says_why(lent: CloudWorld) -> None:
        lent.script("counter.py")
        job = lent.submit(params={"steps": 5}, resources={"image": lent.old_image})
        with lent.governed():
            summary = lent.ended(job)
        assert (summary.phase, summary.rule) == ("failed", "boot-failed"), lent.story(job)
        assert "(3.9.2)" in summary.reason and "or newer" in summary.reason and len(summary.attempts) == 2
        assert "choose another resources.image, with Python" in lent.cli("show", job).stdout

    def test_outages_restart_nothing(lent: CloudWorld) -> None:
        """The cloud answers 500 for a minute, and the bucket for two."""
        lent.script("counter.py")
        job = lent.submit(params={"steps": 1600, "pause": 0.1, "every": 50})
        with lent.governed():
            lent.trained(job, 20)
            lent.cloud.faults.internal_error(for_s=60)
            lent.cloud.faults.shut_store()
            # The length of an outage is what is tested: nothing can be waited for instead.
            time.sleep(120)
            lent.cloud.faults.shut_store("nobody")
            summary = lent.ended(job)
        assert fields(summary, "outcome") == [("succeeded",)], lent.story(job)
        assert [one.step for one in lent.steps(job)] == list(range(1, 1601)), "a line is missing, or came twice"
        assert len(lent.machines()) == 1

    def test_the_longest_life(lent: CloudWorld, monkeypatch: pytest.MonkeyPatch) -> None:
        """An agent that hangs keeps nobody's machine: the machine minds its own end."""
        monkeypatch.setattr(longest_life, "_LIFE_MARGIN_S", 30.0)
        lent.script("counter.py")
        job = lent.submit(params={"steps": 100_000}, limits={"max_runtime": "5s"}, retry={"user_errors": 0})
        with lent.governed():
            lent.trained(job, 3)
            machine = lent.machine(job)
            machine.run("systemctl", "kill", "--kill-whom=all", "--signal=STOP", "stoker-agent")
            client.stop(job, lent.url)
        # Nobody governs any more. It is switched off all the same.
        machine.wait_gone(120)
        with lent.governed():
            assert lent.ended(job).phase == "stopped"

else:

    def test_clouds_in_a_network_of_their_own() -> None:
        pytest_isolated(__file__)
