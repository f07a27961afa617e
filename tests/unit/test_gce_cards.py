"""The network cards of machines on Compute Engine: their kinds, their networks, and what is said of unused ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from test_gce_request import A100, E2, PLACE, machine_of, order

from stoker.model.errors import NoSuchResource, NotFound, UserError
from stoker.model.offerings import Offering
from stoker.model.resources import GceResources, Resources
from stoker.model.spec import Spec
from stoker.providers.gce import cards, preflight, request

H100 = Offering("gce", "a3-highgpu-8g", "us-central1-a", True, PLACE, 20, 87, "t", 208, 1872 << 30, "H100", 8)
MEGA = replace(H100, machine="a3-megagpu-8g")
H200 = replace(H100, machine="a3-ultragpu-8g", gpu="H200", zone="us-central1-b")
GVNICS = tuple(f"subnet:gpu-{n}" for n in range(1, 9))
RDMA = tuple(f"subnet:rdma-{n}" for n in range(8))


def made(offering: Offering, *networks: str, nodes: int = 1) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = machine_of(order(offering, nodes, gce=GceResources(gpu_networks=networks)))[
        "networkInterfaces"
    ]
    return found


def test_machines_that_take_no_other_card_get_gvnic() -> None:
    assert [card.get("nicType") for card in made(H100)] == ["GVNIC"]
    assert [card.get("nicType") for card in made(replace(H100, machine="ct6e-standard-4t"))] == ["GVNIC"]
    # Elsewhere Compute Engine chooses, as it does for gcloud.
    assert "nicType" not in made(E2)[0] and "nicType" not in made(A100)[0]


def test_each_named_network_gets_a_card() -> None:
    found = made(H100, *GVNICS[:4], nodes=2)
    assert [card["nicType"] for card in found] == ["GVNIC"] * 5
    assert [card.get("subnetwork", "").rpartition("/")[2] for card in found[1:]] == ["gpu-1", "gpu-2", "gpu-3", "gpu-4"]
    # One public address is enough, and costs enough.
    assert [("accessConfigs" in card) for card in found] == [True, False, False, False, False]
    assert len(made(MEGA, *GVNICS)) == 9


def test_gpus_with_rdma_have_eight_cards_for_it() -> None:
    """ "eight NVIDIA ConnectX-7 (CX7) network interface cards (NICs) and two Google virtual NICs (gVNIC)"
    https://cloud.google.com/compute/docs/gpus/gpu-network-bandwidth"""
    found = made(H200, "subnet:gpu-1", *RDMA)
    assert [card["nicType"] for card in found] == ["GVNIC", "GVNIC", *["MRDMA"] * 8]


@pytest.mark.parametrize(
    ("offering", "networks"), [(H100, GVNICS[:4]), (MEGA, GVNICS), (H200, ("subnet:gpu-1", *RDMA))]
)
@pytest.mark.parametrize("nodes", [1, 2])
def test_google_would_understand_it(offering: Offering, networks: tuple[str, ...], nodes: int) -> None:
    pytest.importorskip("googleapiclient")
    from tests.support.gce import PROJECT, check_request
    from tests.support.gce.drafts import drafted
    from tests.support.gce.links import Links

    built = request.build(order(offering, nodes, gce=GceResources(gpu_networks=networks)))
    for each in built:
        assert check_request(each.method, each.path, None, each.body) == []
    if nodes == 1:
        # In the project of the Compute Engine for tests.
        body = json.loads(json.dumps(built[-1].body).replace("vision-1", PROJECT))
        draft = drafted(body, PROJECT, offering.zone, Links("http://compute"), lambda _: None)
        assert len(draft.body["networkInterfaces"]) == 1 + len(networks)


@pytest.mark.parametrize(
    ("machine", "gce", "told"),
    [
        (
            "a3-highgpu-8g",
            GceResources(gpu_networks=GVNICS[:5]),
            "4 cards beside its first, and 5 networks were named",
        ),
        ("a2-highgpu-8g", GceResources(gpu_networks=GVNICS[:1]), "has one network card, and 1 network was named"),
        ("a3-highgpu-8g", GceResources(gpu_networks=(GVNICS[0],) * 2), "subnet:gpu-1 is named twice"),
        ("a3-highgpu-8g", GceResources(network="subnet:gpu-1", gpu_networks=GVNICS[:1]), "subnet:gpu-1 is named twice"),
        ("a3-highgpu-8g", GceResources(gpu_networks=("GPU 1",)), "'GPU 1' is none"),
    ],
)
def test_what_no_machine_can_have_is_refused(machine: str, gce: GceResources, told: str) -> None:
    resources = Resources(provider="gce", machine=(machine,), gce=gce)
    with pytest.raises(UserError) as raised:
        request.check(Spec(name="x", run="x", resources=resources))
    assert str(raised.value).startswith("resources.gce.gpu_networks: ") and told in str(raised.value)


class NoNetworks:
    """A project in which no network but the default one is there."""

    @contextmanager
    def hurried(self) -> Iterator[None]:
        yield

    def send(self, _method: str, path: str, **_: Any) -> dict[str, Any]:
        if path.endswith("/networks/default"):
            return {"name": "default", "autoCreateSubnetworks": True}
        raise NotFound(path)


def test_a_network_that_is_not_there_is_said_by_its_field() -> None:
    built = request.build(order(H100, gce=GceResources(gpu_networks=GVNICS[:1])))
    with pytest.raises(NoSuchResource) as raised:
        preflight.check_requests(NoNetworks(), built)  # type: ignore[arg-type]
    assert str(raised.value) == (
        "resources.gce.gpu_networks: there is no subnetwork gpu-1 in us-central1; "
        "set resources.gce.gpu_networks to networks that are there, or leave them out"
    )


def test_a_gang_is_told_of_cards_that_stay_unused() -> None:
    def told(nodes: int, *networks: str) -> tuple[str, ...]:
        resources = Resources(provider="gce", machine=("a3-highgpu-8g",), gce=GceResources(gpu_networks=networks))
        return cards.remarks(Spec(name="x", run="x", nodes=nodes, resources=resources), resources.machine)

    assert told(1) == () and told(2, *GVNICS[:4]) == ()
    (line,) = told(2, *GVNICS[:1])
    assert "a3-highgpu-8g has 4 network cards" in line and "3 stay unused" in line


@pytest.mark.parametrize(
    ("machine", "nodes", "compact"),
    [
        ("n2-standard-8", 150, True),
        ("n2-standard-8", 151, False),
        ("a3-highgpu-8g", 151, True),
        ("e2-standard-4", 2, False),
    ],
)
def test_a_policy_is_asked_for_only_where_it_is_allowed(machine: str, nodes: int, compact: bool) -> None:
    built = request.build(order(replace(H100, machine=machine), nodes))
    assert (len(built) == 2) is compact
    assert ("resourcePolicies" in built[-1].body["instanceProperties"]) is compact
