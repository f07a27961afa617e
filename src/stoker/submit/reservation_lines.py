"""Lines of the plan about the time in which the job's reservation has machines. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from stoker.core.policy_rules import EffectiveLimits
from stoker.core.reserved_time import clock_text, notice_s, opens_text
from stoker.model.durations import span_text
from stoker.model.offerings import Offering


def reservation_lines(limits: EffectiveLimits, offerings: Iterable[Offering], now: datetime) -> tuple[str, ...]:
    """When the reservation of the best reserved offering starts and ends, and what that means for the job."""
    offered = tuple(offerings)
    reserved = next((each.reservation for each in offered if each.reservation is not None), None)
    if reserved is None:
        return ()
    lines = []
    if any(each.spot for each in offered):
        lines.append(f"spot machines do not use {reserved.name}; without `spot` the job waits for it alone")
    starts_at = reserved.starts_at if reserved.starts_at is not None and reserved.starts_at > now else None
    if starts_at is not None:
        opens, wait_s = opens_text(reserved, starts_at), limits.spec.limits.max_wait_s
        if wait_s is None or wait_s > (starts_at - now).total_seconds() or any(each.spot for each in offered):
            lines.append(f"{opens}; the job waits until then")
        else:
            lines.append(f"{opens}, and {limits.named('max_wait')} ({span_text(wait_s)}) ends the job before; raise it")
    if reserved.machines is not None and reserved.machines < limits.spec.nodes:
        lines.append(f"{reserved.name} has {reserved.machines} of the {limits.spec.nodes} machines that the job needs")
    if reserved.ends_machines_at is not None:
        save = f"the training is asked to save and end {span_text(notice_s(limits.spec))} before"
        ends = f"{reserved.name} ends its machines at {clock_text(reserved.ends_machines_at)}; {save}"
        left_s = (reserved.ends_machines_at - (starts_at or now)).total_seconds()
        most_s = limits.spec.limits.max_runtime_s
        if most_s is not None and most_s > left_s:
            ends += f", sooner than {limits.named('max_runtime')} ({span_text(most_s)})"
        lines.append(ends)
    elif reserved.ends_at is not None:
        after = "its machines go on after that, at the on-demand price, and no other attempt can begin in it"
        lines.append(f"{reserved.name} ends at {clock_text(reserved.ends_at)}; {after}")
    return tuple(lines)
