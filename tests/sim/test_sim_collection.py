"""Submissions, clones, removals and collections beside each other, under every seed; and without each rule."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from stoker.submit import send, shared_objects
from tests.support.sim_collection import simulate_collection

SEEDS = int(os.environ.get("STOKER_SIM_SEEDS", "2000")) // 10
Patch = pytest.MonkeyPatch


def test_no_job_loses_its_code() -> None:
    everything: list[str] = []
    for seed in range(SEEDS):
        violation, trace = simulate_collection(seed)
        assert violation is None, "\n".join([f"seed {seed}: {violation}", *trace])
        everything += trace
    told = "\n".join(everything)
    for happening in ("1 collected", "2 collected", "lands late", "is late", "gives up", "_clone", "_remove"):
        assert happening in told, f"no seed reaches {happening!r}"


def marks_are_not_looked_for(patch: Patch) -> None:
    patch.setattr(send, "any_retired", lambda store, named: False)


def jobs_are_read_once(patch: Patch) -> None:
    read = shared_objects._References.read

    def once(self: Any, kind: str) -> set[str]:
        if not hasattr(self, "first"):
            self.first = read(self, kind)
        return set(self.first)

    patch.setattr(shared_objects._References, "read", once)


def names_are_used_again(patch: Patch) -> None:
    """As it was: what is gone is sent again under its old name, also after the job was written."""
    patch.setattr(shared_objects, "usable_name", lambda store, kind, digest: digest)
    patch.setattr(send, "any_retired", lambda store, named: any(_is_gone(store, each) for each in named))


def _is_gone(store: Any, shared: shared_objects.SharedObject) -> bool:
    return store.head(f"{shared.kind}{shared.name}.tar.gz") is None


@pytest.mark.parametrize("mutant", [marks_are_not_looked_for, jobs_are_read_once, names_are_used_again])
def test_a_rule_that_is_left_out_is_missed(mutant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mutant(monkeypatch)
    assert any(simulate_collection(seed)[0] for seed in range(SEEDS))
