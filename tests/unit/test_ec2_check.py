"""What answers to dry runs mean, which limits count, and what security groups let in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from botocore.exceptions import (
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    PartialCredentialsError,
    ProxyConnectionError,
    ReadTimeoutError,
    SSLError,
    UnauthorizedSSOTokenError,
)

from stoker.model.errors import UserError
from stoker.model.offerings import Offering
from stoker.model.resources import Ec2Resources, Resources
from stoker.model.spec import Spec, master_port
from stoker.providers.ec2 import check, iam, network_check, quotas, statements, verdicts
from stoker.providers.ec2.provider import Ec2Provider
from stoker.providers.registry import Context

ENCODED = "You are not authorized to perform this operation. Encoded authorization failure message: 8cZ4x"


@pytest.mark.parametrize(
    ("code", "ok", "denied"),
    [
        ("DryRunOperation", True, False),
        ("UnauthorizedOperation", False, True),
        ("AccessDenied", False, True),
        ("InvalidSubnetID.NotFound", False, False),
        ("VcpuLimitExceeded", False, False),
        ("RequestLimitExceeded", None, False),
        ("InternalError", None, False),
        ("Unheard-of", None, False),
    ],
)
def test_an_answer_to_a_dry_run(code: str, ok: bool | None, denied: bool) -> None:
    tried = verdicts.dry_run_result(code, ENCODED, 500 if ok is None else 400)
    assert (tried.ok, tried.denied) == (ok, denied)
    assert not denied or "8cZ4x" not in tried.detail


@pytest.mark.parametrize(
    ("code", "message", "field"),
    [
        ("InvalidGroup.NotFound", "The security group 'sg-0123' does not exist", "resources.ec2.security_groups"),
        ("InvalidSubnetID.NotFound", "The subnet ID 'subnet-0123' does not exist", "resources.ec2.subnet"),
        ("VPCIdNotSpecified", "No default VPC for this user", "resources.ec2.subnet"),
        ("InvalidKeyPair.NotFound", "The key pair 'mine' does not exist", "resources.ec2.key"),
        ("InvalidAMIID.NotFound", "The image id '[ami-1]' does not exist", "resources.image"),
        ("InvalidParameterValue", "Invalid IAM Instance Profile name", "resources.ec2.profile"),
        ("VcpuLimitExceeded", "You have requested more vCPU capacity", "quotas"),
        ("InvalidParameterCombination", "Enhanced networking cannot be", "stoker run --dry-run"),
        ("InternalError", "An internal error has occurred", "again"),
    ],
)
def test_a_fix_names_what_to_change(code: str, message: str, field: str) -> None:
    assert field in verdicts.dry_run_result(code, message, 500 if code == "InternalError" else 400).fix


def test_a_session_is_asked_about_as_its_role() -> None:
    assert check.principal("arn:aws:sts::1:assumed-role/dev/jane") == "arn:aws:iam::1:role/dev"
    assert check.principal("arn:aws:iam::1:user/jane") == "arn:aws:iam::1:user/jane"


@pytest.mark.parametrize(
    ("machine", "spot", "code"),
    [
        ("m7i.large", False, "L-1216C47A"),
        ("c7i.large", True, "L-34B43A08"),
        ("g6.xlarge", True, "L-3819A6DF"),
        ("vt1.3xlarge", False, "L-DB2E81BA"),
        ("p4d.24xlarge", True, "L-7212CCBC"),
        ("p5.48xlarge", True, "L-C4BD4855"),
        ("p5en.48xlarge", False, "L-417A185B"),
        ("gr6.4xlarge", False, "L-DB2E81BA"),
        ("trn1.2xlarge", True, "L-6B0D517C"),
        ("trn2.48xlarge", False, "L-2C3B7624"),
        ("inf2.xlarge", False, "L-1945791B"),
        ("dl1.24xlarge", True, "L-85EED4F7"),
        ("hpc7a.12xlarge", False, None),
    ],
)
def test_the_limit_of_a_machine(machine: str, spot: bool, code: str | None) -> None:
    found = quotas.quota_of(machine, spot)
    assert (found.code if found else None) == code


def test_the_fewest_cpus_that_would_do() -> None:
    small = Offering("ec2", "g6.xlarge", "a", True, cpus=4)
    large = replace(small, machine="g6.4xlarge", cpus=16)
    odd = replace(small, machine="hpc7a.12xlarge", cpus=8)
    assert quotas.needed([large, small, odd], 2) == {"L-3819A6DF": 8}


def group(*rules: dict[str, Any], name: str = "sg-1") -> dict[str, Any]:
    return {"GroupId": name, "IpPermissions": list(rules)}


def from_group(name: str = "sg-1", **rule: Any) -> dict[str, Any]:
    return {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": name}], **rule}


def from_range(cidr: str, **rule: Any) -> dict[str, Any]:
    return {"IpProtocol": "-1", "IpRanges": [{"CidrIp": cidr}], **rule}


@pytest.mark.parametrize(
    ("groups", "found"),
    [
        ([group(from_group())], "all"),
        ([group(from_group(IpProtocol="tcp", FromPort=0, ToPort=65535))], "all"),
        ([group(from_group(IpProtocol="tcp", FromPort=29500, ToPort=29500))], "port"),
        ([group(from_group(IpProtocol="tcp", FromPort=29000, ToPort=30000))], "port"),
        ([group(from_group(IpProtocol="tcp", FromPort=22, ToPort=22))], "closed"),
        ([group(from_group(IpProtocol="udp", FromPort=0, ToPort=65535))], "closed"),
        ([group(from_group("sg-2"))], "closed"),
        ([group(from_group("sg-2")), group(name="sg-2")], "all"),
        ([group(from_range("10.0.0.0/16"))], "all"),
        ([group(from_range("0.0.0.0/0", IpProtocol="tcp", FromPort=29500, ToPort=29500))], "port"),
        ([group(from_range("10.0.1.0/25"))], "closed"),
        ([group()], "closed"),
        ([], "closed"),
    ],
)
def test_what_nodes_let_in_from_one_another(groups: list[dict[str, Any]], found: str) -> None:
    assert network_check.openness(groups, 29500, "10.0.1.0/24") == found


def test_the_fix_of_a_denial_is_its_statement() -> None:
    assert statements.statement_for("ec2:TerminateInstances", "s3://b/t") == (
        '{"Effect":"Allow","Action":"ec2:TerminateInstances","Resource":["arn:aws:ec2:*:*:instance/*",'
        '"arn:aws:ec2:*:*:volume/*","arn:aws:ec2:*:*:placement-group/*"],'
        '"Condition":{"StringEquals":{"aws:ResourceTag/stoker:store":"s3://b/t"}}}'
    )
    assert statements.statement_for("ec2:RunInstances", "s3://b/t").count('"Action":"ec2:RunInstances"') == 2


class Iam:
    """IAM, which decides as it is told to."""

    def __init__(self, allowed: set[str]) -> None:
        self.allowed = allowed
        self.asked: dict[str, Any] = {}

    def simulate_principal_policy(self, **asked: Any) -> Any:
        self.asked = asked
        return {
            "EvaluationResults": [
                {"EvalActionName": name, "EvalDecision": "allowed" if name in self.allowed else "implicitDeny"}
                for name in asked["ActionNames"]
            ]
        }


def test_what_cannot_be_tried_is_asked_of_iam(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = Ec2Provider(Context(store="s3://b/t"))
    simulator = Iam({"ec2:TerminateInstances"})
    monkeypatch.setattr(provider.clients, "get", lambda *_: simulator)
    monkeypatch.setattr(provider, "list_instances", lambda *_: ())
    identity = {"Arn": "arn:aws:sts::1:assumed-role/dev/jane", "Account": "1"}
    spec = Spec(name="c", run="true", resources=Resources(provider="ec2", region="us-east-1"))
    found = {each.name: each for each in check._AccountChecks(provider, spec, "s3://b/t", identity).machine_actions()}
    assert found["ec2:TerminateInstances"].ok is True
    assert found["ec2:DeleteVolume"].ok is False and "ec2:DeleteVolume" in found["ec2:DeleteVolume"].fix
    assert simulator.asked["PolicySourceArn"] == "arn:aws:iam::1:role/dev"
    assert simulator.asked["ContextEntries"][0]["ContextKeyValues"] == ["s3://b/t"]


class Picky:
    """EC2, which refuses a launch that has one of these parts."""

    def __init__(self, *parts: str) -> None:
        self.parts = parts

    def run_instances(self, **asked: Any) -> Any:
        code = "UnauthorizedOperation" if set(self.parts) & set(asked) else "DryRunOperation"
        assert asked["DryRun"] is True
        raise ClientError({"Error": {"Code": code, "Message": ENCODED}}, "RunInstances")

    def create_placement_group(self, **asked: Any) -> Any:
        assert asked["DryRun"] is True
        assert asked["TagSpecifications"][0]["Tags"]


@pytest.mark.parametrize(
    ("part", "missing"),
    [
        ("IamInstanceProfile", "iam:PassRole"),
        ("TagSpecifications", "ec2:CreateTags"),
        ("InstanceType", "ec2:RunInstances"),
        ("", None),
    ],
)
def test_what_a_launch_lacks_is_named(monkeypatch: pytest.MonkeyPatch, part: str, missing: str | None) -> None:
    provider = Ec2Provider(Context(store="s3://b/t"))
    monkeypatch.setattr(provider.clients, "get", lambda *_: Picky(part))
    monkeypatch.setattr(provider, "offerings", lambda *_: (Offering("ec2", "c7i.large", "a", False, "us-east-1"),))
    spec = Spec(name="c", run="true", resources=Resources(provider="ec2", region="us-east-1"))
    checks = check._AccountChecks(provider, spec, "s3://b/t", {})
    assert [each.ok for each in checks.offers()] == [True]
    group, launch = checks.launch()
    assert (group.name, group.ok) == ("ec2:CreatePlacementGroup", True)
    assert (launch.name, launch.ok) == ((missing, False) if missing else ("ec2:RunInstances", True))
    assert not missing or missing in launch.fix


class Aws:
    """Every service at once: what is not refused with a code is answered."""

    def __init__(self, refused: dict[str, str] | None = None, **answers: Any) -> None:
        self.refused = refused or {}
        self.answers = answers

    def __getattr__(self, name: str) -> Any:
        def call(**_: Any) -> Any:
            if name in self.refused:
                told = {"Error": {"Code": self.refused[name], "Message": ENCODED}}
                raise ClientError(told | {"ResponseMetadata": {"HTTPStatusCode": 400}}, name)  # type: ignore[arg-type]
            return self.answers[name]

        return call


def checks_of(monkeypatch: pytest.MonkeyPatch, aws: Aws, **ec2: Any) -> check._AccountChecks:
    provider = Ec2Provider(Context(store="s3://b/t"))
    monkeypatch.setattr(provider.clients, "get", lambda *_, **__: aws)
    wanted = Resources(provider="ec2", region="us-east-1", ec2=Ec2Resources(**ec2))
    return check._AccountChecks(provider, Spec(name="c", run="true", resources=wanted), "s3://b/t", {})


HOME = {
    "describe_subnets": {"Subnets": [{"SubnetId": "subnet-1", "VpcId": "vpc-1", "CidrBlock": "10.0.1.0/24"}]},
    "describe_route_tables": {"RouteTables": []},
    "describe_vpc_endpoints": {"VpcEndpoints": []},
}


@pytest.mark.parametrize(
    ("code", "groups", "ok", "word"),
    [
        ("InvalidGroup.NotFound", [], False, "set resources.ec2.security_groups to groups in the VPC of the subnet"),
        ("UnauthorizedOperation", [], None, "allow ec2:DescribeSecurityGroups to learn it"),
        ("RequestLimitExceeded", [], None, "check again"),
        (
            "",
            [group(name="sg-1") | {"VpcId": "vpc-2"}],
            False,
            "set resources.ec2.security_groups to groups in the VPC",
        ),
        ("", [group(from_group()) | {"VpcId": "vpc-1"}], True, ""),
    ],
)
def test_security_groups_that_will_not_do(
    monkeypatch: pytest.MonkeyPatch, code: str, groups: list[Any], ok: bool | None, word: str
) -> None:
    refused = {"describe_security_groups": code} if code else {}
    aws = Aws(refused, describe_security_groups={"SecurityGroups": groups}, **HOME)
    subnet, groups_found, _ = checks_of(monkeypatch, aws, security_groups=("sg-1",)).network()
    assert subnet.ok is True
    assert groups_found.ok is ok and word in groups_found.fix


def test_a_look_does_not_advise_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = checks_of(monkeypatch, Aws({"describe_key_pairs": "UnauthorizedOperation"}), key="mine").key()
    assert found.detail == "You are not authorized to perform this operation. (UnauthorizedOperation)"


def test_a_subnet_that_is_not_there_is_named_wherever_it_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = checks_of(monkeypatch, Aws({"describe_subnets": "InvalidSubnetID.NotFound"}), subnet=("subnet-0123",))
    for part in (checks.offers, checks.network):
        (found,) = part()
        assert found.ok is False and "resources.ec2.subnet" in found.fix and "iam" not in found.fix


@pytest.mark.parametrize(
    ("code", "ok", "word"),
    [
        ("", True, ""),
        ("InvalidKeyPair.NotFound", False, "resources.ec2.key"),
        ("UnauthorizedOperation", None, "allow ec2:DescribeKeyPairs to learn it"),
    ],
)
def test_a_key_is_looked_up(monkeypatch: pytest.MonkeyPatch, code: str, ok: bool | None, word: str) -> None:
    aws = Aws({"describe_key_pairs": code} if code else {}, describe_key_pairs={"KeyPairs": [{}]})
    (found,) = checks_of(monkeypatch, aws, key="mine").key()
    assert (found.name, found.ok) == ("key", ok) and word in found.fix
    assert not list(checks_of(monkeypatch, aws).key())


def test_only_a_person_may_look_at_keys() -> None:
    allowed = {grant.name for grant in iam.grants("s3://b/t").grants if "ec2:DescribeKeyPairs" in str(grant.policy)}
    assert allowed == {"person"}


def test_quotas_that_nobody_tells_have_no_fix_that_would_not_help(monkeypatch: pytest.MonkeyPatch) -> None:
    found = list(checks_of(monkeypatch, Aws({"get_service_quota": "NoSuchResourceException"})).limits())
    assert len(found) == len([quota for quota in quotas.QUOTAS if not quota.rare])
    assert {each.ok for each in found} == {None}
    ((detail, fix),) = {(each.detail, each.fix) for each in found}
    assert "unknown" in detail and fix == ""
    denied = list(checks_of(monkeypatch, Aws({"get_service_quota": "AccessDeniedException"})).limits())
    assert {each.fix for each in denied} == {"allow servicequotas:GetServiceQuota to learn it"}


def test_without_credentials_there_is_one_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nobody:
        def get_caller_identity(self) -> Any:
            raise NoCredentialsError

    provider = Ec2Provider(Context(store="s3://b/t"))
    monkeypatch.setattr(provider.clients, "get", lambda *_: Nobody())
    (found,) = check.check_account(
        provider, Spec(name="c", run="true", resources=Resources(region="us-east-1")), "s3://b/t"
    )
    assert (found.name, found.ok, found.detail) == ("credentials", False, "there are none here")
    assert "aws configure" in found.fix


def denied_by(code: str, message: str = "no", status: int = 403) -> ClientError:
    told = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(told, "GetCallerIdentity")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("failure", "name", "ok", "detail", "fix"),
    [
        (
            EndpointConnectionError(endpoint_url="https://sts.x"),
            "network",
            False,
            "AWS cannot be reached",
            "HTTPS_PROXY",
        ),
        (ConnectTimeoutError(endpoint_url="https://sts.x"), "network", False, "AWS cannot be reached", "internet"),
        (ReadTimeoutError(endpoint_url="https://sts.x"), "network", False, "AWS cannot be reached", "internet"),
        (ProxyConnectionError(proxy_url="http://p:3128"), "network", False, "AWS cannot be reached", "HTTPS_PROXY"),
        (SSLError(endpoint_url="https://sts.x", error="bad"), "network", False, "AWS cannot be reached", "internet"),
        (denied_by("InvalidClientTokenId"), "credentials", False, "AWS does not know them", "aws configure"),
        (denied_by("InvalidClientTokenId"), "credentials", False, "AWS does not know them", "enable this region"),
        (denied_by("ExpiredToken"), "credentials", False, "they have expired", "aws sso login"),
        (denied_by("ExpiredTokenException"), "credentials", False, "they have expired", "aws sso login"),
        (denied_by("SignatureDoesNotMatch"), "credentials", False, "(SignatureDoesNotMatch)", "aws configure"),
        (
            denied_by("SignatureDoesNotMatch", "Signature expired: 2026… is now earlier than 2026…"),
            "credentials",
            False,
            "Signature expired",
            "clock",
        ),
        (denied_by("AccessDenied"), "credentials", False, "(AccessDenied)", "aws configure"),
        (denied_by("InternalFailure", status=500), "credentials", None, "not known", "again"),
        (denied_by("Throttling", status=400), "credentials", None, "not known", "again"),
        (PartialCredentialsError(provider="env", cred_var="x"), "credentials", False, "Partial", "aws configure"),
        (UnauthorizedSSOTokenError(), "credentials", False, "SSO", "aws configure"),
    ],
)
def test_bad_credentials_are_told_from_no_network(
    monkeypatch: pytest.MonkeyPatch, failure: Exception, name: str, ok: bool | None, detail: str, fix: str
) -> None:
    class Sts:
        def get_caller_identity(self) -> Any:
            raise failure

    provider = Ec2Provider(Context(store="s3://b/t"))
    monkeypatch.setattr(provider.clients, "get", lambda *_: Sts())
    spec = Spec(name="c", run="true", resources=Resources(region="us-east-1"))
    (found,) = check.check_account(provider, spec, "s3://b/t")
    assert (found.name, found.ok) == (name, ok)
    assert detail in found.detail and fix in found.fix and "\n" not in found.detail


def spec_with(**env: str) -> Spec:
    return Spec(name="c", run="true", env=env, resources=Resources(provider="ec2"))


def test_the_jobs_own_port_wins() -> None:
    assert master_port(spec_with()) == 29500
    assert master_port(spec_with(MASTER_PORT="29600")) == 29600
    assert master_port(spec_with(MASTER_PORT="many")) == 29500
    provider = Ec2Provider(Context(store="s3://b/t"))
    provider.check(spec_with(MASTER_PORT="29600"))
    for wrong in ("many", "0", "65536", "", "٢٩"):
        with pytest.raises(UserError, match=r"env\.MASTER_PORT"):
            provider.check(spec_with(MASTER_PORT=wrong))
