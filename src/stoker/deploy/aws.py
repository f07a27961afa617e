"""A governor on AWS: one CloudFormation stack, one zip in the store, one record of it. `stoker deploy aws`.

Deploying again updates the existing deployment, and changes nothing where nothing differs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from stoker.deploy import aws_monitoring, aws_region_events, aws_stacks
from stoker.deploy import package as packages
from stoker.deploy.aws_entry_point import TickRule
from stoker.deploy.aws_template import TIMEOUT_S, AwsPlan, template, tick_name
from stoker.deploy.package import Package
from stoker.governor import deployment_record
from stoker.governor.deployment_record import DeploymentRecord
from stoker.governor.serverless.schedule import ScheduleSwitch
from stoker.model import codec, keys
from stoker.model.errors import CodecError, ProviderError, UserError
from stoker.providers import registry
from stoker.providers.base import Request
from stoker.providers.ec2 import kms, statements
from stoker.providers.ec2.client import Clients
from stoker.providers.ec2.errors import call_aws
from stoker.store.base import Store
from stoker.submit.local_environment import store_environ

CLOUD = "aws"
# Variables that Lambda sets itself, and refuses in the configuration.
_RESERVED = ("AWS_REGION", "AWS_DEFAULT_REGION")
_CAPABILITIES = ["CAPABILITY_IAM"]
# The limit for all inline policies of a role together:
# https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_iam-quotas.html
_LONGEST_POLICIES = 10_240
# A function that fails for this long is considered broken.
_TRY_S = 30.0
_POLL_S = 2.0
# Cold start and network, which come on top of the function's own timeout.
_ON_THE_WAY_S = 30.0
_ANSWER_BYTES = 1 << 16

Say = Callable[[str], None]


@dataclass(frozen=True)
class Deployment:
    """The plan of a deployment, and its region."""

    plan: AwsPlan
    region: str
    # Other regions whose events are forwarded.
    elsewhere: tuple[str, ...] = ()
    # Channels through which the governor notifies.
    notify: tuple[str, ...] = ()
    # Roles that machines may have, beside those of `stoker iam`.
    roles: tuple[str, ...] = ()
    # KMS keys of encrypted buckets, topics, secrets and volumes.
    keys: tuple[str, ...] = ()
    # Regions that are not looked at again, whatever is left there.
    forgotten: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.plan.name


def plan_deployment(
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
    clone_roles: tuple[str, ...] = (),
    clone_machines: tuple[str, ...] = (),
) -> Deployment:
    """Plan a deployment. `notify`: channels of notifications that need permissions on AWS. `roles` are names or ARNs,
    `kms_keys` are ARNs. `clone_roles` and `clone_machines` limit clones of external jobs: see `AwsPlan`.

    Makes no call. Raises UserError for a store that is not on S3.
    """
    if not store.url.startswith("s3://"):
        raise UserError(f"a governor on AWS needs a store on S3, not {store.url}; give --store s3://BUCKET/PREFIX")
    bucket, _, prefix = store.url.removeprefix("s3://").partition("/")
    key = keys.deployed_package(package.digest)
    environ = {name: value for name, value in store_environ(store.url).items() if name not in _RESERVED}
    plan = AwsPlan(
        name=keys.deployment_name(store.url),
        store=store.url,
        bucket=bucket,
        key=f"{prefix}/{key}" if prefix else key,
        processor=package.processor,
        statements=(*_statements(store.url, notify, roles, region), *kms.for_governors(kms_keys)),
        environ=environ,
        training=training,
        topics=_topics(notify, region),
        clone_roles=clone_roles,
        clone_machines=clone_machines,
    )
    _check_length(plan)
    others = tuple(dict.fromkeys(each for each in elsewhere if each != region))
    return Deployment(plan, region, others, notify, roles, kms_keys, forgotten)


def _topics(notify: tuple[str, ...], region: str) -> tuple[str, ...]:
    """The notification topics that the governor's own alarms can reach: those of its region."""
    arns = [each.removeprefix("sns:") for each in notify if each.startswith("sns:arn:")]
    return tuple(dict.fromkeys(arn for arn in arns if arn.split(":")[3:4] == [region]))


def _check_length(plan: AwsPlan) -> None:
    """Raise UserError where the role's policies exceed IAM's limit, which does not count white space."""
    policies = template(plan)["Resources"]["Role"]["Properties"]["Policies"]
    length = sum(len(json.dumps(each["PolicyDocument"], separators=(",", ":"))) for each in policies)
    if length > _LONGEST_POLICIES:
        raise UserError(
            f"--notify, --pass-role, --clone-role and --kms-key: too much is named for one role: {length} characters, "
            f"and IAM takes {_LONGEST_POLICIES}; name less, or give some up, as with --no-notify"
        )


def _statements(
    store_url: str, notify: tuple[str, ...], roles: tuple[str, ...], region: str
) -> tuple[dict[str, Any], ...]:
    """The statements of the governor's policies of every provider with stores on S3, each once; and PassRole for
    `roles`."""
    homed = partial(statements.for_region, region=region)
    found: dict[str, dict[str, Any]] = {}
    for name in registry.names():
        schemes = registry.capabilities(name).stores
        if not schemes or "s3" not in schemes:
            continue
        for grant in registry.iam(name).grants(store_url, notify=notify).grants:
            for each in map(homed, grant.policy["Statement"] if grant.name == "governor" else ()):
                content = {key: value for key, value in each.items() if key != "Sid"}
                found.setdefault(json.dumps(content, sort_keys=True), each)
    # Two providers may use one Sid for different statements.
    by_sid: dict[str, dict[str, Any]] = {}
    for each in found.values():
        sid, number = str(each["Sid"]), 2
        while sid in by_sid:
            sid, number = f"{each['Sid']}{number}", number + 1
        by_sid[sid] = {**each, "Sid": sid}
    return (*by_sid.values(), *([homed(_pass_role_statement(roles))] if roles else ()))


def _pass_role_statement(roles: tuple[str, ...]) -> dict[str, Any]:
    """Allow to pass these roles to machines and training jobs, and to no service that could extend their use."""
    named = [role if role.startswith("arn:") else f"arn:aws:iam::*:role/{role}" for role in roles]
    services = [statements.machine_service(), "sagemaker.amazonaws.com"]
    condition = {"StringEquals": {"iam:PassedToService": services}}
    return statements.allow("PassNamedRoles", "iam:PassRole", named, condition)


def requests(deployment: Deployment, package: Package) -> Iterator[Request]:
    """All requests to AWS that deploy, in order, as data. An existing stack is updated, not created; the clock is
    switched off, and on again where a job is active."""
    plan, region = deployment.plan, deployment.region
    key = keys.deployed_package(package.digest)
    recorded = {"Bucket": plan.bucket, "Key": plan.key.removesuffix(key) + keys.deployed(CLOUD)}
    yield Request("s3", "PutObject", recorded, region)
    yield Request("s3", "PutObject", {"Bucket": plan.bucket, "Key": plan.key, "Body": package.described}, region)
    yield _stack(plan.name, template(plan), region)
    for other in deployment.elsewhere:
        yield _stack(plan.name, aws_region_events.template(plan.name, plan.store, region), other)
    for operation in ("DisableRule", "EnableRule"):
        yield Request("events", operation, {"Name": tick_name(plan.name)}, region)
    tried = {"FunctionName": plan.name, "InvocationType": "RequestResponse", "Payload": _tick()}
    yield Request("lambda", "Invoke", tried, region)
    yield Request("s3", "PutObject", recorded, region)


def _tick() -> str:
    return json.dumps({"stoker": deployment_record.wake_payload(())})


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


def deploy(store: Store, deployment: Deployment, package: Package, by: str, say: Say) -> DeploymentRecord:
    """Deploy, wait for completion, and check that the function runs.

    Idempotent, and safe to interrupt: everything is recorded before it is created. Raises ProviderError with the reason
    of the stack or the function, and UserError for a region that does not answer.
    """
    clients = Clients()
    _check_regions(clients, deployment)
    deployment = _with_room(clients, deployment, say)
    before = deployment_record.read(store, CLOUD)
    wanted = DeploymentRecord(
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
        clone_roles=deployment.plan.clone_roles,
        clone_machines=deployment.plan.clone_machines,
    )
    begun = deployment_record.without_regions(
        deployment_record.record_before_change(wanted, before), deployment.forgotten
    )
    deployment_record.write(store, begun)
    packages.send(store, package, say)
    for each in requests(deployment, package):
        if each.service == "cloudformation":
            say(f"stack {each.params['StackName']} in {each.region}: {aws_stacks.create_or_update(clients, each)}")
    wanted = replace(wanted, leaving=_give_up(clients, deployment.name, begun.leaving, say))
    # The stack may have switched the clock off, and jobs may have been waiting since before the deployment.
    switch = ScheduleSwitch(store, TickRule(tick_name(deployment.name), deployment.region, clients))
    if switch.begin():
        say("its clock is on: there may be jobs to govern")
    alarms = aws_monitoring.alarm_names(deployment.name)
    say(f"{len(alarms)} alarms watch it: {aws_monitoring.topic_name(deployment.name)}")
    with deployment_record.proving(store, begun, wanted):
        _try(clients, deployment)
    packages.delete_others(store, package)
    return wanted


def _with_room(clients: Clients, deployment: Deployment, say: Say) -> Deployment:
    """Reserve concurrency for the function only where the account has enough: AWS refuses the stack otherwise."""
    try:
        client = clients.get("lambda", deployment.region)
        limits = call_aws(deployment.name, client.get_account_settings)["AccountLimit"]
        left = int(limits["UnreservedConcurrentExecutions"])
    except (ProviderError, KeyError, TypeError, ValueError) as error:
        say(f"no concurrency is reserved: how much the account has is not known ({error})")
        return replace(deployment, plan=replace(deployment.plan, concurrency=None))
    # The concurrency that this function has reserved already is not part of `left`.
    if left >= aws_monitoring.UNRESERVED + aws_monitoring.CONCURRENCY or _has_reserved(clients, deployment):
        return deployment
    least = aws_monitoring.UNRESERVED
    say(f"no concurrency is reserved: the account has {left} calls at once, and AWS keeps {least} back")
    return replace(deployment, plan=replace(deployment.plan, concurrency=None))


def _has_reserved(clients: Clients, deployment: Deployment) -> bool:
    try:
        client = clients.get("lambda", deployment.region)
        found = call_aws(deployment.name, lambda: client.get_function_concurrency(FunctionName=deployment.name))
        return bool(found.get("ReservedConcurrentExecutions") == aws_monitoring.CONCURRENCY)
    except ProviderError:
        return False


def _check_regions(clients: Clients, deployment: Deployment) -> None:
    """Check every region before anything is created or recorded: a disabled one would stop the deployment halfway."""
    aws_stacks.check_reachable(clients, deployment.name, deployment.region)
    for each in deployment.elsewhere:
        try:
            aws_stacks.check_reachable(clients, deployment.name, each)
        except ProviderError as error:
            raise UserError(
                f"--events-from {each}: CloudFormation does not answer there, and nothing was changed ({error}); "
                "enable the region, or give it up with --no-events-from and name the others"
            ) from error


def _give_up(clients: Clients, name: str, regions: tuple[str, ...], say: Say) -> tuple[str, ...]:
    """Remove the stacks in regions that are not used any more. Returns the regions in which something may be left: the
    governor does not need them, so that they are no reason to fail."""
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
    """Call the function once and wait for its answer, up to its timeout: its first tick may look at a thousand jobs.

    Failures are retried for a while, since a new role is not active everywhere at once.
    """
    client = clients.get("lambda", deployment.region, attempts=1, read_timeout_s=TIMEOUT_S + _ON_THE_WAY_S)
    payload = _tick().encode()
    until_s = time.monotonic() + _TRY_S
    while True:
        answer = call_aws(
            deployment.name,
            lambda: client.invoke(FunctionName=deployment.name, InvocationType="RequestResponse", Payload=payload),
        )
        found = answer["Payload"].read(_ANSWER_BYTES)
        if not answer.get("FunctionError"):
            return
        if time.monotonic() > until_s:
            break
        time.sleep(_POLL_S)
    raise ProviderError(
        f"{deployment.name}: is deployed, and fails: {_failure(found)}; its log is /aws/lambda/{deployment.name} in "
        f"{deployment.region}"
    )


def _failure(answer: bytes) -> str:
    try:
        found = codec.parse(answer)
        return f"{found['errorType']}: {found['errorMessage']}"[:400]
    except (CodecError, KeyError, TypeError):
        return answer[:200].decode(errors="replace")


def wake(deployed: DeploymentRecord, jobs: tuple[str, ...]) -> None:
    """Call the function, without waiting for its answer."""
    client = Clients().get("lambda", deployed.region)
    payload = json.dumps({"stoker": deployment_record.wake_payload(jobs)}).encode()
    call_aws(
        deployed.name,
        lambda: client.invoke(FunctionName=deployed.door, InvocationType="Event", Payload=payload),
    )
