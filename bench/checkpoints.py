"""The cost of making a checkpoint safe."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

from bench.figures import Figure, Measurement, Size
from bench.sandbox import sandbox, wait_for
from stoker.agent.checkpoints.commit_chooser import BUSY_S
from stoker.agent.checkpoints.sync import CheckpointSync, SyncOptions
from stoker.store.base import Store, open_store

MB = 1_000_000
LARGE_FILES = 10
LARGE_BYTES = 100 * MB
SYNC_REPEATS = 5
SMALL_FILES = 100
SMALL_BYTES = MB
_JOB = "bench-0000"


def sync_ratio(size: Size) -> dict[str, float]:
    """1 GB in ten random files, lying in the page cache: CheckpointSync's last commit to a new file:// store, until its
    manifest is durable, over `cp -r` and fsync of every file to the same disk; best of interleaved runs."""
    with sandbox() as place:
        source = place.root / "source"
        _fill(source, LARGE_FILES, size.choose(LARGE_BYTES, MB))
        commits, copies = [], []
        for repeat in range(size.choose(SYNC_REPEATS, 1)):
            copies.append(_copied_s(source, place.root / f"copy-{repeat}"))
            commits.append(_committed_s(source, place.root / f"sync-{repeat}"))
        print_times("sync", commits, "cp", copies)
    return {"sync_ratio": min(commits) / min(copies)}


def resync_bytes_ratio(size: Size) -> dict[str, float]:
    """One of a hundred files of 1 MB changes after a commit: bytes that the next commit moved (counted by
    CheckpointSync, or what the store holds more, manifest included, whichever is more) over those of all files."""
    count, each = size.choose((SMALL_FILES, SMALL_BYTES), (4, 10_000))
    with sandbox() as place:
        folder = place.root / "checkpoints"
        folder.mkdir()
        store = open_store(place.store)
        # How long a folder may be busy before a commit does not wait for it any longer.
        sync = _sync(store, folder, place.root, busy_s=size.choose(BUSY_S, 1.0))
        sync.start()
        try:
            _fill(folder, count, each)
            wait_for(lambda: sync.status().commits == 1, "the first commit")
            before, held = sync.status().bytes_moved, _held_bytes(store)
            (folder / f"part-{count // 2:02d}").write_bytes(os.urandom(each))
            wait_for(lambda: sync.status().commits == 2, "the second commit")
            moved = max(sync.status().bytes_moved - before, _held_bytes(store) - held)
        finally:
            sync.close()
    return {"resync_bytes_ratio": moved / (count * each)}


def _copied_s(source: Path, target: Path) -> float:
    os.sync()
    began_s = time.monotonic()
    subprocess.run(["cp", "-r", source, target], check=True)
    for path in (*target.iterdir(), target):
        _flush(path)
    took_s = time.monotonic() - began_s
    shutil.rmtree(target)
    return took_s


def _committed_s(source: Path, root: Path) -> float:
    folder = root / "checkpoints"
    folder.mkdir(parents=True)
    store = open_store(f"file://{root}/store")
    sync = _sync(store, folder, root)
    sync.begin()
    # Moved in and out again: the same files in the same cache, and new to the sync.
    for path in source.iterdir():
        path.rename(folder / path.name)
    held = sum(path.stat().st_size for path in folder.iterdir())
    os.sync()
    began_s = time.monotonic()
    committed = sync.final(120.0)
    took_s = time.monotonic() - began_s
    for path in folder.iterdir():
        path.rename(source / path.name)
    moved = sync.status().bytes_moved
    if committed is None or moved != held:
        raise RuntimeError(f"{moved} bytes were moved: {sync.status().error}")
    shutil.rmtree(root)
    return took_s


def _sync(store: Store, folder: Path, root: Path, busy_s: float = BUSY_S) -> CheckpointSync:
    channel, scratch = root / "channel", root / "scratch"
    channel.mkdir()
    return CheckpointSync(SyncOptions(store, _JOB, 2, 0, 1, folder, channel=channel, scratch=scratch, busy_s=busy_s))


def _fill(folder: Path, count: int, size: int) -> None:
    folder.mkdir(exist_ok=True)
    for n in range(count):
        (folder / f"part-{n:02d}").write_bytes(os.urandom(size))


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _held_bytes(store: Store) -> int:
    return sum(meta.size for meta in store.list(f"work/{_JOB}/"))


def print_times(name: str, times_s: list[float], other: str, others_s: list[float]) -> None:
    """The single runs, so that a noisy disk shows."""
    import sys

    runs = "  ".join(
        f"{label} {' '.join(f'{took:.2f}' for took in took_s)} s"
        for label, took_s in ((name, times_s), (other, others_s))
    )
    print(f"    {runs}", file=sys.stderr)


MEASUREMENTS = (
    Measurement((Figure("sync_ratio", "×", 1.5),), sync_ratio),
    Measurement((Figure("resync_bytes_ratio", "×", 0.011),), resync_bytes_ratio),
)
