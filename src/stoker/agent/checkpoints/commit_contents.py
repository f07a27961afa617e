"""The contents of a commit, and two ways to derive them: without the newest save, and from copies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from stoker.agent.checkpoints.file_copies import FileCopy, SaveCopy
from stoker.agent.checkpoints.file_numbers import number_of
from stoker.agent.checkpoints.folder_snapshot import Files, Signature, signature_of, top_folder_of
from stoker.agent.checkpoints.format_check import check_format
from stoker.agent.checkpoints.whole_saves import UnitLeftOut
from stoker.model.node_facts import BlobRef


@dataclass(frozen=True)
class CommitContents:
    """Files of the folder to commit, and parts of the last commit that are carried over unchanged.

    `to_copy` are the files to copy before they are sent. `logs` are the logs among the files: they say nothing about
    what was saved. `left_out` are the units that are not committed as they are in the folder. `copies` are copies that
    were made earlier, by path. `as_of` is when the folder was in this state, and `begun_at` when its newest save was
    begun, where that is known.
    """

    files: Files
    to_copy: frozenset[str]
    carried: dict[str, BlobRef]
    logs: frozenset[str]
    left_out: tuple[UnitLeftOut, ...] = ()
    copies: Mapping[str, FileCopy] = field(default_factory=dict)
    as_of: float = float("inf")
    begun_at: float | None = None


def before_newest(contents: CommitContents, dirty: Files, last: Mapping[str, BlobRef]) -> CommitContents | None:
    """Remove the newest save from a final commit, if the folder is known to have been in that state; None otherwise.

    Known only where each save has a folder of its own, numbered upwards (one such folder was committed before), all
    new files are in such folders, and nothing else was touched since the newest save was begun: then the script had
    moved on from the rest. The rest must also contain something new.
    """
    new_units = {top_folder_of(path) for path in dirty.keys() & contents.files.keys() - contents.logs}
    numbers = {unit: number_of(unit) for unit in new_units}
    kinds = {found[0] if found else None for found in numbers.values()}
    known_kinds = {found[0] for path in last if (found := number_of(top_folder_of(path)))}
    if len(new_units) < 2 or len(kinds) != 1 or not kinds <= known_kinds:
        return None
    newest = max(new_units, key=lambda unit: (numbers[unit] or ("", 0))[1])
    inside = [file for path, file in contents.files.items() if top_folder_of(path) == newest]
    begun_ns = min(file.signature.modified_ns for file in inside)
    rest = {path: file for path, file in contents.files.items() if top_folder_of(path) != newest}
    touched = any(file.signature.modified_ns >= begun_ns for path, file in rest.items() if path not in contents.logs)
    rewritten = any(top_folder_of(path) in new_units for path in last)
    return None if touched or rewritten else replace(contents, files=rest)


def from_copies(
    save: SaveCopy, folder: Path, committed: Mapping[str, Signature], last: Mapping[str, BlobRef], logs: Files
) -> CommitContents | None:
    """Choose a copied save, together with the logs as they are now. None: nothing in it is new, or it is not whole.

    Files that look as they do in the last commit are carried over from it.
    """
    same = [path for path, file in save.files.items() if committed.get(path) == file.signature and path not in logs]
    carried = {path: last[path] for path in same if path in last}
    # A file may have been recognised as a log since the copy was made.
    files = {path: file for path, file in save.files.items() if path not in carried and path not in logs}
    copies = {path: copy for path, copy in save.copies.items() if path in files}
    if not copies or not all(copy.is_intact() for copy in copies.values()):
        return None
    if any(check_format(copy.path).state == "broken" for copy in copies.values()):
        return None
    uncopied = [file for path, file in files.items() if path not in copies]
    if any(signature_of(folder / file.path, file) != file.signature for file in uncopied):
        return None
    return CommitContents(
        files | logs,
        frozenset(logs),
        carried,
        frozenset(logs),
        copies=copies,
        as_of=save.taken_at,
        begun_at=save.begun_at,
    )
