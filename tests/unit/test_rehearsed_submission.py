"""What a cloud says beforehand is asked for each kind of offering, and a refusal leaves nothing behind."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stoker import submitting
from stoker.errors import InvalidRequest, QuotaExceeded, UserError
from stoker.model import Offering
from stoker.providers import registry
from stoker.providers.base import LaunchOrder
from stoker.spec import Gpus, Resources, Spec
from stoker.store import Store, open_store

RESOURCES = Resources(gpus=Gpus("A100", 1), spot="prefer", region="mars-1")


def sold(*, spot: bool, gpus: int = 2) -> Offering:
    return Offering("local", "big", "mars-1a", spot, region="mars-1", price=1.0, gpu="A100", gpus=gpus)


class Cloud:
    """Lends machines with two GPUs, spot and on demand, and says beforehand what `answer` says."""

    name = "local"

    def __init__(self, answer: Callable[[], None]) -> None:
        self.capabilities = registry.capabilities("local")
        self.answer = answer
        self.asked: list[bool] = []

    def offerings(self, resources: Resources) -> tuple[Offering, ...]:
        return (sold(spot=True), sold(spot=True), sold(spot=False))

    def build(self, order: LaunchOrder) -> tuple[Any, ...]:
        return (order,)

    def rehearse(self, *launches: tuple[Any, ...]) -> None:
        self.asked = [order.offering.spot for (order,) in launches]
        self.answer()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("code", "temporary"):
        (tmp_path / name).mkdir()
    (tmp_path / "code" / "train.py").write_text("pass\n")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return tmp_path


def prepare(place: Path, monkeypatch: pytest.MonkeyPatch, cloud: Cloud) -> submitting.Prepared:
    def connect(_spec: Spec, _store: Store, *, offline: bool = False) -> Cloud:
        return cloud

    monkeypatch.setattr(submitting, "connect", connect)
    spec = Spec(name="job", run=("python", "train.py"), resources=RESOURCES)
    return submitting.prepare(spec, open_store(str(place / "store")), folder=place / "code")


def test_the_best_of_each_kind_is_asked_about(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud = Cloud(lambda: None)
    with prepare(place, monkeypatch, cloud):
        assert cloud.asked == [True, False]
        assert list((place / "temporary").iterdir()) != []
    assert list((place / "temporary").iterdir()) == []


def test_who_cannot_be_asked_refuses_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer() -> None:
        raise QuotaExceeded("for now")

    with prepare(place, monkeypatch, Cloud(answer)) as prepared:
        assert prepared.offerings


@pytest.mark.parametrize("error", [InvalidRequest("no such network"), UserError("no such network"), KeyError("oh")])
def test_a_refusal_leaves_nothing(place: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def answer() -> None:
        raise error

    with pytest.raises(KeyError if isinstance(error, KeyError) else UserError):
        prepare(place, monkeypatch, Cloud(answer))
    assert list((place / "temporary").iterdir()) == []
    assert not (place / "store").exists()


def test_what_the_plan_had_is_frozen(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with prepare(place, monkeypatch, Cloud(lambda: None)) as prepared:
        assert prepared.spec.resources.gpus == Gpus("A100", 1, most=2)
        assert prepared.spec.resources.region == "mars-1"


def test_what_should_be_known_is_in_the_plan(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Remarking(Cloud):
        def remarks(self, spec: Spec) -> tuple[str, ...]:
            return (f"of {spec.name}",)

    with prepare(place, monkeypatch, Remarking(lambda: None)) as prepared:
        assert prepared.told[-1] == "of job"
