"""Names, labels and places on Compute Engine: what fits into Google's alphabet, and what is read back from it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stoker.model.errors import UserError
from stoker.model.offerings import Offering
from stoker.model.resources import GceResources, Resources
from stoker.model.spec import Spec
from stoker.providers.base import LaunchOrder
from stoker.providers.gce import labels, names, places
from stoker.providers.gce.places import ProjectRegion

VALUE = re.compile(r"[a-z0-9_-]*")
KEY = re.compile(r"[a-z][a-z0-9_-]*")
NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


def order(job: str = "gpt-7f3k", claim: int = 4, nodes: int = 1, **tags: str) -> LaunchOrder:
    spec = Spec(name="gpt", run="true", nodes=nodes, resources=Resources(provider="gce"), tags=tags)
    offering = Offering("gce", "g2-standard-8", "us-central1-a", True, "vision-1/us-central1", gpu="L4", gpus=1)
    return LaunchOrder(
        job=job,
        name="gpt",
        claim=claim,
        nodes=nodes,
        attempt=2,
        store="gs://bucket/team",
        spec=spec,
        submitter="Jane.Doe@Laptop",
        offering=offering,
    )


class TestTheAlphabet:
    @given(st.text())
    def test_a_value_comes_back_as_it_was(self, text: str) -> None:
        label = labels.encode(text)
        assert VALUE.fullmatch(label)
        assert labels.decode(label) == text

    @given(st.text())
    def test_a_key_comes_back_as_it_was(self, text: str) -> None:
        label = labels.encode_key(text)
        assert KEY.fullmatch(label)
        assert labels.decode_key(label) == text

    # Where escapes are found and made: the underscore, its digits, and the mark of a key.
    @given(st.text(alphabet="_k0af5\0é-"), st.text(alphabet="_k0af5\0é-"))
    @example("k\0a", "a")
    @example("_5f", "_")
    def test_no_two_become_one(self, one: str, other: str) -> None:
        assert labels.decode(labels.encode(one)) == one
        assert labels.decode_key(labels.encode_key(one)) == one
        assert (labels.encode(one) == labels.encode(other)) == (one == other)
        assert (labels.encode_key(one) == labels.encode_key(other)) == (one == other)

    @pytest.mark.parametrize(
        ("text", "label"),
        [
            ("vision", "vision"),
            ("gpt-7f3k", "gpt-7f3k"),
            ("my_tag", "my_tag"),
            ("cost_center", "cost_5fcenter"),
            ("Jane", "_4aane"),
            ("a b", "a_20b"),
            ("é", "_c3_a9"),
            ("", ""),
        ],
    )
    def test_what_fits_stays_as_it_is(self, text: str, label: str) -> None:
        assert labels.encode(text) == label

    @pytest.mark.parametrize(("text", "label"), [("7days", "k_007days"), ("Team", "k_00_54eam"), ("", "k_00")])
    def test_a_key_begins_with_a_letter(self, text: str, label: str) -> None:
        assert labels.encode_key(text) == label

    @given(st.from_regex(r"[a-z0-9_-]{0,63}", fullmatch=True))
    def test_labels_of_others_can_be_read(self, label: str) -> None:
        assert isinstance(labels.decode(label), str)
        assert isinstance(labels.decode_key(label), str)


class TestLabels:
    def test_those_of_an_order(self) -> None:
        assert labels.of_order(order(project="vision", Team="A/B")) == {
            "stoker-job": "gpt-7f3k",
            "stoker-claim": "4",
            "stoker-store": "gs_3a_2f_2fbucket_2fteam",
            "stoker-submitter": "_4aane_2e_44oe_40_4captop",
            "project": "vision",
            "k_00_54eam": "_41_2f_42",
        }

    def test_tags_are_read_back(self) -> None:
        tags = {"project": "vision", "Team": "A/B", "7": "", "über": "ü" * 9}
        assert labels.tags_of(labels.of_order(order(**tags))) == tags

    def test_a_long_store_is_told_by_its_digest(self) -> None:
        short, long, longer = (labels.store_label(f"gs://bucket/{'x' * n}") for n in (20, 60, 61))
        assert short == "gs_3a_2f_2fbucket_2f" + "x" * 20
        assert len(long) == 63 and long.startswith("sha256-") and long != longer

    def test_a_long_submitter_is_cut_between_its_letters(self) -> None:
        label = labels.of_order(replace(order(), submitter="É" * 50))["stoker-submitter"]
        assert len(label) <= 63
        assert set(labels.decode(label)) == {"É"}

    @pytest.mark.parametrize(
        ("key", "value", "said"),
        [
            ("stoker-job", "x", "tags.stoker-job: is set by Stoker"),
            ("goog-x", "x", "belong to Google"),
            ("", "x", "has no name"),
            ("k" * 64, "x", "the name has 64 characters as a label; Compute Engine takes 63"),
            ("project", "É" * 11, "the value has 66 characters as a label (_c3_89_c3_89… there)"),
        ],
    )
    def test_a_tag_that_does_not_fit_is_refused_before(self, key: str, value: str, said: str) -> None:
        with pytest.raises(UserError) as raised:
            labels.check({key: value})
        assert said in str(raised.value)

    def test_as_many_as_google_takes(self) -> None:
        labels.check({f"k{n}": "" for n in range(60)})
        with pytest.raises(UserError, match="takes 60 beside Stoker's own, found 61"):
            labels.check({f"k{n}": "" for n in range(61)})


class TestNames:
    def test_a_machine_is_named_after_its_claim_and_rank(self) -> None:
        assert re.fullmatch(r"stoker-gpt-7f3k-4-[0-9a-f]{8}-3", names.machine(order(nodes=4), 3))
        assert [names.rank(name) for name in names.machines(order(nodes=3))] == [0, 1, 2]

    @given(st.from_regex(r"[a-z][a-z0-9-]{0,80}", fullmatch=True), st.integers(1, 99_999_999), st.integers(0, 9999))
    def test_it_is_a_name_that_google_takes(self, job: str, claim: int, rank: int) -> None:
        name = names.machine(order(job, claim), rank)
        assert NAME.fullmatch(name), name
        assert names.rank(name) == rank

    def test_the_same_claim_elsewhere_has_another_name(self) -> None:
        mine = names.machine(order(), 0)
        assert mine != names.machine(replace(order(), store="gs://other"), 0)
        assert mine != names.machine(order(claim=5), 0)
        assert names.machine(order("x" * 70), 0) != names.machine(order("x" * 71), 0)

    @pytest.mark.parametrize("name", ["web-1", "stoker-", "stoker-x", "my-stoker-1-2"])
    def test_names_of_others_tell_no_rank(self, name: str) -> None:
        assert names.rank(name) is None


def test_tags_that_are_kept_under_another_name_are_told_in_one_line() -> None:
    assert labels.remarks({"team": "vision", "cost-centre": "7"}) == ()
    (capitals,) = labels.remarks({"Team": "Vision"})
    assert capitals == (
        "Compute Engine's labels are lower-case: tag Team is stored as k_00_54eam=_56ision; "
        "write team: vision to filter by it"
    )
    (escaped,) = labels.remarks({"cost_centre": "7"})
    assert escaped == (
        "Compute Engine's labels have an alphabet of their own: tag cost_centre is stored as cost_5fcentre=7; "
        "write cost-centre: 7 to filter by it"
    )
    (several,) = labels.remarks({"team": "vision", "Owner": "jane@example.com", "Team": "x"})
    assert several.endswith(", and 1 more alike; write owner: jane-example-com to filter by it")


class TestPlaces:
    @pytest.mark.parametrize("text", ["vision-1/us-central1", "example.com:vision-1/europe-west4"])
    def test_a_place_is_read_back(self, text: str) -> None:
        assert str(ProjectRegion.of(text)) == text

    @pytest.mark.parametrize("text", ["us-central1", "/us-central1", "a/b/c", "vision-1/", ""])
    def test_what_is_none(self, text: str) -> None:
        with pytest.raises(UserError, match="PROJECT/REGION"):
            ProjectRegion.of(text)

    def test_a_machine_is_its_zone_and_number(self) -> None:
        name = places.instance_id("us-central1-a", 4242424242424242424)
        assert name == "us-central1-a.4242424242424242424"
        assert places.split_id(name) == ("us-central1-a", "4242424242424242424")
        for other in ("never-there", "i-0abc", "us-central1-a.name", ".42", ""):
            with pytest.raises(ValueError):
                places.split_id(other)

    def test_the_region_of_a_zone(self) -> None:
        assert places.region_of("us-central1-a") == "us-central1"
        assert places.region_of("us-south1-ai1b") == "us-south1"

    def test_what_a_job_names_wins_over_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("GOOGLE_CLOUD_PROJECT", "CLOUDSDK_CORE_PROJECT", "CLOUDSDK_COMPUTE_REGION"):
            monkeypatch.delenv(name, raising=False)
        named = Resources(region="us-east1", gce=GceResources(project="vision-1"))
        assert places.find(named) == ProjectRegion("vision-1", "us-east1")
        with pytest.raises(UserError, match=r"^resources\.gce\.project: "):
            places.find(Resources(region="us-east1"))
        assert places.find(Resources(region="us-east1"), "from-adc") == ProjectRegion("from-adc", "us-east1")
        monkeypatch.setenv("CLOUDSDK_CORE_PROJECT", "from-gcloud")
        with pytest.raises(UserError, match=r"^resources\.region: .*CLOUDSDK_COMPUTE_REGION"):
            places.find(Resources())
        monkeypatch.setenv("CLOUDSDK_COMPUTE_REGION", "us-west4")
        assert places.find(Resources(), "from-adc") == ProjectRegion("from-gcloud", "us-west4")
        monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "from-environ")
        assert places.find(Resources()) == ProjectRegion("from-environ", "us-west4")
        assert places.find(named) == ProjectRegion("vision-1", "us-east1")

    def test_a_frozen_place_is_where_it_was(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "another-1")
        assert places.find(Resources(region="vision-1/us-east1")) == ProjectRegion("vision-1", "us-east1")
        with pytest.raises(UserError, match=r"resources\.gce\.project: other-1 is not the project"):
            places.find(Resources(region="vision-1/us-east1", gce=GceResources(project="other-1")))

    @pytest.mark.parametrize(
        ("region", "zones", "said"),
        [
            ("us-central1-a", (), "did you mean us-central1?"),
            ("mars", (), "no region 'mars'; name one such as us-central1"),
            ("us-central1", ("us-east1-b",), "resources.zones: us-east1-b is not in us-central1"),
            ("us-central1", ("us-central1",), "resources.zones: us-central1 is not in"),
            ("us-central1", ("us-central12-a",), "is not in us-central1"),
        ],
    )
    def test_places_that_cannot_be(self, region: str, zones: tuple[str, ...], said: str) -> None:
        with pytest.raises(UserError) as raised:
            places.check(ProjectRegion("vision-1", region), zones)
        assert said in str(raised.value)

    def test_a_project_is_told_by_its_id(self) -> None:
        with pytest.raises(UserError, match="'My Project' is no project; a project id is lower-case letters"):
            places.check(ProjectRegion("My Project", "us-central1"))
        places.check(ProjectRegion("vision-1", "us-south1"), ("us-south1-a", "us-south1-ai1b"))
