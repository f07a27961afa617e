"""Saves as a Keras script for SageMaker does: a file of weights for each epoch, in HDF5 or as a `.keras` archive.

The HDF5 files have the library's own superblock (version 0) and its order of writing: data first, the header when the
file is closed. What is between them is not HDF5: loading checks it byte by byte.
"""

from __future__ import annotations

import json
import os
import re
import struct
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import saving

ARCHIVE = os.environ.get("KERAS_ARCHIVE") == "1"
LAYERS, LAYER_BYTES, FIRST = 12, 4096, 2048


def load(folder: Path) -> int | None:
    """The newest by its number; every one must load."""
    found = [(re.fullmatch(r"checkpoint-(\d+)\.(h5|keras)", path.name), path) for path in folder.iterdir()]
    steps = sorted((int(match[1]), path) for match, path in found if match)
    for step, path in steps:
        if path.suffix == ".keras":
            with zipfile.ZipFile(path) as archive:
                assert archive.testzip() is None
                assert json.loads(archive.read("config.json"))["layers"] == LAYERS
                check_layers(archive.read("model.weights.h5"), step)
        else:
            data = path.read_bytes()
            assert data[:8] == b"\x89HDF\r\n\x1a\n", "no HDF5 file"
            assert struct.unpack("<Q", data[40:48])[0] == len(data), "the HDF5 file is cut off"
            check_layers(data[FIRST:], step)
    return steps[-1][0] if steps else None


def check_layers(data: bytes, step: int) -> None:
    assert data == struct.pack("<I", step) * (LAYERS * LAYER_BYTES // 4), "layers are missing or of another epoch"


@contextmanager
def hdf5(path: Path) -> Iterator[BinaryIO]:
    """As h5py.File: closing it, for whatever reason, leaves a valid file of what was written."""
    with path.open("wb") as file:
        file.seek(FIRST)
        try:
            yield file
        finally:
            end = file.tell()
            file.seek(0)
            head = b"\x89HDF\r\n\x1a\n" + bytes([0, 0, 0, 0, 0, 8, 8, 0]) + struct.pack("<HHI", 4, 16, 0)
            file.write(head + struct.pack("<QQQQ", 0, 2**64 - 1, end, 2**64 - 1))


def save(folder: Path, step: int) -> None:
    layer = struct.pack("<I", step) * (LAYER_BYTES // 4)
    if ARCHIVE:
        with zipfile.ZipFile(folder / f"checkpoint-{step}.keras", "w") as archive:
            archive.writestr("metadata.json", "{}")
            time.sleep(saving.PAUSE_S)
            archive.writestr("config.json", json.dumps({"layers": LAYERS}))
            with archive.open("model.weights.h5", "w") as weights:
                for _ in range(LAYERS):
                    weights.write(layer)
                    time.sleep(saving.PAUSE_S)
        return
    with hdf5(folder / f"checkpoint-{step}.h5") as file:
        for _ in range(LAYERS):
            file.write(layer)
            file.flush()
            time.sleep(saving.PAUSE_S)


if __name__ == "__main__":
    saving.main(load, save)
