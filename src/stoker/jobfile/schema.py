"""The job file as a JSON schema, generated from the spec, so that editors complete and check it."""

from __future__ import annotations

from typing import Any

from stoker.jobfile.field_table import Field, fields_of
from stoker.jobfile.field_values import NAME, PARAM, VARIABLE
from stoker.jobfile.plain_values import INPUT_NAME
from stoker.jobfile.render import written_form
from stoker.model import secret_refs
from stoker.model.spec import Input, Spec

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string", "minLength": 1}
_WORDS: Schema = {"anyOf": [_TEXT, {"type": "array", "items": _TEXT}]}
_NUMBER = r"[0-9]+(\.[0-9]+)?"
_DURATION_PATTERN = rf"^(({_NUMBER} *(w|d|h|m|s|ms) *)+|{_NUMBER})$"

# By the written form of the field. The parser checks whatever a pattern cannot express.
_FORMS: dict[str, Schema] = {
    "duration": {"anyOf": [{"type": "number"}, {"type": "string", "pattern": _DURATION_PATTERN}]},
    "size": {"type": "string", "pattern": rf"^{_NUMBER} *([KMGTPkmgtp]?[Ii]?)[Bb] *\+?$"},
    "gpus": {
        "anyOf": [
            {"type": "integer", "minimum": 0},
            {"type": "string", "pattern": "^([A-Za-z][A-Za-z0-9_.-]*(:[0-9]+)?|[0-9]+)$"},
        ]
    },
    "at-least": {"anyOf": [{"type": "integer"}, {"type": "string", "pattern": r"^[0-9]+\+?$"}]},
    "spot": {"enum": [True, False, "prefer"]},
    "words": _WORDS,
    "regions": {"anyOf": [_TEXT, {"type": "array", "minItems": 1, "uniqueItems": True, "items": _TEXT}]},
    "zones": _WORDS,
    "version": {"type": ["string", "number"]},
    "name": {"type": "string", "pattern": f"^{NAME.pattern}$"},
    "paths": _WORDS,
    "command": {"anyOf": [_TEXT, {"type": "array", "minItems": 1, "items": {"type": ["string", "number"]}}]},
    "params": {
        "type": "object",
        "propertyNames": {"pattern": f"^{PARAM.pattern}$"},
        "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
    },
    "env": {
        "type": "object",
        "propertyNames": {"pattern": f"^{VARIABLE.pattern}$"},
        "additionalProperties": {"type": ["string", "number"]},
    },
    "tags": {"type": "object", "additionalProperties": {"type": ["string", "number"]}},
    "secrets": {
        "type": "object",
        "propertyNames": {"pattern": f"^{VARIABLE.pattern}$"},
        "additionalProperties": {"type": "string", "pattern": f"^({secret_refs.PATTERN})$"},
    },
    "reference": {"type": "string", "pattern": f"^({secret_refs.NAMELESS_PATTERN})$"},
    "addresses": _WORDS,
    "packages": _WORDS,
    "regexes": {"type": "object", "additionalProperties": {"type": "string", "format": "regex"}},
    "image": {"type": "string"},
    "flags": {"type": "object"},
    "mapping": {"type": "object"},
}
_TYPES: dict[Any, Schema] = {
    str: _TEXT,
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    tuple[str, ...]: _WORDS,
}


def json_schema() -> Schema:
    """Draft 2020-12. Stricter than the parser only about nulls in required places."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Stoker job file",
        **_section(Spec),
        # A job without a name gets a default one.
        "required": ["run"],
    }


def _section(cls: type) -> Schema:
    infos = fields_of(cls)
    schema: Schema = {
        "type": "object",
        "properties": {key: _field(info) for key, info in infos.items()},
        "additionalProperties": False,
    }
    required = [key for key, info in infos.items() if info.required]
    return {**schema, "required": required} if required else schema


def _field(info: Field) -> Schema:
    schema = _bare(info)
    bounds = {"minimum": info.least, "exclusiveMinimum": info.above, "maximum": info.most}
    numeric = schema["anyOf"][0] if "anyOf" in schema else schema
    if numeric.get("type") in ("integer", "number"):
        numeric.update({key: bound for key, bound in bounds.items() if bound is not None})
    if not info.required:
        # An empty section, or a null that takes back what another layer said.
        schema = {"anyOf": [*schema.get("anyOf", [schema]), {"type": "null"}]}
    described: Schema = {"description": info.doc, **schema}
    default = None if info.required or info.section else written_form(info, info.default)
    if default not in (None, {}, [], ()):
        described["default"] = default
    return described


def _bare(info: Field) -> Schema:
    if info.section is not None:
        return _section(info.section)
    if info.form == "inputs":
        one = {"anyOf": [_TEXT, _section(Input)]}
        names = {"pattern": f"^{INPUT_NAME.pattern}$"}
        return {"type": "object", "propertyNames": names, "additionalProperties": one}
    if info.choices and not info.form:
        return {"enum": list(info.choices)}
    return _copy(_FORMS[info.form] if info.form else _TYPES[info.hint])


def _copy(schema: Schema) -> Schema:
    """Deep enough for bounds to be written into."""
    return {key: [dict(part) for part in value] if key == "anyOf" else value for key, value in schema.items()}
