"""What of a checkpoint folder is committed: files as they lie there, copies of them, parts of the last commit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from stoker.agent.checkpoints.file_numbers import number_of
from stoker.agent.checkpoints.folder_snapshot import Files, Signature, signature_of, unit_of
from stoker.agent.checkpoints.format_check import check_format
from stoker.agent.checkpoints.save_copies import KeptFile, KeptSave
from stoker.agent.checkpoints.whole_units import Held
from stoker.model.node_facts import BlobRef


@dataclass(frozen=True)
class Choice:
    """What to commit: files of the folder, those of them to copy first, and what stays as it was committed.

    `streams` are the logs among them, which say nothing about what was saved. `held` are the units that are not taken
    as they lie there. `kept` are copies that were made before. `as_of` is when the folder was like this.
    """

    files: Files
    copies: frozenset[str]
    carried: dict[str, BlobRef]
    streams: frozenset[str]
    held: tuple[Held, ...] = ()
    kept: Mapping[str, KeptFile] = field(default_factory=dict)
    as_of: float = float("inf")


def before_newest(choice: Choice, dirty: Files, last: Mapping[str, BlobRef]) -> Choice | None:
    """A final choice without the newest save, if the folder was like that before the save began; None: unknown.

    Only where saves are known to have a folder each, numbered upwards (one such was committed before), all that is
    new lies in such folders, and nothing else was touched since the newest was begun: then the script had moved on
    from what is left. And only if that is something new.
    """
    news = {unit_of(path) for path in dirty.keys() & choice.files.keys() - choice.streams}
    numbers = {unit: number_of(unit) for unit in news}
    kinds = {found[0] if found else None for found in numbers.values()}
    before = {found[0] for path in last if (found := number_of(unit_of(path)))}
    if len(news) < 2 or len(kinds) != 1 or not kinds <= before:
        return None
    newest = max(news, key=lambda unit: (numbers[unit] or ("", 0))[1])
    inside = [file for path, file in choice.files.items() if unit_of(path) == newest]
    begun_ns = min(file.signature.modified_ns for file in inside)
    rest = {path: file for path, file in choice.files.items() if unit_of(path) != newest}
    touched = any(file.signature.modified_ns >= begun_ns for path, file in rest.items() if path not in choice.streams)
    rewritten = any(unit_of(path) in news for path in last)
    return None if touched or rewritten else replace(choice, files=rest)


def from_copies(
    save: KeptSave, folder: Path, committed: Mapping[str, Signature], last: Mapping[str, BlobRef], logs: Files
) -> Choice | None:
    """A save of which copies were made, beside logs as they are now. None: it is new in nothing, or not whole any more.

    Of its files, those that look as they do in the last commit are taken from there.
    """
    same = [path for path, file in save.files.items() if committed.get(path) == file.signature and path not in logs]
    carried = {path: last[path] for path in same if path in last}
    # A file may have turned out to be a log since then.
    files = {path: file for path, file in save.files.items() if path not in carried and path not in logs}
    kept = {path: one for path, one in save.kept.items() if path in files}
    if not kept or not all(one.is_intact() for one in kept.values()):
        return None
    if any(check_format(one.path).state == "broken" for one in kept.values()):
        return None
    lying = [file for path, file in files.items() if path not in kept]
    if any(signature_of(folder / file.path, file) != file.signature for file in lying):
        return None
    return Choice(files | logs, frozenset(logs), carried, frozenset(logs), kept=kept, as_of=save.taken_at)
