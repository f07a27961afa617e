"""What a machine needs before its set-up: code and inputs. All of it may be repeated."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from stoker import layout
from stoker.agent.code import unpack
from stoker.agent.config import NodePaths
from stoker.errors import StokerError
from stoker.fold import JobState
from stoker.spec import Submission
from stoker.store import Store, open_store


class SetupFailed(StokerError):
    """Something before the training failed for good. `user`: it was the user's set-up, not ours."""

    def __init__(self, reason: str, *, user: bool, code: int | None = None) -> None:
        super().__init__(reason)
        self.user = user
        self.code = code


def fetch_code(store: Store, state: JobState, submission: Submission, paths: NodePaths) -> None:
    """Unpack the code, checked against the digest in the log (not the one beside the code)."""
    if state.code_digest is None or submission.code is None:
        paths.code.mkdir(parents=True, exist_ok=True)
        return
    archive = paths.root / "code.tar.gz"
    if store.get_file(layout.code(state.code_digest), archive) is None:
        raise SetupFailed("the packed code is not in the store any more; submit the job again", user=False)
    shutil.rmtree(paths.code, ignore_errors=True)
    unpack(archive, paths.code, state.code_digest)
    archive.unlink(missing_ok=True)


def fetch_inputs(submission: Submission, paths: NodePaths) -> dict[str, str]:
    """Bring the inputs. Answers where each is: a folder, or for `stream` the URL itself."""
    where: dict[str, str] = {}
    for name, source in submission.spec.inputs.items():
        if source.mode == "stream":
            where[name] = source.source
            continue
        where[name] = str(_fetch_input(name, source.source, paths.inputs / name))
    return where


def _fetch_input(name: str, source: str, target: Path) -> Path:
    if "://" not in source:
        folder = Path(source)
        if not folder.exists():
            raise SetupFailed(f"inputs.{name}: {source} is not there on this machine", user=True)
        return folder  # On the submitter's own computer a folder needs no copy.
    if source.startswith("file://"):
        return _fetch_input(name, source.removeprefix("file://"), target)
    done = target.with_name(f".{name}.done")
    if done.exists():
        return target
    store = open_store(source)
    found = 0
    for meta in store.list(""):
        file = target / meta.key
        if not file.resolve().is_relative_to(target.resolve()):
            raise SetupFailed(f"inputs.{name}: {meta.key!r} leads out of its folder", user=True)
        if not (file.exists() and file.stat().st_size == meta.size):
            file.parent.mkdir(parents=True, exist_ok=True)
            draft = file.with_name(f".{file.name}.part")
            store.get_file(meta.key, draft)
            draft.replace(file)
        found += 1
    if not found:
        raise SetupFailed(f"inputs.{name}: there is nothing at {source}", user=True)
    done.touch()
    return target


def count_gpus() -> int:
    """Accelerators that torchrun should start a process for."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([part for part in visible.split(",") if part.strip() not in ("", "-1")])
    return len(list(Path("/dev").glob("nvidia[0-9]*")))
