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
