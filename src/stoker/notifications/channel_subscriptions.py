"""The channels that the policy or a job names, and the events that each of them wants."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from stoker.model import channel_address
from stoker.model.policy import NotificationChannel, Policy
from stoker.model.spec import Spec
from stoker.notifications.events import Notification, channel_wants, in_scope

_DEFAULT = NotificationChannel(to="")
# Environment variables of a cloud function: loopback addresses belong to the cloud there.
_FUNCTION_VARIABLES = ("AWS_LAMBDA_FUNCTION_NAME", "K_SERVICE")


@dataclass
class NamedChannel:
    """An address, with the entries of the policy and the jobs that name it."""

    to: str
    name: str
    policy: list[NotificationChannel] = field(default_factory=list)
    jobs: set[str] = field(default_factory=set)

    def covers(self, job: str, spec: Spec) -> bool:
        """Return whether any event of this job may be wanted."""
        return job in self.jobs or any(in_scope(channel, spec.tags) for channel in self.policy)

    def wants(self, event: Notification) -> bool:
        return (event.job in self.jobs and not event.thing) or any(
            channel_wants(channel, event) for channel in self.policy
        )


def named_channels(policy: Policy, jobs: Mapping[str, Spec]) -> dict[str, NamedChannel]:
    """Every address that the policy or one of these jobs names, by its digest."""
    found: dict[str, NamedChannel] = {}
    for channel in policy.notify:
        named = found.setdefault(channel_address.digest(channel.to), NamedChannel(channel.to, channel.name))
        named.policy.append(channel)
    for job, spec in jobs.items():
        for to in spec.notify:
            found.setdefault(channel_address.digest(to), NamedChannel(to, channel_address.masked(to))).jobs.add(job)
    return found


def max_per_hour(named: NamedChannel | None) -> int:
    """The most messages that the channel is sent in an hour."""
    policy = named.policy if named is not None else ()
    return min((channel.at_most for channel in policy), default=_DEFAULT.at_most)


def is_out_of_bounds(named: NamedChannel | None, to: str) -> bool:
    """Return whether a job, and not the policy, names an address that only the governor's own computer or cloud can
    reach."""
    if named is not None and named.policy:
        return False
    return channel_address.is_forbidden_target(to, loopback=any(name in os.environ for name in _FUNCTION_VARIABLES))
