"""The policies allow what Stoker does, and no more."""

from __future__ import annotations

import ast
import json
import re
import subprocess
from collections.abc import Iterator
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from command_line import run

import stoker.providers.ec2 as package
from stoker.model import keys, market_keys
from stoker.model.errors import UserError
from stoker.providers.ec2 import iam, permissions, role_names
from stoker.providers.grants import Grants
from stoker.providers.sagemaker import iam as sagemaker_iam

STORE = "s3://my-bucket/team"
ROLE = role_names.node_role(STORE)
KEY = "arn:aws:kms:us-east-1:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab"
# Whoever launches, lists and ends machines: what a governor runs of the provider.
GOVERNORS_SOURCES = (
    "provider.py",
    "image_lookup.py",
    "leftovers.py",
    "offers.py",
    "reservations.py",
    "several_regions.py",
    "subnets.py",
)


def listed(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def policy(grants: Grants, name: str) -> dict[str, Any]:
    (found,) = [grant.policy for grant in grants.grants if grant.name == name]
    return found


def statements(grants: Grants, name: str, action: str) -> Iterator[dict[str, Any]]:
    for statement in policy(grants, name)["Statement"]:
        if action in listed(statement["Action"]):
            yield statement


def may(grants: Grants, name: str, action: str, key: str) -> bool:
    """Whether an object of the store may be touched so. As IAM matches: * and ? take slashes as well."""
    arn = f"arn:aws:s3:::my-bucket/team/{key}"
    return any(
        fnmatchcase(arn, pattern)
        for statement in statements(grants, name, action)
        for pattern in listed(statement["Resource"])
    )


def called(name: str) -> set[str]:
    """The operations of EC2 that a source file calls."""
    import boto3

    client = boto3.client("ec2", region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b")
    known = client.meta.method_to_api_mapping
    tree = ast.parse((Path(package.__file__).parent / name).read_text(encoding="utf-8"))
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return {f"ec2:{known[method]}" for method in used & set(known)}


def test_a_governor_may_call_what_it_calls_and_nothing_else() -> None:
    calls = set().union(*(called(name) for name in GOVERNORS_SOURCES))
    assert {"ec2:RunInstances", "ec2:TerminateInstances", "ec2:DescribeTags"} <= calls
    allowed = {
        action
        for statement in policy(iam.grants(STORE), "governor")["Statement"]
        for action in listed(statement["Action"])
        if action.startswith(("ec2:", "resource-groups:"))
    }
    # Another service, which the reservations of a group are asked for.
    calls.add("resource-groups:ListGroupResources")
    assert ".list_group_resources" in (Path(package.__file__).parent / "reservations.py").read_text(encoding="utf-8")
    assert allowed == calls == {operation.action for operation in permissions.GOVERNOR}


def test_what_changes_something_is_limited_to_this_stores_tag() -> None:
    grants = iam.grants(STORE)
    for action in ("ec2:TerminateInstances", "ec2:DeleteVolume", "ec2:DeletePlacementGroup", "ec2:GetConsoleOutput"):
        (statement,) = statements(grants, "governor", action)
        assert statement["Condition"] == {"StringEquals": {"aws:ResourceTag/stoker:store": STORE}}
        assert "*" not in listed(statement["Resource"])
    (group,) = statements(grants, "governor", "ec2:CreatePlacementGroup")
    assert group["Condition"] == {"StringEquals": {"aws:RequestTag/stoker:store": STORE}}
    # What a launch makes has to carry the tag; only what it uses has not.
    launching = {statement["Sid"]: statement for statement in statements(grants, "governor", "ec2:RunInstances")}
    assert launching["LaunchTagged"]["Condition"] == group["Condition"]
    assert "arn:aws:ec2:*:*:instance/*" in launching["LaunchTagged"]["Resource"]
    assert not {"instance", "volume"} & {
        arn.split(":")[-1].split("/")[0] for arn in launching["LaunchWith"]["Resource"]
    }
    for statement in statements(grants, "governor", "ec2:CreateTags"):
        assert statement["Condition"]
    (passing,) = statements(grants, "governor", "iam:PassRole")
    assert passing["Resource"] == [f"arn:aws:iam::*:role/{ROLE}*"]
    assert passing["Condition"] == {"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com"}}


def test_the_tag_of_a_long_store_is_its_digest() -> None:
    grants = iam.grants(f"s3://my-bucket/{'long/' * 60}end")
    (statement,) = statements(grants, "governor", "ec2:TerminateInstances")
    assert statement["Condition"]["StringEquals"]["aws:ResourceTag/stoker:store"].startswith("sha256:")


NODE = keys.node("gpt-ab12", 3, 0, keys.boot("i-1", 0))
FACTS = (
    keys.heartbeat(NODE),
    keys.exit_(NODE),
    keys.boot_output(NODE),
    keys.log_chunk(NODE, 1),
    keys.manifest("gpt-ab12", "00000003/000001-step-1"),
    keys.blob("gpt-ab12", 0, "f" * 64),
    f"{keys.outputs('gpt-ab12', 3)}model.bin",
    keys.output_version("gpt-ab12", 3, 0, 1, "model.bin"),
)
DECISIONS = (keys.log_entry("gpt-ab12", 4), keys.active("gpt-ab12", 4), keys.index("gpt-ab12", 4))
GOVERNED = (
    *DECISIONS,
    keys.governor("me"),
    keys.dry("ec2/m/z/spot"),
    f"{market_keys.market_day(date(2026, 1, 1), 'ec2')}m/z/spot/07/gpt-ab12.3.reclaimed.5",
    f"{keys.PROBES}me",
    "places/ec2/us-east-1",
)
SUBMITTED = (keys.spec("gpt-ab12"), keys.code("a" * 64), keys.bundle("b" * 64))


def test_a_node_writes_facts_and_no_decision() -> None:
    grants = iam.grants(STORE)
    for key in FACTS:
        assert may(grants, "node", "s3:PutObject", key), key
        assert may(grants, "node", "s3:DeleteObject", key), key
        assert not may(grants, "governor", "s3:PutObject", key), key
    for key in (*DECISIONS, *SUBMITTED, keys.DEFAULTS, *GOVERNED):
        assert not may(grants, "node", "s3:PutObject", key), key
        assert not may(grants, "node", "s3:DeleteObject", key), key
    for key in (*FACTS, *SUBMITTED, keys.log_entry("gpt-ab12", 1), keys.DEFAULTS):
        assert may(grants, "node", "s3:GetObject", key), key
    assert not may(grants, "node", "s3:GetObject", keys.index("gpt-ab12", 4))
    actions = {action for each in policy(grants, "node")["Statement"] for action in listed(each["Action"])}
    assert all(action.startswith("s3:") for action in actions)


def test_a_governor_decides_and_a_person_submits() -> None:
    grants = iam.grants(STORE)
    for key in GOVERNED:
        assert may(grants, "governor", "s3:PutObject", key), key
    for key in SUBMITTED:
        assert not may(grants, "governor", "s3:PutObject", key), key
    for key in (*SUBMITTED, *DECISIONS, "check/abc", f"{keys.PROBES}clock"):
        assert may(grants, "person", "s3:PutObject", key), key
    for key in (*FACTS, *SUBMITTED, f"{keys.PROBES}clock"):
        # `stoker rm`
        assert may(grants, "person", "s3:DeleteObject", key), key
    for key in (keys.DEFAULTS, *FACTS):
        assert not may(grants, "person", "s3:PutObject", key), key
    for action in ("ec2:RunInstances", "ec2:TerminateInstances"):
        assert not list(statements(grants, "person", action))


def test_tombstones_are_written_and_never_deleted() -> None:
    grants = iam.grants(STORE)
    for key in (keys.removed("gpt-ab12"), keys.collected(keys.CODE, "a" * 64)):
        assert may(grants, "person", "s3:PutObject", key), key
        for who in ("person", "governor", "node"):
            assert not may(grants, who, "s3:DeleteObject", key), key
        for who in ("governor", "node"):
            assert not may(grants, who, "s3:PutObject", key), key


def test_everybody_may_list_the_store_and_nothing_beside_it() -> None:
    for name in ("person", "governor", "node"):
        (statement,) = statements(iam.grants(STORE), name, "s3:ListBucket")
        assert statement["Condition"] == {"StringLike": {"s3:prefix": ["team", "team/*"]}}
        (whole,) = statements(iam.grants("s3://my-bucket"), name, "s3:ListBucket")
        assert "Condition" not in whole


def test_machines_of_one_name_reach_jobs_of_that_name() -> None:
    grants = iam.grants(STORE, job="gpt")
    assert may(grants, "node", "s3:PutObject", "work/gpt-ab12/00000001/0/i-1.0/heartbeat")
    for other in ("work/gpt-small-ab12/x", "work/vision-ab12/x", "work/gpt-ab12x/x", "jobs/gpt-ab12/log/00000001.json"):
        assert not may(grants, "node", "s3:PutObject", other), other
    assert may(grants, "node", "s3:GetObject", "jobs/gpt-ab12/log/00000001.json")
    assert not may(grants, "node", "s3:GetObject", "jobs/vision-ab12/spec.json")
    # The governor's policy is the same for each: making the next role must not take the last one from it.
    assert policy(grants, "governor") == policy(iam.grants(STORE), "governor")
    assert f"--role-name {ROLE}-gpt" in " ".join(grants.grants[2].commands)
    assert any(f"{ROLE}-gpt" in note for note in grants.notes)


def test_inputs_are_read_only() -> None:
    grants = iam.grants(STORE, inputs=("s3://data/imagenet",))
    reads = [arn for each in statements(grants, "node", "s3:GetObject") for arn in listed(each["Resource"])]
    writes = [arn for each in statements(grants, "node", "s3:PutObject") for arn in listed(each["Resource"])]
    # An input may be one object.
    assert {"arn:aws:s3:::data/imagenet/*", "arn:aws:s3:::data/imagenet"} < set(reads)
    assert not any("data/" in arn for arn in writes)


def test_logs_are_copied_to_one_group() -> None:
    from stoker.cloudapi.aws import logs

    source = Path(logs.__file__).read_text(encoding="utf-8")
    (statement,) = statements(iam.grants(STORE, logs="/stoker/jobs"), "node", "logs:PutLogEvents")
    assert all(f'"{action.removeprefix("logs:")}"' in source for action in statement["Action"])
    assert statement["Resource"][0] == "arn:aws:logs:*:*:log-group:/stoker/jobs"
    assert not list(statements(iam.grants(STORE), "node", "logs:PutLogEvents"))


def test_what_cannot_be_separated_is_said() -> None:
    text = "\n".join(iam.grants(STORE).notes)
    assert "Every node can read and write the work/ folder of every job" in text
    assert "aws:userid" in text and "aws:PrincipalTag" in text


def test_policies_fit() -> None:
    grants = iam.grants(STORE, job="a" * 40, inputs=("s3://data/it's here",), logs="/stoker/jobs")
    for grant in grants.grants:
        # What AWS takes in a managed policy, without white space.
        assert len(json.dumps(grant.policy, separators=(",", ":"))) < 6144
        for statement in grant.policy["Statement"]:
            assert statement["Sid"].isalnum()


@pytest.mark.parametrize(
    ("store", "job", "wrong"),
    [("file:///tmp/x", None, "s3://"), ("s3://", None, "s3://"), (STORE, "Big_Name", "--job")],
)
def test_what_cannot_be_granted(store: str, job: str | None, wrong: str) -> None:
    with pytest.raises(UserError, match=wrong):
        iam.grants(store, job=job)


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path))
    monkeypatch.setenv("STOKER_STORE", STORE)
    code, out, _ = run(capsys, "iam", "ec2", "--policy", "node")
    assert code == 0 and json.loads(out) == policy(iam.grants(STORE), "node")
    code, out, _ = run(capsys, "iam", "ec2", "--json", "--bucket", "s3://other/x/")
    told = json.loads(out)
    assert [grant["name"] for grant in told["grants"]] == ["person", "governor", "node", "interrupter"]
    assert "s3://other/x" in json.dumps(told) and "my-bucket" not in out
    code, out, _ = run(capsys, "iam", "ec2")
    assert code == 0
    assert f"aws iam create-instance-profile --instance-profile-name {ROLE} >" in out
    assert "# What a shared profile cannot separate" in out
    assert run(capsys, "iam", "local")[::2] == (2, "stoker: local needs no permissions of a cloud\n")
    assert run(capsys, "iam", "ec2", "--policy", "king")[0] == 2
    monkeypatch.delenv("STOKER_STORE")
    code, _, err = run(capsys, "iam", "ec2")
    assert code == 2 and "no store is named" in err


def named(grants: Grants) -> set[str]:
    """The names that the commands make or change."""
    text = "\n".join(command for grant in grants.grants for command in grant.commands)
    options = r"--(?:role|policy|instance-profile)-name (\S+)"
    return {name for name in re.findall(options, text) if name != "stoker"} | set(re.findall(r":policy/(\S+)", text))


def test_two_stores_share_an_account_and_no_name() -> None:
    other = "s3://my-bucket/other"
    ours, theirs = named(iam.grants(STORE)), named(iam.grants(other))
    assert len(ours) == len(theirs) == 4 and not ours & theirs
    # Nor may one store's governor give its machines the role of the other store.
    (passing,) = statements(iam.grants(STORE), "governor", "iam:PassRole")
    for role in (role_names.node_role(other), f"{role_names.node_role(other)}-gpt"):
        assert not any(fnmatchcase(f"arn:aws:iam::1:role/{role}", each) for each in passing["Resource"])
    (lending,) = statements(iam.grants(STORE), "person", "iam:PassRole")
    assert listed(lending["Resource"]) == [f"arn:aws:iam::*:role/{role_names.fis_role(STORE)}"]
    assert not named(sagemaker_iam.grants(STORE)) & named(sagemaker_iam.grants(other)) - {"stoker-training"}


def test_names_are_not_too_long() -> None:
    # "Role names: 64 characters", https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_iam-quotas.html
    assert max(map(len, named(iam.grants(STORE, job="j" * 40)))) <= 64


def test_keys_are_used_by_those_that_need_them() -> None:
    grants = iam.grants(STORE, kms_keys=(KEY,))
    for name in ("person", "governor", "node"):
        for action in ("kms:Decrypt", "kms:GenerateDataKey"):
            (used,) = statements(grants, name, action)
            assert used["Resource"] == [KEY]
    (lent,) = statements(grants, "governor", "kms:CreateGrant")
    assert lent["Condition"] == {"Bool": {"kms:GrantIsForAWSResource": "true"}}
    for name in ("person", "node", "interrupter"):
        assert not list(statements(grants, name, "kms:CreateGrant"))
    assert not any("kms:" in json.dumps(grant.policy) for grant in iam.grants(STORE).grants)


@pytest.mark.parametrize("key", ["alias/mine", "arn:aws:kms:us-east-1:123456789012:alias/mine", "1234abcd", ""])
def test_what_is_no_key(key: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "iam", "ec2", "--bucket", STORE, "--kms-key", key)
    assert (code, out) == (2, "") and err.startswith(f"stoker: --kms-key: {key!r} is no key; give its ARN")


def test_a_key_on_another_cloud(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "iam", "gce", "--bucket", "gs://my-bucket/team", "--kms-key", KEY)
    assert (code, out) == (2, "") and err.startswith("stoker: --kms-key: is for keys on AWS")


def test_the_command_takes_keys(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "iam", "ec2", "--bucket", STORE, "--kms-key", KEY, "--policy", "node")
    assert code == 0 and json.loads(out) == policy(iam.grants(STORE, kms_keys=(KEY,)), "node")


@pytest.mark.parametrize(("region", "partition"), [("cn-north-1", "aws-cn"), ("us-gov-west-1", "aws-us-gov")])
def test_other_partitions_have_their_own_names(region: str, partition: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", region)
    found = iam.grants(STORE, logs="/stoker/jobs", inputs=("s3://data",))
    arns = {
        arn.split(":")[1]
        for grant in found.grants
        for statement in grant.policy["Statement"]
        for arn in listed(statement["Resource"])
        if arn != "*"
    }
    assert arns == {partition}
    assert not any("arn:aws:" in note for note in found.notes)
    (node,) = [grant for grant in found.grants if grant.name == "node"]
    assert node.trust is not None
    service = node.trust["Statement"][0]["Principal"]["Service"]
    assert service == ("ec2.amazonaws.com.cn" if partition == "aws-cn" else "ec2.amazonaws.com")


# Keeps what it is asked; answers as the test wants.
AWS = """\
#!/bin/sh
printf '%s\\n' "$*" | tr '\\n' ' ' >> "$CALLS"
printf '\\n' >> "$CALLS"
case "$*" in
  *get-caller-identity*) echo 123456789012 ;;
  *get-*--query*|*list-roles*) [ "$THERE" = 254 ] || echo (ROLE) ;;
  *get-*) exit "$THERE" ;;
  *put-role-policy*) exit "$PUTS" ;;
esac
"""


class Shell:
    """A shell in which nothing is set, with an `aws` that keeps what it is asked."""

    def __init__(self, folder: Path) -> None:
        self.calls = folder / "calls"
        (folder / "aws").write_text(AWS.replace("(ROLE)", ROLE))
        (folder / "aws").chmod(0o755)
        self.environ = {"PATH": f"{folder}:/usr/bin:/bin", "CALLS": str(self.calls)}

    def run(
        self, *command: str, pasted: str | None = None, there: bool = False, puts: bool = True
    ) -> tuple[int, list[str]]:
        """Its exit status, and what `aws` was asked."""
        self.calls.write_text("")
        answers = {"THERE": "0" if there else "254", "PUTS": "0" if puts else "254"}
        ran = subprocess.run(
            command, input=pasted, env=self.environ | answers, text=True, capture_output=True, check=False
        )
        return ran.returncode, self.calls.read_text().splitlines()


@pytest.fixture
def script(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """What `stoker iam ec2` prints."""
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    inputs = ("--input", "s3://data/it's $HOME `here`", "--logs", "/stoker/jobs")
    code, out, _ = run(capsys, "iam", "ec2", "--bucket", STORE, *inputs)
    assert code == 0
    return out


def changes(calls: list[str]) -> list[str]:
    """The operations that are not mere looks."""
    return [name for name in (call.split()[1] for call in calls) if not name.startswith(("get-", "list-"))]


def test_the_output_is_a_script(script: str, tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    code, piped = shell.run("sh", "-eu", pasted=script)
    assert code == 0
    assert changes(piped) == [
        "create-policy",
        "create-policy",
        "create-service-linked-role",
        "create-role",
        "put-role-policy",
        "create-instance-profile",
        "add-role-to-instance-profile",
        "create-role",
        "put-role-policy",
        "create-service-linked-role",
    ]
    # The policies are in it as they are, whatever characters they have.
    (put,) = [call for call in piped if f"put-role-policy --role-name {ROLE}" in call]
    written = put.partition("--policy-document ")[2]
    node = policy(
        iam.grants(STORE, inputs=("s3://data/it's $HOME `here`",), logs="/stoker/jobs"),
        "node",
    )
    assert json.loads(written) == node


def test_what_is_there_is_left_or_written_anew(script: str, tmp_path: Path) -> None:
    code, calls = Shell(tmp_path).run("sh", "-eu", pasted=script, there=True)
    assert code == 0
    assert changes(calls) == ["create-policy-version", "create-policy-version", "put-role-policy", "put-role-policy"]


def test_a_failure_ends_the_script_and_not_the_shell(script: str, tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    code, calls = shell.run("sh", pasted=script, puts=False)
    assert code != 0 and "put-role-policy" in calls[-1]
    # Pasted, the shell goes on with what the person types next.
    code, calls = shell.run("sh", pasted=f"{script}aws s3 ls\n", puts=False)
    assert "put-role-policy" in calls[-2] and calls[-1] == "s3 ls "


def test_what_is_no_command_is_a_comment(script: str) -> None:
    first, *lines, last = script.splitlines()
    assert first == f"sh -eu <<'{last}'"
    quoted = False
    for line in lines:
        inside = quoted
        quoted ^= line.replace("'\"'\"'", "").count("'") % 2 == 1 and not line.startswith("#")
        if not inside and line:
            known = ("#", "  ", "aws ", "POLICY=", "DOCUMENT=", "if ", "else", "fi", "echo ")
            assert line.startswith(known), line
