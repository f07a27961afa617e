"""`resources.region` as a list: how it is written, stored and refused, and how resources of one region are made."""

from __future__ import annotations

import pytest

from stoker.jobfile import assignments, check_honoured, document, parse_job, read_layer, resolve, spec_layer
from stoker.jobfile.schema import json_schema
from stoker.model import codec
from stoker.model.errors import SpecError, UserError
from stoker.model.offerings import Capabilities
from stoker.model.resources import Resources
from stoker.model.spec import Spec
from stoker.providers import registry

SEVERAL = frozenset({"resources.region", "resources.region:several", "resources.zones"})


def able(*honours: str) -> Capabilities:
    return Capabilities(False, 60, 1, 1, 1, honours=frozenset(honours))


def parse(region: str, *sets: str) -> Spec:
    layers = [read_layer(f"run: x\nresources: {{region: {region}}}\n", "stoker.yaml")]
    return parse_job([*layers, assignments(sets)] if sets else layers)


@pytest.mark.parametrize(
    ("written", "stored"),
    [
        ("us-east-1", "us-east-1"),
        ("[us-east-1]", "us-east-1"),
        ("[us-east-1, us-west-2]", ("us-east-1", "us-west-2")),
    ],
)
def test_a_text_means_one_region_and_a_list_several(written: str, stored: str | tuple[str, ...]) -> None:
    assert parse(written).resources.region == stored
    assert parse("elsewhere", f"resources.region={written}").resources.region == stored


def test_one_region_is_stored_as_the_text_that_it_was() -> None:
    assert codec.loads(Resources, b'{"region":"us-east-1"}') == Resources(region="us-east-1")
    assert b'"region":"us-east-1"' in codec.dumps(parse("[us-east-1]"))
    assert b"region" not in codec.dumps(Resources())


def test_a_list_is_stored_and_written_again_as_it_is() -> None:
    spec = parse("[us-west-2, us-east-1]")
    assert codec.loads(Spec, codec.dumps(spec)) == spec
    assert document(spec)["resources"] == {"region": ["us-west-2", "us-east-1"]}
    assert parse_job([spec_layer(spec, "the original")]) == spec
    # A clone may run in another region.
    moved = parse_job([spec_layer(spec, "the original"), assignments(["resources.region=eu-west-1"])])
    assert moved.resources.region == "eu-west-1"


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("[]", "resources.region: is empty; leave it out, or name a region"),
        ("[a, b, a]", "resources.region: names a twice"),
        ("[a, '']", "resources.region[1]: is empty; leave it out or write something"),
        ("[a, 1]", "resources.region[1]: expected text, found the number 1; put it in quotes"),
        ("{a: b}", "resources.region: expected text, found a mapping"),
    ],
)
def test_a_wrong_list_is_refused_in_one_line(written: str, why: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(written)
    assert str(caught.value).partition(": ")[2] == why


def test_editors_know_both_forms() -> None:
    resources = json_schema()["properties"]["resources"]["anyOf"][0]
    forms = resources["properties"]["region"]["anyOf"]
    assert [each["type"] for each in forms] == ["string", "array", "null"]


def test_a_provider_has_to_say_that_it_can_use_several_regions() -> None:
    spec = parse("[a, b]")
    with pytest.raises(SpecError) as caught:
        check_honoured(spec, "cloud", able("resources.region"))
    assert str(caught.value) == "resources.region: cloud runs a job in one region; name one"
    with pytest.raises(SpecError) as caught:
        check_honoured(spec, "cloud", able())
    assert str(caught.value) == ("resources.region: cloud cannot honour this; leave it out or choose another provider")
    check_honoured(spec, "cloud", able(*SEVERAL))
    check_honoured(parse("a"), "cloud", able("resources.region"))


def test_sagemaker_refuses_a_list_by_its_field() -> None:
    job = read_layer("run: x\nresources: {provider: sagemaker, region: [us-east-1, us-west-2]}\n", "stoker.yaml")
    with pytest.raises(SpecError) as caught:
        resolve([job], registry.capabilities)
    assert str(caught.value) == "stoker.yaml:2: resources.region: sagemaker runs a job in one region; name one"


def test_resources_of_one_region_have_its_zones_alone() -> None:
    several = Resources(
        region=("europe-west1", "vision-1/europe-west12"),
        zones=("europe-west12-a", "europe-west1-b", "europe-west12-c"),
    )
    assert several.regions == ("europe-west1", "vision-1/europe-west12")
    first, second = several.in_region("europe-west1"), several.in_region("vision-1/europe-west12")
    assert (first.only_region, first.zones) == ("europe-west1", ("europe-west1-b",))
    assert (second.only_region, second.zones) == ("vision-1/europe-west12", ("europe-west12-a", "europe-west12-c"))
    with pytest.raises(UserError, match=r"^resources\.region: names europe-west1, .* one is possible here; name one$"):
        _ = several.only_region


def test_resources_that_name_one_region_stay_as_they_are() -> None:
    one, none = Resources(region="a", zones=("b",)), Resources(zones=("b",))
    assert one.in_region("p/a") is one and none.in_region("a") is none
    assert (one.regions, none.regions) == (("a",), ())


@pytest.mark.parametrize(
    ("regions", "zones", "why"),
    [
        (("us-east-1", "us-west-2"), ("us-west-2a", "us-east-1b"), None),
        (("us-east-1", "us-west-2"), (), None),
        (
            ("us-east-1", "us-west-2"),
            ("us-east-1a", "us-west-2b", "eu-west-1a"),
            "resources.zones: eu-west-1a is in none of us-east-1, us-west-2; name zones of these, or `any`",
        ),
        (
            ("us-east-1", "us-west-2"),
            ("us-east-1a",),
            "resources.zones: none is in us-west-2; name one there, or leave us-west-2 out of resources.region",
        ),
        (("us-central1", "vision-1/us-central1"), (), "resources.region: names us-central1 twice"),
        # The provider of one region checks its zones itself.
        ("us-east-1", ("elsewhere",), None),
    ],
)
def test_each_zone_belongs_to_one_of_the_regions(
    regions: str | tuple[str, ...], zones: tuple[str, ...], why: str | None
) -> None:
    assert Resources(region=regions, zones=zones).regions_problem() == why
