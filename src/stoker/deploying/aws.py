"""A governor on AWS: one CloudFormation stack, one zip in the store, one record of it. `stoker deploy aws`.

Deploying again updates what is there, and changes nothing where nothing changed. Removing takes the stack away, with
what the governor itself made (alarms), and then looks whether anything is left.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from stoker import layout
from stoker.core.foreign.alarms import prefix as alarm_prefix
from stoker.deploying import forwarding, record
from stoker.deploying.package import Package
from stoker.deploying.record import Deployed
from stoker.deploying.template import Plan, template, tick_name
from stoker.errors import InvalidRequest, NotFound, ProviderError, Transient, UserError
from stoker.governor.serverless.aws import Rule
from stoker.governor.serverless.schedule import Switch
from stoker.providers import registry
from stoker.providers.base import Request
from stoker.providers.ec2.client import Clients
from stoker.providers.ec2.errors import calling
from stoker.store import Store
from stoker.surroundings import store_environ

CLOUD = "aws"
# Lambda sets these itself, and refuses to be told.
_RESERVED = ("AWS_REGION", "AWS_DEFAULT_REGION")
_CAPABILITIES = ["CAPABILITY_IAM"]
_STACK_S = 600.0
_POLL_S = 2.0
# A stack that never came to be can only be deleted.
_STILLBORN = ("ROLLBACK_COMPLETE", "ROLLBACK_FAILED", "CREATE_FAILED")

Say = Callable[[str], None]


@dataclass(frozen=True)
class Deployment:
    """What is to be deployed, and where."""

    plan: Plan
    region: str
    # Other regions whose machines' events are passed on.
    elsewhere: tuple[str, ...] = ()

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
) -> Deployment:
    """What would be deployed. `notify`: where it tells, as far as AWS has to allow that.

    Asks nobody. Raises UserError for a store that is not on S3.
    """
    if not store.url.startswith("s3://"):
        raise UserError(f"a governor on AWS needs a store on S3, not {store.url}; give --store s3://BUCKET/PREFIX")
    bucket, _, prefix = store.url.removeprefix("s3://").partition("/")
    key = layout.deployed_package(package.digest)
    environ = {name: value for name, value in store_environ(store.url).items() if name not in _RESERVED}
    plan = Plan(
        name=layout.deployment(store.url),
        store=store.url,
        bucket=bucket,
        key=f"{prefix}/{key}" if prefix else key,
        processor=package.processor,
        statements=_statements(store.url, notify),
        environ=environ,
        training=training,
    )
    others = tuple(dict.fromkeys(each for each in elsewhere if each != region))
    return Deployment(plan, region, others)


def _statements(store_url: str, notify: tuple[str, ...]) -> tuple[dict[str, Any], ...]:
    """What the governor's policies of every provider with such a store allow, each statement once."""
    found: dict[str, dict[str, Any]] = {}
    for name in registry.names():
        schemes = registry.capabilities(name).stores
        if not schemes or "s3" not in schemes:
            continue
        for grant in registry.iam(name).grants(store_url, notify=notify).grants:
            for each in grant.policy["Statement"] if grant.name == "governor" else ():
                told = {key: value for key, value in each.items() if key != "Sid"}
                found.setdefault(json.dumps(told, sort_keys=True), each)
    # Two providers may call different things by one name.
    told_apart: dict[str, dict[str, Any]] = {}
    for each in found.values():
        sid, number = str(each["Sid"]), 2
        while sid in told_apart:
            sid, number = f"{each['Sid']}{number}", number + 1
        told_apart[sid] = {**each, "Sid": sid}
    return tuple(told_apart.values())


def requests(deployment: Deployment, package: Package) -> Iterator[Request]:
    """Everything that is asked of AWS to deploy, in order, as data. A stack that is there is updated, not created."""
    plan, region = deployment.plan, deployment.region
    what = {"Bucket": plan.bucket, "Key": plan.key, "Body": f"{len(package.data)} bytes, sha256 {package.digest}"}
    yield Request("s3", "PutObject", what, region)
    yield _stack(plan.name, template(plan), region)
    for other in deployment.elsewhere:
        yield _stack(plan.name, forwarding.template(plan.name, plan.store, region), other)
    key = plan.key.removesuffix(layout.deployed_package(package.digest)) + layout.deployed(CLOUD)
    yield Request("s3", "PutObject", {"Bucket": plan.bucket, "Key": key}, region)


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
    """Make it so, and wait until it is. Idempotent. Raises ProviderError with the stack's own reason."""
    clients = Clients()
    key = layout.deployed_package(package.digest)
    if store.head(key) is None:
        store.put(key, package.data)
        say(f"sent {key}")
    for each in requests(deployment, package):
        if each.service == "cloudformation":
            say(f"stack {each.params['StackName']} in {each.region}: {_Stack(clients, each).settle()}")
    before = record.read(store, CLOUD)
    deployed = Deployed(
        cloud=CLOUD,
        name=deployment.name,
        region=deployment.region,
        door=deployment.name,
        digest=package.digest,
        by=by,
        elsewhere=deployment.elsewhere,
    )
    record.write(store, deployed)
    for gone in set(before.elsewhere if before else ()) - set(deployment.elsewhere):
        _delete_stack(clients, deployment.name, gone)
        say(f"stack {deployment.name} in {gone}: removed")
    store.delete([meta.key for meta in store.list(layout.DEPLOYED) if meta.key.endswith(".zip") and meta.key != key])
    # The stack may have switched it off, and jobs may be waiting since before there was a governor.
    switch = Switch(store, Rule(tick_name(deployment.name), deployment.region, clients))
    if switch.begin():
        say("its clock is on: there are active jobs, or may be some of others")
    return deployed


def wake(deployed: Deployed, jobs: tuple[str, ...]) -> None:
    """Call the function, without waiting for what it does."""
    client = Clients().get("lambda", deployed.region)
    payload = json.dumps({"stoker": {"jobs": list(jobs)}}).encode()
    calling(
        deployed.name,
        lambda: client.invoke(FunctionName=deployed.door, InvocationType="Event", Payload=payload),
    )


# ── Removing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def remove(store: Store, region: str, elsewhere: tuple[str, ...], say: Say) -> bool:
    """Take it away with everything that it made, and look whether anything is left. Idempotent.

    False: there was nothing. Raises StokerError naming what is left.
    """
    clients = Clients()
    name = layout.deployment(store.url)
    # First, so that nobody relies on it any more.
    found = record.read(store, CLOUD) is not None
    store.delete([layout.deployed(CLOUD)])
    for other in elsewhere:
        if _delete_stack(clients, name, other):
            found = True
            say(f"stack {name} in {other}: removed")
    for each in (region, *elsewhere):
        alarms = _alarms(clients, name, alarm_prefix(store.url), each)
        if alarms:
            found = True
            _delete_alarms(clients, alarms, each)
            say(f"alarms in {each}: {len(alarms)} removed")
    resources = _resources(clients, name, region)
    if _delete_stack(clients, name, region):
        found = True
        say(f"stack {name} in {region}: removed")
    # A call that was under way makes its log again.
    _delete_log(clients, f"/aws/lambda/{name}", region)
    store.delete([meta.key for meta in store.list(layout.DEPLOYED)])
    left = [
        *left_over(clients, name, store.url, region),
        *(role for role in resources if _has_role(clients, role, region)),
    ]
    if left:
        raise ProviderError(f"left of {name} in {region}: {', '.join(left)}; remove them by hand")
    return found


def left_over(clients: Clients, name: str, store_url: str, region: str) -> list[str]:
    """What of a deployment is still there, as AWS itself tells it."""
    events, functions = clients.get("events", region), clients.get("lambda", region)
    topics, logs = clients.get("sns", region), clients.get("logs", region)
    found = [f"rule {each['Name']}" for each in calling(name, lambda: events.list_rules(NamePrefix=name))["Rules"]]
    try:
        calling(name, lambda: functions.get_function(FunctionName=name))
        found.append(f"function {name}")
    except NotFound:
        pass
    listed = [each for page in topics.get_paginator("list_topics").paginate() for each in page["Topics"]]
    found += [f"topic {each['TopicArn']}" for each in listed if each["TopicArn"].endswith(f":{name}-alarms")]
    group = f"/aws/lambda/{name}"
    groups = calling(name, lambda: logs.describe_log_groups(logGroupNamePrefix=group))["logGroups"]
    found += [f"log group {group}" for each in groups if each["logGroupName"] == group]
    found += [f"alarm {each}" for each in _alarms(clients, name, alarm_prefix(store_url), region)]
    return found


def _resources(clients: Clients, name: str, region: str) -> list[str]:
    """The roles of a stack, whose names are CloudFormation's."""
    cloudformation = clients.get("cloudformation", region)
    try:
        listed = calling(name, lambda: cloudformation.describe_stack_resources(StackName=name))["StackResources"]
    except (NotFound, InvalidRequest):
        return []
    return [each["PhysicalResourceId"] for each in listed if each["ResourceType"] == "AWS::IAM::Role"]


def _has_role(clients: Clients, role: str, region: str) -> bool:
    iam = clients.get("iam", region)
    try:
        calling(role, lambda: iam.get_role(RoleName=role))
    except NotFound:
        return False
    return True


def _alarms(clients: Clients, name: str, start: str, region: str) -> list[str]:
    """Alarms that report to the governor, or go by the store's name: it made them."""
    cloudwatch = clients.get("cloudwatch", region)
    pages = calling(name, lambda: list(cloudwatch.get_paginator("describe_alarms").paginate()))
    listed = [each for page in pages for each in page.get("MetricAlarms", ())]
    ours = f":{name}-alarms"
    return [
        each["AlarmName"]
        for each in listed
        if each["AlarmName"].startswith(start) or any(to.endswith(ours) for to in each.get("AlarmActions", ()))
    ]


def _delete_alarms(clients: Clients, alarms: list[str], region: str) -> None:
    cloudwatch = clients.get("cloudwatch", region)
    for start in range(0, len(alarms), 100):
        some = alarms[start : start + 100]
        calling("alarms", lambda: cloudwatch.delete_alarms(AlarmNames=some))  # noqa: B023 - called at once


def _delete_log(clients: Clients, group: str, region: str) -> None:
    logs = clients.get("logs", region)
    try:
        calling(group, lambda: logs.delete_log_group(logGroupName=group))
    except NotFound:
        pass


def _delete_stack(clients: Clients, name: str, region: str) -> bool:
    """False: there is none."""
    cloudformation = clients.get("cloudformation", region)
    stack = _find(cloudformation, name)
    if stack is None:
        return False
    # By its id: a stack that is gone is not told of by name any more.
    where = stack["StackId"]
    calling(name, lambda: cloudformation.delete_stack(StackName=where))
    _waited(cloudformation, where, "DELETE_COMPLETE")
    return True


# ── Stacks ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Stack:
    """One stack, as a request wants it."""

    def __init__(self, clients: Clients, request: Request) -> None:
        self._client = clients.get("cloudformation", request.region)
        self._params = request.params
        self._name: str = request.params["StackName"]

    def settle(self) -> str:
        """Create or update it, wait, and say in a word what was done."""
        there = _find(self._client, self._name)
        if there is not None and there["StackStatus"] in _STILLBORN:
            stillborn = there["StackId"]
            calling(self._name, lambda: self._client.delete_stack(StackName=stillborn))
            _waited(self._client, stillborn, "DELETE_COMPLETE")
            there = None
        if there is None:
            calling(self._name, lambda: self._client.create_stack(**self._params, OnFailure="DELETE"))
            _waited(self._client, self._name, "CREATE_COMPLETE")
            return "made"
        if there["StackStatus"].endswith("_IN_PROGRESS"):
            raise Transient(f"{self._name}: somebody changes it at this moment; try again")
        try:
            calling(self._name, lambda: self._client.update_stack(**self._params))
        except ProviderError as error:
            if "No updates are to be performed" not in str(error):
                raise
            return "as it was"
        _waited(self._client, self._name, "UPDATE_COMPLETE")
        return "updated"


def _find(client: Any, name: str) -> dict[str, Any] | None:
    try:
        found = calling(name, lambda: client.describe_stacks(StackName=name))["Stacks"]
    except ProviderError as error:
        # CloudFormation has no error of its own for it.
        if "does not exist" not in str(error):
            raise
        return None
    alive = [stack for stack in found if stack["StackStatus"] != "DELETE_COMPLETE"]
    return alive[0] if alive else None


def _waited(client: Any, name: str, wanted: str) -> None:
    """Until the stack has come to rest. Raises ProviderError with the first reason of a failure."""
    until_s = time.monotonic() + _STACK_S
    pause_s = 0.2
    while True:
        stack = _find(client, name)
        status = stack["StackStatus"] if stack is not None else "DELETE_COMPLETE"
        if status == wanted:
            return
        if not status.endswith("_IN_PROGRESS"):
            raise ProviderError(f"{name}: {status}: {_reason(client, name)}")
        if time.monotonic() > until_s:
            raise Transient(f"{name}: is still {status}; look again in a while")
        time.sleep(pause_s)
        pause_s = min(_POLL_S, pause_s * 2)


def _reason(client: Any, name: str) -> str:
    try:
        told = calling(name, lambda: client.describe_stack_events(StackName=name))["StackEvents"]
    except ProviderError:
        return "CloudFormation does not say why"
    # Newest first; what came first is the cause of the others.
    failed = [each for each in reversed(told) if each["ResourceStatus"].endswith("_FAILED")]
    if not failed:
        return "CloudFormation does not say why"
    first = failed[0]
    return f"{first['LogicalResourceId']}: {first.get('ResourceStatusReason', 'no reason given')}"
