"""Saves as the Hugging Face Trainer does: a folder for each checkpoint, file after file, old folders removed."""

from __future__ import annotations

import json
import re
import shutil
import struct
from pathlib import Path

import saving

torch = saving.slow_torch()
KEEP = 2
NAMES = {
    "model.safetensors",
    "config.json",
    "training_args.bin",
    "optimizer.pt",
    "scheduler.pt",
    "rng_state.pth",
    "trainer_state.json",
}


def folders(folder: Path) -> list[tuple[int, Path]]:
    found = [(re.fullmatch(r"checkpoint-(\d+)", path.name), path) for path in folder.iterdir()]
    return sorted((int(match[1]), path) for match, path in found if match)


def load(folder: Path) -> int | None:
    """The newest folder counts, whatever is in it. All of them are looked at, as a person would who goes back."""
    steps = [load_one(path, step) for step, path in folders(folder)]
    return steps[-1] if steps else None


def load_one(path: Path, step: int) -> int:
    assert {file.name for file in path.iterdir()} == NAMES, (
        f"{path.name} has {sorted(file.name for file in path.iterdir())}"
    )
    data = (path / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    body = data[8 + length :]
    assert len(body) == header["weight"]["data_offsets"][1], "the weights are cut off"
    assert body == struct.pack("<f", step) * (len(body) // 4), "the weights are of another step"
    saving.check_state(torch, torch.load(path / "optimizer.pt"), step)
    assert torch.load(path / "scheduler.pt")["last_epoch"] == step
    torch.load(path / "rng_state.pth")
    torch.load(path / "training_args.bin")
    json.loads((path / "config.json").read_text())
    assert json.loads((path / "trainer_state.json").read_text())["global_step"] == step
    return step


def save(folder: Path, step: int) -> None:
    path = folder / f"checkpoint-{step}"
    path.mkdir(exist_ok=True)
    body = struct.pack("<f", step) * 16384
    header = json.dumps({"weight": {"dtype": "F32", "shape": [16384], "data_offsets": [0, len(body)]}}).encode()
    (path / "config.json").write_text(json.dumps({"n_layer": 2}, indent=2))
    saving.write_slowly(path / "model.safetensors", struct.pack("<Q", len(header)) + header + body)
    torch.save({"args": step}, str(path / "training_args.bin"))
    torch.save(saving.state_of(torch, step), str(path / "optimizer.pt"))
    torch.save({"last_epoch": step}, str(path / "scheduler.pt"))
    torch.save({"cpu": torch.get_rng_state()}, str(path / "rng_state.pth"))
    text = json.dumps({"global_step": step, "log_history": [{"loss": 0.1, "step": n} for n in range(step)]}, indent=2)
    saving.write_slowly(path / "trainer_state.json", text.encode(), 3)
    for _, old in folders(folder)[:-KEEP]:
        shutil.rmtree(old)


if __name__ == "__main__":
    saving.main(load, save)
