"""Saves as the tutorial of distributed data parallel does: under torchrun, rank 0 overwrites `snapshot.pt`."""

from __future__ import annotations

import os
from pathlib import Path

import saving

torch = saving.slow_torch()
RANK = int(os.environ.get("RANK", "0"))


def load(folder: Path) -> int | None:
    path = folder / "snapshot.pt"
    if not path.exists():
        return None
    snapshot = torch.load(path)
    saving.check_state(torch, snapshot["MODEL_STATE"], snapshot["EPOCHS_RUN"])
    return int(snapshot["EPOCHS_RUN"])


def save(folder: Path, step: int) -> None:
    torch.save({"MODEL_STATE": saving.state_of(torch, step), "EPOCHS_RUN": step}, str(folder / "snapshot.pt"))


if __name__ == "__main__":
    torch.distributed.init_process_group("gloo")
    saving.main(load, save, saves_here=RANK == 0)
