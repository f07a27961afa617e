"""`stoker check` is short where all is well, and tells one trouble once."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from stoker.cli import check
from stoker.model.errors import StoreDenied
from stoker.model.resources import Resources
from stoker.model.spec import Spec
from stoker.providers.base import CheckResult

ALLOWED = [
    CheckResult(f"ec2:{name}", True, "allowed") for name in ("RunInstances", "DescribeInstances", "DescribeTags")
]
DENIED = CheckResult("ec2:DescribeVolumes", False, "denied", "add it")
UNTRIED = [CheckResult(f"ec2:{name}", None, "cannot be tried", "later") for name in ("DeleteVolume", "CreateTags")]


def shown(capsys: pytest.CaptureFixture[str], *findings: CheckResult) -> list[str]:
    check._print_together(list(findings))
    return capsys.readouterr().out.splitlines()


def test_what_may_be_done_is_one_line_and_each_failure_another(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, ALLOWED[0], UNTRIED[0], DENIED, *ALLOWED[1:], UNTRIED[1]) == [
        "✓ may: 3 of the 6 that a governor needs",
        "! ec2:DeleteVolume, ec2:CreateTags: cannot be tried",
        "    later",
        "✗ ec2:DescribeVolumes: denied",
        "    add it",
    ]


def test_where_everything_is_allowed_nobody_reads_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, *ALLOWED) == ["✓ may: all 3 that a governor needs"]


def test_quotas_are_one_line_with_their_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    large, small = (CheckResult(f"quota of {name}", True, f"{count} vCPUs") for name, count in (("A", 64), ("B", 5)))
    none = [CheckResult(f"quota of {name}", None, "0 vCPUs: none can be had", f"ask for {name}") for name in ("C", "D")]
    unknown = [CheckResult(f"quota of {name}", None, "could not be told") for name in ("E", "F")]
    assert shown(capsys, large, none[0], small, none[1], *unknown) == [
        "✓ quota: A (64 vCPUs), B (5 vCPUs)",
        "! quota of C: 0 vCPUs: none can be had",
        "    ask for C",
        "! quota of D: 0 vCPUs: none can be had",
        "    ask for D",
        "! quota of E, F: could not be told",
    ]


def test_what_stands_alone_stays_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    alone = (ALLOWED[0], UNTRIED[0], CheckResult("quota of A", True, "64 vCPUs"), CheckResult("image", True, "ami-1"))
    assert [shown(capsys, each)[0] for each in alone] == [
        "✓ ec2:RunInstances: allowed",
        "! ec2:DeleteVolume: cannot be tried",
        "✓ quota of A: 64 vCPUs",
        "✓ image: ami-1",
    ]


class Refusing:
    """A bucket that nobody gets into."""

    url = "s3://bucket/team"

    def create(self, *_: Any) -> bool:
        raise StoreDenied(f"{self.url} refused: no")

    get = create


class Looking:
    name = "ec2"

    def __init__(self, *found: CheckResult) -> None:
        self.found = found

    def check_account(self, _spec: Any) -> Iterator[CheckResult]:
        return iter(self.found)


def found(*own: CheckResult) -> dict[str, CheckResult]:
    every = check._findings(Refusing(), Looking(*own), ())  # type: ignore[arg-type]
    return {finding.name: finding for finding in every}


@pytest.mark.parametrize("lacking", ["credentials", "boto3"])
def test_what_the_provider_lacks_is_not_told_of_the_store_too(lacking: str) -> None:
    told = found(CheckResult(lacking, False, "none", "get some"))
    assert [name for name, each in told.items() if each.ok is False] == [lacking]
    assert told["store"].ok is None and "--store" not in told["store"].fix


def test_a_store_that_fails_is_named_once() -> None:
    told = found(CheckResult("credentials", True, "jane"))["store"]
    assert told.ok is False and "--store" in told.fix
    assert told.detail == "s3://bucket/team refused: no"


def test_a_store_that_fails_is_no_reason_not_to_look_at_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    class Watching(Looking):
        def check_account(self, spec: Any) -> Iterator[CheckResult]:
            seen.append(spec.resources.machine)
            return iter(())

    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "stoker.yaml").write_text("run: train\nresources: {provider: ec2, machine: p4d.24xlarge}\n")
    monkeypatch.chdir(tmp_path)
    list(check._findings(Refusing(), Watching(), ()))  # type: ignore[arg-type]
    assert seen == [("p4d.24xlarge",)]


def test_each_region_of_a_job_is_looked_at_and_what_all_share_once(capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[Resources] = []

    class Account:
        name = "ec2"

        def check_account(self, spec: Spec) -> Iterator[CheckResult]:
            asked.append(spec.resources)
            yield CheckResult("credentials", True, "jane")
            yield CheckResult("region", True, f"{spec.resources.only_region} answers")
            yield from ALLOWED
            yield CheckResult("image", spec.resources.only_region == "a-1", "ami-1", "name another")

    several = Spec("x", "true", resources=Resources(region=("a-1", "b-2"), zones=("b-2x", "a-1x")))
    found = list(check._in_each_region(Account(), several))
    assert [(each.region, each.name) for each in found if each.ok is False] == [("b-2", "image")]
    assert [each.zones for each in asked] == [("a-1x",), ("b-2x",)]
    for _, alike in groupby(found, lambda each: (each.region, check._kind(each))):
        check._print_together(list(alike))
    assert capsys.readouterr().out.splitlines() == [
        "✓ credentials: jane",
        "✓ a-1 region: a-1 answers",
        "✓ a-1 may: all 3 that a governor needs",
        "✓ a-1 image: ami-1",
        "✓ b-2 region: b-2 answers",
        "✓ b-2 may: all 3 that a governor needs",
        "✗ b-2 image: ami-1",
        "    name another",
    ]
    one = Spec("x", "true", resources=Resources(region="a-1"))
    assert {each.region for each in check._in_each_region(Account(), one)} == {""}
