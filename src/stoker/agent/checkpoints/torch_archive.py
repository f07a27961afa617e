"""Check that a file of `torch.save` has all storages it refers to. Loads no class and runs no code."""

from __future__ import annotations

import io
import pickle
import zipfile
from typing import Any

# A larger pickle is not read.
_MAX_PICKLE_BYTES = 8 * 1024 * 1024
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


class _Inert:
    """A stand-in for any class and any function. It does nothing, no matter what a pickle does with it."""

    def __new__(cls, *_args: object, **_options: object) -> _Inert:
        return super().__new__(cls)

    def __call__(self, *_args: object, **_options: object) -> _Inert:
        return self

    def __setstate__(self, _state: object) -> None:
        pass

    def __setitem__(self, _key: object, _value: object) -> None:
        pass

    def append(self, _item: object) -> None:
        pass

    def extend(self, _items: object) -> None:
        pass

    add = append


# The implementation in Python: the memo of the compiled one can be made to take any amount of memory.
_Base: Any = pickle._Unpickler


class _References(_Base):  # type: ignore[misc]
    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self._classes: dict[str, type] = {}
        self.storages: dict[str, int | None] = {}

    def find_class(self, _module: str, name: str) -> type:
        if name not in self._classes:
            self._classes[name] = type(name, (_Inert,), {})
        return self._classes[name]

    def get_extension(self, code: int) -> None:
        raise pickle.UnpicklingError(f"extension {code}")

    def persistent_load(self, pid: object) -> _Inert:
        match pid:
            case ("storage", type() as kind, str() as key, _, int() as count, *_):
                width = _WIDTHS.get(kind.__name__.removesuffix("Storage"))
                self.storages[key] = None if width is None else width * count
            case _:
                raise pickle.UnpicklingError(f"{pid!r} is no storage")
        return _Inert()


def missing_storage(archive: zipfile.ZipFile) -> str | None:
    """Compare the tensors that the archive refers to with those in it.

    Returns what is missing or cut off, in a few words for people; an empty text if everything is there; None if that is
    not known, because the archive is not torch's or its references cannot be followed.
    """
    sizes = {entry.filename: entry.file_size for entry in archive.infolist()}
    pickles = [name for name in sizes if name.endswith("/data.pkl") and name.count("/") == 1]
    if len(pickles) != 1:
        return None
    top = pickles[0].removesuffix("data.pkl")
    # TorchScript stores its tensors elsewhere.
    if f"{top}constants.pkl" in sizes or sizes[pickles[0]] > _MAX_PICKLE_BYTES:
        return None
    try:
        references = _References(archive.read(pickles[0]))
        references.load()
    except zipfile.BadZipFile:
        return "the first part of its zip archive is damaged"
    except Exception:  # noqa: BLE001 - a pickle may raise any error; one that cannot be followed proves nothing
        return None
    for key, size in references.storages.items():
        found = sizes.get(f"{top}data/{key}")
        if found is None:
            return f"tensor {key} of {len(references.storages)} is missing in it"
        if size is not None and found != size:
            return f"tensor {key} has {found:,} of {size:,} bytes in it"
    return ""
