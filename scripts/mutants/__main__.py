"""Break random lines of the package one by one, and say which of them no test notices.

    make mutants SEED=7 COUNT=100        # takes some minutes on two cores

First the tests that run in process are run once with coverage, which tells for each line the tests that run it
(`--record`; kept in `.mutants/`, and to be made anew when the tree has changed). Then each sampled line is broken, and
its tests are run, the most specific first, until one fails. A survivor is a place to look at: a missing test, code that
does nothing, or a change that makes no difference. Poll intervals, cache sizes and texts of logs are the usual harmless
ones. Tests that run the product in processes of their own (`tests/e2e`) are not asked.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path

from finder import ROOMS, ROOT, Mutant, sample
from recorded import DATA, SUITES, Recorded, record
from server import Order, Verdict, started


@dataclass
class _Task:
    mutant: Mutant
    # A test that seems to have noticed the mutant, while it is tried on whole code.
    suspect: str = ""


class Judges:
    """Hands mutants out to servers, and collects their verdicts."""

    def __init__(self, jobs: int, most: int, patience_s: float) -> None:
        self._recorded = Recorded()
        self._most = most
        self._patience_s = patience_s
        # Tests that were seen to pass, and to fail, while nothing was broken.
        self._sound: set[str] = set()
        self._unsound: set[str] = set()
        folder = DATA / "work"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self._idle = [started(ROOT, folder, SUITES) for _ in range(jobs)]
        self._busy: dict[Connection, _Task] = {}

    def judge(self, mutants: Iterator[Mutant]) -> Iterator[tuple[Mutant, Verdict]]:
        while True:
            while self._idle and (mutant := next(mutants, None)) is not None:
                if not self._ask(self._idle[-1], _Task(mutant)):
                    yield mutant, Verdict("uncovered")
                else:
                    self._idle.pop()
            if not self._busy:
                break
            for server in wait(list(self._busy)):
                assert isinstance(server, Connection)
                task, verdict = self._busy.pop(server), server.recv()
                found = self._next(server, task, verdict)
                if found is not None:
                    self._idle.append(server)
                    yield task.mutant, found
        for server in self._idle:
            server.send(None)

    def _next(self, server: Connection, task: _Task, verdict: Verdict) -> Verdict | None:
        """The verdict on the mutant, or None: the server was asked something else about it."""
        if task.suspect:
            if verdict.word == "survived":
                self._sound.add(task.suspect)
                return Verdict("killed", task.suspect)
            self._unsound.add(task.suspect)
        elif verdict.word != "killed" or verdict.test in self._sound:
            return verdict
        elif verdict.test:
            self._ask(server, _Task(task.mutant, verdict.test))
            return None
        return None if self._ask(server, _Task(task.mutant)) else Verdict("uncovered")

    def _ask(self, server: Connection, task: _Task) -> bool:
        """Return whether there is a test to ask."""
        mutant, source = task.mutant, None
        tests: tuple[str, ...] = (task.suspect,)
        if not task.suspect:
            source = mutant.broken((ROOT / mutant.path).read_bytes())
            tests = tuple([test for test in self._recorded.tests(mutant) if test not in self._unsound][: self._most])
        if tests:
            server.send(Order(mutant.path, mutant.line, source, tests, self._patience_s))
            self._busy[server] = task
        return bool(tests)


def _key(mutant: Mutant) -> tuple[str, int, int, str]:
    return mutant.path, mutant.line, mutant.start, mutant.new


def _earlier(file: Path | None) -> list[tuple[Mutant, str]]:
    """The verdicts of a run that was ended."""
    found = []
    for line in file.read_text().splitlines() if file is not None and file.exists() else ():
        row = json.loads(line)
        found.append((Mutant(**row["mutant"]), row["verdict"]))
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--record", action="store_true", help="measure again which tests run which line")
    options.add_argument("--seed", type=int, required=True)
    options.add_argument("--count", type=int, default=100)
    options.add_argument("--jobs", type=int, default=2, help="lines that are broken at the same time")
    options.add_argument("--most", type=int, default=300, help="tests that are asked about one line")
    options.add_argument(
        "--patience", type=float, default=40.0, help="seconds of the processor that these tests may take"
    )
    options.add_argument(
        "--results", type=Path, help="a file that verdicts are added to; what it has is not judged again"
    )
    options.add_argument("rooms", nargs="*", default=ROOMS, help="rooms, or files below them")
    args = options.parse_args()
    if args.record or not (DATA / "coverage").exists():
        record()
    earlier = _earlier(args.results)
    known = {_key(mutant) for mutant, _ in earlier}
    left = [mutant for mutant in sample(args.seed, args.count, args.rooms) if _key(mutant) not in known]
    words = Counter(word for _, word in earlier)
    for mutant, verdict in Judges(args.jobs, args.most, args.patience).judge(iter(left)):
        words[verdict.word] += 1
        if args.results is not None:
            row = {"mutant": asdict(mutant), "verdict": verdict.word, "test": verdict.test}
            with args.results.open("a") as results:
                results.write(json.dumps(row) + "\n")
        if verdict.word != "killed":
            print(f"{verdict.word}: {mutant.path}:{mutant.line}: {mutant.text}  →  {mutant.new}", flush=True)
    print(", ".join(f"{count} {word}" for word, count in words.most_common()))


if __name__ == "__main__":
    main()
