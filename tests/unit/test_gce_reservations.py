"""A reservation is for machines of one type in one zone: no other is offered, and a job for others is told."""

from __future__ import annotations

from typing import Any

import pytest
from google_project import PLACE, REGION, STORE, ZONE, Google, connected

from stoker.model.errors import AuthDenied, NoSuchResource, UserError
from stoker.model.offerings import Offering
from stoker.model.resources import GceResources, Resources
from stoker.model.spec import Spec
from stoker.providers.base import LaunchOrder
from stoker.providers.gce import catalog, check, reservations
from stoker.providers.gce.places import ProjectRegion
from stoker.providers.gce.reservations import GceReservation

OTHER = f"{REGION}-b"
N2 = Offering("gce", "n2-standard-4", ZONE, False, region=PLACE, cpus=4)


def offered(machine: str, *zones: str, spot: bool = False) -> tuple[Offering, ...]:
    return tuple(Offering("gce", machine, zone, spot, region=PLACE) for zone in zones)


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Google:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    google = Google()
    google.reserved_machines = {"block-7": {"machineType": "n2-standard-4"}}
    return google


def job(**resources: Any) -> Spec:
    asked: dict[str, Any] = {
        "provider": "gce",
        "region": PLACE,
        "machine": ("n2-standard-4",),
        "gce": GceResources(reservation="block-7"),
    }
    return Spec(name="gpt", run="true", resources=Resources(**asked | resources))


def rehearse(google: Google, offering: Offering, nodes: int = 1) -> None:
    provider = connected(google)
    order = LaunchOrder("gpt-ab12", "gpt", 2, nodes, 1, STORE, job(), "jane", offering)
    provider.preflight(provider.build(order))


# ── What is offered ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_only_the_zone_and_the_type_that_are_held_are_offered_and_spot_is_not_narrowed() -> None:
    spot = offered("n2-standard-4", ZONE, OTHER, spot=True)
    many = (*offered("n2-standard-4", ZONE, OTHER), *offered("n2-standard-8", OTHER), *spot)
    held = [GceReservation(OTHER, "n2-standard-4")]
    assert reservations.narrowed(many, held) == (*offered("n2-standard-4", OTHER), *spot)
    assert reservations.narrowed(many, [GceReservation(ZONE)]) == (*offered("n2-standard-4", ZONE), *spot), (
        "it tells no type"
    )
    assert reservations.narrowed(many, [GceReservation(ZONE, "c2-standard-4")]) == many, (
        "who looks at the names says why"
    )


def test_whoever_may_not_look_tries_them_all(google: Google) -> None:
    two = offered("n2-standard-4", ZONE, OTHER)
    place = ProjectRegion.of(PLACE)
    found = reservations.usable_offerings(google, job().resources, place, two)  # type: ignore[arg-type]
    assert found == two[:1]
    google.answers.insert(0, ("GET", ".*/reservations", AuthDenied("no")))
    assert reservations.usable_offerings(google, job().resources, place, two) == two  # type: ignore[arg-type]
    google.called.clear()
    for none in ("any", "none", None):
        plain = job(gce=GceResources(reservation=none)).resources
        assert reservations.usable_offerings(google, plain, place, two) == two  # type: ignore[arg-type]
    assert google.called == []


# ── What is told ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_reservation_for_others_is_refused_before_the_submission(google: Google, nodes: int) -> None:
    rehearse(google, N2, nodes)
    with pytest.raises(NoSuchResource) as raised:
        rehearse(google, Offering("gce", "n1-standard-4", ZONE, False, region=PLACE, cpus=4), nodes)
    assert str(raised.value) == (
        f"resources.gce.reservation: block-7 is for n2-standard-4 in {ZONE}, and not for n1-standard-4; "
        "set resources.machine to n2-standard-4, or leave the reservation out"
    )
    with pytest.raises(NoSuchResource, match=rf"set resources.zones to \[{ZONE}\]"):
        rehearse(google, Offering("gce", "n2-standard-4", OTHER, False, region=PLACE, cpus=4), nodes)


def test_the_check_compares_them_too(google: Google) -> None:
    def told(spec: Spec) -> Any:
        found = {each.name: each for each in check.check_account(connected(google), spec, STORE)}
        return found["reservation"]

    assert told(job()).detail == f"block-7 (n2-standard-4 in {ZONE})"
    google.reserved_machines = {"block-7": {"machineType": "c2-standard-4"}}
    wrong = told(job())
    assert wrong.ok is False and wrong.detail.endswith("and not for n2-standard-4")
    assert wrong.fix == "set resources.machine to c2-standard-4, or leave the reservation out"


def test_what_is_attached_belongs_to_the_type(google: Google) -> None:
    t4 = {"acceleratorType": "nvidia-tesla-t4", "acceleratorCount": 1}
    google.reserved_machines = {"block-7": {"machineType": "n1-standard-8", "guestAccelerators": [t4]}}
    with_t4 = Offering("gce", "n1-standard-8+nvidia-tesla-t4:1", ZONE, False, region=PLACE, gpu="T4", gpus=1)
    rehearse(google, with_t4)
    with pytest.raises(NoSuchResource, match="and not for n1-standard-8;"):
        rehearse(google, Offering("gce", "n1-standard-8", ZONE, False, region=PLACE))
    a100 = {"acceleratorType": "nvidia-tesla-a100", "acceleratorCount": 1}
    google.reserved_machines = {"block-7": {"machineType": "a2-highgpu-1g", "guestAccelerators": [a100]}}
    rehearse(google, Offering("gce", "a2-highgpu-1g", ZONE, False, region=PLACE, gpu="A100-40GB", gpus=1))


def test_the_plan_says_that_spot_does_not_use_it(google: Google) -> None:
    told = connected(google).remarks(job(spot="prefer"))
    assert told == (
        "resources.gce.reservation: block-7 holds on-demand machines; spot ones come first, and do not use it",
    )
    assert connected(google).remarks(job(spot="never")) == ()
    assert connected(google).remarks(job(spot="prefer", gce=GceResources(reservation="any"))) == ()


# ── Attached GPUs ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_only_n1_machines_take_attached_gpus() -> None:
    with pytest.raises(UserError) as raised:
        catalog.fitting(Resources(machine=("n2-standard-8+nvidia-tesla-t4:1",)))
    assert str(raised.value) == (
        "resources.machine: n2-standard-8+nvidia-tesla-t4:1: only N1 machines take attached GPUs; "
        "write n1-standard-8+nvidia-tesla-t4:1, or a type that brings GPUs"
    )
    assert catalog.fitting(Resources(machine=("n1-standard-8+nvidia-tesla-t4:1",)))
