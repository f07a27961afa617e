"""Which image a machine boots: of whose images, the newest that can be launched, and made for its processor."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from typing import Any

import pytest
from test_ec2_request import C7I, order

from stoker.model.errors import InvalidRequest, UserError
from stoker.providers.ec2 import image_lookup, images, request
from stoker.providers.ec2.provider import Ec2Provider
from stoker.providers.registry import Context

NOW = datetime(2026, 11, 19, tzinfo=timezone.utc)
ME, AMAZON, STRANGER = "111111111111", "amazon", "222222222222"
FILTERS = {"name": "Name", "state": "State", "architecture": "Architecture"}


def image(name: str, created: str, owner: str = ME, **facts: Any) -> dict[str, Any]:
    known = {"ImageId": f"ami-{name.replace('-', '')}", "Name": name, "CreationDate": created, "owner": owner}
    return known | {"State": "available", "Architecture": "x86_64", "RootDeviceName": "/dev/xvda", **facts}


class Ec2:
    """DescribeImages, as it is documented.

    `Owners`: "Scopes the results to images with the specified owners. You can specify a combination of Amazon Web
    Services account IDs, self, amazon, aws-backup-vault, and aws-marketplace. If you omit this parameter, the results
    include all images for which you have launch permissions, regardless of ownership."
    """

    def __init__(self, *known: dict[str, Any]) -> None:
        self._known = known
        self.asked: list[dict[str, Any]] = []

    def describe_images(self, **asked: Any) -> dict[str, Any]:
        self.asked.append(asked)
        owners = [ME if owner == "self" else owner for owner in asked.get("Owners", ())]
        found = [
            each
            for each in self._known
            if ("ImageIds" not in asked or each["ImageId"] in asked["ImageIds"])
            and (not owners or each["owner"] in owners)
            and all(
                any(fnmatchcase(each[FILTERS[one["Name"]]], value) for value in one["Values"])
                for one in asked.get("Filters", ())
            )
        ]
        # In two pages, as "We strongly recommend using only paginated requests" implies.
        if "NextToken" in asked:
            return {"Images": found[1:]}
        return {"Images": found[:1], "NextToken": "more"} if len(found) > 1 else {"Images": found}


def launched(ec2: Ec2, wanted: str, machine: str = "c7i.large") -> str:
    """The id of the image in the request to launch."""
    provider = Ec2Provider(Context(store="s3://bucket/team"))
    provider.clients.get = lambda *_, **__: ec2  # type: ignore[method-assign]
    asked = order(replace(C7I, machine=machine), image=wanted)
    (run,) = provider.resolved(provider.build(asked))
    assert run.params["BlockDeviceMappings"][0]["DeviceName"] == "/dev/xvda"
    return str(run.params["ImageId"])


def test_a_strangers_image_of_the_same_name_is_not_taken() -> None:
    ec2 = Ec2(
        image("train-1", "2026-01-01"),
        image("train-2", "2026-02-01"),
        image("train-3", "2026-03-01", owner=AMAZON),
        image("train-9", "2026-09-01", owner=STRANGER),
    )
    assert launched(ec2, "train-*") == "ami-train3"
    assert launched(ec2, "self/train-*") == "ami-train2"
    assert launched(ec2, f"{STRANGER}/train-*") == "ami-train9"


def test_the_image_is_for_the_machines_processor() -> None:
    ec2 = Ec2(image("train-1", "2026-01-01"), image("train-2", "2026-02-01", Architecture="arm64"))
    assert launched(ec2, "train-*") == "ami-train1"
    assert launched(ec2, "train-*", "c7g.large") == "ami-train2"
    with pytest.raises(InvalidRequest, match=r"resources\.image: ami-train2 is for arm64, and c7i\.large is x86_64"):
        launched(Ec2(*ec2._known), "ami-train2")


@pytest.mark.parametrize(
    "facts",
    [{"State": state} for state in ("pending", "invalid", "deregistered", "transient", "failed", "error", "disabled")]
    # "If you are the AMI owner, all deprecated AMIs appear in the response regardless of what you specify."
    + [{"DeprecationTime": "2026-11-18T23:59:59.000Z"}, {"Architecture": "i386"}],
)
def test_what_cannot_or_should_not_be_launched_is_not_taken(facts: dict[str, str]) -> None:
    good, newer = image("train-1", "2026-01-01"), image("train-2", "2026-02-01", **facts)
    assert image_lookup.newest([newer, good], "x86_64", NOW) is good
    assert image_lookup.newest([newer], "x86_64", NOW) is None
    future = good | {"DeprecationTime": "2026-11-20T00:00:00.000Z"}
    assert image_lookup.newest([future], "x86_64", NOW) is future


def test_nothing_that_fits_is_one_line_with_the_owners_asked() -> None:
    old = image("old-1", "2020-01-01", DeprecationTime="2022-01-01T00:00:00.000Z")
    ec2 = Ec2(image("train-9", "2026-09-01", owner=STRANGER), old)
    with pytest.raises(InvalidRequest) as bare:
        launched(ec2, "train-*")
    assert str(bare.value) == (
        "resources.image: no available x86_64 image of this account (self) or amazon is named train-* in this region; "
        "write OWNER/NAME for the image of another account"
    )
    with pytest.raises(InvalidRequest) as owned:
        launched(ec2, f"{STRANGER}/none")
    assert str(owned.value) == (
        f"resources.image: no available x86_64 image of {STRANGER} is named none in this region"
    )
    with pytest.raises(InvalidRequest, match="; those of that name are deprecated"):
        launched(ec2, "old-*")


@pytest.mark.parametrize(
    ("wanted", "owners", "name"),
    [
        ("Our image 7", ("self", "amazon"), "Our image 7"),
        # Names of images may have slashes: "You can use letters, digits, (, ), [, ], spaces, ., /, -, ', @ and _".
        ("team/vision/train-*", ("self", "amazon"), "team/vision/train-*"),
        ("099720109477/ubuntu/images/hvm-ssd/x-*", ("099720109477",), "ubuntu/images/hvm-ssd/x-*"),
        # "image_owner_id": "099720109477", "ImageOwnerAlias": "amazon" (an answer of DescribeImages).
        ("ubuntu/images/hvm-ssd-gp3/x-*", ("self", "amazon"), "ubuntu/images/hvm-ssd-gp3/x-*"),
        ("aws-marketplace/x", ("aws-marketplace",), "x"),
        ("amazon/Deep Learning*", ("amazon",), "Deep Learning*"),
    ],
)
def test_an_owner_may_be_written(wanted: str, owners: tuple[str, ...], name: str) -> None:
    assert images.find(wanted, "x86_64") == images.Ec2Image(None, name=name, owners=owners)


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("12345678901/train", "the owner 12345678901 has 11 digits; an account id has 12"),
        ("self/", "self/ names an owner and no image"),
        ("ubuntu/25.04", "there is no ubuntu/25.04; known are"),
    ],
)
def test_an_owner_that_is_none_is_refused_before(wanted: str, said: str) -> None:
    with pytest.raises(UserError) as raised:
        request.check(order(image=wanted).spec)
    assert str(raised.value).startswith("resources.image: ") and said in str(raised.value)
