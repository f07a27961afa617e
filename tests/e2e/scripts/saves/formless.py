"""Ways to save in formats that do not show whether a file is complete. Part of odd.py."""

from __future__ import annotations

import os
import shutil
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

N = 2000
Load = Callable[[Path], int]
Save = Callable[[Path, int], None]


def same(values: list[int]) -> int:
    """The step that everything says. Raises where there are two."""
    assert len(set(values)) == 1, f"a mix of {sorted(set(values))}"
    return values[0]


def newest(folder: Path, pattern: str) -> Path:
    return max(folder.glob(pattern), key=lambda path: int("".join(filter(str.isdigit, path.name)) or 0))


def put_raw(path: Path, step: int) -> None:
    path.write_bytes(struct.pack(f"<{N}q", *[step] * N))


def get_raw(path: Path) -> int:
    values = struct.unpack(f"<{N}q", path.read_bytes())
    return same(list(values))


def save_table(folder: Path, step: int) -> None:
    """Nothing but a table that grows: many rows a save."""
    with (folder / "table.csv").open("a") as file:
        file.writelines(f"{step},{row}\n" for row in range(N))


def load_table(folder: Path) -> int:
    rows = [line.split(",") for line in (folder / "table.csv").read_text().splitlines()]
    assert len(rows) % N == 0, f"{len(rows)} rows"
    return same([int(step) for step, _ in rows[-N:]])


def save_renamed(folder: Path, step: int) -> None:
    """Raw bytes under a random name, then renamed."""
    handle, name = tempfile.mkstemp(dir=folder)
    os.close(handle)
    put_raw(Path(name), step)
    Path(name).replace(folder / "weights.bin")


def load_renamed(folder: Path) -> int:
    return get_raw(folder / "weights.bin")


def save_raw_link(folder: Path, step: int) -> None:
    put_raw(folder / f"step-{step}.bin", step)
    (folder / "last.bin").unlink(missing_ok=True)
    (folder / "last.bin").hardlink_to(folder / f"step-{step}.bin")
    (folder / f"step-{step - 3}.bin").unlink(missing_ok=True)


def load_raw_link(folder: Path) -> int:
    return same([get_raw(folder / "last.bin"), get_raw(newest(folder, "step-*.bin"))])


def save_raw_best(folder: Path, step: int) -> None:
    put_raw(folder / "last.bin", step)
    (folder / "last.txt").write_text(str(step))
    if step % 3 == 0:
        shutil.copy2(folder / "last.bin", folder / "best.bin")


def load_raw_best(folder: Path) -> int:
    step = same([get_raw(folder / "last.bin"), int((folder / "last.txt").read_text())])
    if step >= 3:
        assert get_raw(folder / "best.bin") == step - step % 3
    return step


def save_raw_pair(folder: Path, step: int) -> None:
    put_raw(folder / "model.bin", step)
    time.sleep(0.02)
    put_raw(folder / "optimizer.bin", step)


def load_raw_pair(folder: Path) -> int:
    return same([get_raw(folder / "model.bin"), get_raw(folder / "optimizer.bin")])


def save_raw_folder(folder: Path, step: int) -> None:
    (folder / f"step_{step}").mkdir()
    for name in ("model", "optimizer"):
        put_raw(folder / f"step_{step}" / f"{name}.bin", step)
    (folder / "latest").write_text(f"step_{step}")
    shutil.rmtree(folder / f"step_{step - 2}", ignore_errors=True)


def load_raw_folder(folder: Path) -> int:
    found = folder / (folder / "latest").read_text()
    step = same([get_raw(found / "model.bin"), get_raw(found / "optimizer.bin")])
    assert found.name == f"step_{step}"
    return step


def save_two_stages(folder: Path, step: int) -> None:
    """A file that is written, closed, and added to a moment later; and one that is written twice in a save."""
    (folder / "status").write_text(f"saving {step}")
    with (folder / "weights.bin").open("wb") as file:
        file.write(struct.pack(f"<{N}q", *[step] * N))
    time.sleep(0.08)
    with (folder / "weights.bin").open("ab") as file:
        file.write(struct.pack(f"<{N}q", *[step] * N))
    (folder / "status").write_text(f"saved {step}")


def load_two_stages(folder: Path) -> int:
    step = same(list(struct.unpack(f"<{2 * N}q", (folder / "weights.bin").read_bytes())))
    assert (folder / "status").read_text() == f"saved {step}"
    return step


STYLES: dict[str, tuple[Save, Load]] = {
    "table": (save_table, load_table),
    "renamed": (save_renamed, load_renamed),
    "raw_link": (save_raw_link, load_raw_link),
    "raw_best": (save_raw_best, load_raw_best),
    "raw_pair": (save_raw_pair, load_raw_pair),
    "raw_folder": (save_raw_folder, load_raw_folder),
    "two_stages": (save_two_stages, load_two_stages),
}
