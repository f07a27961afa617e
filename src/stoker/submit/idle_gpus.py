"""GPUs that a job buys beside those it asked for, because no smaller machine is on offer. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from stoker.core.costs import in_dollars
from stoker.model.offerings import Offering
from stoker.model.resources import idle_gpus
from stoker.model.spec import Spec


def idle_gpus_warning(spec: Spec, offerings: Iterable[Offering]) -> tuple[str, ...]:
    """Warn that a launch may buy more GPUs than the job asked for: a line for the best of those offerings."""
    asked = spec.resources.gpus
    larger = next((each for each in offerings if idle_gpus(asked, each.gpus)), None)
    if asked is None or larger is None:
        return ()
    name = f"{asked.name or 'GPU'}:{asked.count}"
    price = "" if larger.price is None else f" at {in_dollars(larger.price)}/h"
    on_all = f" on each of {spec.nodes} nodes" if spec.nodes > 1 else ""
    bought = f"{larger.machine} {larger.kind} has {larger.gpus} × {larger.gpu}{price}"
    unused = f"{idle_gpus(asked, larger.gpus)} of {larger.gpus} GPUs stay idle{on_all}, and are paid for"
    return (f"resources.gpus: {name} was asked for, and {bought}: {unused}; resources.max_price bounds the price",)
