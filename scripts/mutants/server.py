"""Judges mutants in forks of one process that has collected every test.

A fork costs nothing, and neither does a changed function: the child gives the living function its new code and runs
the tests that run it, the most specific first. What stands outside functions is changed before it is imported, in a
child of the process as it was before the collection.
"""

from __future__ import annotations

import gc
import importlib.machinery
import importlib.util
import itertools
import multiprocessing
import os
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType, FunctionType

import pytest

# A test that does not end notices a mutant too.
TEST_S = 30
HUNG_S = 300.0
_SURVIVED, _OUTSIDE = 77, 78
_FORKS = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Order:
    """A file with a line that is broken (None: whole), the tests that may notice it, and their processor time."""

    path: str
    line: int
    source: bytes | None
    tests: tuple[str, ...]
    patience_s: float


@dataclass(frozen=True)
class Verdict:
    """killed (by which test), survived, or hung."""

    word: str
    test: str = ""


class Functions:
    """The living functions of the package, by the place where they are defined."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._found: dict[tuple[str, str, int], list[FunctionType]] = {}
        for one in gc.get_objects():
            if isinstance(one, FunctionType) and one.__code__.co_filename.startswith(str(root / "src")):
                code = one.__code__
                self._found.setdefault((code.co_filename, _qualname(code), code.co_firstlineno), []).append(one)

    def replace(self, path: str, line: int, source: bytes) -> bool:
        """Give the outermost function around the line its new code. False: the line stands outside functions."""
        file = str(self._root / path)
        old = _outermost(compile((self._root / path).read_bytes(), file, "exec"), line)
        if old is None:
            return False
        key = (file, _qualname(old), old.co_firstlineno)
        new = [
            one for one in _functions(compile(source, file, "exec")) if (_qualname(one), one.co_firstlineno) == key[1:]
        ]
        living = self._found.get(key, [])
        if len(new) != 1 or not living:
            return False
        try:
            for one in living:
                one.__code__ = new[0]
        except ValueError:  # It closes over other names now.
            return False
        return self._replace_inner(file, old, new[0])

    def _replace_inner(self, file: str, old: CodeType, new: CodeType) -> bool:
        """Functions that were made by the function when a module was imported have its old code."""
        by_place = {(_qualname(one), one.co_firstlineno): one for one in _functions(new)}
        for one in _functions(old):
            for living in self._found.get((file, _qualname(one), one.co_firstlineno), []):
                changed = by_place.get((_qualname(one), one.co_firstlineno))
                if changed is None:
                    return False
                try:
                    living.__code__ = changed
                except ValueError:
                    return False
        return True


def _qualname(code: CodeType) -> str:
    return getattr(code, "co_qualname", code.co_name)


def _functions(code: CodeType) -> Iterator[CodeType]:
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield one
            yield from _functions(one)


def _outermost(code: CodeType, line: int) -> CodeType | None:
    for one in code.co_consts:
        if not isinstance(one, CodeType):
            continue
        last = max((at for *_, at in one.co_lines() if at is not None), default=0)
        last = max([last, *(at for inner in _functions(one) for *_, at in inner.co_lines() if at is not None)])
        if not one.co_firstlineno <= line <= last:
            continue
        # A class body is run once, like the module.
        if one.co_flags & 0x2:  # CO_NEWLOCALS: a function
            first = min((at for *_, at in one.co_lines() if at is not None and at > one.co_firstlineno), default=line)
            return one if line >= first else None
        return _outermost(one, line)
    return None


class _Broken(importlib.machinery.SourceFileLoader):
    """Loads one module from a source that is not the file's."""

    def __init__(self, name: str, path: str, source: bytes) -> None:
        super().__init__(name, path)
        self._source = source

    def get_code(self, fullname: str) -> CodeType:
        assert fullname == self.name
        return compile(self._source, self.path, "exec")


class _Finder:
    """Finds one module, to be loaded from a broken source."""

    def __init__(self, root: Path, path: str, source: bytes) -> None:
        name = ".".join(Path(path).relative_to("src").with_suffix("").parts)
        self._loader = _Broken(name.removesuffix(".__init__"), str(root / path), source)
        self._is_package = name != self._loader.name

    def find_spec(self, name: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        if name != self._loader.name:
            return None
        return importlib.util.spec_from_loader(name, self._loader, is_package=self._is_package)


class _Forks:
    """Runs tests in forks, and says how they ended."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # Of tests that were run: the seconds that they took.
        self.took_s: dict[str, float] = {}

    def run(self, tests: Callable[[int], int]) -> Verdict:
        """`tests` is given the file descriptor for what begins when, and returns an exit status."""
        temporary = tempfile.mkdtemp(dir=self._folder)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            _quiet(temporary)
            status = 1
            try:
                status = tests(writing)
            finally:
                os._exit(status)
        os.close(writing)
        ended, status = _wait(child)
        begun = [line.split(" ", 1) for line in _all(reading).decode().splitlines()]
        os.close(reading)
        for (since, test), (until, _) in itertools.pairwise(begun):
            self.took_s[test] = float(until) - float(since)
        _end_group(child)
        shutil.rmtree(temporary, ignore_errors=True)
        last = begun[-1][1] if begun else ""
        if not ended:
            return Verdict("hung", last)
        code = os.waitstatus_to_exitcode(status)
        words = {_SURVIVED: "survived", _OUTSIDE: "outside"}
        return Verdict(words.get(code, "killed"), last)


def _quiet(temporary: str) -> None:
    os.setsid()
    os.environ["TMPDIR"] = tempfile.tempdir = temporary
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nowhere, number)


def _wait(child: int) -> tuple[bool, int]:
    until = time.monotonic() + HUNG_S
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return True, status
        time.sleep(0.02)
    _end_group(child)
    return False, os.waitpid(child, 0)[1]


def _all(reading: int) -> bytes:
    os.set_blocking(reading, False)
    found = b""
    while select.select([reading], [], [], 0)[0]:
        piece = os.read(reading, 65536)
        if not piece:
            break
        found += piece
    return found


def _end_group(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        pass


class _Warm:
    """A pytest plugin that serves orders where the tests would run."""

    def __init__(self, root: Path, folder: Path, orders: Connection) -> None:
        self._root = root
        self._forks = _Forks(folder)
        self._orders = orders

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        functions = Functions(self._root)
        gc.freeze()
        while (order := self._orders.recv()) is not None:
            # Those that are known to be slow come last.
            known = sorted(order.tests, key=lambda test: round(self._forks.took_s.get(test, 0.0) / 2))
            chosen = [items[test] for test in known if test in items]
            self._orders.send(self._forks.run(partial(_judge, session, functions, order, chosen)))
        return True


def _judge(
    session: pytest.Session, functions: Functions, order: Order, items: Sequence[pytest.Item], begun: int
) -> int:
    if order.source is not None and not functions.replace(order.path, order.line, order.source):
        return _OUTSIDE
    session.config._tmp_path_factory._basetemp = Path(tempfile.mkdtemp())  # type: ignore[attr-defined]
    return _run(session, items, order.patience_s, begun)


def _run(session: pytest.Session, items: Sequence[pytest.Item], patience_s: float, begun: int) -> int:
    began, until = time.process_time(), time.monotonic() + 4 * patience_s
    for item, following in zip(items, [*items[1:], None], strict=True):
        os.write(begun, f"{time.monotonic()} {item.nodeid}\n".encode())
        # Of the processor, so that a busy machine makes no survivors; but some tests do nothing but wait.
        tried = time.process_time() - began > patience_s or time.monotonic() > until
        last = following is None or tried
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None if last else following)
        if session.testsfailed:
            return 1
        if last:
            break
    return _SURVIVED


class _Cold:
    """A pytest plugin that runs the tests of an order in its order."""

    def __init__(self, order: Order, begun: int) -> None:
        self._order = order
        self._begun = begun

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            os._exit(1)
        items = {item.nodeid: item for item in session.items}
        chosen = [items[test] for test in self._order.tests if test in items]
        os._exit(_run(session, chosen, self._order.patience_s, self._begun))


def _options() -> list[str]:
    return ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--timeout={TEST_S}"]


def started(root: Path, folder: Path, suites: Sequence[str]) -> Connection:
    """A server in a process of its own: it takes orders, answers each with a verdict, and ends when it gets None."""
    mine, theirs = _FORKS.Pipe()
    _FORKS.Process(target=_serve, args=(root, folder, suites, theirs)).start()
    return mine


def _serve(root: Path, folder: Path, suites: Sequence[str], orders: Connection) -> None:
    """Judge orders until None comes. Nothing of the package is imported in this process."""
    mine, theirs = _FORKS.Pipe()
    warm = _FORKS.Process(target=_serve_warm, args=(root, folder, suites, theirs))
    warm.start()
    forks = _Forks(folder)
    while (order := orders.recv()) is not None:
        mine.send(order)
        verdict = mine.recv()
        if verdict.word == "outside":
            verdict = forks.run(partial(_run_cold, root, order))
        orders.send(verdict)
    mine.send(None)
    warm.join()


def _serve_warm(root: Path, folder: Path, suites: Sequence[str], orders: Connection) -> None:
    with (folder / f"collection-{os.getpid()}.log").open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        pytest.main([*_options(), *suites], plugins=[_Warm(root, folder, orders)])


def _run_cold(root: Path, order: Order, begun: int) -> int:
    assert order.source is not None
    sys.meta_path.insert(0, _Finder(root, order.path, order.source))
    pytest.main([*_options(), *order.tests], plugins=[_Cold(order, begun)])
    return 1
