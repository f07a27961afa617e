"""Check the folders of results inside the code, which are not packed: they must not take code along."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from stoker.model.errors import UserError
from stoker.model.spec import Spec
from stoker.submit.git_revision import tracked_files

# Files with these endings are code, whether git tracks them or not.
_CODE_ENDINGS = frozenset(
    {
        *(".py", ".pyx", ".pyi", ".ipynb", ".sh", ".bash", ".pl", ".r", ".R", ".jl", ".lua", ".js", ".ts"),
        *(".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".go", ".rs", ".java", ".scala", ".so"),
    }
)
# git tracks these so that a folder of results exists, or is described.
_KEEPERS = re.compile(r"\..*|README.*")
_WORD = re.compile(r"[^\s'\"|&;<>()$`=]+")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_MOST_NAMED = 3
_LEAST_REPORTED_BYTES = 1000**2


@dataclass(frozen=True)
class UnpackedResults:
    """A folder (or file) of the code that a field names for results, and the files that are not packed therefore."""

    field: str
    name: str
    is_file: bool
    files: tuple[tuple[str, int], ...]


def check_results_in_code(
    spec: Spec, root: Path, found: Sequence[UnpackedResults]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return warnings about code in these folders, and notes about large results in them, one line each.

    Raises UserError for a file of the code, and for a folder that holds a file of code that the command names.
    """
    warnings, notes = [], []
    for one in found:
        if one.is_file:
            raise UserError(f"{one.field}: {one.name} is a file of the code; name a folder for results alone")
        code = _code_in(root, one)
        named = next((name for name in _named_by(spec.run) if name in code), None)
        if named is not None:
            raise UserError(
                f"{one.field}: {one.name} holds {named}, which `run` names, and is not packed: it is for results; "
                f"{_advice(one)}"
            )
        if code:
            shown = ", ".join(code[:_MOST_NAMED]) + (", …" if len(code) > _MOST_NAMED else "")
            warnings.append(
                f"{one.field}: {one.name}/ is for results and is not packed, nor is the code in it: {shown}. "
                f"To pack that, {_advice(one)}"
            )
        elif (total := sum(each for _, each in one.files)) >= _LEAST_REPORTED_BYTES:
            notes.append(f"{one.field}: {one.name}/ is for results and is not packed ({total / 1000**2:,.0f} MB)")
    return tuple(warnings), tuple(notes)


def _advice(one: UnpackedResults) -> str:
    return f"name another folder, or a pattern such as {one.name}/*.pt"


def _code_in(root: Path, one: UnpackedResults) -> list[str]:
    """The files of code: those with an ending of code, and those that git tracks."""
    tracked = tracked_files(root, one.name) if one.files else frozenset()
    return [
        name
        for name, each in one.files
        if posixpath.splitext(name)[1] in _CODE_ENDINGS
        or (name in tracked and each and not _KEEPERS.fullmatch(posixpath.basename(name)))
    ]


def _named_by(run: str | tuple[str, ...]) -> Iterator[str]:
    """The paths in the code folder that the command may name: as paths, or as modules after `-m`."""
    words = _WORD.findall(run) if isinstance(run, str) else list(run)
    for before, word in zip(["", *words], words, strict=False):
        yield posixpath.normpath(word)
        if before == "-m" and _MODULE.fullmatch(word):
            path = word.replace(".", "/")
            yield f"{path}.py"
            yield f"{path}/__main__.py"
