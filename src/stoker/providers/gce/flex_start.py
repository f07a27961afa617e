"""Flex-start: the request for machines waits in Google's queue, and they run for seven days at most. Pure.

https://cloud.google.com/compute/docs/instances/about-flex-start-vms. One machine is an `insert` with
`requestValidForDuration`: a request that finds no machine in that time disappears. Several are a resize request in a
managed instance group, which Stoker cancels after the same time: see `flex_group`.
"""

from __future__ import annotations

import re
from dataclasses import replace

from stoker.model.durations import span_text
from stoker.model.errors import UserError
from stoker.model.resources import Resources
from stoker.model.spec import Spec
from stoker.providers.base import LaunchOrder

FIELD = "resources.gce.flex_start"
# "The value must be between 10 minutes and seven days."
_LIFE_S = (600.0, 7 * 86400.0)
# "specify a duration between 90 seconds (90) and two hours (7200)"
_LEAST_QUEUE_S = 90
# Shorter than Google's two hours: a repeated request is recognised for an hour, and must be for as long as it waits.
_MOST_QUEUE_S = 3000
# https://cloud.google.com/compute/docs/instance-groups/about-resize-requests-mig#limitations
_MOST_AT_ONCE = 1000
# Where a job may use several zones, each gets its turn.
_TURN_S = 600
# "all accelerator-optimized machine types (except A4X and G4) and H4D machine types", and TPUs.
_SOLD = re.compile(r"(a[234]|g2|h4d|ct5lp|ct5p|ct6e)-")


def is_wanted(resources: Resources) -> bool:
    """Return whether the job requests machines by flex-start instead of on demand."""
    return resources.gce is not None and resources.gce.flex_start


def is_sold(machine: str) -> bool:
    """Return whether there are flex-start machines of this type."""
    return _SOLD.match(machine) is not None


def queue_s(order: LaunchOrder) -> int:
    """How long the order's request waits in Google's queue. The same for every governor that repeats the request."""
    most = _MOST_QUEUE_S if len(order.spec.resources.zones) == 1 else _TURN_S
    wait_s = order.spec.limits.max_wait_s
    return max(_LEAST_QUEUE_S, most if wait_s is None else min(most, int(wait_s)))


def with_longest_life(order: LaunchOrder) -> LaunchOrder:
    """The order of a flex-start machine, whose life is always bounded."""
    least, most = _LIFE_S
    life_s = most if order.max_life_s is None else min(most, max(least, order.max_life_s))
    return replace(order, max_life_s=life_s)


def check(spec: Spec) -> None:
    """Raise UserError where flex-start contradicts another field of the job."""
    resources = spec.resources
    if resources.gce is None or not resources.gce.flex_start:
        return
    if resources.spot == "only":
        raise UserError(f"{FIELD}: is instead of on-demand machines, which resources.spot excludes; set it to prefer")
    if resources.gce.reservation not in (None, "none"):
        raise UserError(f"{FIELD}: flex-start machines use no reservation; leave out one of the two")
    if spec.nodes > 1 and resources.gce.placement_policy is not None:
        raise UserError(f"{FIELD}: Google places flex-start machines itself; leave out resources.gce.placement_policy")
    if spec.nodes > _MOST_AT_ONCE:
        raise UserError(f"{FIELD}: one request is for {_MOST_AT_ONCE:,} machines at most; set nodes to fewer")


def remarks(spec: Spec) -> tuple[str, ...]:
    """The differences between flex-start and on-demand machines that matter to this job, a line each."""
    if not is_wanted(spec.resources):
        return ()
    longest = span_text(_LIFE_S[1])
    lines = [f"{FIELD}: a machine runs for {longest} at most; prices are those of on-demand, which costs more"]
    if spec.limits.max_wait_s is None:
        lines.append(f"{FIELD}: waits for a machine without end; limits.max_wait bounds that")
    if spec.limits.max_runtime_s is not None and spec.limits.max_runtime_s > _LIFE_S[1]:
        lines.append(f"{FIELD}: after {longest} the job goes on from its checkpoint on another machine")
    return tuple(lines)
