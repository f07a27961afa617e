"""Files and folders of the submitter's that machines elsewhere are to read: sent to the store once, as plain files.

inputs/<digest of the names and contents>[-<generation>]/<file>
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol, runtime_checkable

from stoker.agent.inputs.source import list_files
from stoker.model import keys
from stoker.model.errors import UserError
from stoker.model.offerings import Capabilities
from stoker.model.spec import Spec
from stoker.store.base import Meta, Sent, Store, can_be_key
from stoker.store.parallel import run_all
from stoker.submit.shared_objects import Shared, input_name, is_given_up, sweep, usable_name

_AT_ONCE = 16
_HASHED_AT_ONCE = 4


@runtime_checkable
class TellsOfBytes(Protocol):
    """A store that says how much of a large file has gone."""

    def put_file_telling(self, source: Path, key: Callable[[str], str], told: Callable[[int], None]) -> Sent: ...


@dataclass(frozen=True)
class UploadFile:
    """`name` is its path in the folder."""

    path: Path
    name: str
    size: int
    digest: str


@dataclass(frozen=True)
class Upload:
    """One input. `to_send` is how many bytes the store does not have yet; None: nobody has asked it."""

    name: str
    path: Path
    files: tuple[UploadFile, ...]
    digest: str
    to_send: int | None = None

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


def gather(spec: Spec, capabilities: Capabilities, url: str, store: Store | None) -> tuple[Spec, tuple[Upload, ...]]:
    """The spec with URLs below `url`, the store's, in place of this computer's paths, and what has to be there.

    Where the machines are this computer, nothing changes. `store` is only read from; None: it is not to be asked.
    Raises UserError for what cannot be sent.
    """
    if capabilities.here:
        return spec, ()
    inputs, uploads = dict(spec.inputs), []
    for name, wanted in spec.inputs.items():
        if "://" in wanted.source:
            continue
        upload = measure(name, Path(wanted.source))
        stored = upload.digest
        if store is not None:
            stored = usable_name(store, keys.INPUTS, upload.digest)
            upload = replace(upload, to_send=sum(file.size for file in _missing(store, upload, stored)))
        uploads.append(upload)
        inputs[name] = replace(wanted, source=_source(url, upload, stored))
    return replace(spec, inputs=inputs), tuple(uploads)


def named(spec: Spec, url: str, stored: Mapping[str, tuple[Upload, str]]) -> Spec:
    """The spec with inputs under the names that `send` answered, by the input's name."""
    inputs = {name: replace(spec.inputs[name], source=_source(url, *found)) for name, found in stored.items()}
    return replace(spec, inputs={**spec.inputs, **inputs})


def _source(url: str, upload: Upload, stored: str) -> str:
    single = f"/{upload.files[0].name}" if upload.path.is_file() else ""
    return f"{url}/{keys.input_files(stored)}".rstrip("/") + single


def measure(name: str, path: Path) -> Upload:
    """What is in a file or folder. Links are followed. Raises UserError for what cannot be read or kept."""
    try:
        names = [path.name] if path.is_file() else sorted(list_files(path))
    except OSError as error:
        raise UserError(f"inputs.{name}: {error.filename} cannot be read: {error.strerror}") from None
    root = path.parent if path.is_file() else path
    if not names:
        raise UserError(f"inputs.{name}: there is no file in {path}")
    files = run_all([partial(_measure, name, root / one, one) for one in names], _HASHED_AT_ONCE)
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.name}\0{file.digest}\n".encode())
    return Upload(name, path, tuple(files), digest.hexdigest())


def _measure(name: str, path: Path, one: str) -> UploadFile:
    if not can_be_key(one):
        raise UserError(f"inputs.{name}: no bucket keeps a file called {str(path)!r}; rename it")
    digest, size = hashlib.sha256(), 0
    try:
        if not path.is_file():
            kind = "a link to nothing" if path.is_symlink() else "neither a file nor a folder"
            raise UserError(f"inputs.{name}: {path} is {kind}; remove it, or name another folder")
        with path.open("rb") as file:
            while data := file.read(1 << 20):
                digest.update(data)
                size += len(data)
    except OSError as error:
        raise UserError(f"inputs.{name}: {path} cannot be read: {error.strerror}") from None
    return UploadFile(path, one, size, digest.hexdigest())


def send(store: Store, upload: Upload, told: Callable[[int], None] = lambda _: None) -> str:
    """Have it in the store, under the name that is answered. What is there is not sent again. Idempotent.

    `told` hears, in several threads, of bytes as they go. The upload is not taken back when a submission fails: others
    may rely on it by then. Raises UserError when a file changed since it was looked at, and what a store raises.
    """
    stored = usable_name(store, keys.INPUTS, upload.digest)
    missing = _missing(store, upload, stored)
    run_all([partial(_send, store, upload, stored, file, told) for file in missing], _AT_ONCE)
    return stored


def _send(store: Store, upload: Upload, stored: str, file: UploadFile, told: Callable[[int], None]) -> None:
    def key(digest: str) -> str:
        if digest != file.digest:
            raise UserError(f"inputs.{upload.name}: {file.path} was changed meanwhile; submit again when it rests")
        return keys.input_files(stored) + file.name

    try:
        if isinstance(store, TellsOfBytes):
            store.put_file_telling(file.path, key, told)
        else:
            told(store.put_file(file.path, key).size)
    except OSError as error:
        raise UserError(f"inputs.{upload.name}: {file.path} cannot be read: {error.strerror}") from None


def _missing(store: Store, upload: Upload, stored: str) -> list[UploadFile]:
    prefix = keys.input_files(stored)
    there = {meta.key.removeprefix(prefix): meta.size for meta in store.list(prefix)}
    return [file for file in upload.files if there.get(file.name) != file.size]


def check_there(store: Store, spec: Spec) -> None:
    """Raise UserError unless the uploads of earlier jobs that a job relies on are in the store."""
    for name, wanted in spec.inputs.items():
        stored = input_name(store.url, wanted.source)
        if stored is None:
            continue
        there = next(iter(store.list(keys.input_files(stored))), None) is not None
        if not there or is_given_up(store, Shared(keys.INPUTS, stored)):
            raise UserError(f"inputs.{name}: its files are not in the store any more; name the folder that they are in")


def collect(store: Store) -> int:
    """Delete uploads that no job refers to and that were not written for a day. Answers how many inputs went."""

    def files_of(name: str) -> list[Meta]:
        return list(store.list(keys.input_files(name)))

    return sweep(store, keys.INPUTS, {name: partial(files_of, name) for name in store.folders(keys.INPUTS)})
