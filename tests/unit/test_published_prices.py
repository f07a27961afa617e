"""Price tables in a store: `stoker prices --refresh` publishes them, and commands and governors elsewhere read them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from command_line import Stoker, stoker, store

from stoker.client import prepare_any
from stoker.governor.loop import Governor
from stoker.governor.price_keeper import PriceKeeper, bring_prices, publish
from stoker.jobfile import Job
from stoker.model import keys
from stoker.model.errors import StoreDenied, StoreUnavailable
from stoker.providers import registry
from stoker.providers.ec2 import prices as ec2
from stoker.providers.local import provider as local
from stoker.providers.price_book import PriceRefresh, RegionPrices
from stoker.providers.sagemaker import prices as sagemaker
from stoker.store.base import Store
from stoker.store.folder import FolderStore

__all__ = ["stoker", "store"]
REGION, MACHINE = "us-east-1", "c7i.large"
TODAY = date(2999, 1, 1)


@pytest.fixture
def computer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Go to a computer: each has a home of its own."""
    return lambda name: monkeypatch.setenv("STOKER_HOME", str(tmp_path / name))


@pytest.fixture
def price_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """AWS's answer to a refresh: $99 for one machine."""

    def refresh_now(regions: Any = ()) -> PriceRefresh:
        return refreshed(99.0, *(regions or (REGION,)))

    monkeypatch.setattr(ec2, "refresh_now", refresh_now)


def refreshed(amount: float, *regions: str, today: date = TODAY) -> PriceRefresh:
    return ec2.BOOK.refresh(regions, lambda _region: ({MACHINE: amount}, {}), "the price list", "none", today)


def amount(region: str = REGION) -> float | None:
    found = ec2.on_demand(region, MACHINE)
    return None if found is None else found.amount


@pytest.mark.usefixtures("price_list")
def test_a_refresh_says_where_it_put_the_tables_and_other_computers_read_them(
    store: Store, stoker: Stoker, computer: Callable[[str], None], tmp_path: Path
) -> None:
    computer("first")
    code, _, said = stoker("prices", "--provider", "ec2", "--refresh", "--region", REGION)
    path = ec2.BOOK.refreshed_path()
    assert code == 0 and said == f"1 price for 1 region kept in {path} and in {store.url}/prices/ec2.json\n"
    computer("second")
    assert amount() != 99.0
    shown = json.loads(stoker("prices", "--provider", "ec2", "--region", REGION, "--json")[1])
    assert shown[REGION]["prices"] == {MACHINE: 99.0} and amount() == 99.0
    computer("third")
    (tmp_path / "job.yaml").write_text("run: 'true'\nresources: {provider: ec2, region: us-east-1}\n")
    assert stoker("policy", "test", str(tmp_path / "job.yaml"))[0] == 0 and amount() == 99.0


@pytest.mark.usefixtures("price_list")
def test_without_a_store_that_is_named_only_this_computer_has_the_tables(
    store: Store, stoker: Stoker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STOKER_STORE")
    code, _, said = stoker("prices", "--provider", "ec2", "--refresh", "--region", REGION)
    assert code == 0 and said == f"1 price for 1 region kept in {ec2.BOOK.refreshed_path()}\n"
    assert stoker("--store", store.url, "prices", "--provider", "ec2", "--refresh")[0] == 0
    assert [meta.key for meta in store.list(keys.PRICES)] == [keys.prices("ec2")]


@pytest.mark.usefixtures("price_list", "store")
def test_a_store_that_may_not_be_written_is_told_in_the_same_line(
    stoker: Stoker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(_store: object, key: str, _data: bytes) -> None:
        raise StoreDenied(f"{key}: not allowed")

    monkeypatch.setattr(FolderStore, "put", denied)
    code, _, said = stoker("prices", "--provider", "ec2", "--refresh", "--region", REGION)
    assert code == 0 and said.count("\n") == 1
    assert said.startswith("1 price for 1 region kept in ") and "prices/ec2.json: not allowed" in said
    assert ", and not in file://" in said and amount() == 99.0


def test_a_store_that_gives_no_tables_is_a_warning(
    store: Store, stoker: Stoker, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(keys.prices("ec2"), b"{}")
    code, out, said = stoker("prices", "--provider", "ec2", "--region", REGION)
    assert code == 0 and REGION in out and "warning: prices of ec2 in file://" in said

    def no_answer(_store: object, _prefix: str) -> None:
        raise StoreUnavailable("no answer")

    monkeypatch.setattr(FolderStore, "list", no_answer)
    code, out, said = stoker("prices", "--provider", "ec2", "--region", REGION)
    assert code == 0 and REGION in out and ": no answer" in said


def test_a_refresh_keeps_what_others_published(store: Store, computer: Callable[[str], None]) -> None:
    for number, region in enumerate(("us-west-1", "us-west-2"), start=1):
        computer(f"computer-{number}")
        refreshed(float(number), region)
        publish(store, "ec2", ec2)
    computer("slow")
    refreshed(7.0, "us-west-1", today=date(2998, 1, 1))
    publish(store, "ec2", ec2)
    computer("new")
    assert bring_prices(store, "ec2") == ()
    assert (amount("us-west-1"), amount("us-west-2")) == (1.0, 2.0), "the newer table of a region counts"


def test_a_damaged_table_in_the_store_is_replaced(store: Store) -> None:
    store.put(keys.prices("ec2"), b"{}")
    (line,) = bring_prices(store, "ec2")
    assert line.startswith("the store's prices of ec2 are not used: not a table of prices")
    refreshed(3.0, REGION)
    publish(store, "ec2", ec2)
    assert bring_prices(store, "ec2") == () and bring_prices(store, "local") == ()


def test_a_submission_reads_the_prices_of_its_provider(
    store: Store, computer: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = registry.prices
    monkeypatch.setattr(registry, "prices", lambda name: tables("ec2" if name == "local" else name))
    monkeypatch.setattr(local, "CAPABILITIES", replace(local.CAPABILITIES, price_list="AWS"))
    refreshed(3.0, REGION)
    publish(store, "local", ec2)
    computer("second")
    with prepare_any(Job(run="true"), store) as prepared:
        assert amount() == 3.0 and not any("prices" in line for line in prepared.warnings)
    store.put(keys.prices("local"), b"{}")
    with prepare_any(Job(run="true"), store) as prepared:
        assert any(line.startswith("the store's prices of local are not used") for line in prepared.warnings)


def test_a_governor_on_any_computer_reads_the_tables(store: Store, computer: Callable[[str], None]) -> None:
    old = RegionPrices("the price list", TODAY, {"ml.p4d.24xlarge": 5.0})
    store.put(keys.prices("sagemaker"), sagemaker.BOOK.render({REGION: old}).encode())
    store.put(keys.prices("ec2"), b"{}")
    computer("elsewhere")
    passes = []
    Governor(store).watch(until=lambda _pass: True, on_pass=passes.append)
    found = sagemaker.on_demand(REGION, "ml.p4d.24xlarge")
    assert found is not None and found.amount == 5.0
    assert list(passes[0].problems) == ["prices of ec2"]


def test_tables_that_the_store_did_not_give_are_read_at_the_next_call(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    refreshed(3.0, REGION)
    publish(store, "ec2", ec2)
    ec2.BOOK.refreshed_path().unlink()
    keeper, get = PriceKeeper(store), FolderStore.get
    monkeypatch.setattr(FolderStore, "get", no_answer)
    with pytest.raises(StoreUnavailable):
        keeper.read()
    monkeypatch.setattr(FolderStore, "get", get)
    assert keeper.read() == {} and amount() == 3.0


def test_a_governor_that_may_not_list_the_tables_governs_without(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(_store: object, prefix: str) -> None:
        raise StoreDenied(f"{prefix}: not allowed")

    monkeypatch.setattr(FolderStore, "list", denied)
    assert PriceKeeper(store).read() == {"prices": "prices/: not allowed"}


def no_answer(*_any: object, **_named: object) -> None:
    raise StoreUnavailable("no answer")
