"""Break random lines of the package one by one, and say which of them no test notices.

    make mutants SEED=7 COUNT=100        # takes about half an hour on two cores

First the tests that run in process are run once with coverage, which tells for each line the tests that run it
(`--record`; kept in `.mutants/`). Then each sampled line is broken in a copy of the tree, and its tests are run there,
the most specific first, until one fails. A survivor is a place to look at: a missing test, code that does nothing, or
a change that makes no difference. Poll intervals, cache sizes and texts of logs are the usual harmless ones.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import coverage

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / ".mutants"
ROOMS = ("agent", "core", "governor", "store", "read", "submit")
SUITES = ("tests/unit", "tests/property", "tests/contract", "tests/sim", "tests/model")
# Tests are run in batches, so that a line that many tests run is seldom held against all of them.
BATCHES = (40, 160, 300)
BATCH_S = 240.0
_TURN = 5

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
    """Every change that can be made to one file."""

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
                if self._source[start:end].decode() != new and _parses(made.broken(self._source)):
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
            case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
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
    """Docstrings, annotations, decorators and parts of f-strings: breaking them breaks no behaviour, or only a text."""
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
        for part in parts:
            found.update(ast.walk(part) if part is not None else ())
    return found


def _parses(source: bytes) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


def sample(seed: int, count: int, rooms: list[str]) -> list[Mutant]:
    """Random lines, each broken in one random way."""
    lines: dict[tuple[str, int], list[Mutant]] = {}
    for room in rooms:
        folder = ROOT / "src" / "stoker" / room
        for path in sorted(folder.rglob("*.py")) if folder.is_dir() else [folder]:
            for mutant in Finder(path).mutants():
                lines.setdefault((mutant.path, mutant.line), []).append(mutant)
    chance = random.Random(seed)
    chosen = chance.sample(sorted(lines), min(count, len(lines)))
    return [chance.choice(lines[line]) for line in chosen]


def record() -> None:
    """Run the tests that run in process once, and keep which of them runs which line."""
    DATA.mkdir(exist_ok=True)
    settings = DATA / "coveragerc"
    settings.write_text(f"[run]\nsource = stoker\nrelative_files = true\ndata_file = {DATA / 'coverage'}\n")
    options = ["--cov", f"--cov-config={settings}", "--cov-context=test", "--cov-report="]
    command = [sys.executable, "-m", "pytest", "-q", "-n", "3", "--dist", "worksteal", *options, *SUITES]
    # A test that fails is no reason to lose what the others have shown.
    if subprocess.run(command, cwd=ROOT).returncode not in (0, 1):
        sys.exit("the tests could not be run")


class Coverage:
    """Which tests run a line, as it was recorded."""

    def __init__(self) -> None:
        self._data = coverage.CoverageData(str(DATA / "coverage"))
        self._data.read()
        self._lines: Counter[str] = Counter()
        for path in self._data.measured_files():
            for contexts in self._data.contexts_by_lineno(path).values():
                self._lines.update(map(_test_of, contexts))
        self._files = Counter(_file_of(test) for test in self._lines)

    def tests(self, mutant: Mutant) -> list[str]:
        """The most specific first: those of files most of whose tests run the line, and that run the fewest lines.

        A thread that outlives its test runs lines in the name of tests that have nothing to do with them.
        """
        by_line = self._data.contexts_by_lineno(mutant.path)
        # A statement of several lines is recorded at some of them, its first among these.
        lines = range(mutant.line, mutant.first_line - 1, -1)
        near = next((by_line[line] for line in lines if by_line.get(line)), [])
        found = {_test_of(context) for context in near} - {""}
        if not found and near:
            # It runs when the module is imported: every test of the module depends on it.
            found = {_test_of(context) for contexts in by_line.values() for context in contexts} - {""}
        files = Counter(map(_file_of, found))

        def rank(test: str) -> tuple[float, int]:
            file = _file_of(test)
            return -round(files[file] / self._files[file], 1), self._lines[test]

        ordered = sorted(found, key=rank)
        # A few of each file in turn: many tests of one file seldom notice more than its first, and may take minutes.
        turns: dict[str, int] = {}
        for file in files:
            turns |= {test: nth // _TURN for nth, test in enumerate(one for one in ordered if _file_of(one) == file)}
        return sorted(ordered, key=turns.__getitem__)


def _file_of(test: str) -> str:
    return test.partition("::")[0]


def _test_of(context: str) -> str:
    return context.split("|")[0]


class Judge:
    """Runs tests against a copy of the tree in which one line is broken."""

    def __init__(self, recorded: Coverage, number: int) -> None:
        self._recorded = recorded
        self._copy = DATA / f"tree-{number}"
        ignored = shutil.ignore_patterns(".venv", ".git", ".mutants", "__pycache__", ".hypothesis")
        shutil.rmtree(self._copy, ignore_errors=True)
        shutil.copytree(ROOT, self._copy, ignore=ignored, symlinks=True)
        self._environ = {**os.environ, "PYTHONPATH": f"{self._copy / 'src'}{os.pathsep}{self._copy}"}
        # Compiled files are distinguished by whole seconds of their source.
        self._stamp = int(time.time()) - 1_000_000

    def judge(self, mutant: Mutant) -> str:
        """killed, survived, hung (a test did not end), or uncovered (no test in process runs the line)."""
        path = self._copy / mutant.path
        source = path.read_bytes()
        self._write(path, mutant.broken(source))
        try:
            return self._run(self._recorded.tests(mutant))
        finally:
            self._write(path, source)

    def _write(self, path: Path, source: bytes) -> None:
        self._stamp += 2
        path.write_bytes(source)
        os.utime(path, (self._stamp, self._stamp))

    def _run(self, tests: list[str]) -> str:
        done = 0
        for size in BATCHES:
            batch = tests[done : done + size]
            done += size
            if not batch:
                break
            command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--timeout=100", *batch]
            try:
                result = subprocess.run(
                    command, cwd=self._copy, env=self._environ, capture_output=True, timeout=BATCH_S
                )
            except subprocess.TimeoutExpired:
                return "hung"
            if result.returncode:
                return "killed"
        return "survived" if tests else "uncovered"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--record", action="store_true", help="measure again which tests run which line")
    options.add_argument("--seed", type=int, required=True)
    options.add_argument("--count", type=int, default=100)
    options.add_argument("--jobs", type=int, default=2, help="lines that are broken at the same time, in copies")
    options.add_argument("rooms", nargs="*", default=ROOMS)
    args = options.parse_args()
    if args.record or not (DATA / "coverage").exists():
        record()
    recorded = Coverage()
    judges: SimpleQueue[Judge] = SimpleQueue()
    for number in range(args.jobs):
        judges.put(Judge(recorded, number))

    def verdict_of(mutant: Mutant) -> str:
        judge = judges.get()
        try:
            verdict = judge.judge(mutant)
        finally:
            judges.put(judge)
        if verdict != "killed":
            print(f"{verdict}: {mutant.path}:{mutant.line}: {mutant.text}  →  {mutant.new}", flush=True)
        return verdict

    with ThreadPoolExecutor(args.jobs) as pool:
        verdicts = Counter(pool.map(verdict_of, sample(args.seed, args.count, list(args.rooms))))
    print(", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common()))


if __name__ == "__main__":
    main()
