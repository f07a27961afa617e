"""Rules for `checkpoints.dir` and `outputs`: the allowed paths, and their combinations."""

from __future__ import annotations

import re
from collections.abc import Callable

from stoker.jobfile.settings_tree import Origin
from stoker.model.hyperparameters import CHECKPOINTS, ML, MODEL
from stoker.model.path_patterns import as_written, base_of, entries_of, is_pattern
from stoker.model.spec import Checkpoints, Spec

Where = Callable[[str], Origin]

# Longer lists are mistakes: every few seconds each file of the folder is matched against all entries.
MOST_ENTRIES = 100
# System folders, which a training must not write to. Memory disks below `/dev` are allowed.
_SYSTEM = re.compile(r"/(bin|boot|dev(?!/shm/)|etc|lib|lib32|lib64|proc|run|sbin|sys|usr)(/|$)")
# Folders of many users or programs: a folder below them is allowed, the whole is not.
_SHARED = re.compile(r"/|/(home|Users|root|opt|tmp|var|var/tmp|dev/shm)|/(home|Users)/[^/]+")


def check_result_paths(spec: Spec, where: Where) -> None:
    """Raise SpecError with the field and its place for the first broken rule."""
    saved = entries_of(spec.checkpoints.dir)
    kept = entries_of(spec.outputs)
    for path, written in (("checkpoints.dir", saved), ("outputs", kept)):
        _check_entries(path, written, where)
    if len({entry.startswith("/") for entry in saved}) > 1:
        raise where("checkpoints.dir").error("checkpoints.dir", "mixes absolute and relative paths; write one kind")
    if all(entry.startswith("!") for entry in saved):
        raise where("checkpoints.dir").error("checkpoints.dir", "only takes back; name first what is saved")
    if spec.environment.contract == "sagemaker":
        _check_sagemaker(spec, saved, kept, where)
    _check_apart(spec, saved, kept, where)


def dangerous_folder(folder: str) -> str | None:
    """Describe an absolute folder that no job may use as a whole; None if it is allowed."""
    if _SHARED.fullmatch(folder):
        return "holds what is not the job's; name a folder of its own below it"
    if _SYSTEM.match(folder):
        return "belongs to the system; name another folder"
    return None


def _check_entries(path: str, written: tuple[str, ...], where: Where) -> None:
    if len(written) > MOST_ENTRIES:
        raise where(path).error(path, f"has {len(written)} entries; {MOST_ENTRIES} are the most")
    for entry in written:
        plain = entry.removeprefix("!")
        if plain.startswith("~"):
            raise where(path).error(path, f"{plain}: `~` means another home on each machine; write the whole path")
        if plain.split("/")[0] == "..":
            advice = "a folder below the code, such as checkpoints, a pattern, or an absolute path"
            raise where(path).error(path, f"expected {advice}, without `..`; found {plain}")
        problem = dangerous_folder(base_of(entry)) if plain.startswith("/") else None
        if problem is not None:
            raise where(path).error(path, f"{plain}: {problem}")


def _check_apart(spec: Spec, saved: tuple[str, ...], kept: tuple[str, ...], where: Where) -> None:
    """A plain folder of one kind must not hold or be one of the other: a file is synced as it is, or in commits.

    With `.` or a pattern the narrower of the two counts: it is left out of the other.
    """
    folders = [entry for entry in saved if not is_pattern(entry)]
    for entry in kept:
        for folder in folders:
            both = (entry, folder)
            clash = entry == folder or (not is_pattern(entry) and "." not in both and _nested(*both))
            if clash:
                dir_text, out_text = as_written(spec.checkpoints.dir), as_written(spec.outputs)
                problem = f"{out_text} and checkpoints.dir ({dir_text}) must be apart from each other"
                raise where("outputs").error("outputs", f"{problem}: one is synced as it is, the other in commits")


def _check_sagemaker(spec: Spec, saved: tuple[str, ...], kept: tuple[str, ...], where: Where) -> None:
    """Check against the paths that the SageMaker contract fixes."""
    for path, entries in (("checkpoints.dir", saved), ("outputs", kept)):
        if len(entries) > 1 or any(is_pattern(entry) or entry == "." for entry in entries):
            problem = "with contract: sagemaker this is one folder; `.`, patterns and lists cannot be honoured there"
            raise where(path).error(path, problem)
    for taken in (MODEL, f"{ML}/output", f"{ML}/input"):
        if spec.checkpoints.dir != Checkpoints().dir and _nested(saved[0], taken):
            problem = f"{taken} is not for checkpoints; save to {CHECKPOINTS}, which is the default"
            raise where("checkpoints.dir").error("checkpoints.dir", problem)


def _nested(one: str, other: str) -> bool:
    return one == other or one.startswith(f"{other}/") or other.startswith(f"{one}/")
