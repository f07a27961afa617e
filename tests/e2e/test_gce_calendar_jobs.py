"""A job on a reservation in calendar mode: it waits for the start, within `limits.max_wait`, and trains."""

from __future__ import annotations

from typing import Any

import pytest
from cloud_world import BOOT_S
from gce_world import GceWorld

from stoker.core import reserved_time
from stoker.providers.gce import reservations
from tests.support.gce import why_no_gce
from tests.support.servers import isolated, pytest_isolated

if why_no_gce() is not None:
    pytest.skip(str(why_no_gce()), allow_module_level=True)

# The shortest notice of the end of a reservation.
NOTICE_S = 120.0
RESERVED: dict[str, Any] = {"machine": ["n2-standard-2"], "spot": False, "gce": {"reservation": "calendar:calendar"}}

if isolated():

    def test_it_waits_for_the_start_and_trains_in_its_zone(gce: GceWorld) -> None:
        gce.script("counter.py")
        gce.cloud.set_calendar(3600.0, 90_000.0)
        job = gce.submit(params={"steps": 3}, resources=RESERVED)
        gce.cloud.set_calendar(30.0, 90_000.0)
        with gce.governed():
            gce.until(job, lambda: "calendar starts at" in gce.cli("show", job).stdout, "it says what it waits for")
            assert gce.machines() == {}
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

    def test_it_saves_and_leaves_before_the_end(gce: GceWorld, monkeypatch: pytest.MonkeyPatch) -> None:
        """No machine is requested for what is left."""
        # An attempt would not begin so shortly before the end, and nobody waits longer than a boot takes here.
        monkeypatch.setattr(reserved_time, "LEAST_LEFT_S", 0.0)
        monkeypatch.setattr(reservations, "LAST_MINUTES_S", 0.0)
        gce.script("counter.py")
        for boot_s in (60.0, BOOT_S):
            gce.cloud.set_calendar(-1.0, 90_000.0)
            job = gce.submit(params={"steps": 100_000, "pause": 0.2}, resources=RESERVED)
            # Only now, because a first submission takes its time to pack what machines need.
            gce.cloud.set_calendar(-1.0, boot_s + NOTICE_S)
            with gce.governed():
                ended = gce.ended(job)
            if gce.steps(job):
                break
        assert ended.phase == "failed" and "calendar ends its machines at" in ended.reason, gce.story(job)
        assert "notice from gce: the end of calendar: " in gce.story(job)
        (saved, *_) = reversed(gce.checkpoints(job))
        assert saved.step == gce.steps(job)[-1].step, gce.story(job)

else:

    def test_reservations_alone_with_themselves() -> None:
        pytest_isolated(__file__)
