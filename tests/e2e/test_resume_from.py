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
