"""Check that docstrings and comments open plainly, and that no word of the old dialect comes back.

In the package, and in the programs beside it.

    make lint

A docstring or comment that opens with Who, What, Whether or the like hides its subject. Write an
imperative ("Return the newest claim"), or a noun phrase ("The newest claim"). The vocabulary is in docs/README.md.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
FOLDERS = ("src/stoker", "bench", "examples", "scripts")
RIDDLE = re.compile(r"(Who|Whoever|What|Whether|Whose|Whom|Nobody|Somebody)\b")
DIALECT = re.compile(
    r"\b(house|told|untold|heed\w*|tend|tending|telling|teller|foreign|shunned|stumbles?|nobody|somebody|whoever)\b",
    re.I,
)


def openings(tree: ast.Module, text: str) -> Iterator[tuple[int, str]]:
    """The line and the text of every docstring, and of every comment that begins a paragraph."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring:
                yield node.body[0].lineno, docstring
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("#").strip()


def problems(path: Path) -> Iterator[str]:
    text = path.read_text(encoding="utf-8")
    for line, opening in openings(ast.parse(text), text):
        if found := RIDDLE.match(opening):
            yield f"{path.relative_to(PROJECT)}:{line}: opens with “{found[0]}”; name the subject"
    for line, content in enumerate(text.splitlines(), 1):
        for found in DIALECT.finditer(content):
            yield f"{path.relative_to(PROJECT)}:{line}: “{found[0]}”: see the words of docs/README.md"


def files() -> Iterator[Path]:
    """Every Python file but this one, which names the words."""
    for folder in FOLDERS:
        yield from (path for path in sorted((PROJECT / folder).rglob("*.py")) if path != Path(__file__).resolve())


def main() -> int:
    found = [problem for path in files() for problem in problems(path)]
    for problem in found:
        print(problem)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
