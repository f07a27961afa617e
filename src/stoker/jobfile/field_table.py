"""The fields of the job file, read off the spec's own dataclasses: one table for parser, schema and reference.

A field's public name is its canonical one without the unit: `limits.max_runtime_s` is written
`limits.max_runtime`, `resources.disk_bytes` is written `resources.disk`; an input's `source` is written
`from`.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from stoker.core.costs import LONGEST_SPAN_S
from stoker.model.resources import Resources
from stoker.model.spec import Spec


@dataclass(frozen=True)
class Field:
    """One field: `key` is its written name, `name` the attribute of its dataclass."""

    key: str
    name: str
    doc: str
    form: str
    hint: Any
    default: Any
    required: bool
    optional: bool
    least: float | None = None
    above: float | None = None
    most: float | None = None

    @property
    def section(self) -> type | None:
        """The dataclass below this field, when it is a group of fields."""
        if not self.form and isinstance(self.hint, type) and dataclasses.is_dataclass(self.hint):
            return self.hint
        return None

    @property
    def choices(self) -> tuple[str, ...]:
        return get_args(self.hint) if get_origin(self.hint) is typing.Literal else ()


# No disk has an exbibyte.
_MOST = {"duration": LONGEST_SPAN_S, "size": 2.0**60}

_TABLES: dict[type, dict[str, Field]] = {}


def fields_of(cls: type) -> dict[str, Field]:
    """The fields of a section by their public names, in the order they are declared."""
    if cls not in _TABLES:
        _TABLES[cls] = _table(cls)
    return _TABLES[cls]


def _table(cls: type) -> dict[str, Field]:
    hints = get_type_hints(cls)
    found = {}
    for field in dataclasses.fields(cls):
        if "form" not in field.metadata:
            continue  # part of the spec, but not of the job file
        hint, optional = _bare(hints[field.name])
        form = field.metadata["form"]
        key = field.metadata["key"] or public_name(field.name, form)
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        found[key] = Field(
            key=key,
            name=field.name,
            doc=field.metadata["doc"],
            form=form,
            hint=hint,
            default=None if default is dataclasses.MISSING else default,
            required=default is dataclasses.MISSING,
            optional=optional,
            least=field.metadata["least"],
            above=field.metadata["above"],
            most=field.metadata["most"] if field.metadata["most"] is not None else _MOST.get(form),
        )
    return found


def public_name(name: str, form: str) -> str:
    suffix = {"duration": "_s", "size": "_bytes"}.get(form, "")
    return name.removesuffix(suffix) if suffix else name


def walk(cls: type = Spec, path: str = "") -> Iterator[tuple[str, Field]]:
    """Every field below `cls` with its dotted public name; a section comes before its own fields."""
    for key, field in fields_of(cls).items():
        dotted = f"{path}.{key}" if path else key
        yield dotted, field
        if field.section is not None:
            yield from walk(field.section, dotted)


@cache
def provider_sections() -> frozenset[str]:
    """The parts of `resources` that belong to one provider; each is called as its provider is."""
    return frozenset(key for key, field in fields_of(Resources).items() if field.section is not None)


def _bare(hint: Any) -> tuple[Any, bool]:
    """The type without its `| None`, and whether it had one."""
    if get_origin(hint) not in (Union, types.UnionType):
        return hint, False
    members = [member for member in get_args(hint) if member is not type(None)]
    optional = len(members) < len(get_args(hint))
    return (members[0], optional) if len(members) == 1 else (hint, optional)
