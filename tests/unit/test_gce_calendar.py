"""Reservations in calendar mode: bound to them, waited for, and over with them. None is made or bought.

"The delivered reservations will delivered at specified start time and terminated at specified end time along with
terminating the VMs running on it." (`FutureReservation.reservationMode` of the discovery document)
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from google_project import PLACE, STORE, ZONE, Google, connected

from stoker.model import codec
from stoker.model.errors import AuthDenied, NoCapacity, NoSuchResource, Transient, UserError
from stoker.model.offerings import Offering, Reservation
from stoker.model.resources import GceResources, Resources
from stoker.model.spec import Spec
from stoker.providers.base import LaunchOrder
from stoker.providers.gce import check, request, reservations
from stoker.providers.gce.places import ProjectRegion

NOW = datetime.now(timezone.utc).replace(microsecond=0)
A3 = Offering("gce", "a3-megagpu-8g", ZONE, False, region=PLACE, gpu="H100", gpus=8)


def window(starts_in_h: float, ends_in_h: float, **about: Any) -> dict[str, Any]:
    starts_at, ends_at = (NOW + timedelta(hours=hours) for hours in (starts_in_h, ends_in_h))
    return {"timeWindow": {"startTime": starts_at.isoformat(), "endTime": ends_at.isoformat()}} | about


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Google:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    google = Google()
    google.reserved_machines = {"block-7": {"machineType": A3.machine}}
    google.calendar = {"block-7": window(-1, 23)}
    return google


def job(written: str = "calendar:block-7", **resources: Any) -> Spec:
    asked: dict[str, Any] = {"machine": (A3.machine,), "gce": GceResources(reservation=written)} | resources
    return Spec(name="gpt", run="true", resources=Resources(provider="gce", region=PLACE, **asked))


def order(spec: Spec, nodes: int = 1, offering: Offering = A3) -> LaunchOrder:
    return LaunchOrder("gpt-ab12", "gpt", 2, nodes, 1, STORE, spec, "jane", offering, max_life_s=7200.0)


def reserved(starts_in_h: float, ends_in_h: float) -> Offering:
    """The offering as one of the reservation, which ends machines with itself."""
    ends_at = NOW + timedelta(hours=ends_in_h)
    times = Reservation("block-7", NOW + timedelta(hours=starts_in_h), ends_at, ends_machines_at=ends_at)
    return replace(A3, reservation=times)


def rehearse(google: Google, spec: Spec, offering: Offering = A3) -> None:
    provider = connected(google)
    provider.preflight(provider.build(order(spec, offering=offering)))


class TestTheRequest:
    @pytest.mark.parametrize("nodes", [1, 2])
    def test_it_is_bound_to_the_reservation_and_ends_with_it(self, nodes: int) -> None:
        """`--provisioning-model=RESERVATION_BOUND --instance-termination-action=DELETE`
        https://cloud.google.com/ai-hypercomputer/docs/create/create-vm"""
        pytest.importorskip("googleapiclient")
        from tests.support.gce import check_request

        *_, built = request.build(order(job(), nodes))
        assert check_request(built.method, built.path, None, built.body) == []
        machine = built.body.get("instanceProperties", built.body)
        assert machine["scheduling"] == {
            "automaticRestart": False,
            "provisioningModel": "RESERVATION_BOUND",
            "onHostMaintenance": "TERMINATE",
            "instanceTerminationAction": "DELETE",
        }
        assert machine["reservationAffinity"] == {
            "consumeReservationType": "SPECIFIC_RESERVATION",
            "key": "compute.googleapis.com/reservation-name",
            "values": ["block-7"],
        }

    def test_its_times_are_in_the_log_for_every_governor_and_agent(self) -> None:
        offering = reserved(-1, 23)
        assert codec.load(Offering, codec.dump(offering)) == offering

    @pytest.mark.parametrize("written", ["calendar:", "calendar:any", "calendar:none"])
    def test_it_takes_a_name(self, written: str) -> None:
        with pytest.raises(UserError, match=r"^resources\.gce\.reservation: calendar: takes the name of a reservation"):
            request.check(job(written))
        request.check(job())

    def test_spot_machines_are_of_no_reservation(self) -> None:
        with pytest.raises(UserError, match=r"set resources\.spot to false"):
            request.check(job(spot="only"))


class TestOffers:
    def test_only_its_zone_and_type_and_they_know_its_times(self, google: Google) -> None:
        other = replace(A3, zone="us-central1-b")
        spot = replace(A3, spot=True)
        found = self.usable(google, A3, other, spot)
        assert found == (reserved(-1, 23), spot)

    def test_a_duration_is_an_end(self, google: Google) -> None:
        google.calendar["block-7"] = {
            "timeWindow": {"startTime": NOW.isoformat(), "duration": {"seconds": "3600"}},
            # Named by nobody, and made at the start.
            "reservationName": None,
            "status": {"autoCreatedReservations": ["https://www.googleapis.com/compute/v1/x/reservations/block-7"]},
        }
        assert self.usable(google, A3) == (reserved(0, 1),)

    @pytest.mark.parametrize(
        "before",
        [
            window(-48, -24),
            window(-1, 47, status={"procurementStatus": "DECLINED"}),
            window(48, 72),
        ],
    )
    def test_of_several_that_had_its_name_the_next_with_machines_counts(
        self, google: Google, before: dict[str, Any]
    ) -> None:
        """A future reservation is listed after its end, while its reservation is gone and the name is free."""
        google.calendar_before = [("block-7", before)]
        assert self.usable(google, A3) == (reserved(-1, 23),)
        rehearse(google, job())

    def test_each_zone_has_its_own_of_that_name(self, google: Google) -> None:
        """The other zone's, which ends first, would end this one's training with a notice too early."""
        other = "us-central1-b"
        both = {"reservationMode": "CALENDAR", "reservationName": "block-7"}
        mine, theirs = {"name": "f-a", **both}, {"name": "f-b", **both}
        listed = {
            f"zones/{ZONE}": {"futureReservations": [mine | window(-1, 23)]},
            f"zones/{other}": {"futureReservations": [theirs | window(-2, 1)]},
        }
        google.answers.insert(0, ("GET", ".*/futureReservations", {"items": listed}))
        assert self.usable(google, A3) == (reserved(-1, 23),)
        place = ProjectRegion.of(PLACE)
        zones = (ZONE, other, "us-central1-c", None)
        api: Any = google
        found = [reservations.find_window(api, place, "block-7", zone) for zone in zones]
        assert [each and each.ends_at for each in found] == [
            NOW + timedelta(hours=23),
            NOW + timedelta(hours=1),
            None,
            NOW + timedelta(hours=1),
        ]

    def test_its_times_are_compared_with_googles_clock(self, google: Google, monkeypatch: pytest.MonkeyPatch) -> None:
        """This computer's is two days slow, and would wait for what has begun long ago."""
        google.calendar["block-7"] = window(24, 48)
        rehearse(google, job())
        monkeypatch.setattr(google, "now", lambda: NOW + timedelta(hours=49), raising=False)
        with pytest.raises(NoSuchResource, match="block-7 ended at"):
            rehearse(google, job())

    def test_without_permission_to_look_google_decides(self, google: Google) -> None:
        google.answers.insert(0, ("GET", ".*/futureReservations", AuthDenied("no")))
        assert self.usable(google, A3) == (A3,)

    @pytest.mark.parametrize("path", [".*/reservations", ".*/futureReservations"])
    def test_without_an_answer_nothing_is_offered_whose_end_is_unknown(self, google: Google, path: str) -> None:
        """A machine that does not know the end of its reservation gets no notice, and loses what is not saved."""
        google.answers.insert(0, ("GET", path, Transient("no answer")))
        with pytest.raises(Transient, match="no answer"):
            self.usable(google, A3)
        # Sold by reservation alone, and bound to it whatever the job calls it.
        with pytest.raises(Transient, match="no answer"):
            self.usable(google, replace(A3, machine="a4-highgpu-8g"), written="block-7")
        # Machines of any other reservation outlive it.
        assert self.usable(google, A3, written="block-7") == (A3,)

    def usable(self, google: Any, *offered: Offering, written: str = "calendar:block-7") -> tuple[Offering, ...]:
        return reservations.usable_offerings(google, job(written).resources, ProjectRegion.of(PLACE), offered)


class TestBeforeTheSubmission:
    def test_a_name_without_its_kind_is_told(self, google: Google) -> None:
        rehearse(google, job())
        with pytest.raises(NoSuchResource, match="block-7 is in calendar mode; write calendar:block-7"):
            rehearse(google, job("block-7"))
        google.calendar.clear()
        rehearse(google, job("block-7"))
        with pytest.raises(NoSuchResource, match="no future reservation in calendar mode; write block-7 alone"):
            rehearse(google, job())

    def test_one_that_is_still_to_come_is_accepted_and_one_that_is_over_is_not(self, google: Google) -> None:
        google.calendar["block-7"] = window(48, 72)
        rehearse(google, job())
        google.calendar["block-7"] = window(-48, -24)
        with pytest.raises(NoSuchResource, match=r"block-7 ended at \d{4}-.* UTC; name another"):
            rehearse(google, job())
        # What came in its last minutes would be told to leave at once.
        google.calendar["block-7"] = window(-48, 0.1)
        with pytest.raises(NoSuchResource, match=r"block-7 ends at \d{4}-.* UTC; name another"):
            rehearse(google, job())
        google.calendar["block-7"] = window(48, 72, status={"procurementStatus": "DECLINED"})
        with pytest.raises(NoSuchResource, match="the future reservation of block-7 is declined"):
            rehearse(google, job())

    def test_the_check_says_when_it_is(self, google: Google) -> None:
        def told(spec: Spec) -> Any:
            return next(
                each for each in check.check_account(connected(google), spec, STORE) if each.name == "reservation"
            )

        google.reserved_machines = {"block-7": {"machineType": "n2-standard-4"}}
        found = told(job(machine=("n2-standard-4",)))
        assert found.ok and "from 20" in found.detail and " UTC to 20" in found.detail
        wrong = told(job("block-7", machine=("n2-standard-4",)))
        assert wrong.ok is False and wrong.fix == "write calendar:block-7"
        google.answers.insert(0, ("GET", ".*/futureReservations", AuthDenied("no")))
        unknown = told(job(machine=("n2-standard-4",)))
        assert unknown.ok is None and "compute.futureReservations.list" in unknown.fix


class TestTheLaunch:
    def launch(self, google: Google) -> None:
        google.let("POST", ".*/instances", {"status": "RUNNING", "selfLink": f"https://x/compute/v1/{'x'}"})
        provider = connected(google)
        provider.launch(provider.build(order(job())))

    def test_before_the_start_there_is_no_capacity_yet(self, google: Google) -> None:
        google.calendar["block-7"] = window(2, 26)
        with pytest.raises(NoCapacity, match=r"^resources\.gce\.reservation: block-7 begins at 20.* UTC$"):
            self.launch(google)
        assert "compute.instances.insert" not in google.called

    def test_after_the_end_a_person_must_name_another(self, google: Google) -> None:
        google.calendar["block-7"] = window(-26, -2)
        with pytest.raises(NoSuchResource, match="block-7 ended at"):
            self.launch(google)
        assert "compute.instances.insert" not in google.called

    @pytest.mark.parametrize("told", [True, False])
    def test_meanwhile_machines_are_requested(self, google: Google, told: bool) -> None:
        if not told:
            google.answers.insert(0, ("GET", ".*/futureReservations", AuthDenied("no")))
        done = {
            "status": "DONE",
            "operationType": "insert",
            "targetId": "7",
            "targetLink": f"https://x/zones/{ZONE}/i/x-0",
        }
        google.let("POST", ".*/instances", done)
        with pytest.raises(Transient, match="not listed yet"):
            self.launch(google)
        assert "compute.instances.insert" in google.called
