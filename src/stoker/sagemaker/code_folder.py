"""The folder of code that an estimator's call names."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from stoker.sagemaker.arguments import BadArgument
from stoker.submit.system_folders import check_code_folder

REMOTE = ("s3://", "gs://")
_NO_CODE = (".git", "__pycache__")


def script_name(given: Mapping[str, Any]) -> str | None:
    """The script's name in the packed code; None where the image's own program is run."""
    entry = given.get("entry_point")
    if entry is None:
        return None
    return str(entry) if given.get("source_dir") is not None else Path(str(entry)).name


@contextmanager
def code_folder(given: Mapping[str, Any], ignore: Sequence[str] = ()) -> Iterator[Path]:
    """The folder to pack: the source folder itself, or a temporary copy of it with the dependencies beside it.

    A copy, too, where something in it has an ignored name.
    """
    entry, source = given.get("entry_point"), given.get("source_dir")
    added = [Path(str(one)).expanduser() for one in given.get("dependencies") or ()]
    folder = _source_folder(source, entry) if source is not None else None
    if folder is None and entry is not None and not Path(str(entry)).expanduser().is_file():
        raise BadArgument(f"entry_point: there is no file {entry}")
    for one in added:
        if not one.exists():
            raise BadArgument(f"dependencies: there is no {one}")
    if folder is not None and not added and not _has_any(folder, ignore):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="stoker-code-") as made:
        gathered = Path(made) / (folder.name if folder is not None else "code")
        if folder is not None:
            shutil.copytree(folder, gathered, symlinks=True, ignore=shutil.ignore_patterns(*_NO_CODE, *ignore))
        else:
            gathered.mkdir()
            added += [Path(str(entry)).expanduser()] if entry is not None else []
        for one in added:
            if one.is_dir():
                shutil.copytree(one, gathered / one.resolve().name, dirs_exist_ok=True)
            else:
                shutil.copy2(one, gathered / one.name)
        yield gathered


def _has_any(folder: Path, ignore: Sequence[str]) -> bool:
    """Return whether something in the folder has an ignored name, besides what is never packed."""
    return any(
        path.name not in _NO_CODE and any(fnmatch(path.name, pattern) for pattern in ignore)
        for path in (folder.rglob("*") if ignore else ())
    )


def _source_folder(source: object, entry: object) -> Path:
    if str(source).startswith(REMOTE):
        raise BadArgument(f"source_dir: {source} is not fetched; give a folder of this computer")
    folder = Path(str(source)).expanduser().absolute()
    if not folder.is_dir():
        raise BadArgument(f"source_dir: there is no folder {folder}")
    check_code_folder(folder.resolve())
    if entry is not None and not (folder / str(entry)).is_file():
        raise BadArgument(f"entry_point: there is no {entry} in {folder}")
    return folder
