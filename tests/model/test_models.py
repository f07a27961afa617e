"""Every interleaving of removal, collection, late writes and late deletes; and what goes wrong without each rule."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import collection
import outputs
import tombstone
from checker import explore
from objects import Blobs, Chunks, Orphans
from removal import IndexOnly, Removal, Rules

RULES = Rules()


def test_no_machine_is_bought_for_a_removed_job_and_none_is_left() -> None:
    found = explore(Removal(RULES))
    assert found.counterexample is None, str(found.counterexample)
    assert found.states > 1000, "a model in which nothing happens would prove nothing"


@pytest.mark.parametrize(
    ("left_out", "wrong"),
    [
        ("tombstone_first", "listed again"),
        ("look_before_launch", "bought for a job that was removed"),
        ("look_after_launch", "is left"),
        ("removed_is_not_listed", "listed again"),
    ],
)
def test_each_rule_of_removal_is_missed(left_out: str, wrong: str) -> None:
    found = explore(Removal(replace(RULES, **{left_out: False})))
    assert found.counterexample is not None and wrong in found.counterexample.what, found


def test_the_index_tells_the_end_whoever_writes_last() -> None:
    found = explore(IndexOnly(RULES))
    assert found.counterexample is None, str(found.counterexample)
    found = explore(IndexOnly(replace(RULES, numbered_index=False)))
    assert found.counterexample is not None and "ended job runs" in found.counterexample.what


def test_no_committed_blob_is_lost() -> None:
    assert explore(Blobs(unique=True)).counterexample is None
    found = explore(Blobs(unique=False)).counterexample
    assert found is not None and found.steps[-1].startswith("a delete of a lands late")


def test_a_drained_log_stays_whole() -> None:
    assert explore(Chunks(sized=True)).counterexample is None
    found = explore(Chunks(sized=False)).counterexample
    assert found is not None and "lands late" in found.steps[-1]


def test_what_is_unneeded_is_collected_only_when_nothing_is_under_way() -> None:
    assert explore(Orphans(aged=True)).counterexample is None
    assert explore(Orphans(aged=False)).counterexample is not None


def test_the_last_version_of_an_output_counts() -> None:
    found = explore(outputs.Outputs(outputs.Rules()))
    assert found.counterexample is None, str(found.counterexample)
    assert found.states > 1000


@pytest.mark.parametrize("left_out", ["versions", "boots_are_ordered", "number_for_every_try"])
def test_each_rule_of_outputs_is_missed(left_out: str) -> None:
    found = explore(outputs.Outputs(replace(outputs.Rules(), **{left_out: False})))
    assert found.counterexample is not None


def test_a_job_is_resumed_or_removed_and_never_both() -> None:
    found = explore(tombstone.Tombstone(tombstone.Rules()))
    assert found.counterexample is None, str(found.counterexample)
    assert found.states > 100


@pytest.mark.parametrize("left_out", ["removal_in_log", "resume_looks_again"])
def test_each_rule_of_tombstones_is_missed(left_out: str) -> None:
    found = explore(tombstone.Tombstone(replace(tombstone.Rules(), **{left_out: False})))
    assert found.counterexample is not None


def test_no_collector_deletes_what_a_job_relies_on() -> None:
    found = explore(collection.Collection(collection.Rules()))
    assert found.counterexample is None, str(found.counterexample)
    assert found.states > 1000


@pytest.mark.parametrize("left_out", ["generations", "specs_are_read_again", "mark_is_looked_for", "marks_stay"])
def test_each_rule_of_collection_is_missed(left_out: str) -> None:
    found = explore(collection.Collection(replace(collection.Rules(), **{left_out: False})))
    assert found.counterexample is not None
