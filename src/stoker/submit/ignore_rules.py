"""Decide by .gitignore and .stokerignore which files of a folder are no code."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stoker.model.errors import UserError

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

_IGNORE_FILES = (".gitignore", ".stokerignore")


@dataclass(frozen=True)
class IgnoreRules:
    """The ignore rules of one folder, for everything below it."""

    folder: Path
    spec: GitIgnoreSpec
    # The part of them that stands in .stokerignore.
    own: GitIgnoreSpec


def read_rules(folder: Path) -> IgnoreRules | None:
    """The rules that stand in this folder; None where there are none. Raises UserError for an unreadable file."""
    lines: list[str] = []
    before = 0
    # .stokerignore comes last: it may take back a rule of .gitignore.
    for name in _IGNORE_FILES:
        before = len(lines)
        try:
            # Reading a pipe of that name would never end.
            if (folder / name).is_file():
                text = (folder / name).read_text(encoding="utf-8", errors="surrogateescape")
                lines += text.splitlines()
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            continue
        except OSError as error:
            raise unreadable_code(str(folder / name), error) from None
    if not lines:
        return None
    from pathspec import GitIgnoreSpec

    # To pathspec `a/**` matches the folder `a/` itself; to git it does not, so that `!a/keep` can follow.
    lines = [re.sub(r"/\*\*$", "/*", line.rstrip()) for line in lines]
    return IgnoreRules(folder, GitIgnoreSpec.from_lines(lines), GitIgnoreSpec.from_lines(lines[before:]))


def rules_above(root: Path) -> tuple[IgnoreRules, ...]:
    """The rules of the git repository around the folder, unless they ignore the folder itself."""
    above: list[Path] = []
    for parent in (root, *root.parents):
        if (parent / ".git").exists():
            break
        above.append(parent.parent)
    else:
        return ()
    rules = tuple(found for folder in reversed(above) if (found := read_rules(folder)) is not None)
    return () if is_ignored(root, True, rules) else rules


def is_ignored(path: Path, is_folder: bool, rules: tuple[IgnoreRules, ...]) -> bool:
    """True if the path is ignored."""
    decided = _decided(path, is_folder, rules)
    return decided is not None and decided[2]


def ignored_by(path: Path, is_folder: bool, rules: tuple[IgnoreRules, ...]) -> str:
    """The name of the ignore file that decides about the path; empty if none does."""
    decided = _decided(path, is_folder, rules)
    if decided is None:
        return ""
    rule, name, _ = decided
    return _IGNORE_FILES[1] if rule.own.check_file(name).include else _IGNORE_FILES[0]


def _decided(path: Path, is_folder: bool, rules: tuple[IgnoreRules, ...]) -> tuple[IgnoreRules, str, bool] | None:
    """The deepest ignore file that mentions the path decides: its rules, the path below it, and the verdict."""
    for rule in reversed(rules):
        name = path.relative_to(rule.folder).as_posix() + ("/" if is_folder else "")
        verdict = rule.spec.check_file(name).include
        if verdict is not None:
            return rule, name, verdict
    return None


def unreadable_code(name: str, error: OSError) -> UserError:
    """The error for a part of the code folder that cannot be read."""
    # tarfile reports a file that shrank meanwhile as "unexpected end of data", without an error number.
    problem = f"cannot be read ({error.strerror})" if error.errno is not None else "changed while it was packed"
    return UserError(f"code: {name}: {problem}; put that right or list it in .stokerignore")
