"""Lists as Compute Engine tells them: filtered, in order, a page at a time, by place or for all places at once."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.support.gce.discovery import Api, Method
from tests.support.gce.errors import Failure, Json, invalid
from tests.support.gce.filters import compiled

_MOST = 500


@dataclass(frozen=True)
class Row:
    """One thing to be listed, with its place: "zones/us-central1-a"."""

    place: str
    resource: Json


def listed(api: Api, method: Method, query: Mapping[str, str], rows: Iterable[Row], link: str) -> Json:
    """The answer to a list. Raises Failure (400) for a filter, an order or a page that is not understood."""
    schema = api.response(method)
    items = api.below(schema, "items") or {}
    page, token = _page(api, items, query, rows)
    found = _opening(schema, method, link, token)
    if page:
        found["items"] = [row.resource for row in page]
    return found


def aggregated(
    api: Api, method: Method, query: Mapping[str, str], rows: Iterable[Row], link: str, places: Sequence[str]
) -> Json:
    """The answer to a list over all places. Raises Failure (400) as `listed` does."""
    schema = api.response(method)
    scoped = api.below(api.below(schema, "items") or {}, "*") or {}
    name, items = _listed_field(api, scoped)
    page, token = _page(api, items, query, rows)
    found = _opening(schema, method, link, token)
    told: dict[str, Json] = {}
    for place in places:
        here = [row.resource for row in page if row.place == place]
        told[place] = {name: here} if here else {"warning": _nothing(place)}
    found["items"] = told
    return found


def _listed_field(api: Api, scoped: Json) -> tuple[str, Json]:
    # A scoped list has one field that is a list, beside its warning.
    resolved = api.resolved(scoped)
    return next((name, about) for name, about in resolved["properties"].items() if about.get("type") == "array")


def _opening(schema: Json, method: Method, link: str, token: str) -> Json:
    found = {"kind": schema["properties"]["kind"]["default"], "id": "/".join(method.path.values()), "selfLink": link}
    return {**found, "nextPageToken": token} if token else found


def _nothing(place: str) -> Json:
    return {
        "code": "NO_RESULTS_ON_PAGE",
        "message": f"There are no results for scope '{place}' on this page.",
        "data": [{"key": "scope", "value": place}],
    }


def _page(api: Api, items: Json, query: Mapping[str, str], rows: Iterable[Row]) -> tuple[list[Row], str]:
    kept = list(rows)
    if query.get("filter"):
        passes = compiled(query["filter"], lambda path: api.has_field(items, path))
        kept = [row for row in kept if passes(row.resource)]
    order = query.get("orderBy", "name")
    if order == "creationTimestamp desc":
        kept.sort(key=_made, reverse=True)
    elif order == "name":
        kept.sort(key=lambda row: (row.place, str(row.resource["name"])))
    else:
        raise invalid("orderBy", order, "Only name and creationTimestamp desc are supported.")
    most = int(query.get("maxResults") or _MOST)
    if most > _MOST:
        raise invalid("maxResults", most, f"Acceptable values are 0 to {_MOST}.")
    begin = _read_token(query.get("pageToken", ""))
    end = begin + (most or _MOST)
    return kept[begin:end], base64.urlsafe_b64encode(f"from:{end}".encode()).decode() if end < len(kept) else ""


def _made(row: Row) -> str:
    found: Any = row.resource.get("creationTimestamp") or row.resource.get("insertTime") or ""
    return str(found)


def _read_token(token: str) -> int:
    if not token:
        return 0
    try:
        text = base64.b64decode(token, altchars=b"-_", validate=True).decode()
        return int(text.removeprefix("from:"))
    except (binascii.Error, ValueError) as error:
        raise Failure(400, "invalid", f"Invalid value for field 'pageToken': '{token}'.") from error
