"""Saves as Lightning does (ModelCheckpoint): a file named by its step, the one before removed, then `last.ckpt`."""

from __future__ import annotations

import io
from pathlib import Path

import saving

torch = saving.slow_torch()


def load(folder: Path) -> int | None:
    """`last.ckpt` is resumed from. Every other file must load as well."""
    steps = {path.name: load_one(path) for path in folder.glob("*.ckpt")}
    if not steps:
        return None
    numbered = [step for name, step in steps.items() if name != "last.ckpt"]
    assert steps.get("last.ckpt") == max(numbered, default=None), f"one save is a mix: {steps}"
    return steps["last.ckpt"]


def load_one(path: Path) -> int:
    checkpoint = torch.load(path)
    step = int(checkpoint["global_step"])
    saving.check_state(torch, checkpoint["state_dict"], step)
    assert path.name in ("last.ckpt", f"epoch={step // 2}-step={step}.ckpt"), path.name
    return step


def save(folder: Path, step: int) -> None:
    def write(name: str) -> None:
        """As Lightning's `_atomic_save`, which is not atomic on a local disk."""
        data = io.BytesIO()
        torch.save({"global_step": step, "epoch": step // 2, "state_dict": saving.state_of(torch, step)}, data)
        saving.write_slowly(folder / name, data.getvalue(), 10)

    before = list(folder.glob("epoch=*.ckpt"))
    write(f"epoch={step // 2}-step={step}.ckpt")
    for old in before:
        old.unlink()
    write("last.ckpt")


if __name__ == "__main__":
    saving.main(load, save)
