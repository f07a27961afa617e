"""What Google's own discovery documents say of a request: whether there is such a method, and whether all fits it.

The documents come with googleapiclient, which tests alone depend on. Stricter than Google where Google is lenient for
no good reason: a number where a string of digits belongs, an output-only field, an unknown field, null.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

Json = dict[str, Any]
Query = Mapping[str, "str | Sequence[str]"]

_RANGES = {
    "int32": range(-(2**31), 2**31),
    "uint32": range(2**32),
    "int64": range(-(2**63), 2**63),
    "uint64": range(2**64),
}
_DURATION = re.compile(r"-?\d+(\.\d{1,9})?s")
# Named by the descriptions of methods and by no list of their parameters (revision 20261106).
_UNLISTED: dict[str, Json] = {"returnPartialSuccess": {"type": "boolean", "location": "query"}}
# Output-only by the document, and sent by gcloud all the same.
_TAKEN = frozenset({("compute.resourcePolicies.insert", "region")})
_OUTPUT_ONLY = re.compile(r"(output only\.?\s*)?\[output only\]", re.IGNORECASE)


@dataclass(frozen=True)
class Method:
    """One method of an API, with the path parameters that a request gave it."""

    id: str
    about: Json
    path: Mapping[str, str] = field(default_factory=dict)


class Api:
    """One API, as its discovery document has it."""

    def __init__(self, document: Json) -> None:
        self._schemas: Json = document["schemas"]
        self._common: Json = document["parameters"]
        self._base = "/" + document["servicePath"]
        self._methods = [
            (about["httpMethod"], _pattern(about.get("flatPath") or about["path"]), about)
            # Those with a verb behind a colon first: the others would take it for a part of the name.
            for about in sorted(_methods(document), key=lambda about: ":" not in about["path"].rpartition("/")[2])
        ]

    def find(self, verb: str, path: str) -> Method | None:
        """The method that such a request is for; None where there is none."""
        if not path.startswith(self._base):
            return None
        # A name may hold what a path may not; it is quoted there.
        below = path.removeprefix(self._base)
        for asked, pattern, about in self._methods:
            if asked == verb and (found := pattern.fullmatch(below)) is not None:
                named = {_unescape(name): unquote(value) for name, value in found.groupdict().items()}
                return Method(about["id"], about, named)
        return None

    def check(self, verb: str, path: str, query: Query, body: object) -> list[str]:
        """Everything about a request that does not fit, a line each. `body` is what its JSON says, None without one."""
        method = self.find(verb, path)
        if method is None:
            return [f"there is no method {verb} {path}"]
        wrong = [*self._check_path(method), *self._check_query(method, query)]
        request = method.about.get("request")
        if request is None:
            return [*wrong, *(["a body, where none belongs"] if body not in (None, {}) else [])]
        if body is None:
            return [*wrong, "a body is missing"]
        return [*wrong, *self._check_value(self._schemas[request["$ref"]], body, "", method.id)]

    def check_answer(self, verb: str, path: str, answer: object) -> list[str]:
        """Everything about what a fake answers that does not fit, a line each."""
        method = self.find(verb, path)
        if method is None:
            return [f"there is no method {verb} {path}"]
        return self._check_value(self.response(method), answer, "", method.id)

    def response(self, method: Method) -> Json:
        """The schema of what a method answers."""
        found: Json = self._schemas[method.about["response"]["$ref"]]
        return found

    def resolved(self, schema: Json) -> Json:
        """What a schema says, where it names another."""
        return self._schemas[schema["$ref"]] if "$ref" in schema else schema

    def below(self, schema: Json, name: str) -> Json | None:
        """The schema of what stands at a name: a field, any name of a map, or (for lists) of each member."""
        schema = self.resolved(schema)
        while schema.get("type") == "array":
            schema = self.resolved(schema["items"])
        found: Json | None = schema.get("properties", {}).get(name) or schema.get("additionalProperties")
        return found

    def has_field(self, schema: Json, path: Sequence[str]) -> bool:
        """Whether there is such a field somewhere below."""
        found: Json | None = schema
        for name in path:
            found = self.below(found, name) if found is not None else None
        return found is not None

    def _check_path(self, method: Method) -> list[str]:
        wrong = []
        for name, value in method.path.items():
            about = method.about.get("parameters", {}).get(name)
            if about is not None:
                wrong += self._check_text(about, value, name)
        return wrong

    def _check_query(self, method: Method, query: Query) -> list[str]:
        known = {
            name: about for name, about in method.about.get("parameters", {}).items() if about["location"] == "query"
        }
        wrong = [f"{name}: is required" for name, about in known.items() if about.get("required") and name not in query]
        for name, given in query.items():
            about = known.get(name) or self._common.get(name)
            if about is None and f"`{name}`" in method.about.get("description", ""):
                about = _UNLISTED.get(name)
            if about is None:
                wrong.append(f"{name}: is no parameter of {method.id}")
                continue
            values = [given] if isinstance(given, str) else list(given)
            if len(values) > 1 and not about.get("repeated"):
                wrong.append(f"{name}: is given {len(values)} times")
            for value in values:
                wrong += self._check_text(about, value, name)
        return wrong

    def _check_text(self, about: Json, value: str, where: str) -> list[str]:
        """A parameter: whatever its type, it comes as text."""
        if about["type"] == "boolean":
            # gcloud writes them as Python does.
            return [] if value.lower() in ("true", "false") else [f"{where}: {value!r} is neither true nor false"]
        if about["type"] == "integer":
            return [] if _in_range(value, about) else [f"{where}: {value!r} is no {about['format']}"]
        return _check_string(about, value, where)

    def _check_value(self, about: Json, value: object, where: str, method: str) -> list[str]:
        if "$ref" in about:
            about = self._schemas[about["$ref"]]
        here = where or "the body"
        kind = about["type"]
        if kind == "any":
            return []
        if kind == "object":
            return self._check_object(about, value, where, method)
        if kind == "array":
            if not isinstance(value, list):
                return [f"{here}: {value!r} is no list"]
            below = (self._check_value(about["items"], each, f"{where}[{i}]", method) for i, each in enumerate(value))
            return [line for lines in below for line in lines]
        if kind == "string":
            return _check_string(about, value, here)
        if kind == "boolean":
            return [] if isinstance(value, bool) else [f"{here}: {value!r} is no boolean"]
        # True is a number to Python, and to nobody else.
        if isinstance(value, bool) or not isinstance(value, int if kind == "integer" else (int, float)):
            return [f"{here}: {value!r} is no {kind}"]
        if kind == "integer" and not _in_range(str(value), about):
            return [f"{here}: {value} is no {about.get('format')}"]
        return []

    def _check_object(self, about: Json, value: object, where: str, method: str) -> list[str]:
        if not isinstance(value, dict):
            return [f"{where or 'the body'}: {value!r} is no object"]
        known, others = about.get("properties", {}), about.get("additionalProperties")
        wrong = []
        for name, below in known.items():
            if method in below.get("annotations", {}).get("required", ()) and name not in value:
                wrong.append(f"{_at(where, name)}: is required")
        for name, given in value.items():
            below, at = known.get(name, others), _at(where, name)
            if below is None:
                wrong.append(f"{at}: there is no such field")
            elif name in known and _output_only(below) and (method, at) not in _TAKEN:
                wrong.append(f"{at}: is output only")
            else:
                wrong += self._check_value(below, given, at, method)
        return wrong


@lru_cache(maxsize=8)
def api(name: str, version: str) -> Api:
    """The API of this name ("compute", "v1"). Raises ModuleNotFoundError without googleapiclient."""
    file = files("googleapiclient") / "discovery_cache" / "documents" / f"{name}.{version}.json"
    return Api(json.loads(file.read_text(encoding="utf-8")))


def check_request(
    method: str, path: str, query: Query | None = None, body: object = None, *, service: str = "compute"
) -> list[str]:
    """Everything about a request that does not fit Google's document, a line each; nothing where all is well.

    `path` is as it is sent, "/compute/v1/projects/…", and may bring its own query.
    """
    parts = urlsplit(path)
    asked: dict[str, list[str]] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        asked.setdefault(name, []).append(value)
    for name, given in (query or {}).items():
        asked.setdefault(name, []).extend([given] if isinstance(given, str) else given)
    return api(service, "v2" if service == "logging" else "v1").check(method, parts.path, asked, body)


def _methods(of: Json) -> list[Json]:
    found = list(of.get("methods", {}).values())
    for below in of.get("resources", {}).values():
        found += _methods(below)
    return found


def _pattern(template: str) -> re.Pattern[str]:
    """A path template as a regular expression with a group for each parameter."""
    # Parameters of some APIs have names that no group may have.
    parts = re.split(r"\{\+?([^}]+)\}", template)
    return re.compile(
        "".join(f"(?P<{_escape(part)}>[^/]+)" if i % 2 else re.escape(part) for i, part in enumerate(parts))
    )


def _escape(name: str) -> str:
    return name.replace("-", "__")


def _unescape(name: str) -> str:
    return name.replace("__", "-")


def _at(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _output_only(about: Json) -> bool:
    return bool(about.get("readOnly") or _OUTPUT_ONLY.match(about.get("description", "")))


def _in_range(text: str, about: Json) -> bool:
    digits = re.fullmatch(r"-?\d+", text)
    if not digits or not text.isascii():
        return False
    return int(text) in _RANGES[about.get("format", "int64")] and int(text) >= int(about.get("minimum", text))


def _check_string(about: Json, value: object, where: str) -> list[str]:
    if not isinstance(value, str):
        return [f"{where}: {value!r} is no string"]
    if "enum" in about and value not in about["enum"]:
        return [f"{where}: {value!r} is none of {', '.join(about['enum'])}"]
    if "pattern" in about and re.fullmatch(about["pattern"], value) is None:
        return [f"{where}: {value!r} does not match {about['pattern']}"]
    form = about.get("format")
    if form is not None and not _has_format(form, value, about):
        return [f"{where}: {value!r} is no {form}"]
    return []


def _has_format(form: str, value: str, about: Json) -> bool:
    if form in _RANGES:
        return _in_range(value, about)
    if form == "google-duration":
        return _DURATION.fullmatch(value) is not None
    if form == "google-datetime":
        return _is_time(value)
    if form == "byte":
        try:
            base64.b64decode(value.replace("-", "+").replace("_", "/"), validate=True)
        except binascii.Error:
            return False
    return True


def _is_time(value: str) -> bool:
    # Nanoseconds are fine with Google, and too fine for Python.
    whole = re.fullmatch(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", value)
    if whole is None:
        return False
    try:
        datetime.fromisoformat(whole[1] + whole[3].replace("Z", "+00:00"))
    except ValueError:
        return False
    return True
