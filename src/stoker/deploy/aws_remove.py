"""Remove a governor from AWS, with the alarms that it created itself, and check whether anything is left.

Regions are independent: one that does not answer does not prevent the removal in the others. A region is skipped only
where the person says so, since the contents of a disabled region are not known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from stoker.core.governor_settings import DEFAULT
from stoker.deploy import aws_stacks
from stoker.external_jobs.gpu_alarms import alarm_prefix as alarm_prefix
from stoker.governor import deployment_record
from stoker.model import keys
from stoker.model.errors import NotFound, ProviderError
from stoker.policy.reader import PolicyReader
from stoker.providers.base import Request
from stoker.providers.ec2.client import Clients
from stoker.providers.ec2.errors import call_aws
from stoker.store.base import Store

CLOUD = "aws"

Say = Callable[[str], None]


def remove(store: Store, region: str, elsewhere: tuple[str, ...], say: Say, *, forgotten: tuple[str, ...] = ()) -> bool:
    """Remove the deployment with everything that it created, and check whether anything is left. Idempotent: the record
    names the regions until nothing is left. `forgotten` regions are skipped.

    Returns False where there was nothing. Raises ProviderError naming what is left, or may be.
    """
    clients = Clients()
    name = keys.deployment_name(store.url)
    there = deployment_record.read(store, CLOUD)
    recorded = (*there.elsewhere, *there.leaving, there.region) if there is not None else ()
    others = tuple(dict.fromkeys(each for each in (*elsewhere, *recorded) if each != region and each not in forgotten))
    if there is not None:
        # First, so that no client relies on this governor any more.
        deployment_record.write(store, replace(there, state="removing", region=region, elsewhere=others, leaving=()))
    removal = _Removal(clients, name, store.url, say)
    # The governor's own region comes last: it has the function, which creates alarms.
    for each in (*others, region):
        removal.take_stack(each)
    for each in _alarm_regions(store, (region, *others)):
        if each not in forgotten:
            removal.take_alarms(each)
    # Late, because a call in progress creates the log group again.
    removal.take_log(region)
    for each in (region, *others):
        removal.look(each)
    removal.look_for_roles(region)
    if removal.left:
        raise ProviderError(_left_message(name, region, removal.left))
    store.delete([meta.key for meta in store.list(keys.DEPLOYED) if meta.key.endswith(".zip")])
    # The record is deleted last: it names the regions.
    store.delete([keys.deployed(CLOUD)])
    return removal.found or there is not None


def requests(store_url: str, region: str, elsewhere: tuple[str, ...]) -> Iterator[Request]:
    """All requests to AWS that remove the deployment, in order, as data, as far as they are known without a call."""
    name = keys.deployment_name(store_url)
    bucket, _, prefix = store_url.removeprefix("s3://").partition("/")
    for each in (*elsewhere, region):
        yield Request("cloudformation", "DeleteStack", {"StackName": name}, each)
    alarms = {"AlarmNames": [f"{alarm_prefix(store_url)}*"]}
    for each in (region, *elsewhere):
        yield Request("cloudwatch", "DeleteAlarms", alarms, each)
    yield Request("logs", "DeleteLogGroup", {"logGroupName": f"/aws/lambda/{name}"}, region)
    key = f"{prefix}/{keys.DEPLOYED}*" if prefix else f"{keys.DEPLOYED}*"
    yield Request("s3", "DeleteObject", {"Bucket": bucket, "Key": key}, region)


def _alarm_regions(store: Store, regions: tuple[str, ...]) -> tuple[str, ...]:
    """The regions in which the governor may have created alarms: those of external jobs, now and in the past."""
    settings = PolicyReader(store, DEFAULT).read()
    governed = settings.policy.sagemaker.regions if settings.policy.sagemaker is not None else ()
    return tuple(dict.fromkeys((*regions, *governed, *store.folders(keys.CLONE_CHAINS))))


def _left_message(name: str, home: str, left: dict[str, list[str]]) -> str:
    what = ", ".join(f"{each} in {region}" for region, found in left.items() for each in found)
    others = [region for region in left if region != home]
    forget = f"; `{' '.join(f'--forget {each}' for each in others)}` leaves as it is what is there" if others else ""
    return f"left of {name}: {what}; remove it by hand, or try again{forget}"


class _Removal:
    """One removal. `found`: something existed; `left`: what still exists or may exist, by region."""

    def __init__(self, clients: Clients, name: str, store_url: str, say: Say) -> None:
        self._clients = clients
        self._name = name
        self._store_url = store_url
        self._say = say
        self._roles: list[str] = []
        self.found = False
        self.left: dict[str, list[str]] = {}

    def take_stack(self, region: str) -> None:
        try:
            self._roles += aws_stacks.roles(self._clients, self._name, region)
            if aws_stacks.remove(self._clients, self._name, region):
                self.found = True
                self._say(f"stack {self._name} in {region}: removed")
        except ProviderError as error:
            self._perhaps("a stack", region, error)

    def take_log(self, region: str) -> None:
        logs, group = self._clients.get("logs", region), f"/aws/lambda/{self._name}"
        try:
            call_aws(group, lambda: logs.delete_log_group(logGroupName=group))
        except NotFound:
            pass
        except ProviderError as error:
            self._perhaps("its log", region, error)

    def take_alarms(self, region: str) -> None:
        try:
            alarms = _alarms(self._clients, self._name, alarm_prefix(self._store_url), region)
            _delete_alarms(self._clients, alarms, region)
        except ProviderError as error:
            self._perhaps("alarms", region, error)
            return
        if alarms:
            self.found = True
            self._say(f"alarms in {region}: {len(alarms)} removed")

    def look(self, region: str) -> None:
        try:
            there = left_over(self._clients, self._name, self._store_url, region)
            if any(each.startswith("log group ") for each in there):
                # A call that has only just ended created the log group again.
                self.take_log(region)
                there = left_over(self._clients, self._name, self._store_url, region)
        except ProviderError as error:
            self._perhaps("something", region, error)
            return
        if there:
            self.left.setdefault(region, []).extend(there)

    def look_for_roles(self, region: str) -> None:
        """Check that the roles are gone. Roles are global, so that any region answers for them."""
        for role in self._roles:
            try:
                if _has_role(self._clients, role, region):
                    self.left.setdefault(region, []).append(f"role {role}")
            except ProviderError as error:
                self._perhaps(f"role {role}", region, error)

    def _perhaps(self, what: str, region: str, error: ProviderError) -> None:
        # Only the first reason is recorded: a region that does not answer fails in several steps.
        self.left.setdefault(region, [f"perhaps {what} ({error})"])


def left_over(clients: Clients, name: str, store_url: str, region: str) -> list[str]:
    """List the parts of a deployment that still exist in a region."""
    events, functions = clients.get("events", region), clients.get("lambda", region)
    topics, logs = clients.get("sns", region), clients.get("logs", region)
    found = [f"rule {each['Name']}" for each in call_aws(name, lambda: events.list_rules(NamePrefix=name))["Rules"]]
    try:
        call_aws(name, lambda: functions.get_function(FunctionName=name))
        found.append(f"function {name}")
    except NotFound:
        pass
    pages = call_aws(name, lambda: list(topics.get_paginator("list_topics").paginate()))
    listed = [each["TopicArn"] for page in pages for each in page["Topics"]]
    found += [f"topic {each}" for each in listed if each.endswith(f":{name}-alarms")]
    group = f"/aws/lambda/{name}"
    groups = call_aws(name, lambda: logs.describe_log_groups(logGroupNamePrefix=group))["logGroups"]
    found += [f"log group {group}" for each in groups if each["logGroupName"] == group]
    found += [f"alarm {each}" for each in _alarms(clients, name, alarm_prefix(store_url), region)]
    return found


def _has_role(clients: Clients, role: str, region: str) -> bool:
    iam = clients.get("iam", region)
    try:
        call_aws(role, lambda: iam.get_role(RoleName=role))
    except NotFound:
        return False
    return True


def _alarms(clients: Clients, name: str, start: str, region: str) -> list[str]:
    """The alarms that the governor created: those that notify it, or have the store's prefix."""
    cloudwatch = clients.get("cloudwatch", region)
    pages = call_aws(name, lambda: list(cloudwatch.get_paginator("describe_alarms").paginate()))
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
        call_aws("alarms", lambda: cloudwatch.delete_alarms(AlarmNames=some))  # noqa: B023 - called at once
