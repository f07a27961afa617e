"""The price tables that a store holds for governors without a home of their own, refreshed where the role allows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, timedelta, timezone
from pathlib import Path

import pytest

from stoker.governor.price_keeper import PriceKeeper, publish
from stoker.model import keys
from stoker.model.errors import AuthDenied, StoreUnavailable
from stoker.providers.ec2 import prices as ec2
from stoker.providers.price_book import PriceRefresh, RegionPrices
from stoker.providers.sagemaker import prices as sagemaker
from stoker.testing.memory_store import MemoryStore

NOW = datetime(2026, 12, 1, tzinfo=timezone.utc)
REGION = "eu-west-1"


class World:
    """A store, a keeper that is in a function, and AWS's price list."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._tmp_path, self._monkeypatch = tmp_path, monkeypatch
        self.store = MemoryStore(clock=lambda: NOW)
        self.seconds = 0.0
        self.asked: list[tuple[str, tuple[str, ...]]] = []
        self.denied = False
        self.cold_start("first")
        for name, module in (("ec2", ec2), ("sagemaker", sagemaker)):
            monkeypatch.setattr(module, "refresh_now", self._answer(name))

    def cold_start(self, name: str) -> None:
        """A new function: nothing of the earlier one's home is there."""
        self._monkeypatch.setenv("STOKER_HOME", str(self._tmp_path / name))
        self.keeper = PriceKeeper(self.store, lambda: self.seconds, lambda: NOW)

    def _answer(self, name: str) -> object:
        book = {"ec2": ec2.BOOK, "sagemaker": sagemaker.BOOK}[name]

        def refresh_now(regions: tuple[str, ...]) -> PriceRefresh:
            self.asked.append((name, regions))
            if self.denied:
                raise AuthDenied("pricing:GetProducts: not allowed")
            machine = "ml.p4d.24xlarge" if name == "sagemaker" else "p4d.24xlarge"
            return book.refresh(regions, lambda _region: ({machine: 99.0}, {}), "the price list", "none", NOW.date())

        return refresh_now


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    yield World(tmp_path, monkeypatch)


def amount(region: str = REGION) -> float | None:
    found = sagemaker.on_demand(region, "ml.p4d.24xlarge")
    return None if found is None else found.amount


def test_a_refreshed_table_is_there_after_the_next_cold_start(world: World) -> None:
    before = amount()
    assert world.keeper.refresh([("sagemaker", REGION)]) == {} and amount() == 99.0
    world.cold_start("second")
    assert amount() == before
    assert world.keeper.read() == {} and amount() == 99.0
    assert world.keeper.refresh([("sagemaker", REGION)]) == {}
    assert world.asked == [("sagemaker", (REGION,))], "it is new enough"


def test_one_table_is_refreshed_at_a_time_and_the_oldest_first(world: World) -> None:
    places = [("ec2", "us-east-1"), ("sagemaker", REGION), ("sagemaker", "sa-east-1"), ("local", "here"), ("moon", "x")]
    for _ in range(5):
        world.keeper.refresh(places)
    assert world.asked == [("sagemaker", ("sa-east-1",)), ("ec2", ("us-east-1",)), ("sagemaker", (REGION,))]
    assert amount("sa-east-1") == 99.0


def test_a_role_without_the_permission_keeps_the_packaged_table(world: World) -> None:
    before, world.denied = amount(), True
    problems = world.keeper.refresh([("sagemaker", REGION)])
    assert problems == {f"prices of sagemaker in {REGION}": "pricing:GetProducts: not allowed"}
    assert world.keeper.refresh([("sagemaker", REGION)]) == {}, "it is not asked every minute"
    assert amount() == before and before is not None
    world.seconds += 7 * 3600
    world.denied = False
    assert world.keeper.refresh([("sagemaker", REGION)]) == {} and amount() == 99.0


def test_an_older_table_of_the_store_replaces_no_newer_one(world: World) -> None:
    old = RegionPrices("long ago", date(2020, 1, 1), {"ml.p4d.24xlarge": 1.0})
    newest = amount()
    world.store.put(keys.prices("sagemaker"), sagemaker.BOOK.render({REGION: old}).encode())
    assert world.keeper.read() == {} and amount() == newest


def test_a_damaged_table_is_a_problem_and_harms_nothing(world: World) -> None:
    before = amount()
    world.store.put(keys.prices("sagemaker"), b"{}")
    problems = world.keeper.read()
    assert list(problems) == ["prices of sagemaker"] and amount() == before


def test_the_store_is_read_once_an_hour(world: World) -> None:
    assert world.keeper.read() == {}
    sagemaker.BOOK.refresh([REGION], lambda _region: ({"ml.p4d.24xlarge": 7.0}, {}), "a person", "none", NOW.date())
    publish(world.store, "sagemaker", sagemaker)
    world.seconds += 3599
    sagemaker.BOOK.refreshed_path().unlink()
    assert world.keeper.read() == {} and amount() != 7.0
    world.seconds += 1
    assert world.keeper.read() == {} and amount() == 7.0


def test_a_store_that_does_not_answer_is_no_conclusion(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_answer(_prefix: str) -> Iterator[object]:
        raise StoreUnavailable("no answer")

    monkeypatch.setattr(world.store, "list", no_answer)
    with pytest.raises(StoreUnavailable):
        world.keeper.read()


def test_a_store_that_does_not_take_a_table_is_no_conclusion(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world.store, "put", _refuse)
    with pytest.raises(StoreUnavailable):
        world.keeper.refresh([("sagemaker", REGION)])


def _refuse(*_: object) -> None:
    raise StoreUnavailable("no answer")


def test_a_table_is_refreshed_once_it_is_older_than_a_week(world: World) -> None:
    world.keeper.refresh([("sagemaker", REGION)])
    for days in (7, 8):
        later = PriceKeeper(world.store, lambda: world.seconds, lambda days=days: NOW + timedelta(days=days))  # type: ignore[misc]
        assert later.refresh([("sagemaker", REGION)]) == {}
        assert len(world.asked) == (1 if days == 7 else 2)
