"""Fetch the job's code onto a machine. May be repeated."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

from stoker.agent.unpack_code import unpack
from stoker.core.attempt_verdict import DISK_ADVICE
from stoker.model import keys
from stoker.model.errors import SetupFailed
from stoker.model.job_state import JobState
from stoker.model.node_config import NodePaths
from stoker.model.submission import Submission
from stoker.store.base import Store


def machine_failure(error: OSError) -> SetupFailed:
    """Return the failure for an error of the machine itself. A full disk is the user's: the next one is as small."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    named = f"{error.filename}: " if error.filename else ""
    more = f"; {DISK_ADVICE}" if full else ""
    return SetupFailed(f"the machine failed in the set-up: {named}{error.strerror or error}{more}", user=full)


def fetch_code(store: Store, state: JobState, submission: Submission, paths: NodePaths) -> None:
    """Fetch and unpack the code. It is checked against the digest in the log, not against the one beside the code."""
    if state.code_digest is None or submission.code is None:
        paths.code.mkdir(parents=True, exist_ok=True)
        return
    archive = paths.root / "code.tar.gz"
    name = keys.shared_name(state.code_digest, submission.code.generation)
    if store.get_file(keys.code(name), archive) is None:
        raise SetupFailed("the packed code is not in the store any more; submit the job again", user=False)
    if paths.ml is None:
        shutil.rmtree(paths.code, ignore_errors=True)
        unpack(archive, paths.code, state.code_digest)
    else:
        # The image may have files of its own in `/opt/ml/code`: as on SageMaker, they stay beside those of the job.
        unpacked = paths.root / "unpacked"
        shutil.rmtree(unpacked, ignore_errors=True)
        unpack(archive, unpacked, state.code_digest)
        _merge(unpacked, paths.code)
        shutil.rmtree(unpacked)
    archive.unlink(missing_ok=True)


def _merge(source: Path, target: Path) -> None:
    """Copy a tree into a folder that may exist. A file or link with the name of a copied one is replaced."""
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.rglob("*")):
        place = target / path.relative_to(source)
        if path.is_dir() and not path.is_symlink():
            place.mkdir(exist_ok=True)
        else:
            place.unlink(missing_ok=True)
            shutil.copy2(path, place, follow_symlinks=False)
