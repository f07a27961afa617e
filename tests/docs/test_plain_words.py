"""What people read says it in plain words: a text that needs a second reading is a defect."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import stoker

SOURCE = Path(stoker.__file__).parent
# Words of a private dialect, and subjects that name no one: agents, governors, machines and the policy have names.
SHUNNED = re.compile(r"\b(nobody|somebody|whoever|house|stumbl\w+|heed\w*)\b", re.IGNORECASE)


def texts() -> Iterator[tuple[str, str]]:
    """The texts with more than a word in them, of all modules but those for tests, with where they stand."""
    for path in sorted(SOURCE.rglob("*.py")):
        if SOURCE / "testing" in path.parents:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        # Docstrings are for those who read the code.
        docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            text = node.value if isinstance(node, ast.Constant) and id(node) not in docs else None
            if isinstance(node, ast.Constant) and isinstance(text, str) and " " in text.strip():
                yield f"{path.relative_to(SOURCE)}:{node.lineno}", text


def test_messages_name_their_subjects() -> None:
    assert [(place, text) for place, text in texts() if SHUNNED.search(text)] == []
