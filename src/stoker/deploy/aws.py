"""A governor on AWS: one CloudFormation stack, one zip in the store, one record of it. `stoker deploy aws`.

Deploying again updates what is there, and changes nothing where nothing changed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from stoker.deploy import aws_monitoring, aws_stacks, region_events
from stoker.deploy.aws_function import Rule
from stoker.deploy.aws_template import TIMEOUT_S, Plan, template, tick_name
from stoker.deploy.package import Package
from stoker.governor import deployment_record
from stoker.governor.deployment_record import Deployed
from stoker.governor.serverless.schedule import Switch
from stoker.model import keys
from stoker.model.errors import ProviderError, UserError
from stoker.providers import registry
from stoker.providers.base import Request
from stoker.providers.ec2 import permissions
from stoker.providers.ec2.client import Clients
from stoker.providers.ec2.errors import calling
from stoker.store.base import Store
from stoker.submit.local_environment import store_environ

CLOUD = "aws"
# Lambda sets these itself, and refuses to be told.
_RESERVED = ("AWS_REGION", "AWS_DEFAULT_REGION")
_CAPABILITIES = ["CAPABILITY_IAM"]
# https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_iam-quotas.html: all inline policies of a role together.
_LONGEST_POLICIES = 10_240
# How long a function may fail before it is taken to be broken.
_TRY_S = 30.0
_POLL_S = 2.0
# A cold start, and the way there and back, are not of the function's own time.
_ON_THE_WAY_S = 30.0
_ANSWER_BYTES = 1 << 16

Say = Callable[[str], None]


@dataclass(frozen=True)
class Deployment:
    """What is to be deployed, and where."""

    plan: Plan
    region: str
    # Other regions whose machines' events are passed on.
    elsewhere: tuple[str, ...] = ()
    # Where it may tell.
    notify: tuple[str, ...] = ()
    # Roles that its machines may have, beside those of `stoker iam`.
    roles: tuple[str, ...] = ()
    # Keys that what it reads and launches is encrypted with.
    keys: tuple[str, ...] = ()
    # Regions in which nobody looks again, whatever is there.
    forgotten: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.plan.name


def planned(
    store: Store,
    package: Package,
    region: str,
    elsewhere: tuple[str, ...] = (),
    *,
    training: bool = False,
    notify: tuple[str, ...] = (),
    roles: tuple[str, ...] = (),
    kms_keys: tuple[str, ...] = (),
    forgotten: tuple[str, ...] = (),
) -> Deployment:
    """What would be deployed. `notify`: where it tells, as far as AWS has to allow that. `roles` are names or ARNs,
    `kms_keys` are ARNs.

    Asks nobody. Raises UserError for a store that is not on S3.
    """
    if not store.url.startswith("s3://"):
        raise UserError(f"a governor on AWS needs a store on S3, not {store.url}; give --store s3://BUCKET/PREFIX")
    bucket, _, prefix = store.url.removeprefix("s3://").partition("/")
    key = keys.deployed_package(package.digest)
    environ = {name: value for name, value in store_environ(store.url).items() if name not in _RESERVED}
    plan = Plan(
        name=keys.deployment(store.url),
        store=store.url,
        bucket=bucket,
        key=f"{prefix}/{key}" if prefix else key,
        processor=package.processor,
        statements=(*_statements(store.url, notify, roles, region), *_using(kms_keys)),
        environ=environ,
        training=training,
        topics=_topics(notify, region),
    )
    _check_length(plan)
    others = tuple(dict.fromkeys(each for each in elsewhere if each != region))
    return Deployment(plan, region, others, notify, roles, kms_keys, forgotten)


def _topics(notify: tuple[str, ...], region: str) -> tuple[str, ...]:
    """The topics that the governor tells through and that its own alarms can reach: those of its region."""
    arns = [each.removeprefix("sns:") for each in notify if each.startswith("sns:arn:")]
    return tuple(dict.fromkeys(arn for arn in arns if arn.split(":")[3:4] == [region]))


def _check_length(plan: Plan) -> None:
    """As IAM counts it: without what is white."""
    policies = template(plan)["Resources"]["Role"]["Properties"]["Policies"]
    length = sum(len(json.dumps(each["PolicyDocument"], separators=(",", ":"))) for each in policies)
    if length > _LONGEST_POLICIES:
        raise UserError(
            f"--notify, --pass-role and --kms-key: too much is named for one role: {length} characters, and IAM takes "
            f"{_LONGEST_POLICIES}; name less, or give some up, as with --no-notify"
        )


def _statements(
    store_url: str, notify: tuple[str, ...], roles: tuple[str, ...], region: str
) -> tuple[dict[str, Any], ...]:
    """What the governor's policies of every provider with such a store allow, each statement once; and these roles."""
    homed = partial(permissions.homed, region=region)
    found: dict[str, dict[str, Any]] = {}
    for name in registry.names():
        schemes = registry.capabilities(name).stores
        if not schemes or "s3" not in schemes:
            continue
        for grant in registry.iam(name).grants(store_url, notify=notify).grants:
            for each in map(homed, grant.policy["Statement"] if grant.name == "governor" else ()):
                told = {key: value for key, value in each.items() if key != "Sid"}
                found.setdefault(json.dumps(told, sort_keys=True), each)
    # Two providers may call different things by one name.
    told_apart: dict[str, dict[str, Any]] = {}
    for each in found.values():
        sid, number = str(each["Sid"]), 2
        while sid in told_apart:
            sid, number = f"{each['Sid']}{number}", number + 1
        told_apart[sid] = {**each, "Sid": sid}
    return (*told_apart.values(), *([homed(_passing(roles))] if roles else ()))


def _passing(roles: tuple[str, ...]) -> dict[str, Any]:
    """To machines and training jobs, and to nothing else that could make more of them."""
    named = [role if role.startswith("arn:") else f"arn:aws:iam::*:role/{role}" for role in roles]
    services = [permissions.machine_service(), "sagemaker.amazonaws.com"]
    condition = {"StringEquals": {"iam:PassedToService": services}}
    return permissions.allow("PassNamedRoles", "iam:PassRole", named, condition)


# https://docs.aws.amazon.com/ebs/latest/userguide/ebs-encryption-requirements.html has what a launch needs; reading and
# writing what is encrypted in a bucket, a topic or a secret needs less.
_KEY_ACTIONS = [
    "kms:Decrypt",
    "kms:DescribeKey",
    "kms:GenerateDataKey",
    "kms:GenerateDataKeyWithoutPlaintext",
    "kms:ReEncryptFrom",
    "kms:ReEncryptTo",
]


def _using(keys: tuple[str, ...]) -> list[dict[str, Any]]:
    """Use these keys, and let AWS itself use them for the volumes of machines: nobody else gets a grant."""
    if not keys:
        return []
    for_aws = {"Bool": {"kms:GrantIsForAWSResource": "true"}}
    return [
        permissions.allow("UseKeys", _KEY_ACTIONS, list(keys)),
        permissions.allow("LendKeys", "kms:CreateGrant", list(keys), for_aws),
    ]


def requests(deployment: Deployment, package: Package) -> Iterator[Request]:
    """Everything that is asked of AWS to deploy, in order, as data. A stack that is there is updated, not created; the
    clock is switched off, and on again where a job is active."""
    plan, region = deployment.plan, deployment.region
    key = keys.deployed_package(package.digest)
    recorded = {"Bucket": plan.bucket, "Key": plan.key.removesuffix(key) + keys.deployed(CLOUD)}
    yield Request("s3", "PutObject", recorded, region)
    yield Request("s3", "PutObject", {"Bucket": plan.bucket, "Key": plan.key, "Body": package.described}, region)
    yield _stack(plan.name, template(plan), region)
    for other in deployment.elsewhere:
        yield _stack(plan.name, region_events.template(plan.name, plan.store, region), other)
    for operation in ("DisableRule", "EnableRule"):
        yield Request("events", operation, {"Name": tick_name(plan.name)}, region)
    tried = {"FunctionName": plan.name, "InvocationType": "RequestResponse", "Payload": _tick()}
    yield Request("lambda", "Invoke", tried, region)
    yield Request("s3", "PutObject", recorded, region)


def _tick() -> str:
    return json.dumps({"stoker": deployment_record.asked(())})


def _stack(name: str, body: dict[str, Any], region: str) -> Request:
    return Request(
        "cloudformation",
        "CreateStack",
        {
            "StackName": name,
            "TemplateBody": json.dumps(body, indent=1),
            "Capabilities": _CAPABILITIES,
            "Tags": [{"Key": "stoker", "Value": "governor"}],
        },
        region,
    )


def deploy(store: Store, deployment: Deployment, package: Package, by: str, say: Say) -> Deployed:
    """Make it so, wait until it is, and see that it runs. Idempotent, and harmless to interrupt: what may have been
    made is in the record before it is. Raises ProviderError with the stack's own reason, or the function's, and
    UserError for a region that does not answer."""
    clients = Clients()
    _check_regions(clients, deployment)
    deployment = _with_room(clients, deployment, say)
    key = keys.deployed_package(package.digest)
    before = deployment_record.read(store, CLOUD)
    wanted = Deployed(
        cloud=CLOUD,
        name=deployment.name,
        region=deployment.region,
        door=deployment.name,
        digest=package.digest,
        by=by,
        elsewhere=deployment.elsewhere,
        sagemaker=deployment.plan.training,
        notify=deployment.notify,
        identities=deployment.roles,
        keys=deployment.keys,
    )
    begun = deployment_record.forgetting(deployment_record.begun(wanted, before), deployment.forgotten)
    deployment_record.write(store, begun)
    if store.head(key) is None:
        store.put(key, package.data)
        say(f"sent {key}")
    for each in requests(deployment, package):
        if each.service == "cloudformation":
            say(f"stack {each.params['StackName']} in {each.region}: {aws_stacks.settle(clients, each)}")
    wanted = replace(wanted, leaving=_give_up(clients, deployment.name, begun.leaving, say))
    # The stack may have switched it off, and jobs may be waiting since before there was a governor.
    switch = Switch(store, Rule(tick_name(deployment.name), deployment.region, clients))
    if switch.begin():
        say("its clock is on: there may be jobs to govern")
    alarms = aws_monitoring.alarm_names(deployment.name)
    say(f"{len(alarms)} alarms watch it: {aws_monitoring.topic_name(deployment.name)}")
    try:
        _try(clients, deployment)
    except ProviderError:
        # Nobody is to rely on it.
        deployment_record.write(store, replace(begun, state="making"))
        raise
    deployment_record.write(store, wanted)
    store.delete([meta.key for meta in store.list(keys.DEPLOYED) if meta.key.endswith(".zip") and meta.key != key])
    return wanted


def _with_room(clients: Clients, deployment: Deployment, say: Say) -> Deployment:
    """Reserve calls for the function only where the account has enough of them: AWS refuses the stack otherwise."""
    try:
        client = clients.get("lambda", deployment.region)
        limits = calling(deployment.name, client.get_account_settings)["AccountLimit"]
        left = int(limits["UnreservedConcurrentExecutions"])
    except (ProviderError, KeyError, TypeError, ValueError) as error:
        say(f"no concurrency is reserved: how much the account has is not known ({error})")
        return replace(deployment, plan=replace(deployment.plan, concurrency=None))
    # What this function has already is not among what is left.
    if left >= aws_monitoring.UNRESERVED + aws_monitoring.CONCURRENCY or _has_reserved(clients, deployment):
        return deployment
    kept = aws_monitoring.UNRESERVED
    say(f"no concurrency is reserved: the account has {left} calls at once, and AWS keeps {kept} back")
    return replace(deployment, plan=replace(deployment.plan, concurrency=None))


def _has_reserved(clients: Clients, deployment: Deployment) -> bool:
    try:
        client = clients.get("lambda", deployment.region)
        found = calling(deployment.name, lambda: client.get_function_concurrency(FunctionName=deployment.name))
        return bool(found.get("ReservedConcurrentExecutions") == aws_monitoring.CONCURRENCY)
    except ProviderError:
        return False


def _check_regions(clients: Clients, deployment: Deployment) -> None:
    """Before anything is made or on record: one region that is closed would stop it halfway."""
    aws_stacks.look(clients, deployment.name, deployment.region)
    for each in deployment.elsewhere:
        try:
            aws_stacks.look(clients, deployment.name, each)
        except ProviderError as error:
            raise UserError(
                f"--events-from {each}: CloudFormation does not answer there, and nothing was changed ({error}); "
                "enable the region, or give it up with --no-events-from and name the others"
            ) from error


def _give_up(clients: Clients, name: str, regions: tuple[str, ...], say: Say) -> tuple[str, ...]:
    """Take away what is in regions that were given up. Answers those in which something may still be: the governor
    does without them, so that they are no reason to fail."""
    left = []
    for each in regions:
        try:
            if aws_stacks.remove(clients, name, each):
                say(f"stack {name} in {each}: removed")
        except ProviderError as error:
            left.append(each)
            say(f"stack {name} in {each}: perhaps still there ({error}); --forget {each} leaves it as it is")
    return tuple(left)


def _try(clients: Clients, deployment: Deployment) -> None:
    """Call it once and wait for what it says, for as long as it may take: its first tick may have a thousand jobs to
    look at. A new role is not known everywhere at once."""
    client = clients.get("lambda", deployment.region, attempts=1, read_timeout_s=TIMEOUT_S + _ON_THE_WAY_S)
    payload = _tick().encode()
    until_s = time.monotonic() + _TRY_S
    while True:
        answer = calling(
            deployment.name,
            lambda: client.invoke(FunctionName=deployment.name, InvocationType="RequestResponse", Payload=payload),
        )
        told = answer["Payload"].read(_ANSWER_BYTES)
        if not answer.get("FunctionError"):
            return
        if time.monotonic() > until_s:
            break
        time.sleep(_POLL_S)
    raise ProviderError(
        f"{deployment.name}: is deployed, and fails: {_failure(told)}; its log is /aws/lambda/{deployment.name} in "
        f"{deployment.region}"
    )


def _failure(told: bytes) -> str:
    try:
        found = json.loads(told)
        return f"{found['errorType']}: {found['errorMessage']}"[:400]
    except (ValueError, KeyError, TypeError):
        return told[:200].decode(errors="replace")


def wake(deployed: Deployed, jobs: tuple[str, ...]) -> None:
    """Call the function, without waiting for what it does."""
    client = Clients().get("lambda", deployed.region)
    payload = json.dumps({"stoker": deployment_record.asked(jobs)}).encode()
    calling(
        deployed.name,
        lambda: client.invoke(FunctionName=deployed.door, InvocationType="Event", Payload=payload),
    )
