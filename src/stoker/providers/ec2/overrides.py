"""Check a job's overrides of a request to AWS against botocore's description of that call."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from stoker.model.errors import UserError


def check(
    overrides: Mapping[str, Any],
    where: str = "resources.ec2.overrides",
    service: str = "ec2",
    operation: str = "RunInstances",
) -> None:
    """Raise UserError for a field that the call does not have, or a value that it does not accept.

    Without botocore nothing is checked: AWS itself will refuse.
    """
    if not overrides or importlib.util.find_spec("botocore") is None:
        return
    shape = _input(service, operation)
    for problem in _problems(operation, where, overrides, shape):
        raise UserError(problem)
    from botocore.validate import ParamValidator

    report: str = ParamValidator().validate(overrides, shape).generate_report()
    # Fields that are missing here are in the request that the overrides are merged into.
    wrong = [line for line in report.splitlines() if line and not line.startswith("Missing required")]
    if wrong:
        raise UserError(f"{where}: {wrong[0][:1].lower()}{wrong[0][1:]}")


def _problems(operation: str, where: str, value: Any, shape: Any) -> Iterator[str]:
    """Unknown names, and values that should be lists or mappings: botocore's messages about them are less clear."""
    if shape.type_name == "list":
        if not isinstance(value, list):
            yield f"{where}: must be a list, as {operation} takes it"
            return
        for place, each in enumerate(value):
            yield from _problems(operation, f"{where}[{place}]", each, shape.member)
    elif shape.type_name == "structure":
        if not isinstance(value, Mapping):
            yield f"{where}: must be a mapping, as {operation} takes it"
            return
        for name, inner in value.items():
            if name in shape.members:
                yield from _problems(operation, f"{where}.{name}", inner, shape.members[name])
                continue
            close = get_close_matches(str(name), shape.members, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            yield f"{where}.{name}: {operation} has no such field{hint}"


@lru_cache(maxsize=4)
def _input(service: str, operation: str) -> Any:
    from botocore.loaders import create_loader
    from botocore.model import ServiceModel

    described = create_loader().load_service_model(service, "service-2")
    return ServiceModel(described, service).operation_model(operation).input_shape
