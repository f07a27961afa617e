"""Stoker's own dataclasses behave as those of the standard library do, and all of Stoker uses them."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import re
from collections.abc import Callable
from dataclasses import field
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import pytest

import stoker
from stoker.model.dataclass import dataclass as own_dataclass

T = TypeVar("T")

Decorator = Callable[..., Any]
# Flags that only the standard decorator has.
STANDARD_ONLY = re.compile(r"@dataclasses\.dataclass\(.*\b(order|slots|eq)=")


def shapes(dataclass: Decorator) -> dict[str, tuple[type, list[Any]]]:
    """Classes with all that Stoker's classes have, each with some ways to make an instance."""

    @dataclass(frozen=True)
    class Plain:
        """Required, defaulted and computed fields."""

        kind: ClassVar[str] = "plain"
        a: int
        b: str = "b"
        c: tuple[int, ...] = field(default=(1,), compare=False)
        d: dict[str, int] = field(default_factory=dict, repr=False, hash=False)
        e: list[int] = field(default_factory=list, init=False, compare=False)

    @dataclass(frozen=True)
    class Child(Plain):
        """Fields of its base first; a default of its own."""

        b: str = "child"
        z: float = 0.5

        def __post_init__(self) -> None:
            object.__setattr__(self, "z", self.z * 2)

    @dataclass(frozen=True, kw_only=True)
    class Keywords:
        """Keywords alone, in any order."""

        a: int = 1
        b: str

    @dataclass
    class Open:
        """May be changed, and so has no hash."""

        a: int
        b: list[int] = field(default_factory=list)

    @dataclass(frozen=True)
    class Own:
        """Defines some methods itself."""

        a: int

        def __eq__(self, other: object) -> bool:
            return isinstance(other, int) and other == self.a

        def __repr__(self) -> str:
            return "own"

    @dataclass(frozen=True)
    class OwnHash:
        """Defines its hash itself."""

        a: list[int]

        def __hash__(self) -> int:
            return 7

    @dataclass(frozen=True)
    class Empty:
        """No field."""

    @dataclass(frozen=True)
    class Box(Generic[T]):
        """A parameter."""

        value: T

    def call(*arguments: Any, **named: Any) -> tuple[Any, Any]:
        return arguments, named

    return {
        "plain": (Plain, [call(1), call(1, "x"), call(1, "x", (2,)), call(1, d={"a": 1}), call(), call(1, e=[])]),
        "child": (Child, [call(1), call(1, z=3), call(2, "x", (), {}, 1.0), call(y=1)]),
        "keywords": (Keywords, [call(b="b"), call(a=2, b="c"), call(1, "b"), call(a=1)]),
        "open": (Open, [call(1), call(1, [2]), call(a=1), call(1, [], 3)]),
        "own": (Own, [call(1), call(2)]),
        "own hash": (OwnHash, [call([1]), call([2])]),
        "empty": (Empty, [call(), call(1)]),
        "box": (Box[int], [call(1), call(value="a"), call([1])]),
    }


def answer(ask: Callable[[], Any]) -> Any:
    """Return what it answers or raises."""
    try:
        return ask()
    except Exception as error:  # noqa: BLE001 - the same error is expected from both
        return type(error), str(error)


def remove(one: Any, name: str) -> None:
    delattr(one, name)


@pytest.mark.parametrize("name", shapes(own_dataclass))
def test_they_behave_as_standard_ones(name: str) -> None:
    def told(dataclass: Decorator) -> list[Any]:
        kind, calls = shapes(dataclass)[name]
        made = [answer(lambda call=call: kind(*call[0], **call[1])) for call in calls]
        again = [answer(lambda call=call: kind(*call[0], **call[1])) for call in calls]
        origin: Any = getattr(kind, "__origin__", kind)
        found: list[Any] = [str(inspect.signature(origin)), origin.__match_args__, origin.__init__.__qualname__]
        found += [[one.name for one in dataclasses.fields(origin)], [repr(one) for one in made]]
        found += [[a == b for b in again] for a in made]
        for one in made:
            found += [answer(lambda one=one: hash(one) == hash(copy.copy(one))), one == 1, one != 1]
            if not dataclasses.is_dataclass(one):
                continue
            found += [dataclasses.asdict(one), repr(copy.deepcopy(one))]
            for attribute in ("a", "value", "unknown"):
                found.append(answer(lambda one=one, attribute=attribute: setattr(one, attribute, 5)))
                found.append(answer(lambda one=one, attribute=attribute: remove(one, attribute)))
            found.append(answer(lambda one=one: repr(dataclasses.replace(one, a=9))))
        return found

    assert told(own_dataclass) == told(dataclasses.dataclass)


@own_dataclass(frozen=True)
class Point:
    """At module level, as pickles need it."""

    x: int
    y: int = 0


def test_copies_and_pickles() -> None:
    assert pickle.loads(pickle.dumps(Point(1))) == Point(1) == copy.deepcopy(Point(1))
    assert {Point(1): "a"}[Point(1, 0)] == "a"
    match Point(3, 4):
        case Point(x, y=4):
            assert x == 3
        case _:
            pytest.fail("it does not match")


def test_a_subclass_that_is_no_dataclass_has_attributes_of_its_own() -> None:
    class Named(Point):
        def __init__(self) -> None:
            super().__init__(1, 2)
            self.name = "a"

    one = Named()
    assert (one.name, one.y) == ("a", 2)
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'x'"):
        one.x = 2  # type: ignore[misc]


def test_all_of_stoker_uses_them() -> None:
    """The standard decorator was half of the start of each process."""
    others = []
    for path in Path(stoker.__file__).parent.rglob("*.py"):
        text = path.read_text()
        if path.name == "dataclass.py" or "dataclass" not in text:
            continue
        if re.search(r"^from dataclasses import .*\bdataclass\b", text, re.M):
            others += [path.name] if not re.search(r"@dataclass\(.*\b(order|slots|eq)=", text) else []
        others += [
            path.name
            for line in text.splitlines()
            if line.startswith("@dataclasses.dataclass") and not STANDARD_ONLY.match(line)
        ]
    assert others == []
