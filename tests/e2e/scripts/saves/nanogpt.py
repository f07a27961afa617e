"""Saves as nanoGPT does: one dictionary to `ckpt.pt`, overwritten each time."""

from __future__ import annotations

from pathlib import Path

import saving

torch = saving.slow_torch()


def load(folder: Path) -> int | None:
    path = folder / "ckpt.pt"
    if not path.exists():
        return None
    checkpoint = torch.load(path, map_location="cpu")
    saving.check_state(torch, checkpoint["model"], checkpoint["iter_num"])
    saving.check_state(torch, checkpoint["optimizer"], checkpoint["iter_num"])
    return int(checkpoint["iter_num"])


def save(folder: Path, step: int) -> None:
    checkpoint = {
        "model": saving.state_of(torch, step),
        "optimizer": saving.state_of(torch, step),
        "model_args": {"n_layer": 8},
        "iter_num": step,
        "best_val_loss": 1.0 / step,
        "config": {"out_dir": "out"},
    }
    torch.save(checkpoint, str(folder / "ckpt.pt"))


if __name__ == "__main__":
    saving.main(load, save)
