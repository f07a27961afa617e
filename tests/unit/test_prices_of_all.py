"""`stoker prices` without a provider: of all that keep a table, and of those alone that have the regions named."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from stoker.cli import cli, main
from stoker.model.errors import AuthDenied, NotInstalled, StokerError, UserError
from stoker.providers.ec2 import prices as ec2
from stoker.providers.gce import prices as gce
from stoker.providers.price_book import PriceRefresh, RegionPrices
from stoker.providers.sagemaker import prices as sagemaker


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))


@pytest.fixture
def refreshed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[tuple[str, tuple[str, ...]]]]:
    """Let each cloud answer, or fail so; the list tells who was asked, and for which regions."""

    def let(**failing: StokerError) -> list[tuple[str, tuple[str, ...]]]:
        asked: list[tuple[str, tuple[str, ...]]] = []

        def answer(name: str) -> Callable[..., PriceRefresh]:
            def refresh_now(regions: Any = ()) -> PriceRefresh:
                asked.append((name, tuple(regions)))
                if name in failing:
                    raise failing[name]
                return PriceRefresh(Path(f"{name}.json"), {"somewhere": 3})

            return refresh_now

        for name, module in (("ec2", ec2), ("gce", gce), ("sagemaker", sagemaker)):
            monkeypatch.setattr(module, "refresh_now", answer(name))
        return asked

    return let


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[Any, str]:
    with pytest.raises(SystemExit) as left:
        main(["prices", *arguments])
    return left.value.code, capsys.readouterr().err


def test_all_are_shown() -> None:
    found = json.loads(CliRunner().invoke(cli, ["prices", "--json"]).output)
    assert set(found) == {*ec2.tables(), *gce.tables(), *(f"sagemaker/{region}" for region in sagemaker.tables())}
    assert (found["us-east-1"]["provider"], found["us-east1"]["provider"]) == ("ec2", "gce")
    told = CliRunner().invoke(cli, ["prices"]).output
    assert "us-east-1  ec2, " in told and "us-east1  gce, " in told
    assert [line.split()[2] for line in told.splitlines() if "days old" in line] == [
        "ec2",
        "gce",
    ], "once for each, and not for the newer ones"


def test_no_two_clouds_call_a_region_the_same() -> None:
    assert not set(ec2.tables()) & set(gce.tables())


def test_two_providers_of_one_cloud_call_a_region_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"us-east-1": RegionPrices("somewhere", date(2026, 1, 1), {"ml.g5.xlarge": 1.4})}
    monkeypatch.setattr(sagemaker, "tables", lambda: found)
    told = json.loads(CliRunner().invoke(cli, ["prices", "--region", "us-east-1", "--json"]).output)
    assert {name: each["provider"] for name, each in told.items()} == {
        "us-east-1": "ec2",
        "sagemaker/us-east-1": "sagemaker",
    }


def test_a_region_says_whose_it_is() -> None:
    assert "gce, " in CliRunner().invoke(cli, ["prices", "--region", "us-east1"]).output
    assert set(json.loads(CliRunner().invoke(cli, ["prices", "--region", "us-east1", "--json"]).output)) == {"us-east1"}
    both = ["prices", "--json", "--region", "us-east1", "--region", "us-east-1"]
    assert set(json.loads(CliRunner().invoke(cli, both).output)) == {"us-east1", "us-east-1", "sagemaker/us-east-1"}


def test_all_are_refreshed(refreshed: Any, capsys: pytest.CaptureFixture[str]) -> None:
    asked = refreshed()
    code, err = run(capsys, "--refresh")
    assert code == 0 and asked == [("ec2", ()), ("gce", ()), ("sagemaker", ())]
    assert "kept in ec2.json" in err and "kept in gce.json" in err


def test_each_is_asked_for_its_own_regions(refreshed: Any, capsys: pytest.CaptureFixture[str]) -> None:
    asked = refreshed()
    assert run(capsys, "--refresh", "--region", "us-east1", "--region", "us-east-1")[0] == 0
    assert asked == [("ec2", ("us-east-1",)), ("gce", ("us-east1",)), ("sagemaker", ("us-east-1",))]
    asked.clear()
    assert run(capsys, "--refresh", "--region", "us-east1")[0] == 0
    assert asked == [("gce", ("us-east1",))]


def test_what_is_not_installed_is_left_out(refreshed: Any, capsys: pytest.CaptureFixture[str]) -> None:
    refreshed(gce=NotInstalled("gce needs httpx; pip install 'stoker[gcp]'"))
    code, err = run(capsys, "--refresh")
    assert code == 0 and err == "".join(f"3 prices for 1 region kept in {name}.json\n" for name in ("ec2", "sagemaker"))


def test_a_table_that_cannot_be_kept_is_told(refreshed: Any, capsys: pytest.CaptureFixture[str]) -> None:
    refreshed(gce=UserError("prices cannot be written"))
    code, err = run(capsys, "--refresh")
    assert code == 0 and "gce is not refreshed: prices cannot be written" in err


def test_nobody_who_is_installed_is_the_persons_to_mend(refreshed: Any, capsys: pytest.CaptureFixture[str]) -> None:
    aws = NotInstalled("it needs boto3")
    refreshed(ec2=aws, gce=NotInstalled("gce needs httpx"), sagemaker=aws)
    code, err = run(capsys, "--refresh")
    assert code == 2 and "ec2: it needs boto3; gce: gce needs httpx; sagemaker: it needs boto3" in err


def test_who_cannot_be_asked_is_told_and_the_others_are(refreshed: Any, capsys: pytest.CaptureFixture[str]) -> None:
    refreshed(ec2=AuthDenied("no credentials"))
    code, err = run(capsys, "--refresh")
    assert code == 0 and "kept in gce.json" in err and "ec2 is not refreshed: no credentials" in err


def test_where_nobody_can_be_asked_one_line_says_why(refreshed: Any, capsys: pytest.CaptureFixture[str]) -> None:
    refreshed(ec2=AuthDenied("no credentials"), gce=UserError("gce needs httpx"), sagemaker=AuthDenied("none"))
    code, err = run(capsys, "--refresh")
    assert code != 0 and err.count("\n") == 1
    assert "ec2: no credentials; gce: gce needs httpx; sagemaker: none" in err


@pytest.mark.parametrize("flags", [(), ("--refresh",)])
def test_a_region_that_no_table_has(refreshed: Any, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...]) -> None:
    asked = refreshed()
    code, err = run(capsys, *flags, "--region", "mars-north1")
    assert code == 2 and err.count("\n") == 1 and asked == []
    assert "--region: no table has prices for mars-north1; " in err and "--provider" in err
