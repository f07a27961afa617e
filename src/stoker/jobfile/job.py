"""The job file's Python twin."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from stoker.jobfile.parse import nearest_field, parse_job
from stoker.jobfile.settings_tree import Layer, layer_of
from stoker.model.errors import WrongKeyword
from stoker.model.spec import Scalar, Spec

Section = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job from Python: the fields of the job file under the same names, in the same forms.

    >>> Job(run="python train.py", params={"lr": 3e-4}, resources={"gpus": "A100:8", "spot": "prefer"})

    A field that is None is not set. `spec()` reports mistakes as SpecError, with the messages of the job file.
    """

    run: str | Sequence[str] | None = None
    name: str | None = None
    code: str | os.PathLike[str] | None = None
    params: Mapping[str, Scalar] | None = None
    env: Mapping[str, str | int | float] | None = None
    setup: str | None = None
    secrets: Mapping[str, str] | None = None
    nodes: int | None = None
    resources: Section | None = None
    environment: Section | None = None
    inputs: Mapping[str, str | Section] | None = None
    checkpoints: Section | None = None
    resume_from: str | None = None
    outputs: str | Sequence[str] | None = None
    metrics: Mapping[str, str] | None = None
    limits: Section | None = None
    retry: Section | None = None
    logs: Section | None = None
    notify: str | Sequence[str] | None = None
    tags: Mapping[str, str] | None = None

    def layer(self) -> Layer:
        """The given fields as a layer on top of others. Raises SpecError for values that no file could hold."""
        return layer_of({field.name: getattr(self, field.name) for field in fields(self)}, "Job")

    def spec(self, below: Sequence[Layer] = ()) -> Spec:
        """The validated spec; `below` supplies fields that are not set here. Raises SpecError for the first mistake."""
        return parse_job([*below, self.layer()])


def _checked(init: Callable[..., None]) -> Callable[..., None]:
    """Wrap the generated `__init__`: unknown keywords get the message of the job file."""

    @functools.wraps(init)
    def checked(self: Job, *arguments: object, **named: Any) -> None:
        if arguments:
            raise WrongKeyword(f"Job({arguments[0]!r}): name the field, such as Job(run='python train.py')")
        for name in named:
            if name not in known:
                raise WrongKeyword(f"Job({name}=…): unknown field; {nearest_field(name)}")
        init(self, **named)

    known = {field.name for field in fields(Job)}
    return checked


Job.__init__ = _checked(Job.__init__)  # type: ignore[method-assign]
