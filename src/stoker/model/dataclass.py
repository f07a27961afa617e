"""Dataclasses that are cheap to define.

The standard decorator compiles six methods for each class, at import. Every command, agent and governor defines
hundreds of classes: that was half of its start. Here `__init__` alone is compiled; the other methods are closures.

Instances behave as those of the standard decorator do. `InitVar`, `order`, `slots` and `eq=False` are for the standard
decorator alone, and neither kind inherits from the other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls: type | None = None, /, *, frozen: bool = False, kw_only: bool = False) -> Any:
        """Make a class a dataclass, with or without parentheses, as `dataclasses.dataclass` does."""
        if cls is not None:
            return _define(cls, frozen, kw_only)
        return lambda cls: _define(cls, frozen, kw_only)


class _Factory:
    """The default of a parameter whose value is made by a function."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY = _Factory()


def _define(cls: type, frozen: bool, kw_only: bool) -> type:
    """Add the methods that the class does not define itself."""
    # Python adds `__hash__ = None` to a class with an `__eq__` of its own.
    own = {name for name, value in vars(cls).items() if not (name == "__hash__" and value is None)}
    dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=kw_only)(cls)
    fields = dataclasses.fields(cls)
    methods: dict[str, Any] = {
        "__init__": _compile_init(cls, fields, frozen) if "__init__" not in own else None,
        "__repr__": _repr,
        "__eq__": _equality(_reader([field.name for field in fields if field.compare])),
        "__hash__": _hashing(fields) if frozen else None,
    }
    for name, method in methods.items():
        if name not in own:
            setattr(cls, name, method)
    if frozen:
        _freeze(cls)
    return cls


def _compile_init(cls: type, fields: tuple[dataclasses.Field[Any], ...], frozen: bool) -> Callable[..., None]:
    """Compile `__init__`, with the signature and the order of assignments of the standard one."""
    scope: dict[str, Any] = {"__name__": cls.__module__, "__assign__": object.__setattr__, "__unset__": _FACTORY}
    positional, keywords, body = ["self"], ["*"], []
    for field in fields:
        parameter = value = name = field.name
        if field.default_factory is not MISSING:
            scope[f"__make_{name}__"] = field.default_factory
            parameter = f"{name}=__unset__"
            value = f"__make_{name}__() if {name} is __unset__ else {name}" if field.init else f"__make_{name}__()"
        elif field.default is not MISSING:
            scope[f"__default_{name}__"] = field.default
            parameter = f"{name}=__default_{name}__"
        if field.init:
            (keywords if field.kw_only else positional).append(parameter)
        if field.init or field.default_factory is not MISSING:
            body.append(f"__assign__(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    parameters = positional + keywords if len(keywords) > 1 else positional
    exec(f"def __init__({', '.join(parameters)}):\n " + "\n ".join(body or ["pass"]), scope)
    init: Callable[..., None] = scope["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__annotations__ = {field.name: field.type for field in fields if field.init} | {"return": None}
    return init


def _reader(names: list[str]) -> Callable[[object], Any]:
    """Return what reads these fields of an instance."""
    return attrgetter(*names) if names else lambda _: ()


def _equality(read: Callable[[object], Any]) -> Callable[[object, object], bool]:
    def __eq__(self: object, other: object) -> bool:
        return read(self) == read(other) if other.__class__ is self.__class__ else NotImplemented

    return __eq__


def _hashing(fields: tuple[dataclasses.Field[Any], ...]) -> Callable[[object], int]:
    read = _reader([field.name for field in fields if (field.compare if field.hash is None else field.hash)])

    def __hash__(self: object) -> int:
        return hash(read(self))

    return __hash__


@recursive_repr()
def _repr(self: Any) -> str:
    parts = [f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self) if field.repr]
    return f"{type(self).__qualname__}({', '.join(parts)})"


def _freeze(cls: Any) -> None:
    """Refuse to set and to delete; a subclass may have attributes of its own."""

    def __setattr__(self: object, name: str, value: object) -> None:
        if type(self) is cls or name in cls.__dataclass_fields__:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def __delattr__(self: object, name: str) -> None:
        if type(self) is cls or name in cls.__dataclass_fields__:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    cls.__setattr__, cls.__delattr__ = __setattr__, __delattr__
