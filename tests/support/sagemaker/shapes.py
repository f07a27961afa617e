"""Requests held against botocore's own model of SageMaker: required members, types, lengths, patterns, enums, bounds.

Stricter than a client, which checks little of it, and as strict as the real service: what the model does not know is
refused as well.
"""

from __future__ import annotations

import re
from datetime import datetime
from functools import lru_cache
from typing import Any

# A member that only `DescribeTrainingJob` tells, in a shape that both share.
_READ_ONLY = {"ResourceConfig.SelectedInstanceType", "ResourceConfig.SelectedInstanceCount"}


@lru_cache(maxsize=1)
def _service() -> Any:
    from botocore.loaders import Loader
    from botocore.model import ServiceModel

    return ServiceModel(Loader().load_service_model("sagemaker", "service-2"), "sagemaker")


def knows(operation: str) -> bool:
    """Whether SageMaker has such an operation."""
    return operation in _service().operation_names


def check(operation: str, asked: Any) -> list[str]:
    """What is wrong with a request as it is on the wire (times are numbers). Empty: nothing."""
    wrong: list[str] = []
    _check(_service().operation_model(operation).input_shape, asked, "", wrong)
    return wrong


def check_answer(operation: str, told: Any) -> list[str]:
    """What is wrong with an answer: for the fake's own tests."""
    shape = _service().operation_model(operation).output_shape
    wrong: list[str] = []
    if shape is not None:
        _check(shape, told, "", wrong, answering=True)
    return wrong


def _check(shape: Any, value: Any, at: str, wrong: list[str], *, answering: bool = False) -> None:
    where = at or shape.name
    if not _has_type(shape, value):
        wrong.append(f"Value {value!r} at '{where}' failed to satisfy constraint: Member must be a {shape.type_name}")
        return
    if shape.type_name == "structure":
        _check_structure(shape, value, at, wrong, answering)
    elif shape.type_name == "list":
        _check_bounds(shape, len(value), where, "length", wrong)
        for n, each in enumerate(value):
            _check(shape.member, each, f"{where}.{n + 1}.member", wrong, answering=answering)
    elif shape.type_name == "map":
        _check_bounds(shape, len(value), where, "size", wrong)
        for name, each in value.items():
            _check(shape.key, name, f"{where}.{name}.key", wrong, answering=answering)
            _check(shape.value, each, f"{where}.{name}", wrong, answering=answering)
    elif shape.type_name == "string":
        _check_text(shape, value, where, wrong)
    elif shape.type_name in ("integer", "long", "float", "double"):
        _check_bounds(shape, value, where, "value", wrong)


def _check_structure(shape: Any, value: dict[str, Any], at: str, wrong: list[str], answering: bool) -> None:
    wrong += [
        f"Value null at '{_below(at, name)}' failed to satisfy constraint: Member must not be null"
        for name in shape.required_members
        if value.get(name) is None
    ]
    for name, each in value.items():
        member = shape.members.get(name)
        if member is None or (not answering and f"{shape.name}.{name}" in _READ_ONLY):
            wrong.append(f"Unknown member '{_below(at, name)}'")
        elif each is not None:
            _check(member, each, _below(at, name), wrong, answering=answering)


def _has_type(shape: Any, value: Any) -> bool:
    match shape.type_name:
        case "structure" | "map":
            return isinstance(value, dict)
        case "list":
            return isinstance(value, list)
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "integer" | "long":
            return isinstance(value, int) and not isinstance(value, bool)
        case "float" | "double":
            return isinstance(value, (int, float)) and not isinstance(value, bool)
        case "timestamp":
            return isinstance(value, (int, float, datetime)) and not isinstance(value, bool)
        case _:
            return True


def _check_bounds(shape: Any, size: float, where: str, what: str, wrong: list[str]) -> None:
    least, most = shape.metadata.get("min"), shape.metadata.get("max")
    if least is not None and size < least:
        wrong.append(f"Value at '{where}' failed to satisfy constraint: Member must have {what} at least {least}")
    if most is not None and size > most:
        wrong.append(f"Value at '{where}' failed to satisfy constraint: Member must have {what} at most {most}")


def _check_text(shape: Any, value: str, where: str, wrong: list[str]) -> None:
    _check_bounds(shape, len(value), where, "length", wrong)
    allowed = shape.metadata.get("enum")
    if allowed and value not in allowed:
        told = ", ".join(allowed[:5]) + (", …" if len(allowed) > 5 else "")
        wrong.append(
            f"Value '{value}' at '{where}' failed to satisfy constraint: Member must satisfy enum value set: [{told}]"
        )
    pattern = shape.metadata.get("pattern")
    if pattern and not _pattern(pattern).fullmatch(value):
        wrong.append(
            f"Value '{value}' at '{where}' failed to satisfy constraint:"
            f" Member must satisfy regular expression pattern: {pattern}"
        )


@lru_cache(maxsize=256)
def _pattern(pattern: str) -> re.Pattern[str]:
    # The model's patterns are Java's, which knows POSIX classes by another name.
    return re.compile(pattern.replace(r"\p{L}", r"\w").replace(r"\p{Z}", r"\s").replace(r"\p{N}", r"\d"), re.DOTALL)


def _below(at: str, name: str) -> str:
    first = name[:1].lower() + name[1:]
    return f"{at}.{first}" if at else first
