"""Prices of Compute Engine's machines: the project's table, the person's own, and Google's catalog behind it."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pytest
from billing_catalog import N1, Billing
from click.testing import CliRunner

from stoker.cli import cli, main
from stoker.providers import price_book
from stoker.providers.gce import prices


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def amount(machine: str, region: str = "us-central1", *, spot: bool = False) -> float | None:
    found = (prices.spot if spot else prices.on_demand)(region, machine)
    return None if found is None else found.amount


class TestTheProjectsTable:
    @pytest.mark.parametrize(
        ("region", "machine", "on_demand", "spot"),
        [
            ("us-central1", "e2-standard-4", 0.13401, 0.05879),
            ("us-west4", "e2-highmem-4", 0.20361, 0.02122),
            # Of another shape than the one that the table was made from: the list has exactly this.
            ("us-central1", "n2-highcpu-96", 3.44141, 1.1255),
            ("europe-west1", "n2-highcpu-96", 3.78566, 0.54211),
            ("us-west4", "n2-highcpu-96", 3.8759, 1.65024),
            ("us-central1", "n1-standard-8", 0.38, 0.1057),
            ("us-central1", "n1-standard-8+nvidia-tesla-t4:1", 0.73, 0.2807),
            ("us-central1", "g2-standard-4", 0.70683, 0.28184),
            ("us-central1", "a2-highgpu-1g", 3.67339, 1.80385),
            ("us-central1", "a2-ultragpu-8g", 40.22162, 20.11024),
            ("us-central1", "a3-highgpu-8g", 87.83246, 26.83013),
            ("us-east4", "a3-megagpu-8g", 92.2143, 17.05486),
            ("europe-west4", "g2-standard-8", 0.89661, 0.38679),
            ("europe-west4", "a2-highgpu-8g", None, 11.89872),
            # A chip-hour of v5e, v5p and v6e is $1.20, $4.20 and $2.70 there: https://cloud.google.com/tpu/pricing
            ("us-central1", "ct5lp-hightpu-8t", 9.6, 2.73774),
            ("us-central1", "ct5p-hightpu-4t", 16.8, 3.2543),
            ("us-central1", "ct6e-standard-4t", 10.8, 2.60712),
            ("us-south1", "ct5lp-hightpu-1t", 1.416, 0.71961),
            ("europe-west4", "ct6e-standard-1t", 2.97, 1.782),
            ("asia-northeast1", "ct6e-standard-8t", 25.92, 12.23942),
        ],
    )
    def test_prices(self, region: str, machine: str, on_demand: float | None, spot: float | None) -> None:
        assert amount(machine, region) == (None if on_demand is None else pytest.approx(on_demand, abs=0.001))
        assert amount(machine, region, spot=True) == (None if spot is None else pytest.approx(spot, abs=0.001))

    def test_they_come_with_source_and_date(self) -> None:
        price = prices.on_demand("us-central1", "g2-standard-4")
        assert price is not None
        assert price.source.startswith("Cloud Billing catalog, by way of ") and price.date == date(2026, 1, 19)

    def test_those_of_tpus_name_their_own_source_and_date(self) -> None:
        one, alone = (
            prices.on_demand("us-central1", "ct6e-standard-4t"),
            prices.on_demand("us-east5", "ct6e-standard-4t"),
        )
        assert one is not None and alone is not None
        assert "TPU chips by way of " in one.source and one.source.endswith("2026-08-21")
        assert alone.date == date(2026, 8, 21)

    def test_what_nobody_knows_is_unknown(self) -> None:
        assert amount("a4-highgpu-8g") is None
        assert amount("g2-standard-4", "mars-north1") is None
        assert amount("e2-micro") is None

    def test_spot_costs_less(self) -> None:
        for region, table in prices.BOOK.packaged().items():
            for name, spot in table.spot.items():
                assert spot < table.prices.get(name, 1e9), (region, name)

    def test_the_larger_of_a_family_costs_more(self) -> None:
        """A slip of the pen would show: twice the GPUs are twice the price."""
        for region, table in prices.BOOK.packaged().items():
            for kind in (table.prices, table.spot):
                for family in ("a2-highgpu", "a2-ultragpu", "a3-highgpu"):
                    one, eight = kind.get(f"{family}-1g"), kind.get(f"{family}-8g")
                    assert one is None or eight is None or eight / one == pytest.approx(8, rel=0.01), (region, family)

    def test_the_file_is_in_the_form_that_it_is_written_in(self) -> None:
        text = (Path(prices.__file__).parent / "data" / "gce_prices.json").read_text("utf-8")
        assert prices.BOOK.render(price_book.parse(text)) == text

    def test_people_ask_for_these_first(self) -> None:
        found = prices.featured(prices.BOOK.packaged()["us-central1"].prices)
        assert {"a2-highgpu-1g", "a3-highgpu-1g", "g2-standard-4", "n1-standard-4+nvidia-tesla-t4:1"} <= set(found)


class TestTheCommand:
    def test_the_table_is_shown(self) -> None:
        result = CliRunner().invoke(cli, ["prices", "--provider", "gce", "--region", "us-central1"])
        assert result.exit_code == 0
        assert "us-central1  gce, 2026-01-19\n" in result.output
        assert "g2-standard-4" in result.output

    def test_json_has_everything(self) -> None:
        found = json.loads(CliRunner().invoke(cli, ["prices", "--provider", "gce", "--json"]).output)
        assert found["us-central1"]["prices"]["g2-standard-4"] == pytest.approx(0.7068, abs=0.001)

    def test_refreshing_needs_its_extra(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        import importlib.util

        real = importlib.util.find_spec
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name, *rest: None if name == "httpx" else real(name, *rest)
        )
        with pytest.raises(SystemExit) as left:
            main(["prices", "--provider", "gce", "--refresh"])
        told = capsys.readouterr()
        assert left.value.code == 2
        assert "pip install 'stoker[gcp]'" in told.err
        assert told.err.count("\n") == 1

    def test_refreshing_asks_once_for_every_region_of_the_table(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from stoker.providers.gce import client

        everywhere = tuple(prices.BOOK.packaged())
        billing = Billing([each | {"serviceRegions": list(everywhere)} for each in N1])
        monkeypatch.setattr(client, "Api", lambda: billing)
        brought = prices.refresh_now()
        assert set(brought.counts) == set(everywhere) and len(billing.asked) == 1
        prices.refresh_now(["vision-1/us-central1"])
        assert amount("n1-standard-8") == pytest.approx(0.37998, abs=1e-4)
