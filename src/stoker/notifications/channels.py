"""Who is to hear what: every address that the house or a job names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from stoker.model import channel_address
from stoker.model.policy import Channel, House
from stoker.model.spec import Spec
from stoker.notifications.events import Told, in_scope, wants

_DEFAULT = Channel(to="")
# Variables of functions: what listens beside one is the cloud's.
_FUNCTIONS = ("AWS_LAMBDA_FUNCTION_NAME", "K_SERVICE")


@dataclass
class Named:
    """An address that somebody names, and who hears what there."""

    to: str
    name: str
    house: list[Channel] = field(default_factory=list)
    jobs: set[str] = field(default_factory=set)

    def cares(self, job: str, spec: Spec) -> bool:
        return job in self.jobs or any(in_scope(channel, spec.tags) for channel in self.house)

    def wants(self, told: Told) -> bool:
        return (told.job in self.jobs and not told.thing) or any(wants(channel, told) for channel in self.house)


def named_channels(house: House, jobs: Mapping[str, Spec]) -> dict[str, Named]:
    """Every address that the house or one of these jobs names, by its digest."""
    found: dict[str, Named] = {}
    for channel in house.notify:
        named = found.setdefault(channel_address.digest(channel.to), Named(channel.to, channel.name))
        named.house.append(channel)
    for job, spec in jobs.items():
        for to in spec.notify:
            found.setdefault(channel_address.digest(to), Named(to, channel_address.masked(to))).jobs.add(job)
    return found


def at_most(named: Named | None) -> int:
    """How many messages an hour it is sent."""
    house = named.house if named is not None else ()
    return min((channel.at_most for channel in house), default=_DEFAULT.at_most)


def is_out_of_bounds(named: Named | None, to: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a job, and not the house, would have this computer send something to where only it can reach."""
    if named is not None and named.house:
        return False
    return channel_address.inside(to, loopback=any(name in environ for name in _FUNCTIONS))
