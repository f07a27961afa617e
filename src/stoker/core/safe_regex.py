"""Regular expressions of job files and policies, matched in bounded time.

`re` tries all ways to match one after another; `(a+)+$` has exponentially many, and would hang the agent or every
governor. Here each state of the search (a place in the expression and one in the text) is entered once, so a search
takes at most as many steps as the product of both lengths, and it gives up after MAX_STEPS. Syntax and answers are
those of `re`, without lookaround, back references, atomic groups and possessive repeats: these cannot be matched this
way, and are refused when the expression is written. One difference remains: if the inside of a repeat may be empty, as
in `(a?|b)*`, another match than that of `re` may be preferred. Pure: nodes and governors get the same answers.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

# The parser of `re` itself, so that an expression means the same here. Python 3.11 moved it.
_parser: Any = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")

# Longest expression, and longest compiled program: counted repeats are expanded.
MAX_CHARS = 1000
MAX_INSTRUCTIONS = 400
# Most expressions of one job: each is applied to every line of its log.
MAX_EXPRESSIONS = 100
# About a third of a second. No line of a log is so long without a match.
MAX_STEPS = 1_000_000
_REMEMBERED_CHARS = 4096

_UNSUPPORTED = {
    "ASSERT": "lookahead and lookbehind such as (?=…) are not supported",
    "ASSERT_NOT": "lookahead and lookbehind such as (?!…) are not supported",
    "GROUPREF": r"references to groups such as \1 are not supported",
    "GROUPREF_EXISTS": "conditions such as (?(1)…) are not supported",
    "ATOMIC_GROUP": "atomic groups (?>…) are not supported",
    "POSSESSIVE_REPEAT": "possessive repeats such as a*+ are not supported",
}
_START = ("AT", "AT_BEGINNING")
_WHY = "expressions are matched in linear time; write it without"


class PatternError(ValueError):
    """A refused expression. The message says what is wrong and what to do."""


@dataclass
class StepBudget:
    """Remaining steps, which several searches may share."""

    left: int = MAX_STEPS


@dataclass(frozen=True)
class Match:
    """A match: the spans of its groups, the whole match first; -1 for a group that took no part."""

    text: str
    spans: tuple[tuple[int, int], ...]
    names: Mapping[str, int]

    @property
    def start(self) -> int:
        return self.spans[0][0]

    @property
    def end(self) -> int:
        return self.spans[0][1]

    def group(self, key: int | str = 0) -> str | None:
        start, end = self.spans[self.names[key] if isinstance(key, str) else key]
        return self.text[start:end] if start >= 0 else None


_Kind = Literal["char", "split", "jump", "save", "at", "accept"]


@dataclass
class _Instruction:
    """One step. `first` and `second` are targets in the program, the preferred one first; for `save`, the slot."""

    kind: _Kind
    chars: _Chars | None = None
    first: int = 0
    second: int = 0
    at: Callable[[str, int], bool] | None = None
    # More than one path leads here: the search records its visits.
    joined: bool = False


class _Chars(dict[str, bool]):
    """Membership of characters in a set, computed once for each character."""

    def __init__(self, test: Callable[[str], bool]) -> None:
        super().__init__()
        self._test = test

    def __missing__(self, char: str) -> bool:
        answer = self._test(char)
        if len(self) < _REMEMBERED_CHARS:
            self[char] = answer
        return answer


@dataclass(frozen=True)
class SafePattern:
    """A compiled expression."""

    text: str
    groups: int
    names: Mapping[str, int]
    # Text that every match contains.
    needed: str
    _program: Sequence[_Instruction] = field(repr=False)
    _only_at_start: bool = False

    def search(
        self, text: str, start: int = 0, *, budget: StepBudget | None = None, empty: bool = True
    ) -> Match | None:
        """Find the leftmost match from `start` on; None also if the steps are used up.

        Without `empty`, an empty match at `start` does not count.
        """
        budget = StepBudget() if budget is None else budget
        if self.needed and text.find(self.needed, start) < 0:
            return None
        seen: set[int] = set()
        last = start if self._only_at_start else len(text)
        for begin in range(start, last + 1):
            found = self._run(text, begin, seen, budget, least=0 if empty or begin > start else 1)
            if found is not None or budget.left <= 0:
                return found
        return None

    def fullmatch(self, text: str, *, budget: StepBudget | None = None) -> Match | None:
        """Match the whole text."""
        return self._run(text, 0, set(), StepBudget() if budget is None else budget, least=len(text))

    def finditer(self, text: str, *, budget: StepBudget | None = None) -> Iterator[Match]:
        """Find all matches from left to right, without overlaps."""
        budget = StepBudget() if budget is None else budget
        start, empty = 0, True
        while (found := self.search(text, start, budget=budget, empty=empty)) is not None:
            yield found
            start, empty = found.end, found.end > found.start

    def _run(self, text: str, begin: int, seen: set[int], budget: StepBudget, *, least: int) -> Match | None:
        """Find the match that begins at `begin` and has at least `least` characters.

        `seen` holds states from which there is no match; all beginnings share it.
        """
        program, length, steps, most = self._program, len(text), 0, budget.left
        slots = [-1] * (2 * self.groups + 2)
        # Paths not tried yet, the preferred one on top; a negative place restores the old value of a slot.
        waiting: list[tuple[int, int]] = [(0, begin)]
        try:
            while waiting:
                place, position = waiting.pop()
                if place < 0:
                    slots[-place - 1] = position
                    continue
                while steps < most:
                    steps += 1
                    step = program[place]
                    if step.joined:
                        state = place * (length + 1) + position
                        if state in seen:
                            break
                        seen.add(state)
                    match step.kind:
                        case "char":
                            assert step.chars is not None
                            if position == length or not step.chars[text[position]]:
                                break
                            place, position = place + 1, position + 1
                        case "split":
                            waiting.append((step.second, position))
                            place = step.first
                        case "jump":
                            place = step.first
                        case "save":
                            waiting.append((-step.first - 1, slots[step.first]))
                            slots[step.first] = position
                            place += 1
                        case "at":
                            assert step.at is not None
                            if not step.at(text, position):
                                break
                            place += 1
                        case "accept":
                            if position - begin < least:
                                break
                            slots[0], slots[1] = begin, position
                            # Both ends of an entered group are set: the only way out of a group is its end.
                            return Match(text, tuple(zip(slots[::2], slots[1::2], strict=True)), self.names)
                else:
                    return None
            return None
        finally:
            budget.left -= steps


@lru_cache(maxsize=256)
def compile_pattern(text: str) -> SafePattern:
    """Compile an expression. Raises PatternError if it is invalid, or cannot be matched in bounded time."""
    if len(text) > MAX_CHARS:
        raise PatternError(f"has {len(text)} characters; use at most {MAX_CHARS}")
    try:
        re.compile(text)
        tree = _parser.parse(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise PatternError(f"not a regular expression: {error}") from None
    builder = _Builder()
    try:
        builder.add(tree, tree.state.flags)
    except RecursionError:
        raise PatternError("not a regular expression: too deeply nested") from None
    builder.emit(_Instruction("accept"))
    builder.mark_joined()
    first = tuple(map(str, tree.data[0])) if len(tree.data) else ()
    return SafePattern(
        text=text,
        groups=tree.state.groups - 1,
        names=dict(tree.state.groupdict),
        needed="" if tree.state.flags & re.IGNORECASE else _needed(tree),
        _program=tuple(builder.program),
        _only_at_start=first == _START and not tree.state.flags & re.MULTILINE,
    )


def _needed(tree: Any) -> str:
    """The longest literal text that every match contains."""
    longest = run = ""
    for op, value in tree.data:
        if str(op) == "LITERAL":
            run += chr(value)
            longest = max(longest, run, key=len)
        else:
            run = ""
            if str(op) == "SUBPATTERN" and not value[1] & re.IGNORECASE:
                longest = max(longest, _needed(value[3]), key=len)
    return longest


class _Builder:
    """Compiles the parser's tree into a program."""

    def __init__(self) -> None:
        self.program: list[_Instruction] = []

    def emit(self, instruction: _Instruction) -> _Instruction:
        if len(self.program) >= MAX_INSTRUCTIONS:
            raise PatternError("is too large: its counted repeats are written out; use smaller counts or `*`")
        self.program.append(instruction)
        return instruction

    def add(self, tree: Any, flags: int) -> None:
        for op, value in tree.data:
            self._add_one(str(op), value, flags)

    def _add_one(self, op: str, value: Any, flags: int) -> None:
        match op:
            case "LITERAL" | "NOT_LITERAL" | "ANY" | "IN":
                self.emit(_Instruction("char", chars=_Chars(_test_of(op, value, flags))))
            case "AT":
                self.emit(_Instruction("at", at=_position_of(str(value), flags)))
            case "BRANCH":
                self._add_branch(value[1], flags)
            case "SUBPATTERN":
                group, added, removed, inner = value
                if group is not None:
                    self.emit(_Instruction("save", first=2 * group))
                self.add(inner, (flags | added) & ~removed)
                if group is not None:
                    self.emit(_Instruction("save", first=2 * group + 1))
            case "MAX_REPEAT" | "MIN_REPEAT":
                least, most, inner = value
                self._add_repeat(least, most, inner, flags, greedy=op == "MAX_REPEAT")
            case "FAILURE":
                self.emit(_Instruction("char", chars=_Chars(lambda _: False)))
            case _:
                what = _UNSUPPORTED.get(op, f"{op.lower()} is not supported")
                raise PatternError(f"{what}: {_WHY}")

    def _add_branch(self, ways: Sequence[Any], flags: int) -> None:
        ends = []
        for number, way in enumerate(ways):
            if number < len(ways) - 1:
                split = self.emit(_Instruction("split"))
                split.first = len(self.program)
                self.add(way, flags)
                ends.append(self.emit(_Instruction("jump")))
                split.second = len(self.program)
            else:
                self.add(way, flags)
        for end in ends:
            end.first = len(self.program)

    def _add_repeat(self, least: int, most: Any, inner: Any, flags: int, *, greedy: bool) -> None:
        for _ in range(least):
            before = len(self.program)
            self.add(inner, flags)
            if len(self.program) == before:
                return  # The repeated part is empty: any count is the same.
        if most == _parser.MAXREPEAT:
            split = self.emit(_Instruction("split"))
            again = len(self.program) - 1
            self.add(inner, flags)
            self.emit(_Instruction("jump", first=again))
            _set_targets(split, again + 1, len(self.program), greedy)
            return
        splits = []
        for _ in range(most - least):
            splits.append((self.emit(_Instruction("split")), len(self.program)))
            self.add(inner, flags)
        for split, inside in splits:
            _set_targets(split, inside, len(self.program), greedy)

    def mark_joined(self) -> None:
        """Mark the instructions that several paths lead to. Paths between them are no longer than the program."""
        ways = [0] * (len(self.program) + 1)
        for place, step in enumerate(self.program):
            match step.kind:
                case "split":
                    ways[step.first] += 1
                    ways[step.second] += 1
                case "jump":
                    ways[step.first] += 1
                case _:
                    ways[place + 1] += 1
        ways[0] += 1
        for place, step in enumerate(self.program):
            step.joined = ways[place] > 1


def _set_targets(split: _Instruction, inside: int, behind: int, greedy: bool) -> None:
    split.first, split.second = (inside, behind) if greedy else (behind, inside)


# ── Characters and places ─────────────────────────────────────────────────────────────────────────────────────────────

# `re` itself decides about single characters and positions, so that case folding, categories and boundaries are the
# same. An expression for at most one character cannot be slow.

_CATEGORIES = {
    "CATEGORY_DIGIT": r"\d",
    "CATEGORY_NOT_DIGIT": r"\D",
    "CATEGORY_SPACE": r"\s",
    "CATEGORY_NOT_SPACE": r"\S",
    "CATEGORY_WORD": r"\w",
    "CATEGORY_NOT_WORD": r"\W",
}
_PLACES = {
    "AT_BEGINNING": "^",
    "AT_BEGINNING_STRING": r"\A",
    "AT_END": "$",
    "AT_END_STRING": r"\Z",
    "AT_BOUNDARY": r"\b",
    "AT_NON_BOUNDARY": r"\B",
}


def _test_of(op: str, value: Any, flags: int) -> Callable[[str], bool]:
    """Build the test of whether a character matches."""
    match op:
        case "ANY":
            return (lambda _: True) if flags & re.DOTALL else (lambda char: char != "\n")
        case "LITERAL":
            text = _item(op, value)
        case "NOT_LITERAL":
            text = "^" + _item("LITERAL", value)
        case _:
            text = "".join(_item(str(kind), inner) for kind, inner in value)
    one = re.compile(f"[{text}]", flags & (re.IGNORECASE | re.ASCII))
    return lambda char: one.match(char) is not None


def _item(kind: str, value: Any) -> str:
    """Write a part of a character set as it appears between brackets."""
    match kind:
        case "NEGATE":
            return "^"
        case "LITERAL":
            return f"\\U{value:08x}"
        case "RANGE":
            low, high = value
            return f"\\U{low:08x}-\\U{high:08x}"
        case "CATEGORY" if str(value) in _CATEGORIES:
            return _CATEGORIES[str(value)]
    raise PatternError(f"{kind.lower()} is not supported: {_WHY}")


def _position_of(kind: str, flags: int) -> Callable[[str, int], bool]:
    """Build the test of whether a position in the text matches."""
    if kind not in _PLACES:
        raise PatternError(f"{kind.lower()} is not supported: {_WHY}")
    place = re.compile(_PLACES[kind], flags & (re.MULTILINE | re.ASCII))
    return lambda text, at: place.match(text, at) is not None
