"""Save a checkpoint from a training process: write into a hidden folder that is renamed as a whole. For `stoker.train`.

<folder>/.tmp-<name>-…                    being written; ignored by every reader
<folder>/<name>/                          a save, whole and on disk
<folder>/<name>/.stoker-checkpoint.json   marks the folder as a save, with a number: the highest is the newest
<channel>/commits/<sequence>.json         asks the agent to bring a save to the store
<channel>/commits.done/<sequence>.json    the agent's answer: all requests up to it are answered
<channel>/commits.next                    the number of requests so far
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from stoker.model.key_segments import is_safe_name

MARKER = ".stoker-checkpoint.json"
LOCK = ".stoker-lock"
POLL_S = 0.02
MAX_JSON_BYTES = 64 * 1024
# Writers of one save begin within moments of each other.
_STALE_S = 600.0


class Save:
    """One save in progress, as a context manager. `generation` counts sharded saves alike on every node.

    `after_request` is called on leaving, after the save was committed and the agent was asked to bring it to the store.
    """

    def __init__(
        self, name: str, folder: Path, channel: Path | None, *, step: int | None, sharded: bool, writers: int
    ) -> None:
        if not is_safe_name(name):
            raise ValueError(
                f"a checkpoint cannot be called {name!r}: up to 100 letters, digits and ._+=-, no dot in front"
            )
        if writers < 1:
            raise ValueError("a checkpoint needs at least one writer")
        self._name = name
        self._folder = folder
        self._channel = channel
        self._step = None if step is None else int(step)
        self._sharded = sharded
        self._shared = SharedSave(name, folder, channel, writers) if writers > 1 else None
        self._staging: Path | None = None
        self.after_request: Callable[[], None] = lambda: None
        # The sequence number of the request that was made on leaving; None where none was.
        self.requested: int | None = None

    def __enter__(self) -> Path:
        if self._shared is not None:
            self._staging = self._shared.join()
        else:
            self._staging = Path(tempfile.mkdtemp(prefix=f".tmp-{self._name}-", dir=self._folder))
            # mkdtemp denies access to other users; a checkpoint is as readable as other files of the script.
            self._staging.chmod(0o777 & ~_umask())
        return self._staging

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._staging is not None
        failed = kind is not None
        if self._shared is not None:
            last, failed = self._shared.leave(failed=failed)
            if not last:
                return
        try:
            if not failed:
                _sync_tree(self._staging)
                self._commit(self._staging)
        finally:
            # The temporary folder disappears on rename.
            remove(self._staging)
            if self._shared is not None:
                self._shared.close()
        if self.requested is not None:
            self.after_request()

    def _commit(self, staging: Path) -> None:
        with Lock(self._folder, self._channel):
            number = max((number for number, _ in numbered_saves(self._folder)), default=0) + 1
            write_json(staging / MARKER, {"name": self._name, "number": number, "step": self._step})
            _sync(staging)
            files = count_files(staging)
            if self._channel is not None:
                # Requested before the folder has its name: so a save that is replaced by this one always has a
                # successor.
                self.requested = self._request(self._channel, number, files)
            _replace_folder(staging, self._folder / self._name)
            _sync(self._folder)

    def _request(self, channel: Path, number: int, files: int) -> int:
        sequence, sharded = request_counters(channel)
        sequence, sharded = sequence + 1, sharded + int(self._sharded)
        write_json(channel / "commits.next", {"sequence": sequence, "sharded": sharded})
        request = {
            "sequence": sequence,
            "name": self._name,
            # Shows the agent if the folder has since been replaced by a later save of the same name.
            "number": number,
            # Shows the agent if files of the save have been removed.
            "files": files,
            "step": self._step,
            # Parts of different saves must never make one checkpoint, even if their names are equal.
            "generation": sharded if self._sharded else 0,
        }
        (channel / "commits").mkdir(exist_ok=True)
        write_json(channel / "commits" / f"{sequence:08d}.json", request)
        return sequence


class SharedSave:
    """Several processes of one node that write the same save.

    A file beside the folder records which processes have joined and left.
    """

    def __init__(self, name: str, folder: Path, channel: Path | None, writers: int) -> None:
        self._folder = folder
        self._channel = channel
        self._writers = writers
        self._staging = folder / f".tmp-{name}-shared"
        self._path = folder / f".tmp-{name}-shared.json"
        self._own_process = _identity(os.getpid()) + _identity(os.getppid())

    def join(self) -> Path:
        """Return the folder to write to. Waits while other processes are still busy with the save before."""
        while True:
            with Lock(self._folder, self._channel):
                state = self._state()
                if self._is_abandoned(state):
                    remove(self._staging)
                    state = {"inside": [], "left": [], "failed": False}
                known = state["inside"] + state["left"]
                if self._own_process not in known and len(known) < self._writers:
                    state["inside"].append(self._own_process)
                    self._staging.mkdir(exist_ok=True)
                    write_json(self._path, state)
                    return self._staging
            time.sleep(POLL_S)

    def leave(self, *, failed: bool) -> tuple[bool, bool]:
        """Return if this process was the last to leave, and if any process failed."""
        with Lock(self._folder, self._channel):
            state = self._state()
            if self._own_process not in state["inside"]:
                # Another writer died, and the next process to join began anew.
                return False, True
            state["inside"].remove(self._own_process)
            state["left"].append(self._own_process)
            state["failed"] = bool(state["failed"] or failed)
            write_json(self._path, state)
            return len(state["left"]) >= self._writers, state["failed"]

    def close(self) -> None:
        """End the save: the next one of this name may begin."""
        with Lock(self._folder, self._channel):
            _unlink(self._path)

    def _is_abandoned(self, state: dict[str, Any]) -> bool:
        """Return True if the state was left behind by processes that died during a save.

        Under Stoker the folder of an attempt begins without such state.
        """
        if state["inside"]:
            return not all(_is_alive(process) for process in state["inside"])
        if not state["left"] or self._channel is not None or any(_is_alive(process) for process in state["left"]):
            return False
        # The processes left and ended in this run, or they are of an earlier run: of another parent, or long ago.
        siblings = any(process[2:] == self._own_process[2:] for process in state["left"])
        return not siblings or time.time() - self._path.stat().st_mtime > _STALE_S

    def _state(self) -> dict[str, Any]:
        tree = read_json(self._path) or {}
        return {"inside": [], "left": [], "failed": False, **tree}


class Lock:
    """A lock that is held while folder and requests change together. The agent takes it, too, to remove an old save.

    With `timeout_s`, raises TimeoutError when it is not free in time: the process that holds it may be stopped.
    `open_file` opens the file: the agent follows no link and opens no device that a script put in its place.
    """

    def __init__(
        self,
        folder: Path,
        channel: Path | None,
        timeout_s: float | None = None,
        open_file: Callable[[Path, int], int] = lambda path, flags: os.open(path, flags | os.O_NOFOLLOW, 0o666),
    ) -> None:
        self._path = (channel or folder) / LOCK
        self._timeout_s = timeout_s
        self._open_file = open_file

    def __enter__(self) -> None:
        self._file = self._open_file(self._path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK)
        try:
            self._take()
        except BaseException:  # `__exit__` is not called after this, not even after an abort; raised again
            os.close(self._file)
            raise

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def _take(self) -> None:
        if self._timeout_s is None:
            fcntl.flock(self._file, fcntl.LOCK_EX)
            return
        limit = time.monotonic() + self._timeout_s
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= limit:
                    raise TimeoutError(f"{self._path} is held") from None
                time.sleep(POLL_S)
            else:
                return


def numbered_saves(folder: Path) -> list[tuple[int, str]]:
    """Return number and name of the saves in the folder: the higher the number, the newer the save."""
    found = []
    try:
        names = [path.name for path in folder.iterdir() if not path.name.startswith(".")]
    except OSError:
        return []
    for name in names:
        number = (read_json(folder / name / MARKER) or {}).get("number")
        if isinstance(number, int):
            found.append((number, name))
    return found


def count_files(folder: Path) -> int:
    """Count everything below the folder that is not a folder itself."""
    return sum(
        len(names) + sum(Path(parent, name).is_symlink() for name in folders)
        for parent, folders, names in os.walk(folder)
    )


def request_counters(channel: Path) -> tuple[int, int]:
    """Return how many commits were requested in this attempt, and how many of them were sharded."""
    tree = read_json(channel / "commits.next") or {}
    sequence, sharded = tree.get("sequence"), tree.get("sharded")
    return (sequence if isinstance(sequence, int) else 0, sharded if isinstance(sharded, int) else 0)


def newest_answer(channel: Path) -> int:
    """Return the sequence number of the newest request that the agent has answered."""
    try:
        names = [path.stem for path in (channel / "commits.done").iterdir() if path.suffix == ".json"]
    except OSError:
        return 0
    return max((int(name) for name in names if name.isdecimal()), default=0)


def read_json(path: Path) -> dict[str, Any] | None:
    try:
        with open(path, "rb", opener=open_nonblocking) as file:
            tree = json.loads(file.read(MAX_JSON_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    return tree if isinstance(tree, dict) else None


def open_nonblocking(path: str, flags: int) -> int:
    """An opener for `open`: a pipe in the place of a file must not block the reader."""
    return os.open(path, flags | os.O_NONBLOCK)


def write_json(path: Path, tree: dict[str, Any]) -> None:
    """Replace the file as a whole: its content is on disk before it has its name."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(tree, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def remove(path: Path) -> None:
    """Remove a file or a folder. Entries that cannot be removed stay."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        _unlink(path)


def _unlink(path: Path) -> None:
    """Remove a file that may be absent. Python 3.7 has no `missing_ok`."""
    with suppress(FileNotFoundError):
        path.unlink()


def _replace_folder(source: Path, target: Path) -> None:
    try:
        source.rename(target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        if not _exchange(source, target):
            # Not atomic: where kernel or filesystem cannot exchange two names, there is nothing better.
            old = source.with_name(source.name + "-old")
            target.rename(old)
            source.rename(target)
            source = old
        remove(source)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two names atomically, so that no crash leaves neither. Return False where that is not supported."""
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    at_cwd, exchange = -100, 2
    return bool(call(at_cwd, os.fsencode(one), at_cwd, os.fsencode(other), exchange) == 0)


def _sync_tree(folder: Path) -> None:
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            if path.is_file() and not path.is_symlink():
                _sync(path)
        _sync(Path(parent))


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    except OSError as error:
        # Some network filesystems do not support fsync. A failing disk raises EIO, and then nothing may be committed.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(file)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _identity(pid: int) -> list[int]:
    """Return pid and start time of a process, so that a later process with the same pid is not mistaken for it."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        return [pid, int(stat.rpartition(b")")[2].split()[19])]
    except (OSError, ValueError, IndexError):
        return [pid, 0]


def _is_alive(process: list[int]) -> bool:
    try:
        os.kill(process[0], 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return _identity(process[0])[1] in (process[1], 0)
