"""The plan of a job on EC2: what a dry run tells without asking anybody, and what it refuses."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from stoker.cli import main
from stoker.cli.plan_view import old_prices
from stoker.core.policy_rules import EffectiveLimits
from stoker.model.offerings import Offering
from stoker.model.resources import Ec2Resources, Gpus, Resources
from stoker.model.spec import Limits, Spec
from stoker.providers.ec2 import catalog, offers, places, prices
from stoker.submit import agent_bundle
from stoker.submit.agent_bundle import AgentArchive, NoAgentAvailable
from stoker.submit.choose_offerings import spot_left_out

pytestmark = pytest.mark.slow

Plan = Callable[..., tuple[int, str, str]]


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Plan:
    """A dry run in a folder with a job file; answers the exit code, stdout and stderr."""
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("STOKER_STORE", "s3://bucket/team")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_EC2", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    Path("stoker.yaml").write_text(
        "run: python3 train.py\nlimits: {max_runtime: 1h}\n"
        "resources: {provider: ec2, machine: [c7i.large, m7i.large], spot: prefer}\n"
    )
    served(monkeypatch, "cp310-x86_64", "cp311-x86_64", "cp310-arm64", "cp311-arm64")

    def run(*sets: str, flags: tuple[str, ...] = ()) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main(["run", "--dry-run", *flags, *(word for text in sets for word in ("--set", text))])
        captured = capsys.readouterr()
        assert isinstance(left.value.code, int)
        return left.value.code, captured.out, captured.err

    return run


def served(monkeypatch: pytest.MonkeyPatch, *tags: str) -> None:
    """Agents can be built for these machines alone."""

    def build(tag: str, *, offline: bool) -> AgentArchive:
        assert offline
        if tag not in tags:
            raise NoAgentAvailable(f"{tag} is not there")
        return AgentArchive(tag, "d" * 64, Path(), 1)

    monkeypatch.setattr(agent_bundle, "build_archive", build)


def offered(told: tuple[int, str, str]) -> dict[str, Any]:
    code, out, err = told
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)["offering"]
    return found


def refused(told: tuple[int, str, str]) -> str:
    code, out, err = told
    assert (code, out) == (2, "") and err.count("\n") == 1, err
    return err


# ── Prices ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_known_to_be_too_dear_is_not_in_the_plan(plan: Plan) -> None:
    _, _, err = plan("resources.max_price=0.09")
    assert "c7i.large" in err and "m7i.large" in err and "$0.0892/h" in err
    # m7i.large costs more on demand; what it costs as spot, nobody was asked.
    rows = [line.split() for line in err.splitlines() if line.startswith("  m7i.large")]
    assert [row[-2:] for row in rows] == [["price", "unknown"]]
    assert offered(plan("resources.max_price=0.001", flags=("--json",)))["spot"] is True


def test_a_price_that_nothing_has_is_refused_with_the_cheapest_there_is(plan: Plan) -> None:
    assert (
        "no fitting offering is known to cost at most resources.max_price ($0.001/h); "
        "the cheapest known is c7i.large at $0.0892/h"
    ) in refused(plan("resources.max_price=0.001", "resources.spot=false"))


def test_a_bound_on_cost_does_not_need_prices_that_nobody_was_asked_for(plan: Plan) -> None:
    assert offered(plan("limits.max_cost=5", "resources.spot=true", flags=("--json",)))["price"] is None


def test_the_plan_tells_what_an_old_table_is_worth(plan: Plan) -> None:
    (offering,) = offers.offline(Resources(provider="ec2", region="us-east-1", machine=("c7i.large",)))[:1]
    made = prices.tables()["us-east-1"].date
    assert old_prices((offering,), made + timedelta(days=90)) == ""
    said = "on-demand prices are 91 days old; `stoker prices --provider ec2 --refresh` fetches today's"
    assert old_prices((offering,), made + timedelta(days=91)) == said
    assert old_prices((replace(offering, provider="local"),), made + timedelta(days=91)) == ""
    today = old_prices((offering,))
    assert (today in plan()[2]) and bool(today) == ("days old" in plan()[2])


def test_what_is_known_of_the_worst_case_is_told(plan: Plan) -> None:
    told = "at most $0.10 (1h 00m of training at $0.10/h if all of it were on-demand; starting and saving come on top)"
    assert f"  worst case: {told}\n" in plan()[2]


def test_a_boot_script_is_not_printed_to_be_read(plan: Plan) -> None:
    _, out, _ = plan()
    assert re.search(r'"UserData": "\(1[0-9]\.[0-9] kB of user-data; --json shows it\)"', out) and "#!/bin" not in out
    _, whole, _ = plan(flags=("--json",))
    assert json.loads(whole)["requests"][-1]["params"]["UserData"].startswith("#!/bin/bash\n")


# ── Agents ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_machines_whose_agent_is_not_here_yet_can_be_planned(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    served(monkeypatch, "cp311-x86_64")
    code, out, err = plan("resources.machine=c7g.large")
    assert code == 0 and '"InstanceType": "c7g.large"' in out
    (told,) = [line for line in err.splitlines() if line.startswith("warning: resources.machine: ")]
    assert "arm64" in told and "digest is not known" in told and "the run itself fetches" in told


@pytest.mark.parametrize(
    ("image", "said"),
    [
        (None, False),
        ("ubuntu/24.04", False),
        ("debian/12", False),
        ("debian/13", False),
        ("dlami/pytorch", False),
        # Built on a distribution with Python 3.10, whatever is installed beside it.
        ("dlami/base", True),
        ("ubuntu/22.04", True),
        ("ami-0123456789abcdef0", True),
        ("ssm:/own/image", True),
    ],
)
def test_an_old_python_is_a_word_only_where_an_image_may_have_it(
    image: str | None, said: bool, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    served(monkeypatch, "cp311-x86_64")
    code, _, err = plan(*([f"resources.image={image}"] if image else []))
    assert code == 0
    assert ("cp310-x86_64 is not there" in err) == said


# ── What cannot be ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("assigned", "said"),
    [
        (
            "resources.zones=[us-west-2a]",
            "resources.zones: us-west-2a is not in us-east-1; name zones such as us-east-1a",
        ),
        ("resources.zones=[us-east-1a, us-east-12]", "resources.zones: us-east-12 is not in us-east-1"),
        ("resources.zones=[us-west-2-lax-1a]", "resources.zones: us-west-2-lax-1a is not in us-east-1"),
        ("resources.zones=[use1-az1]", "resources.zones: use1-az1 is not in us-east-1"),
        ("resources.region=mars-1", "resources.region: AWS has no region 'mars-1'; name one such as us-east-1"),
        ("resources.region=eu-west1", "resources.region: AWS has no region 'eu-west1'; did you mean eu-west-1?"),
        ("resources.ec2.efa=true", "resources.ec2.efa: c7i.large has no Elastic Fabric Adapter"),
        (
            "resources.ec2.overrides={CpuOption: {ThreadsPerCore: 1}}",
            "resources.ec2.overrides.CpuOption: RunInstances has no such field; did you mean CpuOptions?",
        ),
        (
            "resources.ec2.overrides={CpuOptions: {ThreadsPerCores: 1}}",
            "overrides.CpuOptions.ThreadsPerCores: RunInstances has no such field; did you mean ThreadsPerCore?",
        ),
        ("resources.ec2.overrides={CpuOptions: 1}", "resources.ec2.overrides.CpuOptions: must be a mapping"),
        (
            "resources.ec2.overrides={BlockDeviceMappings: [{Ebs: {Colour: red}}]}",
            "resources.ec2.overrides.BlockDeviceMappings[0].Ebs.Colour: RunInstances has no such field",
        ),
        ("resources.ec2.overrides={BlockDeviceMappings: {Ebs: {}}}", "overrides.BlockDeviceMappings: must be a list"),
        ("resources.ec2.overrides={CpuOptions: {ThreadsPerCore: one}}", "CpuOptions.ThreadsPerCore, value: one"),
    ],
)
def test_what_cannot_be_is_told_without_asking_anybody(assigned: str, said: str, plan: Plan) -> None:
    assert said in refused(plan(assigned))


@pytest.mark.parametrize(
    "assigned",
    [
        "resources.zones=[us-east-1a, us-east-1-bos-1a, us-east-1-wl1-bos-wlz-1]",
        # A region of tomorrow: called as regions are.
        "resources.region=eu-north-9",
        "resources.region=us-gov-east-1",
        "resources.ec2.overrides={CpuOptions: {ThreadsPerCore: 1}, Monitoring: {Enabled: true}}",
    ],
)
def test_what_can_be_is_planned(assigned: str, plan: Plan) -> None:
    assert plan(assigned)[0] == 0


def test_the_region_of_the_environment_is_looked_at_too(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "mars-1")
    assert "resources.region: AWS has no region 'mars-1'" in refused(plan())
    # Somebody's own cloud may call its regions anything.
    monkeypatch.setenv("AWS_ENDPOINT_URL_EC2", "http://10.0.0.1")
    assert plan()[0] == 0


def test_without_botocore_what_it_alone_knows_is_left_to_ec2(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    places._partitions.cache_clear()
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "botocore" else find_spec(name))
    assert plan("resources.region=mars-1")[0] == 0
    assert plan("resources.ec2.overrides={CpuOption: 1}")[0] == 0
    places._partitions.cache_clear()


def test_machines_without_efa_are_no_candidates_for_a_job_with_it() -> None:
    resources = Resources(provider="ec2", region="us-east-1", gpus=Gpus("A100", 8), ec2=Ec2Resources(efa=True))
    assert all(machine.efa_interfaces for machine in catalog.fitting(resources))
    small = Resources(provider="ec2", region="us-east-1", gpus=Gpus("T4", 1), ec2=Ec2Resources(efa=True))
    assert all(machine.efa_interfaces for machine in catalog.fitting(small))
    assert catalog.fitting(replace(small, ec2=None)) != catalog.fitting(small)


def test_spot_that_is_left_out_for_want_of_a_price_is_told() -> None:
    spot = Offering("ec2", "c7i.large", "us-east-1a", spot=True, price=0.04)
    paid = replace(spot, spot=False, price=0.1)
    spec = Spec(name="x", run="true", resources=Resources(provider="ec2", spot="prefer"), limits=Limits(max_cost=5.0))
    (line,) = spot_left_out(EffectiveLimits(spec, {}), (paid,), (replace(spot, price=None), paid))
    assert line.startswith("spot is left out: limits.max_cost needs a known price; `stoker prices --provider ec2")
    assert spot_left_out(EffectiveLimits(spec, {}), (spot, paid), (spot, paid)) == ()
    assert (
        spot_left_out(EffectiveLimits(replace(spec, limits=Limits()), {}), (paid,), (replace(spot, price=None), paid))
        == ()
    )


# ── Names that no table has ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [("us-esat-1", "us-east-1"), ("eu-centrla-1", "eu-central-1"), ("ap-sotheast-2", "ap-southeast-2")],
)
def test_a_region_that_is_almost_one(plan: Plan, wrong: str, meant: str) -> None:
    assert f"resources.region: AWS has no region '{wrong}'; did you mean {meant}?" in refused(
        plan(f"resources.region={wrong}")
    )


@pytest.mark.parametrize(
    ("field", "name", "more"),
    [
        ("region", "us-east-9", ""),
        ("region", "eu-northwest-1", ""),
        ("zones", "us-east-1z", ""),
        ("machine", "p9.48xlarge", "; the nearest that is: p5.48xlarge"),
        ("machine", "g5.3xlarge", "; the nearest that is: g5.xlarge"),
    ],
)
def test_what_may_be_new_is_told_in_one_line(plan: Plan, field: str, name: str, more: str) -> None:
    code, _, err = plan(f"resources.{field}={name if field == 'region' else f'[{name}]'}")
    assert code == 0
    (line,) = [line for line in err.splitlines() if "not in Stoker's table" in line]
    assert line.endswith(f"resources.{field}: {name} is not in Stoker's table, so it was not checked{more}")


def test_what_the_tables_have_needs_no_word(plan: Plan) -> None:
    assert "not in Stoker's table" not in plan("resources.zones=[us-east-1a, us-east-1f]")[2]
    for region in (*places._partitions()[1], *prices.tables()):
        places.check(region)
        assert places.unchecked(region) == ()
