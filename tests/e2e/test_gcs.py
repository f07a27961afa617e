"""The whole of it with a store on Cloud Storage, where a name takes one write a second."""

from __future__ import annotations

import pytest
from harness import World, chain, fields

from tests.support.gcs import GcsServer
from tests.support.servers import isolated, pytest_isolated

if isolated():

    def test_a_reclaim_on_a_gcs_store(
        world: World, gcs: GcsServer, gcs_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gcs.rate_limit()
        world.url = gcs_url
        monkeypatch.setenv("STOKER_STORE", gcs_url)
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
        # Nothing that Stoker sends surprises a server that refuses what it does not know.
        assert not {answer for answer in gcs.requests() if answer.endswith((" 400", " 401", " 405", " 411"))}

else:

    def test_gcs_in_a_network_of_its_own() -> None:
        pytest_isolated(__file__)
