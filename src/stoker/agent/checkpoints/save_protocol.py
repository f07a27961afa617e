"""How a training process saves: into a folder out of sight that takes its name as a whole. Used by `stoker.train`.

<folder>/.tmp-<name>-…                being written; left out by every reader
<folder>/<name>/                      a save, whole and on the disk
<folder>/<name>/.stoker-checkpoint.json   tells it from any other folder, and which is the newest
<channel>/commits/<sequence>.json     asks the agent to bring a save to the store
<channel>/commits.done/<sequence>.json    the agent's answer: everything up to it is dealt with
<channel>/commits.next                how many there were
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
from pathlib import Path
from types import TracebackType
from typing import Any

from stoker.model.keys import safe_name

MARKER = ".stoker-checkpoint.json"
LOCK = ".stoker-lock"
POLL_S = 0.02
_SMALL_BYTES = 64 * 1024
# Writers of one save come within moments of each other.
_STALE_S = 600.0


class Save:
    """One save in progress, as a context. `generation` counts sharded saves alike on every node."""

    def __init__(
        self, name: str, folder: Path, channel: Path | None, *, step: int | None, sharded: bool, writers: int
    ) -> None:
        if not safe_name(name):
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
        self._gathering = Gathering(name, folder, channel, writers) if writers > 1 else None
        self._staging: Path | None = None
        # The number of the request that was made on leaving; None where none was.
        self.requested: int | None = None

    def __enter__(self) -> Path:
        if self._gathering is not None:
            self._staging = self._gathering.join()
        else:
            self._staging = Path(tempfile.mkdtemp(prefix=f".tmp-{self._name}-", dir=self._folder))
            # mkdtemp keeps others out; a checkpoint is as readable as anything else the script writes.
            self._staging.chmod(0o777 & ~_umask())
        return self._staging

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._staging is not None
        failed = kind is not None
        if self._gathering is not None:
            last, failed = self._gathering.leave(failed=failed)
            if not last:
                return
        try:
            if not failed:
                _sync_tree(self._staging)
                self._commit(self._staging)
        finally:
            # Nothing is left of it here once it has its name.
            remove(self._staging)
            if self._gathering is not None:
                self._gathering.close()

    def _commit(self, staging: Path) -> None:
        with Lock(self._folder, self._channel):
            number = max((number for number, _ in numbered(self._folder)), default=0) + 1
            write_json(staging / MARKER, {"name": self._name, "number": number, "step": self._step})
            _sync(staging)
            if self._channel is not None:
                # Before the folder has its name: a save that is replaced by this one is never left without a successor.
                self.requested = self._request(self._channel, number)
            _replace_folder(staging, self._folder / self._name)
            _sync(self._folder)

    def _request(self, channel: Path, number: int) -> int:
        sequence, sharded = counters(channel)
        sequence, sharded = sequence + 1, sharded + int(self._sharded)
        write_json(channel / "commits.next", {"sequence": sequence, "sharded": sharded})
        request = {
            "sequence": sequence,
            "name": self._name,
            # By which the agent sees that the folder has since been replaced by a later save of the same name.
            "number": number,
            "step": self._step,
            # Parts of different saves must never make one checkpoint, even if their names are equal.
            "generation": sharded if self._sharded else 0,
        }
        (channel / "commits").mkdir(exist_ok=True)
        write_json(channel / "commits" / f"{sequence:08d}.json", request)
        return sequence


class Gathering:
    """Several processes of one node writing the same save. Who has come and gone is in a file beside the folder."""

    def __init__(self, name: str, folder: Path, channel: Path | None, writers: int) -> None:
        self._folder = folder
        self._channel = channel
        self._writers = writers
        self._staging = folder / f".tmp-{name}-shared"
        self._path = folder / f".tmp-{name}-shared.json"
        self._me = _identity(os.getpid()) + _identity(os.getppid())

    def join(self) -> Path:
        """The folder to write to. Waits while this process is ahead of the others, still busy with the save before."""
        while True:
            with Lock(self._folder, self._channel):
                state = self._state()
                if self._abandoned(state):
                    remove(self._staging)
                    state = {"inside": [], "left": [], "failed": False}
                known = state["inside"] + state["left"]
                if self._me not in known and len(known) < self._writers:
                    state["inside"].append(self._me)
                    self._staging.mkdir(exist_ok=True)
                    write_json(self._path, state)
                    return self._staging
            time.sleep(POLL_S)

    def leave(self, *, failed: bool) -> tuple[bool, bool]:
        """Whether this was the last one to leave, and whether anyone failed."""
        with Lock(self._folder, self._channel):
            state = self._state()
            if self._me not in state["inside"]:
                # Another writer died, and whoever came next began anew.
                return False, True
            state["inside"].remove(self._me)
            state["left"].append(self._me)
            state["failed"] = bool(state["failed"] or failed)
            write_json(self._path, state)
            return len(state["left"]) >= self._writers, state["failed"]

    def close(self) -> None:
        """The save is over: the next one of this name may begin."""
        with Lock(self._folder, self._channel):
            self._path.unlink(missing_ok=True)

    def _abandoned(self, state: dict[str, Any]) -> bool:
        """Left behind by processes that died in the middle. Under Stoker the folder of an attempt begins fresh."""
        if state["inside"]:
            return not all(_alive(who) for who in state["inside"])
        if not state["left"] or self._channel is not None or any(_alive(who) for who in state["left"]):
            return False
        # They did their part and ended. Or they are of an earlier run: of another parent, or long ago.
        siblings = any(who[2:] == self._me[2:] for who in state["left"])
        return not siblings or time.time() - self._path.stat().st_mtime > _STALE_S

    def _state(self) -> dict[str, Any]:
        tree = read_json(self._path) or {}
        return {"inside": [], "left": [], "failed": False} | tree


class Lock:
    """Held while the folder and the requests change together. The agent takes it, too, to remove an old save.

    With `timeout_s`, raises TimeoutError when it cannot be had: whoever holds it may be stopped.
    """

    def __init__(self, folder: Path, channel: Path | None, timeout_s: float | None = None) -> None:
        self._path = (channel or folder) / LOCK
        self._timeout_s = timeout_s

    def __enter__(self) -> None:
        # The agent opens it, too, and follows no link that leads out of a container.
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        try:
            self._take()
        except BaseException:
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


def numbered(folder: Path) -> list[tuple[int, str]]:
    """The saves in the folder with their numbers: the higher the newer."""
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


def counters(channel: Path) -> tuple[int, int]:
    """How many saves were asked to be committed in this attempt, and how many of them were sharded."""
    tree = read_json(channel / "commits.next") or {}
    sequence, sharded = tree.get("sequence"), tree.get("sharded")
    return (sequence if isinstance(sequence, int) else 0, sharded if isinstance(sharded, int) else 0)


def done(channel: Path) -> int:
    """The newest request that the agent has dealt with."""
    try:
        names = [path.stem for path in (channel / "commits.done").iterdir() if path.suffix == ".json"]
    except OSError:
        return 0
    return max((int(name) for name in names if name.isdecimal()), default=0)


def read_json(path: Path) -> dict[str, Any] | None:
    try:
        with open(path, "rb", opener=open_at_once) as file:
            tree = json.loads(file.read(_SMALL_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    return tree if isinstance(tree, dict) else None


def open_at_once(path: str, flags: int) -> int:
    """For `open`: a pipe that somebody put in a file's place must not block whoever looks."""
    return os.open(path, flags | os.O_NONBLOCK)


def write_json(path: Path, tree: dict[str, Any]) -> None:
    """Replace the file as a whole, on the disk before it has its name."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(tree, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def remove(path: Path) -> None:
    """Remove a file or a folder; what cannot be removed stays."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _replace_folder(source: Path, target: Path) -> None:
    try:
        source.rename(target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        if not _exchange(source, target):
            # Not atomic, but where kernel or filesystem cannot exchange two names there is nothing better.
            old = source.with_name(source.name + "-old")
            target.rename(old)
            source.rename(target)
            source = old
        remove(source)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names at once, so that no crash leaves neither. False where that cannot be had."""
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    here, exchange = -100, 2
    return bool(call(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0)


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
        # Some network filesystems cannot. A disk that fails says EIO, and then nothing may be committed.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(file)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _identity(pid: int) -> list[int]:
    """A process, not to be mistaken for a later one with the same number."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        return [pid, int(stat.rpartition(b")")[2].split()[19])]
    except (OSError, ValueError, IndexError):
        return [pid, 0]


def _alive(who: list[int]) -> bool:
    try:
        os.kill(who[0], 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return _identity(who[0])[1] in (who[1], 0)
