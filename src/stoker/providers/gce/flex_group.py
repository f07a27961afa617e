"""Several flex-start machines: the requests for a managed instance group that queues for all of them at once. Pure.

https://cloud.google.com/compute/docs/instance-groups/create-resize-requests-mig: an instance template describes the
machines, a group of size 0 is made from it, and a resize request in that group names the machines. All of them come
together, in the group's zone, or none does. The three have the name of their claim, so that each exists once, and their
descriptions name the owner, as neither groups nor templates have labels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from stoker.model.errors import InvalidRequest
from stoker.providers.base import HttpRequest, LaunchOrder
from stoker.providers.gce import flex_start, names, owners
from stoker.providers.gce.places import ProjectRegion

_API = "/compute/v1"
# A resize request has no end of its own: its description says after how many seconds Stoker cancels it.
_TURN = "stoker-turn-s"


def build(
    order: LaunchOrder, place: ProjectRegion, properties: Mapping[str, Any], request_id: Callable[[str], str]
) -> tuple[HttpRequest, HttpRequest, HttpRequest]:
    """The requests for the template, the group and the machines, in this order. `request_id` is by purpose."""
    name, owner = names.base(order), owners.describe(owners.Owner.of_order(order))
    project = f"projects/{place.project}"
    templates = f"{project}/regions/{place.region}/instanceTemplates"
    groups = f"{project}/zones/{order.offering.zone}/instanceGroupManagers"
    life_s = math.ceil(order.max_life_s or 0)
    template = {"name": name, "description": owner, "properties": dict(properties)}
    group = {
        "name": name,
        "description": owner,
        "baseInstanceName": name,
        "targetSize": 0,
        "versions": [{"instanceTemplate": f"{templates}/{name}"}],
        # A machine that has ended must stay away: the next attempt has machines of its own.
        "instanceLifecyclePolicy": {"defaultActionOnFailure": "DO_NOTHING"},
        # Resize requests need a group that changes nothing by itself.
        "updatePolicy": {"type": "OPPORTUNISTIC"},
    }
    resize = {
        "name": name,
        "description": f"{owner} {_TURN}={flex_start.queue_s(order)}",
        "instances": [{"name": each} for each in names.machines(order)],
        "requestedRunDuration": {"seconds": str(life_s)},
    }
    return (
        _post(f"{templates}?requestId={request_id('template')}", template, place),
        _post(f"{groups}?requestId={request_id('group')}", group, place),
        _post(f"{groups}/{name}/resizeRequests?requestId={request_id('resize')}", resize, place),
    )


def is_resize(request: HttpRequest) -> bool:
    """Return whether this is the request for the machines of a group."""
    return request.path.partition("?")[0].endswith("/resizeRequests")


def resize_path(request: HttpRequest) -> str:
    """The path of the resize request that this request creates."""
    return f"{request.path.partition('?')[0]}/{request.body['name']}"


def turn_s(request: HttpRequest) -> float:
    """How long the resize request may wait in Google's queue. Raises InvalidRequest for a request of another origin."""
    pairs = dict(pair.split("=", 1) for pair in str(request.body.get("description")).split() if "=" in pair)
    if not pairs.get(_TURN, "").isdigit():
        raise InvalidRequest(f"not a request of the gce provider: {request.path}")
    return float(pairs[_TURN])


def _post(path: str, body: dict[str, Any], place: ProjectRegion) -> HttpRequest:
    return HttpRequest("compute", "POST", f"{_API}/{path}", body, str(place))
