"""A real training process, watched by the agent's own supervision and sync, with a store: told, killed, looked at."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from harness import until

from stoker.agent.checkpoints.commit_chooser import BUSY_S
from stoker.agent.checkpoints.restore import restore
from stoker.agent.checkpoints.sync import CheckpointSync, SyncOptions
from stoker.agent.checkpoints.whole_saves import TrainingEnd
from stoker.agent.runtime import Command, HostRuntime
from stoker.agent.supervise import EndRequest, Training, TrainingOutcome
from stoker.processes import TRAINING, make_group, open_for_writing
from stoker.store.base import Store
from stoker.store.checkpoints import list_checkpoints
from tests.support.newest_checkpoint import restore_newest

JOB = "job-1"
LIMIT_S = 60.0


def content(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


class TrainingWorld:
    """Attempts of one job on this machine, one after the other."""

    def __init__(self, root: Path, store: Store, *, settle_s: float = 1.0) -> None:
        self.root, self.store, self.settle_s = root, store, settle_s
        self.busy_s = BUSY_S
        self.spacing_s: float | None = 0.1
        self.claim = 0
        self.env: dict[str, str] = {}
        self.folder = root / "nowhere"

    def start(self, script: str, *arguments: str, argv: tuple[str, ...] | None = None) -> None:
        """The next attempt: restore the newest checkpoint, then train."""
        self.claim += 1
        place = self.root / f"claim-{self.claim}"
        self.folder, self.log = place / "checkpoints", place / "log"
        for folder in (self.folder, place / "channel"):
            folder.mkdir(parents=True)
        restored = restore_newest(self.store, JOB, self.folder, rank=0)
        (place / "train.py").write_text(script)
        self.group = make_group(TRAINING, f"w-{os.getpid()}-{self.claim}", sessions=place / "sessions")
        self.training = Training(HostRuntime(self.group), threading.Event())
        options = SyncOptions(
            self.store,
            JOB,
            self.claim,
            0,
            1,
            self.folder,
            channel=place / "channel",
            scratch=place / "scratch",
            restored=restored,
            settle_s=self.settle_s,
            busy_s=self.busy_s,
            spacing_s=self.spacing_s,
            writing=lambda aliased: open_for_writing(self.group.members(), self.folder, (), aliased),
        )
        self.sync = CheckpointSync(options)
        self.sync.start()
        self.training.observer = self.sync
        command = (*(argv or (sys.executable, "train.py")), *arguments)
        self.notice = place / "notice"
        self.training.start(Command(command, {**os.environ, **self.env}, place), self.log)

    def said(self, text: str) -> None:
        """Wait until the training has printed this."""
        until(lambda: text in self.log.read_text(errors="replace"), f"it prints {text!r}")

    def tell(self, grace_s: float = 20.0) -> TrainingOutcome:
        """A notice: SIGTERM, the grace, the last commit, the end."""
        ending = EndRequest("notice", "gone", grace_s)
        self.training.notify(ending, self.notice)
        self.sync.hurry(grace_s)
        ended = self.training.end(ending, self.notice, self._last_commit)
        self.group.close()
        return ended

    def kill(self, *, pid: int | None = None, number: int = signal.SIGKILL) -> TrainingOutcome:
        """End it without warning, and let the agent notice."""
        root = self.training._root
        assert root is not None
        with suppress(ProcessLookupError):
            os.kill(pid or root.pid, number)
        return self.wait()

    def wait(self) -> TrainingOutcome:
        """Until it has ended by itself, as far as the agent knows."""
        assert self.training.wait(lambda: None) is None
        ended = self.training.finish()
        self._last_commit(LIMIT_S, TrainingEnd("finished" if ended.code == 0 else "died"))
        self.group.close()
        return ended

    def _last_commit(self, seconds: float, end: TrainingEnd) -> bool:
        self.sync.final(seconds, end)
        return self.sync.status().unsynced_bytes == 0

    def commits(self) -> int:
        return len(list_checkpoints(self.store, JOB))

    def wait_for_commits(self, count: int) -> None:
        until(lambda: self.commits() >= count, f"{count} commits")

    def newest(self) -> dict[str, bytes]:
        """The files of the newest checkpoint; none where there is no checkpoint."""
        found = list_checkpoints(self.store, JOB)
        return self.content_of(found[-1].key) if found else {}

    def content_of(self, key: str) -> dict[str, bytes]:
        return content(self.restored(key))

    def restored(self, key: str) -> Path:
        """A folder with the files of this checkpoint."""
        back = self.root / f"back-{time.monotonic_ns()}"
        restore(self.store, JOB, 0, key, back)
        return back
