"""Rehearse a reclaim: by the Fault Injection Service if it is allowed, otherwise by ending the machine.

An experiment is made from a template, which is removed at once: a running experiment does not need it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from stoker.model.errors import AuthDenied, InvalidRequest, NotFound, ProviderError, QuotaExceeded
from stoker.providers.ec2.client import Clients
from stoker.providers.ec2.errors import call_aws

ACTION = "aws:ec2:send-spot-instance-interruptions"
# The range that the action accepts. EC2's notice itself always comes two minutes ahead.
_LEAST_MINUTES = 2
_MOST_MINUTES = 15
# An experiment that cannot start reports that within seconds.
_BEGIN_LIMIT_S = 60.0
_LOOK_EVERY_S = 1.0
_BEGUN = ("running", "completed")
_FAILED = ("failed", "stopped", "stopping", "cancelled")


class InjectionRefused(Exception):
    """The Fault Injection Service cannot be used here; the message says why."""


def interrupt(
    clients: Clients,
    instance: str,
    grace_s: float,
    region: str | None,
    role: str,
    *,
    pause: Callable[[float], None] = time.sleep,
) -> str:
    """Let the machine be reclaimed by the Fault Injection Service in its role `role`, and describe how.

    Raises NotFound if it is gone, and every error that is no refusal.

    Only a permanent refusal leads to ending the machine. A missing answer is raised, and the call may be repeated.
    """
    ec2 = clients.get("ec2", region)
    found = _described(ec2, instance)
    minutes = min(_MOST_MINUTES, max(_LEAST_MINUTES, math.ceil(grace_s / 60)))
    try:
        if found.get("InstanceLifecycle") != "spot":
            raise InjectionRefused("it is not a spot machine")
        _inject(clients, instance, minutes, region, role, pause)
    except InjectionRefused as why:
        call_aws(instance, lambda: ec2.terminate_instances(InstanceIds=[instance]))
        return f"{instance} was ended at once, without a notice: {why}"
    return f"the Fault Injection Service takes {instance} away in {minutes} minutes; EC2's notice comes 2 minutes ahead"


def _described(ec2: Any, instance: str) -> Mapping[str, Any]:
    answer = call_aws(instance, lambda: ec2.describe_instances(InstanceIds=[instance]))
    found = [each for reservation in answer["Reservations"] for each in reservation["Instances"]]
    if not found or found[0]["State"]["Name"] not in ("pending", "running"):
        raise NotFound(f"{instance} is gone")
    first: Mapping[str, Any] = found[0]
    return first


def _inject(
    clients: Clients, instance: str, minutes: int, region: str | None, role: str, pause: Callable[[float], None]
) -> None:
    fis = clients.get("fis", region)
    known = clients.session().get_available_regions("fis")
    if known and _region_of(fis) not in known:
        raise InjectionRefused(f"there is no Fault Injection Service in {_region_of(fis)}")
    try:
        identity = call_aws("sts", clients.get("sts", region).get_caller_identity)
        request = template(instance, minutes, _region_of(fis), str(identity["Account"]), str(identity["Arn"]), role)
        made = call_aws(ACTION, lambda: fis.create_experiment_template(**request))
        name = made["experimentTemplate"]["id"]
        try:
            begun = call_aws(ACTION, lambda: fis.start_experiment(experimentTemplateId=name))["experiment"]
            _wait_until_begun(fis, begun, pause)
        finally:
            _remove(fis, name)
    except (AuthDenied, InvalidRequest, NotFound, QuotaExceeded) as error:
        raise InjectionRefused(
            f"the Fault Injection Service refused ({error}); `stoker iam ec2` prints the permissions that it needs"
        ) from error


def template(instance: str, minutes: int, region: str, account: str, caller: str, role: str) -> dict[str, Any]:
    """The experiment template: this machine, once. Pure."""
    partition = caller.split(":")[1]
    return {
        "description": f"stoker interrupt {instance}",
        "roleArn": f"arn:{partition}:iam::{account}:role/{role}",
        "stopConditions": [{"source": "none"}],
        "targets": {
            "machine": {
                "resourceType": "aws:ec2:spot-instance",
                "resourceArns": [f"arn:{partition}:ec2:{region}:{account}:instance/{instance}"],
                "selectionMode": "ALL",
            }
        },
        "actions": {
            "reclaim": {
                "actionId": ACTION,
                "parameters": {"durationBeforeInterruption": f"PT{minutes}M"},
                "targets": {"SpotInstances": "machine"},
            }
        },
    }


def _region_of(client: Any) -> str:
    """The region of the client."""
    region: str = client.meta.region_name
    return region


def _wait_until_begun(fis: Any, experiment: Mapping[str, Any], pause: Callable[[float], None]) -> None:
    """Wait for the experiment to run: a role that cannot be assumed, or a missing machine, shows only after the
    start."""
    until_s = time.monotonic() + _BEGIN_LIMIT_S
    while True:
        state = experiment.get("state", {})
        if state.get("status") in _BEGUN:
            return
        if state.get("status") in _FAILED:
            raise InvalidRequest(f"its experiment failed: {state.get('reason') or 'no reason given'}")
        if time.monotonic() > until_s:
            return  # It was started, and no failure was reported.
        pause(_LOOK_EVERY_S)
        name = experiment["id"]
        experiment = call_aws(ACTION, lambda: fis.get_experiment(id=name))["experiment"]  # noqa: B023 - called at once


def _remove(fis: Any, name: str) -> None:
    try:
        call_aws(ACTION, lambda: fis.delete_experiment_template(id=name))
    except ProviderError:
        return  # A template has no effect by itself, and the next one has another name.
