"""Programs that save in ways of their own, one save right after the other.

    python odd.py STYLE FOLDER LEDGER HANDLER PERIOD_S

Every save holds its step several times over, so that a loader notices a torn file and a mix of two saves.
"""

from __future__ import annotations

import json
import mmap
import os
import pickle
import shutil
import signal
import sqlite3
import struct
import sys
import threading
import time
from pathlib import Path

import formless
import saving
from formless import Load, N, Save, newest, same


def put(path: Path, step: int) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps([step] * N))


def get(path: Path) -> int:
    values = json.loads(path.read_text())
    assert len(values) == N
    return same(values)


def save_pickle(folder: Path, step: int) -> None:
    with (folder / "model.pkl").open("wb") as file:
        pickle.dump([step] * N, file)


def load_pickle(folder: Path) -> int:
    values = pickle.loads((folder / "model.pkl").read_bytes())
    assert len(values) == N
    return same(values)


def save_raw(folder: Path, step: int) -> None:
    """No format at all, and no way to tell whether it is complete but its size."""
    (folder / "weights.bin").write_bytes(struct.pack(f"<{N}q", *[step] * N))


def load_raw(folder: Path) -> int:
    return same(list(struct.unpack(f"<{N}q", (folder / "weights.bin").read_bytes())))


def save_replace(folder: Path, step: int) -> None:
    """A temporary name that no rule knows."""
    part = folder / f".model.json.swp{step}"
    put(part, step)
    part.rename(folder / "model.json")


def load_model(folder: Path) -> int:
    return get(folder / "model.json")


def save_folder(folder: Path, step: int) -> None:
    """A folder that appears as a whole."""
    part = folder / f"building_{step}"
    put(part / "model.json", step)
    time.sleep(0.02)
    put(part / "optimizer.json", step)
    part.rename(folder / f"step_{step}")
    shutil.rmtree(folder / f"step_{step - 2}", ignore_errors=True)


def load_folder(folder: Path) -> int:
    found = newest(folder, "step_*")
    step = same([get(found / "model.json"), get(found / "optimizer.json")])
    assert found.name == f"step_{step}"
    return step


def save_link(folder: Path, step: int) -> None:
    put(folder / f"save{step}" / "model.json", step)
    put(folder / f"save{step}" / "optimizer.json", step)
    (folder / ".latest").unlink(missing_ok=True)
    (folder / ".latest").symlink_to(f"save{step}")
    (folder / ".latest").rename(folder / "latest")


def load_link(folder: Path) -> int:
    return same([get(folder / "latest" / "model.json"), get(folder / "latest" / "optimizer.json")])


def save_shards(folder: Path, step: int) -> None:
    for part in (1, 2, 3):
        put(folder / f"model-0000{part}-of-00003.json", step)
        time.sleep(0.01)
    put(folder / "model.index.json", step)


def load_shards(folder: Path) -> int:
    shards = [get(path) for path in folder.glob("model-*")]
    assert len(shards) == 3
    return same([*shards, get(folder / "model.index.json")])


def save_ranks(folder: Path, step: int) -> None:
    """Each process writes its own file; the next step begins when all are there."""
    children = []
    for rank in range(3):
        pid = os.fork()
        if pid == 0:
            time.sleep(0.03 * rank)
            put(folder / f"ckpt_{rank}.json", step)
            os._exit(0)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)


def load_ranks(folder: Path) -> int:
    return same([get(folder / f"ckpt_{rank}.json") for rank in range(3)])


def save_sqlite(folder: Path, step: int) -> None:
    database = sqlite3.connect(folder / "state.db")
    with database:
        database.execute("CREATE TABLE IF NOT EXISTS state (name INTEGER PRIMARY KEY, step INTEGER)")
        database.executemany("INSERT OR REPLACE INTO state VALUES (?, ?)", [(n, step) for n in range(N)])
    database.close()


def load_sqlite(folder: Path) -> int:
    database = sqlite3.connect(folder / "state.db")
    rows = database.execute("SELECT step FROM state").fetchall()
    assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    database.close()
    assert len(rows) == N
    return same([step for (step,) in rows])


def save_thread(folder: Path, step: int) -> None:
    """In the background, while the program goes on."""
    worker = threading.Thread(target=save_pair, args=(folder, step))
    worker.start()
    worker.join()


def save_pair(folder: Path, step: int) -> None:
    put(folder / "weights.json", step)
    put(folder / "meta.json", step)


def load_pair(folder: Path) -> int:
    return same([get(folder / "weights.json"), get(folder / "meta.json")])


def save_slow_pair(folder: Path, step: int) -> None:
    put(folder / "weights.json", step)
    time.sleep(0.7)
    put(folder / "meta.json", step)


def save_removed(folder: Path, step: int) -> None:
    """The old save goes before the new one comes."""
    for name in ("weights.json", "meta.json"):
        (folder / name).unlink(missing_ok=True)
    time.sleep(0.05)
    save_pair(folder, step)


def save_hard_link(folder: Path, step: int) -> None:
    put(folder / f"step-{step}.json", step)
    (folder / "last.json").unlink(missing_ok=True)
    (folder / "last.json").hardlink_to(folder / f"step-{step}.json")


def load_hard_link(folder: Path) -> int:
    return same([get(folder / "last.json"), get(newest(folder, "step-*.json"))])


def save_named_first(folder: Path, step: int) -> None:
    """The name is written before the weights that it names."""
    (folder / "latest.json").write_text(json.dumps({"file": f"weights_{step}.json"}))
    time.sleep(0.05)
    put(folder / f"weights_{step}.json", step)


def load_named_first(folder: Path) -> int:
    return get(folder / json.loads((folder / "latest.json").read_text())["file"])


def save_mapped(folder: Path, step: int) -> None:
    """In place through a mapping; the file is closed before anything is written."""
    path = folder / "state.map"
    if not path.exists():
        path.write_bytes(bytes(8 * N))
    with path.open("r+b") as file:
        view = mmap.mmap(file.fileno(), 0)
    for n in range(N):
        view[8 * n : 8 * n + 8] = struct.pack("<q", step)
        if n % 100 == 0:
            time.sleep(0.002)
    view.flush()
    view.close()


def load_mapped(folder: Path) -> int:
    return same(list(struct.unpack(f"<{N}q", (folder / "state.map").read_bytes())))


def save_best(folder: Path, step: int) -> None:
    put(folder / f"epoch-{step}.json", step)
    put(folder / "last.json", step)
    if step % 3 == 0:
        put(folder / "best.json", step)


def load_best(folder: Path) -> int:
    return same([get(folder / "last.json"), get(newest(folder, "epoch-*.json"))])


def save_logged(folder: Path, step: int) -> None:
    """A table that grows, beside the weights."""
    put(folder / "weights.json", step)
    with (folder / "history.csv").open("a") as file:
        file.write(f"{step}\n")


def load_logged(folder: Path) -> int:
    step = get(folder / "weights.json")
    rows = [int(line) for line in (folder / "history.csv").read_text().splitlines()]
    return same([step, rows[-1]])


def save_numbered(folder: Path, step: int) -> None:
    put(folder / f"checkpoint_{step}.json", step)


def load_numbered(folder: Path) -> int:
    return max(get(path) for path in folder.glob("checkpoint_*.json"))


def save_trainer(folder: Path, step: int) -> None:
    for name in ("model", "optimizer", "scheduler", "trainer_state"):
        put(folder / f"checkpoint-{step}" / f"{name}.json", step)
        time.sleep(0.02)
    shutil.rmtree(folder / f"checkpoint-{step - 1}", ignore_errors=True)


def load_trainer(folder: Path) -> int:
    found = newest(folder, "checkpoint-*")
    return same([get(found / f"{name}.json") for name in ("model", "optimizer", "scheduler", "trainer_state")])


STYLES: dict[str, tuple[Save, Load]] = {
    **formless.STYLES,
    "pickle": (save_pickle, load_pickle),
    "raw": (save_raw, load_raw),
    "replace": (save_replace, load_model),
    "folder": (save_folder, load_folder),
    "link": (save_link, load_link),
    "shards": (save_shards, load_shards),
    "ranks": (save_ranks, load_ranks),
    "sqlite": (save_sqlite, load_sqlite),
    "thread": (save_thread, load_pair),
    "pair": (save_pair, load_pair),
    "slow_pair": (save_slow_pair, load_pair),
    "removed": (save_removed, load_pair),
    "hard_link": (save_hard_link, load_hard_link),
    "named_first": (save_named_first, load_named_first),
    "mapped": (save_mapped, load_mapped),
    "best": (save_best, load_best),
    "logged": (save_logged, load_logged),
    "numbered": (save_numbered, load_numbered),
    "trainer": (save_trainer, load_trainer),
}


def main() -> None:
    style, folder, ledger, handler, period_s = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), *sys.argv[4:6]
    save, load = STYLES[style]
    told: list[int] = []
    if handler == "exits":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    elif handler == "saves":
        signal.signal(signal.SIGTERM, lambda *_: told.append(1))
    try:
        step = load(folder) if any(folder.iterdir()) else 0
    except Exception as error:
        saving.note(ledger, "bad", 0, what=f"{type(error).__name__}: {error}")
        raise
    saving.note(ledger, "start", step, pid=os.getpid())
    time.sleep(0.5)
    while True:
        step += 1
        save(folder, step)
        saving.note(ledger, "saved", step)
        if told:
            sys.exit(0)
        time.sleep(float(period_s))


if __name__ == "__main__":
    main()
