"""A job on a reservation in calendar mode: it waits for the start, within `limits.max_wait`, and trains."""

from __future__ import annotations

from typing import Any

import pytest
from gce_world import GceWorld

from tests.support.gce import why_no_gce
from tests.support.servers import isolated, pytest_isolated

if why_no_gce() is not None:
    pytest.skip(str(why_no_gce()), allow_module_level=True)

RESERVED: dict[str, Any] = {"machine": ["n2-standard-2"], "spot": False, "gce": {"reservation": "calendar:calendar"}}

if isolated():

    def test_it_waits_for_the_start_and_trains_in_its_zone(gce: GceWorld) -> None:
        gce.script("counter.py")
        gce.cloud.set_calendar(3600.0, 90_000.0)
        job = gce.submit(params={"steps": 3}, resources=RESERVED)
        with gce.governed():
            gce.until(job, lambda: "calendar begins at" in gce.story(job), "it says what it waits for")
            assert gce.machines() == {}
            gce.cloud.set_calendar(-1.0, 90_000.0)
            assert gce.ended(job).phase == "succeeded", gce.story(job)
        (machine,) = gce.machines()
        assert machine.startswith("us-central1-b.")

    def test_max_wait_bounds_the_wait_for_the_start(gce: GceWorld) -> None:
        gce.script("counter.py")
        gce.cloud.set_calendar(3600.0, 90_000.0)
        job = gce.submit(params={"steps": 3}, resources=RESERVED, limits={"max_wait": "1s", "max_runtime": "1h"})
        with gce.governed():
            assert gce.ended(job).phase == "failed", gce.story(job)
        assert "max_wait" in gce.summary(job).reason and gce.machines() == {}

else:

    def test_reservations_alone_with_themselves() -> None:
        pytest_isolated(__file__)
