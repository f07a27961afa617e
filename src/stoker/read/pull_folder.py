"""The folder that checkpoints and outputs are pulled into: a named one, or one with the name of the job."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stoker.model.errors import UserError
from stoker.store.safe_extraction import Extraction


@contextmanager
def pull_folder(job: str, named: str | Path | None) -> Iterator[Path]:
    """Yield the folder to pull into. A folder that was not named gets an ignore file, so that jobs do not pack it.

    Raises UserError for a file, for a link that was not named (an earlier pull may have left it), for an empty name,
    and where the block cannot write.
    """
    if named is not None and not str(named):
        raise UserError("the folder to pull into has an empty name; name one, or leave it out")
    target = Path(job if named is None else named)
    if target.exists() and not target.is_dir():
        raise UserError(f"{target}: is a file; name a folder")
    if named is None and target.is_symlink():
        raise UserError(f"{target}: is a link; name the folder to pull into")
    try:
        yield target
    except BrokenPipeError:
        raise  # Of a message, not of a file.
    except OSError as error:
        raise UserError(f"{target}: cannot be written: {error.strerror or error}; name another folder") from None
    if named is None:
        # The folder lies in one that jobs are submitted from.
        with Extraction(target, follow=False) as extraction:
            extraction.write(".stokerignore", b"*\n")
