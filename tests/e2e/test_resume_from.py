"""`resume_from`: another job's checkpoint, and a folder of plain files on this computer."""

from __future__ import annotations

from pathlib import Path

from harness import World, chain


def test_from_a_job_and_from_a_folder(world: World, tmp_path: Path) -> None:
    world.script("counter.py")
    first = world.run(params={"steps": 10, "pause": 0, "sure": 1})
    pulled = world.cli("pull", first.id, str(tmp_path / "pulled"), "--checkpoint", "step-5")
    assert pulled.returncode == 0, pulled.stderr

    for source, begin in ((f"{first.id}:step-5", 5), (first.id, 10), (str(tmp_path / "pulled/step-5"), 5)):
        before = len(world.journal("finish"))
        done = world.run(params={"steps": 12, "pause": 0}, resume_from=source)
        assert done.outcome == "succeeded"
        assert world.journal("start")[-1].step == begin
        assert [record.text for record in world.journal("finish")[before:]] == [chain(12)]


def test_what_was_pulled_beside_the_code_is_not_packed_with_the_next_job(world: World) -> None:
    world.script("counter.py")
    first = world.run(params={"steps": 5, "pause": 0, "sure": 1})
    pulled = world.cli("pull", first.id)
    assert pulled.returncode == 0, pulled.stderr
    assert list((world.code / first.id).rglob("*.json"))
    second = world.run(params={"steps": 5, "pause": 0})
    assert first.code is not None and second.code is not None
    assert second.code.digest == first.code.digest


def test_a_pull_writes_through_no_link_of_an_earlier_one(world: World, tmp_path: Path) -> None:
    world.script("counter.py")
    job = world.run(params={"steps": 5, "pause": 0, "sure": 1})
    mine, folder = tmp_path / "mine", world.code / job.id
    mine.write_text("mine")
    folder.mkdir()
    (folder / ".stokerignore").symlink_to(mine)
    assert world.cli("pull", job.id).returncode == 0
    assert mine.read_text() == "mine" and (folder / ".stokerignore").read_text() == "*\n"
    # A folder that nobody named may not be a link either.
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    refused = world.cli("pull", job.id)
    assert refused.returncode == 2 and "is a link; name the folder to pull into" in refused.stderr
    assert world.cli("pull", job.id, str(folder)).returncode == 0


def test_a_person_chooses_the_checkpoint_that_a_job_resumes_from(world: World) -> None:
    world.write(
        "import sys\n"
        "from stoker import train\n"
        "saved = train.latest()\n"
        "start = int((saved / 'x').read_text()) if saved else 0\n"
        "print('starts at', start)\n"
        "for step in (start + 1, start + 2):\n"
        "    with train.checkpoint('ckpt', step=step) as folder: (folder / 'x').write_text(str(step))\n"
        "    assert train.wait_durable(60)\n"
        "sys.exit(3)\n"
    )

    def starts() -> list[str]:
        return [line for line in world.lines(job.id) if line.startswith("starts at")]

    def resume(*options: str) -> str:
        told = world.cli("resume", job.id, *options)
        assert told.returncode == 0, told.stderr
        world.ended(job.id)
        return told.stderr

    job = world.run(checkpoints={"keep": 9})
    assert job.phase == "failed" and starts() == ["starts at 0"], world.story(job.id)
    assert "it goes on from 1.2 (ckpt, step 2)" in resume()
    told = resume("--checkpoint", "1.1")
    assert "it goes on from 1.1 (ckpt, step 1)" in told and "left aside: 2.2 (ckpt, step 4)" in told
    assert starts() == ["starts at 0", "starts at 2", "starts at 1"], world.story(job.id)
    # What that attempt saved comes next, not what is newer by its step and was left aside.
    assert "it goes on from 3.2 (ckpt, step 3)" in resume()
    assert starts()[-1] == "starts at 3"
    wrong = world.cli("resume", job.id, "--checkpoint", "9.9")
    assert wrong.returncode != 0 and wrong.stderr.count("\n") == 1 and "has no checkpoint '9.9'" in wrong.stderr
