"""The network interfaces of machines with Elastic Fabric Adapters, and machines in placement groups.

The layouts are those of "Maximize network bandwidth on Amazon EC2 instances with multiple network cards",
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-acc-inst-types.html
"""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from importlib import resources as package
from typing import Any

import pytest
from test_ec2_request import C7I, order, run_params

from stoker.model.resources import Ec2Resources, Gpus, Resources
from stoker.providers.ec2 import catalog, efa, offers, request

# The whole shape of a request, as EC2's own model has it.
EFA = Ec2Resources(efa=True, subnet=("subnet-1",), security_groups=("sg-1",))


def interfaces(machine: str, ec2: Ec2Resources = EFA) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = run_params(order(replace(C7I, machine=machine), nodes=2, ec2=ec2))[
        "NetworkInterfaces"
    ]
    return found


def placed(machine: str) -> list[tuple[int, int, str]]:
    return [(each["NetworkCardIndex"], each["DeviceIndex"], each["InterfaceType"]) for each in interfaces(machine)]


@pytest.mark.parametrize(
    ("machine", "cards"),
    [
        # "For the primary network interface (network card index 0, device index 0), use an ENA interface. For network
        # card index 0, device index 1, create an EFA-only network interface. For the remaining network interfaces
        # (network card indexes 1-31, device index 0), use EFA-only network interfaces."
        ("p5.48xlarge", 32),
        ("p5e.48xlarge", 32),
        ("p5en.48xlarge", 16),
        ("p6-b200.48xlarge", 8),
        ("p4d.24xlarge", 4),
        ("trn1.32xlarge", 8),
        ("trn1n.32xlarge", 16),
        ("trn2.48xlarge", 16),
        ("dl1.24xlarge", 4),
        ("g6e.48xlarge", 4),
    ],
)
def test_one_interface_for_ip_and_an_efa_on_each_card(machine: str, cards: int) -> None:
    efas = [(card, 1 if card == 0 else 0, "efa-only") for card in range(cards)]
    assert placed(machine) == [(0, 0, "interface"), *efas]


def test_the_first_card_of_p6_b300_takes_no_efa() -> None:
    """ "They have 8 GPUs and 17 network cards, where the primary network card supports only an ENA network interface."

    "For the remaining network cards (network card indexes 1-16, device index 0), use EFA-only network interfaces."
    """
    assert placed("p6-b300.48xlarge") == [(0, 0, "interface"), *((card, 0, "efa-only") for card in range(1, 17))]


def test_p6e_gb200_has_one_efa_for_each_gpu() -> None:
    """ "Add EFA-only network interfaces to the following: NCI 1, device index 0; NCI 5 …; NCI 9 …; NCI 13 …" """
    assert placed("p6e-gb200.36xlarge") == [(0, 0, "interface"), *((card, 0, "efa-only") for card in (1, 5, 9, 13))]


@pytest.mark.parametrize("machine", ["c5n.18xlarge", "g5.8xlarge", "p5.4xlarge", "trn2.3xlarge", "hpc7g.16xlarge"])
def test_one_card_has_one_interface_for_both(machine: str) -> None:
    assert placed(machine) == [(0, 0, "efa")]


@pytest.mark.parametrize("machine", [name for name, facts in catalog.table().items() if facts.efa_interfaces])
def test_every_layout_is_one_that_ec2_takes(machine: str) -> None:
    """No place twice; the first is no EFA-only: "You can't use an EFA-only network interface as the primary network
    interface"; as many EFAs as DescribeInstanceTypes allows, on cards that take them."""
    layout = efa.layout(catalog.facts(machine))
    assert len({(each.card, each.device) for each in layout}) == len(layout)
    assert (layout[0].card, layout[0].device) == (0, 0) and layout[0].type != "efa-only"
    assert len([each for each in layout if each.type != "interface"]) == catalog.facts(machine).efa_interfaces
    network = TYPES.get(machine, {}).get("NetworkInfo", {})
    for card in network.get("NetworkCards", ()):
        ours = [each for each in layout if each.card == card["NetworkCardIndex"]]
        assert len(ours) <= card["MaximumNetworkInterfaces"]
        assert {each.type for each in ours} <= set(card["InterfaceTypes"])


def _types() -> dict[str, Any]:
    data = package.files("moto").joinpath("ec2/resources/instance_types.json.gz").read_bytes()
    found: dict[str, Any] = json.loads(gzip.decompress(data))
    return found


TYPES = _types()


def test_every_interface_has_the_subnet_and_the_groups_and_goes_with_the_machine() -> None:
    for each in interfaces("p4d.24xlarge"):
        assert each["SubnetId"] == "subnet-1" and each["Groups"] == ["sg-1"] and each["DeleteOnTermination"]
        assert "AssociatePublicIpAddress" not in each


@pytest.mark.parametrize("public", [True, False])
def test_a_machine_with_one_card_may_have_a_public_address(public: bool) -> None:
    ec2 = Ec2Resources(efa=True, public_ip=public)
    spec = order(ec2=ec2, machine=("g5.8xlarge",)).spec
    request.check(spec)
    assert offers.offline(replace(spec.resources, region="us-east-1"))
    assert interfaces("g5.8xlarge", ec2) == [
        {
            "DeviceIndex": 0,
            "DeleteOnTermination": True,
            "InterfaceType": "efa",
            "NetworkCardIndex": 0,
            "AssociatePublicIpAddress": public,
        }
    ]


@pytest.mark.parametrize("named", [{"machine": ("p5.48xlarge",)}, {"gpus": Gpus("H100", 8)}])
def test_several_interfaces_and_a_public_address_are_refused_before(named: dict[str, Any]) -> None:
    """ "You cannot specify more than one network interface in the request" (AssociatePublicIpAddress)."""
    asked = Resources(provider="ec2", region="us-east-1", ec2=Ec2Resources(efa=True, public_ip=True), **named)
    assert not offers.offline(asked)
    why = offers.why_none(asked)
    assert why.startswith("resources.ec2.public_ip: p5.48xlarge has several network interfaces") and "\n" not in why
    # Where one card will do, that machine is taken.
    both = replace(asked, gpus=None, machine=("p5.48xlarge", "p5.4xlarge"))
    assert {each.machine for each in offers.offline(both)} == {"p5.4xlarge"}


@pytest.mark.parametrize(
    ("machine", "grouped"),
    [
        ("c7i.large", True),
        ("p5.48xlarge", True),
        ("m7i-flex.large", False),
        ("c7i-flex.4xlarge", False),
        ("r8i-flex.large", False),
        ("t3.large", False),
        ("t4g.large", False),
        # Types that the table does not have.
        ("m9i-flex.large", False),
        ("t9g.large", False),
        ("mac2-m2.metal", False),
        ("vt1.3xlarge", False),
        ("trn9.48xlarge", True),
        ("x2iezn.2xlarge", True),
    ],
)
def test_only_what_may_be_close_together_is_put_into_a_group(machine: str, grouped: bool) -> None:
    """ "The following instance types are supported: current generation instances, except for burstable performance
    instances (for example, T2), Mac1 instances, and M7i-flex instances" (cluster placement groups)."""
    asked = order(replace(C7I, machine=machine), nodes=2)
    operations = [each.operation for each in request.build(asked)]
    assert ("CreatePlacementGroup" in operations) == grouped
    assert ("GroupName" in run_params(asked).get("Placement", {})) == grouped


def test_the_table_agrees_with_ec2_on_placement_groups() -> None:
    for name, facts in catalog.table().items():
        if name in TYPES:
            assert facts.clusters == ("cluster" in TYPES[name]["PlacementGroupInfo"]["SupportedStrategies"]), name
    # What a name tells, of a type that is not in the table, is what EC2 says of those that it has today.
    for name, told in TYPES.items():
        if name.split(".")[0] not in ("c1", "m1", "m2", "m3", "t1"):
            guessed = not catalog._UNCLUSTERED.match(name)
            assert guessed == ("cluster" in told["PlacementGroupInfo"]["SupportedStrategies"]), name
