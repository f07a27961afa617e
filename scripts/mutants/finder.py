"""The changes that can be made to the lines of the package, one by one."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("agent", "core", "governor", "store", "read", "submit")

COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
}
_COMPARISON = re.compile(r"not\s+in|is\s+not|<=|>=|==|!=|<|>|in|is")
_ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
}
# A string that is a name or a key, not a sentence.
_NAME = re.compile(r"[A-Za-z0-9_./-]{2,}")


@dataclass(frozen=True)
class Mutant:
    """One change of one line: the bytes from `start` to `end` become `new`."""

    path: str
    line: int
    # The first line of the statement.
    first_line: int
    start: int
    end: int
    new: str
    text: str

    def broken(self, source: bytes) -> bytes:
        return source[: self.start] + self.new.encode() + source[self.end :]


class Finder:
    """Every change that can be made to one file, those that do not parse included."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._source = path.read_bytes()
        self._lines = self._source.decode().splitlines()
        self._starts = [0]
        for line in self._source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def mutants(self) -> Iterator[Mutant]:
        tree = ast.parse(self._source)
        skipped = _without_effect(tree)
        first_lines = _first_lines(tree)
        path = str(self._path.relative_to(ROOT))
        for node in ast.walk(tree):
            if node in skipped:
                continue
            for line, start, end, new in self._changes(node):
                made = Mutant(path, line, first_lines[line], start, end, new, self._lines[line - 1].strip())
                if self._source[start:end].decode() != new:
                    yield made

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._starts[node.lineno - 1] + node.col_offset, self._starts[node.end_lineno - 1] + node.end_col_offset

    def _text(self, node: ast.expr) -> str:
        start, end = self._span(node)
        return self._source[start:end].decode()

    def _changes(self, node: ast.AST) -> Iterator[tuple[int, int, int, str]]:
        match node:
            case ast.Compare(left=left, ops=[operator], comparators=[right]):
                yield from self._between(left, right, _COMPARISON, COMPARISONS[type(operator)])
            case ast.BoolOp(op=word, values=[left, right]):
                old, new = ("and", "or") if isinstance(word, ast.And) else ("or", "and")
                yield from self._between(left, right, re.compile(rf"\b{old}\b"), new)
            case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _ARITHMETIC:
                old, new = _ARITHMETIC[type(operator)]
                yield from self._between(left, right, re.compile(re.escape(old)), new)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield node.lineno, *self._span(node), f"({self._text(operand)})"
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
                yield test.lineno, *self._span(test), f"(not ({self._text(test)}))"
            case ast.comprehension(ifs=[test, *_]):
                yield test.lineno, *self._span(test), f"(not ({self._text(test)}))"
            case ast.Constant(value=value):
                yield from self._constant(node, value)
            # In a condition False is the same as None.
            case ast.Return(value=ast.Constant(value=None | False)):
                return
            case ast.Return(value=ast.expr() as value):
                yield node.lineno, *self._span(value), "None"
            case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Raise():
                yield node.lineno, *self._span(node), "pass"
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
                yield node.lineno, *self._span(node), "pass"
            case ast.Continue():
                yield node.lineno, *self._span(node), "break"
            case ast.Break():
                yield node.lineno, *self._span(node), "continue"

    def _between(
        self, left: ast.expr, right: ast.expr, old: re.Pattern[str], new: str
    ) -> Iterator[tuple[int, int, int, str]]:
        start, end = self._span(left)[1], self._span(right)[0]
        found = old.search(self._source[start:end].decode())
        if found is not None:
            assert left.end_lineno is not None
            yield left.end_lineno, start + found.start(), start + found.end(), new

    def _constant(self, node: ast.Constant, value: object) -> Iterator[tuple[int, int, int, str]]:
        start, end = self._span(node)
        if isinstance(value, bool):
            yield node.lineno, start, end, str(not value)
        elif isinstance(value, int | float):
            yield node.lineno, start, end, "1" if value == 0 else "0"
        elif isinstance(value, str) and _NAME.fullmatch(value) and self._source[start : start + 1] in b"\"'":
            yield node.lineno, start, end, repr(f"X{value}")


def _first_lines(tree: ast.Module) -> dict[int, int]:
    """For each line, the first line of the innermost statement that it belongs to."""
    found: dict[int, int] = {}
    for node in ast.walk(tree):  # Outer statements come before those inside them.
        if isinstance(node, ast.stmt):
            found.update(dict.fromkeys(range(node.lineno, (node.end_lineno or node.lineno) + 1), node.lineno))
    return found


def _without_effect(tree: ast.Module) -> set[ast.AST]:
    """Docstrings, annotations, decorators, imports for type checkers and parts of f-strings: breaking them breaks no
    behaviour, or only a text."""
    found: set[ast.AST] = set()
    for node in ast.walk(tree):
        parts: list[ast.AST | None] = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        parts += getattr(node, "decorator_list", [])
        body = getattr(node, "body", None)
        if (
            isinstance(body, list)
            and body
            and isinstance(body[0], ast.Expr)
            and isinstance(body[0].value, ast.Constant)
        ):
            parts.append(body[0])
        if isinstance(node, ast.JoinedStr):
            parts.append(node)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            parts.append(node)
        for part in parts:
            found.update(ast.walk(part) if part is not None else ())
    return found


def _parses(source: bytes) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


def sample(seed: int, count: int, rooms: Sequence[str]) -> list[Mutant]:
    """Random lines, each broken in one random way."""
    lines: dict[tuple[str, int], list[Mutant]] = {}
    sources: dict[str, bytes] = {}
    for room in rooms:
        folder = ROOT / "src" / "stoker" / room
        for path in sorted(folder.rglob("*.py")) if folder.is_dir() else [folder]:
            sources[str(path.relative_to(ROOT))] = path.read_bytes()
            for mutant in Finder(path).mutants():
                lines.setdefault((mutant.path, mutant.line), []).append(mutant)
    chance = random.Random(seed)
    order = sorted(lines)
    chance.shuffle(order)
    chosen: list[Mutant] = []
    for line in order:
        if len(chosen) == count:
            break
        ways = chance.sample(lines[line], len(lines[line]))
        chosen += [mutant for mutant in ways if _parses(mutant.broken(sources[mutant.path]))][:1]
    return sorted(chosen, key=lambda mutant: (mutant.path, mutant.line))
