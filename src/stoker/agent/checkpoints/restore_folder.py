"""The checkpoint folder of one attempt, before its training starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from stoker.agent import job_folders
from stoker.agent.checkpoints.folder_record import OWN, REPLACED, FolderRecord, TooManyFiles
from stoker.agent.checkpoints.folder_replacement import FolderInUse, hold_folder
from stoker.agent.checkpoints.restore import RestoredCheckpoint, clear_folder, restore
from stoker.agent.confinement import Confinement, handle_path
from stoker.agent.output_files import Baseline
from stoker.model.errors import SetupFailed
from stoker.model.node_config import NodePaths
from stoker.model.path_patterns import as_written
from stoker.model.spec import Spec
from stoker.store.base import Store
from stoker.store.checkpoint_manifests import TrustedClaims
from stoker.store.checkpoints import Progress

_MAX_NAMED = 3


@dataclass
class RestoreFolder:
    """The folder, its record from earlier attempts, and which of its files are checkpoints."""

    job: str
    folder: Path
    # The same folder by its handle in a container, so that a replaced name does not matter.
    target: Path
    record: FolderRecord
    chosen: Callable[[str], bool]
    # Files that were in no checkpoint, and were moved aside.
    aside: list[str] = field(default_factory=list)

    @classmethod
    def open(cls, paths: NodePaths, spec: Spec, job: str, confinement: Confinement | None = None) -> RestoreFolder:
        """Make the folder, and lock a folder outside this node's root against other jobs. Raises SetupFailed.

        With `confinement`, commands of the set-up ran in a container before: a link that they put in the folder's place
        may lead out of it, and is refused.
        """
        folder = job_folders.checkpoint_folder(paths, spec)
        target = folder
        if confinement is None:
            folder.mkdir(parents=True, exist_ok=True)
        else:
            target = _by_handle(folder, confinement, as_written(spec.checkpoints.dir))
        chosen = job_folders.checkpoint_filter(spec)
        own = paths.is_own(folder)
        if not own:
            try:
                # Locked for as long as this agent lives.
                hold_folder(target, job)
            except FolderInUse as error:
                problem = f"{folder} is used by {error.job} at the moment; give each job a folder of its own"
                raise SetupFailed(f"checkpoints.dir: {problem}", user=True) from None
        takes = chosen.takes if chosen is not None else lambda _path: True
        stored_at = paths.root / "checkpoint-folder.json" if own else target / f"{OWN}{job}.json"
        try:
            record = FolderRecord.open(stored_at, target, takes)
        except TooManyFiles as error:
            problem = (
                f"{folder} has {error}, too many to tell them from checkpoints; name a folder for checkpoints alone"
            )
            raise SetupFailed(f"checkpoints.dir: {problem}", user=True) from None
        return cls(job, folder, target, record, takes)

    def restore(
        self, store: Store, rank: int, key: str, trust: TrustedClaims, progress: Progress | None
    ) -> RestoredCheckpoint:
        """Restore the checkpoint `key` as `restore.restore` does."""
        restored = restore(
            store,
            self.job,
            rank,
            key,
            self.target,
            record=self.record,
            chosen=self.chosen,
            trust=trust,
            progress=progress,
        )
        self.aside += restored.aside
        return restored

    def clear(self, store: Store) -> None:
        """Clear the folder as `restore.clear_folder` does: there is no checkpoint."""
        self.aside += clear_folder(store, self.job, self.target, self.record, self.chosen)

    @property
    def aside_text(self) -> str:
        """A sentence that says which files were moved aside, and where to."""
        folder = self.folder.resolve()
        to = folder / REPLACED if self.target != self.folder else folder.with_name(f".{folder.name}.replaced")
        more = f" and {len(self.aside) - _MAX_NAMED} more" if len(self.aside) > _MAX_NAMED else ""
        names = ", ".join(self.aside[:_MAX_NAMED])
        return f"{names}{more}: in no checkpoint, moved from {folder} to {to}"


def _by_handle(folder: Path, confinement: Confinement, shown: str) -> Path:
    """Return a path of the folder's handle, which this agent keeps open."""
    try:
        return handle_path(confinement.open(folder, make=True))
    except NotADirectoryError:
        problem = "is not a folder, or is a link; the agent outside the container follows none"
        raise SetupFailed(f"checkpoints.dir: {shown} {problem}; save into the folder itself", user=True) from None


def take_baseline(
    paths: NodePaths, spec: Spec, restored: RestoredCheckpoint | None, confinement: Confinement | None = None
) -> Baseline:
    """Record the files in the job's folders before its training, except restored ones.

    The record is written to disk for an agent that is restarted on this node.
    """
    folder = job_folders.checkpoint_folder(paths, spec)
    files = restored.files if restored is not None else ()
    taken = Baseline.take(job_folders.watched(paths, spec), confinement)
    baseline = taken.without(folder / file.blob.path for file in files)
    baseline.write(paths.baseline)
    return baseline
