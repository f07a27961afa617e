"""Check that a file of `torch.save` has all storages it refers to. Loads no class and runs no code."""

from __future__ import annotations

import re
import zipfile

from stoker.agent.checkpoints.storage_references import read_storages

# A larger pickle is not read.
MAX_PICKLE_BYTES = 8 * 1024 * 1024
# The keys that torch gives are numbers. Others would have to be made safe for the log.
_KEY = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_WIDTHS = {
    "Double": 8,
    "Float": 4,
    "Half": 2,
    "BFloat16": 2,
    "Long": 8,
    "Int": 4,
    "Short": 2,
    "Char": 1,
    "Byte": 1,
    "Bool": 1,
    "ComplexDouble": 16,
    "ComplexFloat": 8,
    "Untyped": 1,
}


def missing_storage(archive: zipfile.ZipFile) -> str | None:
    """Compare the tensors that the archive refers to with those in it.

    Returns what is missing or cut off, in a few words for people; an empty text if everything is there; None if that is
    not known, because the archive is not torch's or its references cannot be followed.
    """
    entries = {entry.filename: entry for entry in archive.infolist()}
    pickles = [name for name in entries if name.endswith("/data.pkl") and name.count("/") == 1]
    if len(pickles) != 1:
        return None
    (name,) = pickles
    top, size = name.removesuffix("data.pkl"), entries[name].file_size
    # TorchScript stores its tensors elsewhere. torch compresses nothing, and a few compressed bytes may be gigabytes.
    compressed = entries[name].compress_type != zipfile.ZIP_STORED
    if f"{top}constants.pkl" in entries or size > MAX_PICKLE_BYTES or compressed:
        return None
    try:
        with archive.open(name) as file:
            data = file.read(size)
    except zipfile.BadZipFile:
        return "the first part of its zip archive is damaged"
    storages = read_storages(data) if len(data) == size else None
    if storages is None or not all(map(_KEY.fullmatch, storages)):
        return None
    for key, (kind, elements) in storages.items():
        entry = entries.get(f"{top}data/{key}")
        if entry is None:
            return f"tensor {key} of {len(storages)} is missing in it"
        width = _WIDTHS.get(kind.removesuffix("Storage"))
        if width is not None and entry.file_size != width * elements:
            return f"tensor {key} has {entry.file_size:,} of {width * elements:,} bytes in it"
    return ""
