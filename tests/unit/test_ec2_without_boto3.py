"""A computer without boto3 says so in one line, whatever is asked of EC2."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from command_line import run

from stoker.model import keys
from stoker.model.errors import UserError
from stoker.model.resources import Resources
from stoker.model.spec import Spec
from stoker.providers.base import ShellRequest
from stoker.providers.ec2.provider import Ec2Provider
from stoker.providers.registry import Context
from stoker.store.base import open_store

NEEDS = "ec2 needs boto3; pip install 'stoker[aws]'"
MACHINE = "i-0123456789abcdef0"


@pytest.fixture(autouse=True)
def without_boto3(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # What None stands for cannot be imported; what was imported before is as if it had not been.
    for name in {*sys.modules, "boto3", "botocore"}:
        if name.partition(".")[0] in ("boto3", "botocore"):
            monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("STOKER_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("region", [None, "us-east-1"])
def test_every_question_to_ec2_says_so(region: str | None) -> None:
    provider = Ec2Provider(Context(store="s3://bucket/team"))
    spec = Spec(name="j", run="true", resources=Resources(provider="ec2", region=region))
    for ask in (
        lambda: provider.list_instances(region),
        lambda: provider.list_leftovers(region),
        lambda: provider.state([MACHINE], region),
        lambda: provider.terminate(MACHINE, region),
        lambda: provider.interrupt(MACHINE, 60.0, region),
        lambda: provider.shell_command(MACHINE, ShellRequest(), spec, region).__enter__(),
        lambda: provider.offerings(spec.resources),
    ):
        with pytest.raises(UserError, match=r"^resources\.provider: ec2 needs boto3; pip install 'stoker\[aws\]'$"):
            ask()


def test_the_commands_say_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, err = run(capsys, "prices", "--provider", "ec2", "--refresh")
    assert (code, err) == (2, f"stoker: resources.provider: {NEEDS}\n")

    open_store(str(tmp_path / "store")).create(keys.place("ec2", "us-east-1"), b"")
    code, _, err = run(capsys, "reap", "--dry-run")
    assert f"ec2 us-east-1: resources.provider: {NEEDS}\n" in err and "unexpected" not in err
    assert all(NEEDS in line for line in err.splitlines()) and "botocore" not in err


def test_check_tells_how_to_get_it(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "check", "ec2")
    assert code == 2
    assert out.endswith("✗ boto3: ec2 needs boto3\n    pip install 'stoker[aws]'\n")
    assert out.count("✗") == 1 and "aws configure" not in out
