"""What is left out counts as nothing: numbers begin at zero and flags are off, except those in the table below.

A default is a promise to every caller and to every older record of a bucket that does not have the field.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "stoker"
ROOMS = ("agent", "core", "governor", "reading", "stores", "processes", "submit")

# Numbers whose default is something, and flags that are on.
SOMETHING: dict[str, object] = {
    "Code.generation": 1,
    "Wheel.generation": 1,
    "shared_name(generation)": 1,
    "ActivityRecorder.begin(looking)": True,
    "Amount.complete": True,
    "Beat.stop(timeout_s)": 5.0,
    "BlobRef.mode": 0o644,
    "Bookkeeper.begin(whole)": True,
    "CgroupGroup.freeze(timeout_s)": 5.0,
    "CgroupGroup.kill(timeout_s)": 10.0,
    "CheckpointRef.is_save": True,
    "CheckpointSync.__init__(keep)": 3,
    "Closing.share_s(part)": 1.0,
    "ContainerGroup.freeze(timeout_s)": 5.0,
    "ContainerGroup.kill(timeout_s)": 10.0,
    "Expense.whole": True,
    "Extraction.__init__(follow)": True,
    "Extraction._enter(replace)": True,
    "Extraction.create(mode)": 0o666,
    "Extraction.create_anew(mode)": 0o666,
    "Extraction.parent(make)": True,
    "Extraction.parent(replace)": True,
    "FamilyRecord.version": 1,
    "Fault.counts": True,
    "FolderWatch.learn_restored(read)": True,
    "Group.freeze(timeout_s)": 5.0,
    "Group.kill(timeout_s)": 10.0,
    "Ignored.whole": True,
    "JobState.min_version": 1,
    "JobState.opened_seq": 1,
    "Kept.version": 1,
    "Leads.whole": True,
    "LogCopy.stop(timeout_s)": 1.0,
    "LogPump.stop(timeout_s)": 5.0,
    "LogPump.tail(n_lines)": 20,
    "Manifest.version": 2,
    "MarkedGroup.freeze(timeout_s)": 5.0,
    "MarkedGroup.kill(timeout_s)": 10.0,
    "Members.freeze(timeout_s)": 5.0,
    "Members.kill(timeout_s)": 10.0,
    "MetricsPump.stop(timeout_s)": 5.0,
    "NodeCursor.lines(look_closely)": True,
    "OutputSync.__init__(nodes)": 1,
    "OutputWriter.__init__(nodes)": 1,
    "Pattern.search(empty)": True,
    "Policy.announced_s": 3600.0,
    "Policy.checkpoint_warning_s": 1800.0,
    "Policy.dry_first_s": 2.0,
    "Policy.dry_most_s": 300.0,
    "Policy.empty_folder_s": 300.0,
    "Policy.evidence_s": 60.0,
    "Policy.leave_s": 30.0,
    "Policy.long_s": 3600.0,
    "Policy.longest_notice_s": 600.0,
    "Policy.mass_silence_least": 3,
    "Policy.mass_silence_share": 0.5,
    "Policy.most_poisoned": 2,
    "Policy.most_reclaims_without_progress": 20,
    "Policy.most_without_progress": 5,
    "Policy.poison_after": 2,
    "Policy.startup_s": 60.0,
    "Policy.unfinished_s": 60.0,
    "Policy.wait_limit_s": 900.0,
    "PumpThread.stop(timeout_s)": 5.0,
    "Rooms.complete": True,
    "Row.nodes": 1,
    "Sighting.counts": True,
    "Sighting.evidence": True,
    "Submission.version": 1,
    "Sum.whole": True,
    "TrainingJob.nodes": 1,
    "Trust.imported": True,
    "_seen(ended)": True,
    "carry_on(at_once)": True,
    "checkpoint(writers)": 1,
    "curve(height)": 18,
    "curve(width)": 80,
    "encode(script)": True,
    "entries(start)": 1,
    "hold(exact)": True,
    "last_lines(n_lines)": 20,
    "quiet(hidden)": True,
    "replace_plain(mode)": 0o666,
    "trouble(governed)": True,
    "troubles(governed)": True,
    "trust_of(imported)": True,
}


def _defaults(tree: ast.AST, inside: str = "") -> Iterator[tuple[str, int | float]]:
    """Defaults of fields and arguments that are plain numbers or flags."""
    for node in ast.iter_child_nodes(tree):
        name = inside
        if isinstance(node, ast.ClassDef):
            name = f"{inside}{node.name}."
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    yield from _plain(f"{name}{field.target.id}", field.value)
        elif isinstance(node, ast.FunctionDef):
            name = f"{inside}{node.name}."
            given = [*node.args.posonlyargs, *node.args.args]
            pairs = [*zip(reversed(given), reversed(node.args.defaults), strict=False)]
            for argument, value in [*pairs, *zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)]:
                yield from _plain(f"{inside}{node.name}({argument.arg})", value)
        yield from _defaults(node, name)


def _plain(name: str, value: ast.expr | None) -> Iterator[tuple[str, int | float]]:
    if isinstance(value, ast.Constant) and isinstance(value.value, (int, float)):
        yield name, value.value


def _something() -> set[tuple[str, object]]:
    paths = [*SOURCE.glob("*.py"), *(path for room in ROOMS for path in (SOURCE / room).rglob("*.py"))]
    found = [each for path in paths for each in _defaults(ast.parse(path.read_text()))]
    assert len(found) > 300, "the source was found"
    return {(name, value) for name, value in found if value}


def test_what_is_left_out_counts_as_nothing() -> None:
    assert _something() == set(SOMETHING.items())
