"""Prices as Google's billing catalog tells them: which of its SKUs are parts of machines, and what those add up to."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from billing_catalog import A2, A3, B200, N1, T4, Billing, sku

from stoker.model.errors import AuthDenied, UserError
from stoker.providers.gce import catalog, prices, skus

TODAY = date(2026, 11, 16)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def refresh(skus: list[dict[str, Any]], *regions: str) -> Billing:
    billing = Billing(skus)
    prices.refresh(billing, regions or ("us-central1",), today=TODAY)  # type: ignore[arg-type]
    return billing


def amount(machine: str, region: str = "us-central1", *, spot: bool = False) -> float | None:
    found = (prices.spot if spot else prices.on_demand)(region, machine)
    return None if found is None else found.amount


class TestRefreshing:
    def test_a_machine_is_the_sum_of_its_parts(self, home: Path) -> None:
        billing = refresh([*N1, *T4, *A2, *A3])
        ((path, params, service),) = billing.asked
        assert (path, service) == ("/v1/services/6F81-5844-456A/skus", "cloudbilling")
        assert params["currencyCode"] == "USD"
        assert amount("n1-standard-8") == pytest.approx(8 * 0.031611 + 30 * 0.004237, abs=1e-5)
        assert amount("n1-standard-8", spot=True) == pytest.approx(8 * 0.0088 + 30 * 0.0012, abs=1e-5)
        assert amount("n1-standard-8+nvidia-tesla-t4:2") == pytest.approx(0.37998 + 0.7, abs=1e-4)
        assert amount("n1-standard-8+nvidia-tesla-t4:2", spot=True) == pytest.approx(0.1064 + 0.35, abs=1e-4)
        assert amount("a2-highgpu-1g") == pytest.approx(12 * 0.031611 + 85 * 0.004237 + 2.933908, abs=1e-4)
        assert amount("a2-megagpu-16g") == pytest.approx(96 * 0.031611 + 1360 * 0.004237 + 16 * 2.933908, abs=1e-4)
        assert amount("a2-ultragpu-1g") == pytest.approx(12 * 0.031611 + 170 * 0.004237 + 3.92808, abs=1e-4)
        assert amount("a3-highgpu-8g") == pytest.approx(208 * 0.0293 + 1872 * 0.0025 + 8 * 9.79655, abs=1e-3)
        assert amount("a3-megagpu-8g") == pytest.approx(208 * 0.0294 + 1872 * 0.0026 + 8 * 10.34428, abs=1e-3)
        price = prices.on_demand("us-central1", "n1-standard-8")
        assert price is not None and (price.source, price.date) == ("Cloud Billing catalog; TPUs as packaged", TODAY)
        assert (home / "prices" / "gce.json").exists()

    def test_without_a_part_the_whole_is_unknown(self) -> None:
        refresh([*N1, *A2[:2]])
        assert amount("n1-standard-8") is not None
        assert amount("n1-standard-8+nvidia-tesla-t4:1") is None
        assert amount("a2-highgpu-1g") is None
        # A newer table is the whole truth about its region, but for TPUs, which that catalog does not have.
        assert amount("ct6e-standard-4t") == pytest.approx(10.8)
        assert amount("g2-standard-4") is None
        assert amount("g2-standard-4", "us-west1") is not None

    def test_a_part_listed_twice_never_looks_cheaper_than_it_may_be(self) -> None:
        dear, cheap = (sku("Nvidia Tesla T4 GPU running in Americas", usd) for usd in (0.5, 0.4))
        for order in ([dear, cheap], [cheap, dear]):
            refresh([*N1, *order])
            assert amount("n1-standard-8+nvidia-tesla-t4:1") == pytest.approx(0.87998, abs=1e-4)

    def test_a_region_that_is_none_is_the_persons_mistake(self, home: Path) -> None:
        with pytest.raises(UserError, match=r"--region: Google has no prices for mars-north1"):
            refresh(N1, "us-central1", "mars-north1")
        assert not (home / "prices").exists()

    def test_no_access_is_told_and_nothing_changes(self, home: Path) -> None:
        class Denied:
            def pages(self, *_: Any, **__: Any) -> Iterator[dict[str, Any]]:
                yield {"skus": N1}
                raise AuthDenied("the Cloud Billing API is not enabled")

        with pytest.raises(AuthDenied):
            prices.refresh(Denied(), ["us-central1"], today=TODAY)  # type: ignore[arg-type]
        assert not (home / "prices").exists()

    def test_shares_of_a_core_are_not_priced(self) -> None:
        e2 = [sku("E2 Instance Core running in Americas", 0.0218), sku("E2 Instance Ram running in Americas", 0.0029)]
        refresh([*N1, *e2])
        assert amount("e2-standard-4") is not None
        assert amount("e2-micro") is None

    def test_what_is_cheaper_at_first_costs_what_it_costs_later(self) -> None:
        free_at_first = sku("Nvidia Tesla T4 GPU running in Americas", 0.35, tiers=(0.0,))
        refresh([*N1, free_at_first])
        assert amount("n1-standard-8+nvidia-tesla-t4:1") == pytest.approx(0.72998, abs=1e-4)

    def test_the_price_of_now_is_the_last_that_is_told(self) -> None:
        was, now = (sku("Nvidia Tesla T4 GPU running in Americas", usd)["pricingInfo"] for usd in (0.5, 0.35))
        refresh([*N1, sku("Nvidia Tesla T4 GPU running in Americas", 9) | {"pricingInfo": [*was, *now]}])
        assert amount("n1-standard-8+nvidia-tesla-t4:1") == pytest.approx(0.72998, abs=1e-4)

    def test_whole_machines_that_are_sold_in_slices(self) -> None:
        refresh([*N1, *B200])
        assert amount("a4-highgpu-8g") == pytest.approx(8 * 16.11)
        assert amount("a4-highgpu-8g", spot=True) == pytest.approx(8 * 4.9542)


class TestTheCatalog:
    """SKUs that there are, and what must not be taken for them."""

    @pytest.mark.parametrize(
        ("description", "usage", "kind", "of", "spot"),
        [
            ("N1 Predefined Instance Core running in Zurich", "OnDemand", "core", "n1", False),
            ("Spot Preemptible N1 Predefined Instance Ram running in Americas", "Preemptible", "memory", "n1", True),
            ("E2 Instance Core running in Salt Lake City", "OnDemand", "core", "e2", False),
            ("Spot Preemptible E2 Instance Ram running in Sao Paulo", "Preemptible", "memory", "e2", True),
            ("N2 Instance Core running in Americas", "OnDemand", "core", "n2", False),
            ("N2D AMD Instance Ram running in Milan", "OnDemand", "memory", "n2d", False),
            ("C4A Arm Instance Core running in Northern Virginia", "OnDemand", "core", "c4a", False),
            ("Compute optimized Core running in Montreal", "OnDemand", "core", "c2", False),
            # As it was written before spot was called so.
            ("Preemptible Compute optimized Ram running in Montreal", "Preemptible", "memory", "c2", True),
            ("A3 Instance Core running in Americas", "OnDemand", "core", "a3-highgpu", False),
            ("A3Plus Instance Core running in Americas", "OnDemand", "core", "a3-megagpu", False),
            ("A3Ultra Instance Ram running in Americas", "OnDemand", "memory", "a3-ultragpu", False),
            ("G4 Instance Core running in Iowa", "OnDemand", "core", "g4", False),
            ("Nvidia Tesla A100 GPU running in Americas", "OnDemand", "gpu", "a2-highgpu", False),
            ("Nvidia Tesla A100 80GB GPU running in Americas", "OnDemand", "gpu", "a2-ultragpu", False),
            ("Nvidia H100 80GB GPU running in Americas", "OnDemand", "gpu", "a3-highgpu", False),
            ("Nvidia H100 80GB Plus GPU running in Americas", "OnDemand", "gpu", "a3-megagpu", False),
            ("Nvidia H100 80GB Mega GPU running in Frankfurt", "OnDemand", "gpu", "a3-megagpu", False),
            ("H200 141GB GPU running in Belgium", "OnDemand", "gpu", "a3-ultragpu", False),
            ("RTX 6000 96GB running in Belgium", "OnDemand", "gpu", "g4", False),
            ("RTX 6000 96GB attached to Spot Preemptible VMs running in Belgium", "Preemptible", "gpu", "g4", True),
            ("Nvidia L4 GPU attached to Spot Preemptible VMs running in Oregon", "Preemptible", "gpu", "g2", True),
            ("A4 Nvidia B200 (1 gpu slice) running in Netherlands", "OnDemand", "gpu", "a4-highgpu", False),
            # Spot, whatever its usage says.
            (
                "Spot Preemptible A4 Nvidia B200 (1 gpu slice) running in Americas",
                "OnDemand",
                "gpu",
                "a4-highgpu",
                True,
            ),
        ],
    )
    def test_parts_of_machines(self, description: str, usage: str, kind: str, of: str, spot: bool) -> None:
        part = skus.read(sku(description, 1.25, usage))
        assert part is not None
        assert (part.kind, part.of, part.spot, part.amount) == (kind, of, spot, 1.25)
        assert part.regions == {"us-central1", "us-east1", "us-west1"}

    @pytest.mark.parametrize(
        "other",
        [
            # Committed to.
            sku("Commitment v1: Cpu in Americas for 1 Year", 9, "Commit1Yr"),
            sku("Commitment v1: Nvidia Tesla T4 GPU running in Americas for 1 Year", 9, "Commit1Yr"),
            sku("Commitment v1: RTX 6000 96GB running in Iowa for 3 Years", 9, "Commit3Yr"),
            sku("N1 Predefined Instance Core running in Americas", 9, "Commit1Yr"),
            # Custom: N1's does not even say so.
            sku("Custom Instance Core running in Americas", 9),
            sku("N1 Custom Instance Core running in Americas", 9),
            sku("N2 Custom Extended Instance Ram running in Americas", 9),
            sku("N2D AMD Custom Instance Core running in Americas", 9),
            sku("Spot Preemptible Custom Instance Core running in Americas", 9, "Preemptible"),
            # On nodes of one's own.
            sku("N1 Sole Tenancy Instance Core running in Americas", 9),
            sku("Sole Tenancy Premium for N1 Sole Tenancy Instance Core running in Americas", 9),
            # Flex start, and calendar mode.
            sku("DWS Defined Duration A3 Core running in Americas", 9),
            sku("DWS Flex Start H4D Core running in Americas", 9),
            sku("N1 Predefined Instance Core attached to DWS Defined Duration VMs running in Americas", 9),
            sku("Nvidia Tesla T4 GPU attached to DWS Defined Duration VMs running in Americas", 9),
            sku("Nvidia H100 Mega 80GB GPU attached to DWS Defined Duration VMs running in Americas", 9),
            sku("Reserved Nvidia Tesla T4 GPU in Americas in Calendar Mode", 9),
            sku("Reserved N1 Predefined Instance Core in Americas in Calendar Mode", 9),
            sku("Reserved A2 Core in Americas", 9),
            # Other things.
            sku("Nvidia Tesla T4 Virtual Workstation GPU running in Americas", 9),
            sku("Micro Instance with burstable CPU running in Americas", 9),
            sku("Memory-optimized Instance Core running in Americas", 9),
            sku("C4A Instance Local SSD running in Americas", 9),
            sku("SSD backed Local Storage", 9, family="Storage", unit="GiBy.mo"),
            sku("Licensing Fee for Windows Server 2019 Datacenter Edition (CPU cost)", 9, family="License"),
            sku("N1 Predefined Instance Core running in Americas", 9, family="License"),
            # Elsewhere.
            sku("N1 Predefined Instance Core running in Frankfurt", 9, regions=("europe-west3",)),
            sku("N1 Predefined Instance Core running in Americas", 9, regions=("global",)),
            sku("N1 Predefined Instance Core running in Americas", 9, regions=()),
            # Preemptible, and called nothing of the kind.
            sku("N1 Predefined Instance Core running in Americas", 9, "Preemptible"),
            # Told in other units, for nothing, or not at all.
            sku("N1 Predefined Instance Core running in Americas", 9, unit="mo"),
            sku("N1 Predefined Instance Ram running in Americas", 9, unit="h"),
            sku("N1 Predefined Instance Core running in Americas", 9, currency="EUR"),
            sku("N1 Predefined Instance Core running in Americas", 0.0),
            sku("N1 Predefined Instance Core running in Americas", -9),
            {"description": "N1 Predefined Instance Core running in Americas", "serviceRegions": ["us-central1"]},
            sku("N1 Predefined Instance Core running in Americas", 9) | {"pricingInfo": []},
            sku("N1 Predefined Instance Core running in Americas", 9) | {"pricingInfo": [{"pricingExpression": None}]},
            {},
        ],
        ids=lambda other: str(other.get("description", "")),
    )
    def test_anything_else_that_it_sells_is_left_out(self, other: dict[str, Any]) -> None:
        refresh([*N1, *T4])
        before = prices.tables()["us-central1"]
        for order in ([other, *N1, *T4], [*N1, *T4, other]):
            refresh(order)
            assert prices.tables()["us-central1"] == before

    def test_every_series_of_the_table_is_found(self) -> None:
        titles = ["N1 Predefined", "N2D AMD", "C2D AMD", "T2D AMD", "T2A Arm", "C4A Arm", "A3Plus", "A3Ultra"]
        titles += ["N2", "N4", "E2", "C3", "C4", "A2", "A3", "G2", "G4"]
        found = [f"{title} Instance {part}" for title in titles for part in ("Core", "Ram")]
        found += ["Compute optimized Core", "Compute optimized Ram", "A4 Nvidia B200 (1 gpu slice)", "RTX 6000 96GB"]
        found += [f"Nvidia Tesla {gpu} GPU" for gpu in ("T4", "V100", "P100", "P4", "A100", "A100 80GB")]
        found += ["Nvidia L4 GPU", "Nvidia H100 80GB GPU", "Nvidia H100 80GB Plus GPU", "H200 141GB GPU"]
        refresh([sku(f"{title} running in Americas", 0.1) for title in found])
        # Machines with TPUs are sold by another service of Google: their prices stay as packaged.
        left_out = {name for name, machine in catalog.table().items() if machine.burstable}
        assert set(prices.tables()["us-central1"].prices) == set(catalog.table()) - left_out

    def test_requests_and_answers_are_as_google_describes_them(self) -> None:
        discovery = pytest.importorskip("tests.support.gce.discovery")
        billing = refresh([*N1, *T4, *A2, *A3, *B200])
        ((path, params, service),) = billing.asked
        assert discovery.check_request("GET", path, params, service=service) == []
        google = discovery.api("cloudbilling", "v1")
        pages = list(billing.pages(path, params, service=service))
        assert len(pages) > 2
        for page in pages:
            assert google.check_answer("GET", path, page) == []
        assert google.check_answer("GET", path, {"skus": [{"price": 1}]}) == ["skus[0].price: there is no such field"]
