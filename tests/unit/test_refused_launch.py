"""A request that can never be built ends the job with its reason, instead of being tried for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker import Job, client, log
from stoker.errors import UserError
from stoker.governor.govern import Governor
from stoker.providers.local.provider import LocalProvider
from stoker.store import open_store


def test_a_request_that_cannot_be_built_is_told_and_not_looped_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise UserError("resources.image: there is no such image; choose another")

    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    store = open_store((tmp_path / "store").as_uri())
    job = client.submit(Job(name="x", run="true", code=str(tmp_path)), store=store.url, detach=False)
    monkeypatch.setattr(LocalProvider, "build", refuse)
    for _ in range(2):
        Governor(store).run_pass()
    state = log.read(store, job)
    assert state is not None and state.ended is not None
    assert state.ended.outcome == "failed"
    assert "there is no such image" in client.summary(job, store.url).reason
    assert len(state.claims) == 1
