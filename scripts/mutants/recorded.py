"""Which tests run a line, recorded once, and which of them may notice that it is broken."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache

import coverage
from finder import ROOT, Mutant

DATA = ROOT / ".mutants"
SUITES = ("tests/unit", "tests/property", "tests/contract", "tests/sim", "tests/model")
# Many tests of one file seldom notice more than its first: a few of each file take turns.
_TURN = 5


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


class Recorded:
    """Which tests run a line, as it was recorded."""

    def __init__(self) -> None:
        self._data = coverage.CoverageData(str(DATA / "coverage"))
        self._data.read()
        self._lines: Counter[str] = Counter()
        for path in self._data.measured_files():
            for contexts in self._data.contexts_by_lineno(path).values():
                self._lines.update(map(_test_of, contexts))
        self._files = Counter(_file_of(test) for test in self._lines)
        self._tests_of_lines = lru_cache(100)(self._read)

    def tests(self, mutant: Mutant) -> list[str]:
        """The most specific first: those of files most of whose tests run the line, and that run the fewest lines.

        A thread that outlives its test runs lines in the name of tests that have nothing to do with them.
        """
        by_line = self._tests_of_lines(mutant.path)
        # A statement of several lines is recorded at some of them, its first among these.
        lines = range(mutant.line, mutant.first_line - 1, -1)
        found: Iterable[str] = next((by_line[line] for line in lines if by_line.get(line)), ())
        if names := _assigned(mutant.path, mutant.line):
            # It runs when the module is imported. Who runs a line that uses the name may notice.
            found = self._users(mutant, names) or found
        if set(found) == {""}:
            found = {test for tests in by_line.values() for test in tests}
        return self._ordered(set(found) - {""})

    def _users(self, mutant: Mutant, names: Sequence[str]) -> set[str]:
        users = re.compile(r"\b(" + "|".join(map(re.escape, names)) + r")\b")
        own = self._run_lines(mutant.path, users, without=mutant.line)
        if own:
            return own
        others = (str(path.relative_to(ROOT)) for path in sorted((ROOT / "src" / "stoker").rglob("*.py")))
        return set().union(*(self._run_lines(path, users, without=0) for path in others if path != mutant.path))

    def _run_lines(self, path: str, users: re.Pattern[str], *, without: int) -> set[str]:
        """The tests that run a line of the file in which a name is used."""
        lines = [number for number, line in enumerate(_text(path), 1) if number != without and users.search(line)]
        by_line = self._tests_of_lines(path) if lines else {}
        return set().union(*(by_line.get(line, ()) for line in lines)) - {""}

    def _read(self, path: str) -> dict[int, set[str]]:
        return {line: set(map(_test_of, names)) for line, names in self._data.contexts_by_lineno(path).items()}

    def _ordered(self, found: set[str]) -> list[str]:
        files = Counter(map(_file_of, found))

        def rank(test: str) -> tuple[float, int]:
            file = _file_of(test)
            return -round(files[file] / self._files[file], 1), self._lines[test]

        ordered = sorted(found, key=rank)
        turns: dict[str, int] = {}
        for file in files:
            turns |= {test: nth // _TURN for nth, test in enumerate(one for one in ordered if _file_of(one) == file)}
        # Those of providers and stores start servers, which each fork does anew.
        return sorted(ordered, key=lambda test: (test.startswith("tests/contract"), turns[test]))


@cache
def _text(path: str) -> Sequence[str]:
    return (ROOT / path).read_text().splitlines()


@cache
def _statements(path: str) -> Sequence[ast.stmt]:
    """The statements of a module that are run when it is imported, those of its classes among them."""
    found: list[ast.stmt] = []
    bodies = [ast.parse((ROOT / path).read_bytes()).body]
    while bodies:
        for statement in bodies.pop():
            found.append(statement)
            if isinstance(statement, ast.ClassDef):
                bodies.append(statement.body)
    return found


def _assigned(path: str, line: int) -> list[str]:
    """The names of a module or class that the line gives a value."""
    for one in _statements(path):
        if one.lineno <= line <= (one.end_lineno or one.lineno):
            match one:
                case ast.Assign(targets=targets):
                    return [target.id for target in targets if isinstance(target, ast.Name)]
                case ast.AnnAssign(target=ast.Name(id=name)):
                    return [name]
    return []


def _file_of(test: str) -> str:
    return test.partition("::")[0]


def _test_of(context: str) -> str:
    return context.split("|")[0]
