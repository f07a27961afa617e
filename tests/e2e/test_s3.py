"""The whole of it with a bucket as the store: far away, with money for every call and whole seconds for a clock."""

from __future__ import annotations

import pytest
from harness import World, chain, fields, until

from tests.support.servers import isolated, pytest_isolated

if isolated():

    def test_a_reclaim_on_an_s3_store(world: World, s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        world.url = s3_url
        monkeypatch.setenv("STOKER_STORE", s3_url)
        world.script("counter.py")
        job = world.submit(params={"steps": 120, "pause": 0.1})
        world.training(job, step=20)
        world.interrupt(job, grace_s=30)
        summary = world.ended(job)

        assert fields(summary, "outcome") == [("reclaimed",), ("succeeded",)], world.story(job)
        first, second = summary.attempts
        assert first.step is not None and second.first_step == first.step + 1
        assert world.journal("overlap") == []
        lines = world.lines(job)
        assert any(chain(120) in line for line in lines)
        printed = [record.text for record in world.journal("line")]
        assert [line for line in lines if line in set(printed)] == printed

    def test_a_gang_agrees_through_a_bucket(world: World, s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        world.url = s3_url
        monkeypatch.setenv("STOKER_STORE", s3_url)
        world.script("counter.py")
        job = world.submit(nodes=2, params={"steps": 60, "pause": 0.1, "sharded": 1})
        until(lambda: {record.rank for record in world.journal("step")} == {0, 1}, "both ranks train")
        world.interrupt(job, grace_s=30, node=1)
        summary = world.ended(job)
        assert summary.outcome == "succeeded", world.story(job)
        assert summary.attempts[0].outcome == "reclaimed"
        assert world.journal("overlap") == []

else:

    def test_s3_in_a_network_of_its_own() -> None:
        pytest_isolated(__file__)
