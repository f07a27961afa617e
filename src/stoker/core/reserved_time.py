"""The time in which a reservation has machines, and the notice before its end. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from stoker.core.costs import valid_span_s
from stoker.core.governor_settings import DEFAULT
from stoker.model.durations import span_text
from stoker.model.offerings import Offering, Reservation
from stoker.model.spec import Spec

# Scripts rely on the notice of EC2's spot machines, the longest of all clouds.
_LEAST_NOTICE_S = 120.0
# Less than this, beside the notice, is over before a machine has booted and trains.
LEAST_LEFT_S = 600.0


def notice_s(spec: Spec) -> float:
    """How long before the end of its reservation a training gets its notice.

    What it gets after a stop, to save and to leave; no shorter than a spot notice, and no longer than any notice.
    """
    needed_s = valid_span_s(spec.checkpoints.grace_s) + DEFAULT.leave_s
    return min(DEFAULT.longest_notice_s, max(_LEAST_NOTICE_S, needed_s))


def still_open(spec: Spec, offerings: Iterable[Offering], now: datetime) -> tuple[tuple[Offering, ...], str]:
    """The offerings on which an attempt can still begin; and why others are left out, whose reservations are over."""
    found, over = [], ""
    for offering in offerings:
        why = _why_over(offering.reservation, spec, now) if offering.reservation is not None else ""
        over = over or why
        if not why:
            found.append(offering)
    return tuple(found), over


def opening(offerings: Iterable[Offering], now: datetime) -> dict[str, datetime]:
    """When the reservations start that have not started yet, by the key of the offering."""
    starts = {each.key: each.reservation.starts_at for each in offerings if each.reservation is not None}
    return {key: at for key, at in starts.items() if at is not None and at > now}


def opens_text(reservation: Reservation, at: datetime) -> str:
    """`cr-0123 starts at 2026-11-20 11:30 UTC`."""
    return f"{reservation.name} starts at {clock_text(at)}"


def end_text(reservation: Reservation, provider: str) -> str:
    """The source of the notice at the end of a reservation."""
    return f"{provider}: the end of {reservation.name}"


def clock_text(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC"


def _why_over(reservation: Reservation, spec: Spec, now: datetime) -> str:
    """Why no attempt can begin in a reservation any more; empty if one can."""
    ends_machines_at, ends_at, name = reservation.ends_machines_at, reservation.ends_at, reservation.name
    if ends_machines_at is None:
        return f"{name} ended at {clock_text(ends_at)}" if ends_at is not None and now >= ends_at else ""
    lead_s = notice_s(spec) + LEAST_LEFT_S
    if now < ends_machines_at - timedelta(seconds=lead_s):
        return ""
    if now >= ends_machines_at:
        return f"{name} has ended its machines since {clock_text(ends_machines_at)}"
    too_late = f"an attempt needs at least {span_text(lead_s)}, its notice included"
    return f"{name} ends its machines at {clock_text(ends_machines_at)}: {too_late}"
