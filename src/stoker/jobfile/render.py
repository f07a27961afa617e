"""A spec written out again as people write it: to show it, and as a layer to build another job on."""

from __future__ import annotations

import dataclasses
from typing import Any

from stoker.jobfile import value_forms
from stoker.jobfile.field_table import Field, fields_of
from stoker.jobfile.settings_tree import Layer, SettingNode, layer_of
from stoker.model.spec import Input, Spec


def document(spec: Spec) -> dict[str, Any]:
    """The smallest job file of this spec: fields with their default values are left out."""
    return _section(dataclasses.replace(spec, tags=spec.written_tags))


def spec_layer(spec: Spec, source: str) -> Layer:
    """A spec as a layer, with numbers in their written forms: `parse_job` returns the same spec."""
    layer = layer_of(document(spec), source)
    assert isinstance(layer.root.value, dict)
    params = layer.root.value.get("params")
    if params is None or not isinstance(params.value, dict):
        return layer
    written_form = {
        key: dataclasses.replace(node, text=spec.params_written.get(key)) for key, node in params.value.items()
    }
    params = SettingNode(written_form, params.origin)
    return Layer(dataclasses.replace(layer.root, value={**layer.root.value, "params": params}), layer.folder)


def written_form(info: Field, value: Any) -> Any:
    """A field's canonical value in the form that people write it."""
    if value is None:
        return None
    match info.form:
        case "duration":
            return value_forms.write_duration(value)
        case "size":
            return value_forms.write_size(value)
        case "gpus":
            return value_forms.write_gpus(value)
        case "spot":
            return {"only": True, "never": False}.get(value, value)
        case "regions" | "zones" | "words" | "paths" | "packages" | "addresses" | "command" if isinstance(value, tuple):
            return list(value)
        case "inputs":
            return {key: _input(source) for key, source in value.items()}
        case _:
            return dict(value) if isinstance(value, dict) else value


def _section(part: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, info in fields_of(type(part)).items():
        value = getattr(part, info.name)
        if not info.required and value == info.default:
            continue
        if info.section is not None and value is not None:
            found[key] = _section(value)
        else:
            found[key] = written_form(info, value)
    return found


def _input(source: Input) -> Any:
    section = _section(source)
    return section["from"] if list(section) == ["from"] else section
