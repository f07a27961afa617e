"""Jobs that ask for machines by flex-start: they wait in Google's queue, train, and can be stopped meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
from gce_world import GceWorld

from stoker import client
from tests.support.gce import why_no_gce
from tests.support.servers import isolated, pytest_isolated

if why_no_gce() is not None:
    pytest.skip(str(why_no_gce()), allow_module_level=True)

# Of the types that are sold by flex-start, the one without GPUs.
FLEX: dict[str, Any] = {"machine": ["h4d-standard-192"], "gce": {"flex_start": True}}

if isolated():

    def waits(gce: GceWorld, job: str) -> None:
        gce.until(job, lambda: "Google's queue" in gce.summary(job).reason, "it says what it waits for")
        (state,) = gce.machines().values()
        assert state == "PENDING"

    def test_it_waits_in_the_queue_and_trains(gce: GceWorld) -> None:
        gce.script("counter.py")
        number = gce.cloud.faults.scarce()
        job = gce.submit(params={"steps": 3}, resources=FLEX)
        with gce.governed():
            waits(gce, job)
            gce.cloud.faults.clear(number)
            assert gce.ended(job).phase == "succeeded", gce.story(job)
        # One request, repeated under one id; and to wait is no problem.
        assert len(gce.machines()) == 1 and gce.problems == []
        assert "flex-start" in gce.cli("show", job).stdout

    def test_a_stopped_job_leaves_the_queue(gce: GceWorld) -> None:
        gce.script("counter.py")
        gce.cloud.faults.scarce()
        job = gce.submit(params={"steps": 3}, resources=FLEX)
        with gce.governed():
            waits(gce, job)
            client.stop(job, gce.url)
            gce.until(job, lambda: not gce.cloud.left(), "the request to be gone")
            assert gce.ended(job).phase == "stopped", gce.story(job)

    def test_a_request_that_found_nothing_is_made_in_another_zone(gce: GceWorld) -> None:
        gce.script("counter.py")
        gce.cloud.faults.scarce(zone="us-central1-a")
        job = gce.submit(params={"steps": 3}, resources={**FLEX, "zones": ["us-central1-a", "us-central1-b"]})
        with gce.governed():
            waits(gce, job)
            (queued,) = gce.machines()
            assert queued.startswith("us-central1-a.")
            gce.cloud.machine(queued).expire_request()
            assert gce.ended(job).phase == "succeeded", gce.story(job)
        assert sorted(name.partition(".")[0] for name in gce.machines()) == ["us-central1-a", "us-central1-b"]

    def waits_for_two(gce: GceWorld, job: str) -> None:
        gce.until(job, lambda: "2 × h4d-standard-192" in gce.summary(job).reason, "it says what it waits for")
        assert gce.machines() == {}
        left = gce.cloud.left()
        assert left.groups == left.templates and len(left.groups) == 1

    def test_two_nodes_wait_for_each_other_in_the_queue_and_train(gce: GceWorld) -> None:
        gce.script("counter.py")
        number = gce.cloud.faults.scarce()
        job = gce.submit(nodes=2, params={"steps": 3}, resources=FLEX)
        with gce.governed():
            waits_for_two(gce, job)
            gce.cloud.faults.clear(number)
            assert gce.ended(job).phase == "succeeded", gce.story(job)
            # With the job, its group and template go, too.
            gce.until(job, lambda: not gce.cloud.left(), "nothing to be left")
        assert len(gce.machines()) == 2 and gce.problems == []
        assert {step.rank for step in gce.steps(job)} == {0, 1}

    def test_two_nodes_that_are_stopped_leave_the_queue(gce: GceWorld) -> None:
        gce.script("counter.py")
        gce.cloud.faults.scarce()
        job = gce.submit(nodes=2, params={"steps": 3}, resources=FLEX)
        with gce.governed():
            waits_for_two(gce, job)
            client.stop(job, gce.url)
            gce.until(job, lambda: not gce.cloud.left(), "the request to be gone")
            assert gce.ended(job).phase == "stopped", gce.story(job)
        assert gce.machines() == {}

    def test_max_wait_withdraws_a_request_for_two(gce: GceWorld) -> None:
        gce.script("counter.py")
        gce.cloud.faults.scarce()
        job = gce.submit(nodes=2, params={"steps": 3}, resources=FLEX, limits={"max_wait": "1s", "max_runtime": "1h"})
        with gce.governed():
            assert gce.ended(job).phase == "failed", gce.story(job)
            assert "max_wait" in gce.summary(job).reason
            gce.until(job, lambda: not gce.cloud.left(), "the request to be gone")

    def test_two_nodes_that_no_quota_ever_allows_do_not_wait(gce: GceWorld) -> None:
        gce.script("counter.py")
        gce.cloud.faults.scarce(says="QUOTA_EXCEEDED", metric="PREEMPTIBLE_CPUS", limit=0.0)
        job = gce.submit(nodes=2, params={"steps": 3}, resources=FLEX, limits={"max_wait": "12h"})
        with gce.governed():
            assert gce.ended(job).phase == "failed", gce.story(job)
            assert "PREEMPTIBLE_CPUS" in gce.summary(job).reason, gce.story(job)
            gce.until(job, lambda: not gce.cloud.left(), "the request to be gone")

    def test_what_google_says_of_two_that_wait_is_shown(gce: GceWorld) -> None:
        gce.script("counter.py")
        number = gce.cloud.faults.scarce(says="QUOTA_EXCEEDED", metric="PREEMPTIBLE_CPUS", limit=384.0)
        job = gce.submit(nodes=2, params={"steps": 3}, resources=FLEX)
        with gce.governed():
            gce.until(job, lambda: "'PREEMPTIBLE_CPUS' exceeded" in gce.summary(job).reason, "it says what Google says")
            assert "waits in Google's queue" in gce.summary(job).reason
            gce.cloud.faults.clear(number)
            assert gce.ended(job).phase == "succeeded", gce.story(job)

    def test_a_request_for_two_that_waited_for_its_turn_is_made_in_another_zone(gce: GceWorld) -> None:
        gce.script("counter.py")
        gce.cloud.faults.scarce(zone="us-central1-a")
        zones = ["us-central1-a", "us-central1-b"]
        job = gce.submit(nodes=2, params={"steps": 3}, resources={**FLEX, "zones": zones})
        with gce.governed():
            waits_for_two(gce, job)
            gce.cloud.age_requests(601.0)
            assert gce.ended(job).phase == "succeeded", gce.story(job)
            gce.until(job, lambda: not gce.cloud.left(), "nothing to be left")
        assert {name.partition(".")[0] for name in gce.machines()} == {"us-central1-b"}

else:

    def test_flex_start_alone_with_itself() -> None:
        pytest_isolated(__file__)
