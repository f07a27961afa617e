"""Containers that try to reach beyond themselves: links out of inputs, checkpoints and folders of one's own."""

from __future__ import annotations

import os

import pytest
from container_jobs import contained
from harness import World, until

from tests.support.engines import Docker, why_no_docker

pytestmark = pytest.mark.skipif(why_no_docker() is not None, reason=why_no_docker() or "")


def test_links_that_lead_out_of_an_input_lead_to_the_same_inside(world: World, engine: Docker) -> None:
    world.write(
        """
import os, pathlib
data = pathlib.Path(os.environ["STOKER_INPUT_DATA"])
found = [(data / name).read_text() for name in ("file", "train/x", "train/further", "sub/near")]
pathlib.Path(os.environ["TRUTH"], "seen").write_text(" ".join(found))
try:
    (data / "train" / "y").touch()
except OSError as error:
    print("refused", error.strerror, flush=True)
"""
    )
    for name in ("data/sub", "elsewhere", "third"):
        (world.root / name).mkdir(parents=True)
    data, elsewhere, third = (world.root / name for name in ("data", "elsewhere", "third"))
    (elsewhere / "x").write_text("x")
    (third / "y").write_text("y")
    (elsewhere / "further").symlink_to(third / "y")
    (data / "train").symlink_to(elsewhere)
    (data / "file").symlink_to(elsewhere / "x")
    (data / "sub" / "near").symlink_to("../../third/y")
    # Means the image's own, and must not be covered by the machine's.
    (data / "python").symlink_to("/usr/bin/python3")
    ended = world.run(inputs={"data": str(data)}, environment=contained(world))
    assert ended.outcome == "succeeded", world.story(ended.id)
    assert (world.truth / "seen").read_text() == "x x y y"
    assert "refused Read-only file system" in world.lines(ended.id) and not (elsewhere / "y").exists()


def test_a_link_made_inside_never_brings_a_file_of_the_machine_to_the_store(world: World, engine: Docker) -> None:
    secret = world.root / "of-the-machine"
    secret.write_text("not for the container")
    world.write(
        f"""
import os
from pathlib import Path
saves, out = Path(os.environ["STOKER_CHECKPOINT_DIR"]), Path(os.environ["STOKER_OUTPUT_DIR"])
assert not Path({str(secret)!r}).exists()
for folder in (saves, out):
    (folder / "model").write_text("weights")
    (folder / "x").symlink_to({str(secret)!r})
    (folder / "y").symlink_to("x")
Path("beside").symlink_to({str(secret)!r})
node = Path(os.environ["STOKER_CHECKPOINT_DIR"]).parents[1]
try:
    (node / "scratch" / "copies").symlink_to("/etc")
except OSError as error:
    print("scratch:", error.strerror)
"""
    )
    ended = world.run(environment=contained(world))
    assert ended.outcome == "succeeded", world.story(ended.id)
    # Not what a governor writes at this moment.
    stored = [path for path in (world.root / "store/work").rglob("*") if path.is_file()]
    assert not [path for path in stored if b"not for the container" in path.read_bytes()]
    assert any(path.read_bytes() == b"weights" for path in stored)
    story = world.story(ended.id)
    assert (
        story.count("[stoker] warning: x is left out: it is a link to") == 1
        and "scratch: Read-only file system" in story
    ), story


def test_a_container_cannot_have_the_agent_write_or_delete_outside(world: World, engine: Docker) -> None:
    """Links in the place of everything that the agent opens by name, in all that the container can write to."""
    machine = world.root / "of-the-machine"
    machine.mkdir()
    for name in ("00000001.json", "keep.json", "notice.json", "save", "victim"):
        (machine / name).write_text("of the machine")
    before = {path.name: path.read_bytes() for path in machine.iterdir()}
    world.write(
        f"""
import os, signal, time
from pathlib import Path
machine, channel = Path({str(machine)!r}), Path(os.environ["STOKER_CHANNEL"])
node, truth = channel.parent, Path(os.environ["TRUTH"])
if os.environ["STOKER_ATTEMPT"] != "1":
    raise SystemExit(0)
signal.signal(signal.SIGTERM, lambda *_: None)
refused = []
own = sorted(path.name for path in node.iterdir())
for name in (*own, "left", "baseline.json", ".baseline.json.tmp", "container.json", "door/alive", "lib/x"):
    path = node / name
    for attack in (lambda: path.rename(node / "gone"), lambda: path.symlink_to(machine / "victim"), path.unlink):
        try:
            attack()
        except OSError:
            continue
        refused.append(name)
for name in ("notice.json", ".notice.json.tmp", "save", ".save.tmp", "metrics.jsonl", ".stoker-lock", "commits.next"):
    (channel / name).unlink(missing_ok=True)
    (channel / name).symlink_to(machine / "victim")
for name in ("commits", "commits.done"):
    (channel / name).symlink_to(machine)
for _ in range(3):
    try:
        Path("/run/stoker/more").touch()
        refused.append("/run/stoker")
    except OSError:
        pass
(truth / "written").write_text(" ".join(refused))
(truth / "ready").touch()
while (channel / "notice.json").is_symlink():
    time.sleep(0.05)
(truth / "noticed").write_text((channel / "notice.json").read_text())
"""
    )
    job = world.submit(environment=contained(world))
    until(lambda: (world.truth / "ready").exists(), "it has laid its links")
    world.interrupt(job, 20.0)
    ended = world.ended(job)
    assert ended.outcome == "succeeded", world.story(job)
    assert (world.truth / "written").read_text() == ""
    assert '"reason"' in (world.truth / "noticed").read_text()
    assert {path.name: path.read_bytes() for path in machine.iterdir()} == before


def test_a_setup_cannot_have_a_checkpoint_restored_outside(world: World, engine: Docker) -> None:
    outside = world.root / "of-the-machine"
    outside.mkdir()
    (outside / "kept").write_text("of the machine")
    world.write("raise SystemExit(1)")
    setup = f"rm -rf checkpoints && ln -s {outside} checkpoints"
    ended = world.run(environment=contained(world, user="1234:1234"), setup=setup)
    assert ended.outcome == "failed" and "checkpoints.dir: checkpoints is not a folder, or is a link" in ended.reason
    assert [path.name for path in outside.iterdir()] == ["kept"]
    assert (outside.stat().st_uid, (outside / "kept").stat().st_uid) == (os.getuid(), os.getuid())


def test_links_in_a_folder_of_ones_own_lead_the_next_attempt_nowhere(world: World, engine: Docker) -> None:
    folder, victim = world.root / "data/saves", world.root / "bashrc"
    folder.mkdir(parents=True)
    (folder / "of-people.txt").write_text("{}")
    victim.write_text("of the machine")
    world.write(
        f"""
import os, time
from pathlib import Path
folder, truth = Path({str(folder)!r}), Path(os.environ["TRUTH"])
if os.environ["STOKER_ATTEMPT"] == "1":
    (folder / "state.json").write_text("{{}}")
    for name in (".stoker-folder.draft", ".stoker-folder." + os.environ["STOKER_JOB"] + ".json.tmp"):
        (folder / name).symlink_to({str(victim)!r})
    (truth / "ready").touch()
    time.sleep(1000)
(truth / "again").write_text(" ".join(sorted(path.name for path in folder.iterdir() if path.name[0] != ".")))
"""
    )
    job = world.submit(environment=contained(world), checkpoints={"dir": str(folder)})
    until(lambda: (world.truth / "ready").exists() and world.checkpoints(job), "it has saved and laid its links")
    world.interrupt(job, 5.0)
    assert world.ended(job).outcome == "succeeded", world.story(job)
    assert (world.truth / "again").read_text() == "of-people.txt state.json"
    assert victim.read_text() == "of the machine"
