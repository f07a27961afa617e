"""`stoker exec` beside a training on this computer."""

from __future__ import annotations

from harness import World, until

SCRIPT = """\
import os, pathlib, time
from stoker import train
pathlib.Path(os.environ["TRUTH"], os.environ["NODE_RANK"]).touch()
step = 0
while not train.interrupted():
    step += 1
    train.report(step=step)
    time.sleep(0.05)
"""


def test_a_command_sees_what_the_training_sees(world: World) -> None:
    world.write(SCRIPT)
    job = world.submit(env={"COLOUR": "green", "MASTER_PORT": "29600"}, name="train", nodes=2)
    until(lambda: all((world.truth / rank).exists() for rank in "01"), "both nodes train")
    told = world.cli("exec", job, "--node", "1", "--", "sh", "-c", 'ls train.py; echo "$COLOUR $NODE_RANK $STOKER_JOB"')
    assert (told.returncode, told.stdout) == (0, f"train.py\ngreen 1 {job}\n"), told.stderr
    # On this computer nodes share an address, so the job's own wish for a port is not for them.
    ports = world.cli("exec", job, "--", "sh", "-c", 'echo "$MASTER_PORT $PET_MASTER_PORT"').stdout.split()
    assert ports[0] == ports[1] != "29600"

    # Its status is the command's, whatever that is; a visitor is no part of the training, and does not hold it up.
    assert world.cli("exec", job, "--", "sh", "-c", "exit 9").returncode == 9
    assert world.cli("exec", job, "--", "sh", "-c", "kill -15 $$").returncode == 128 + 15
    missing = world.cli("exec", job, "--", "no-such-program")
    assert missing.returncode == 127 and "there is no program 'no-such-program'" in missing.stderr
    marks = world.cli("exec", job, "--", "env").stdout
    assert "STOKER_TRAINING=" not in marks and "STOKER_NODE=" not in marks

    # What cannot be is one line.
    for arguments, word in (
        (("exec", job), "name a command"),
        (("exec", job, "--node", "2", "--", "true"), "nodes 0 to 1"),
        (("exec", job, "--via", "ssm", "--", "true"), "nothing to connect to"),
        (("ssh", job), "`stoker exec train -- bash` opens a shell there"),
    ):
        refused = world.cli(*arguments)
        assert refused.returncode == 2 and word in refused.stderr and refused.stderr.count("\n") == 1, refused.stderr

    world.cli("stop", job)
    world.ended(job)
    over = world.cli("exec", job, "--", "true")
    assert over.returncode == 2 and "has ended (stopped), and has no machine any more" in over.stderr
