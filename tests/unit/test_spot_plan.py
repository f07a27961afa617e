"""What a plan tells of a job that wants spot: what it may come to, and what that costs."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest

from stoker.cli import main
from stoker.model import market_keys
from stoker.model.policy import NO_RULES
from stoker.model.resources import Gpus, Resources
from stoker.policy import versions
from stoker.providers.offerings import fewest_gpus
from stoker.store.base import Store, open_store
from stoker.submit.policy_check import check_policy
from tests.support.sim_data import ON_DEMAND, SPOT_A, SPOT_B, make_spec

JOB = """
run: python train.py
resources: {spot: true, local: {price: 3.0, spot_price: 1.0}}
limits: {max_runtime: 1h}
"""


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("STOKER_STORE", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    Path("stoker.yaml").write_text(JOB)
    return open_store(str(tmp_path / "store"))


def told(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as left:
        main(words)
    captured = capsys.readouterr()
    assert left.value.code == 0, captured.err
    return captured.out + captured.err


def saw(store: Store, names: tuple[str, ...], *fates: str) -> None:
    for number, fate in enumerate(fates):
        told = fate if fate.endswith("dry") else f"x-1.{number}.{fate}"
        store.put(market_keys.market_observation(datetime.now(timezone.utc), names, told), b"")


@pytest.mark.usefixtures("store")
def test_a_job_that_waits_may_come_to_the_dearer_price(capsys: pytest.CaptureFixture[str]) -> None:
    plain = told(capsys, "run", "--dry-run")
    assert "worst case: $1.00 " in plain
    waits = told(capsys, "run", "--dry-run", "--set", "retry.spot_wait=2h")
    assert "worst case: $3.00 " in waits
    assert [line.split()[3] for line in waits.splitlines() if "local in this-computer" in line] == ["spot", "on-demand"]


def test_also_where_it_is_the_policy_that_lets_it(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    versions.write(store, "rules:\n- {max_wait: 30m, then: on-demand}\n", "jane")
    plan = told(capsys, "run", "--dry-run")
    assert "worst case: $3.00 " in plan
    assert "policy max-wait: after 30 min without spot it takes on-demand machines" in plan
    assert "bounded: spot_wait 30 min by policy max-wait" in told(capsys, "policy", "test")
    assert [each["spot"] for each in json.loads(told(capsys, "offers", "--json"))] == [True, False]


def test_offers_tell_what_others_saw(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    saw(store, ("local", "local", "this-computer", "spot"), "reclaimed.30", "served.30", "10.dry")
    (offer,) = json.loads(told(capsys, "offers", "--json"))
    assert offer["last_24h"] == {"reclaims": 1, "dry": 1, "launches": 2, "machine_hours": 1.0}
    assert "1 of 2 reclaimed, 1 × none" in told(capsys, "offers")


def test_a_plan_is_in_the_order_in_which_it_will_be_tried(store: Store) -> None:
    all_of_them = (SPOT_A, SPOT_B, ON_DEMAND)
    assert check_policy(NO_RULES, make_spec(), all_of_them, store).offerings == all_of_them
    saw(store, ("sim", "m1", "a", "spot"), *["reclaimed.10"] * 5)
    assert check_policy(NO_RULES, make_spec(), all_of_them, store).offerings == (SPOT_B, SPOT_A, ON_DEMAND)


def test_what_it_comes_to_is_no_larger_than_what_it_asked_for() -> None:
    """Providers tell both kinds, and of on-demand machines those that have as many GPUs as the spot ones."""
    one = replace(ON_DEMAND, machine="small", gpus=1)
    eight, spot_eight = replace(ON_DEMAND, machine="large", gpus=8), replace(SPOT_A, machine="large", gpus=8)
    wanted = Resources(gpus=Gpus("", 1), spot="only")
    assert fewest_gpus(wanted, (one, eight, spot_eight)) == [eight, spot_eight]
