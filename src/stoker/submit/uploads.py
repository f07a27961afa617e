"""Upload the submitter's files and folders that remote machines read: once, as plain files.

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
from stoker.store.base import Meta, Store, StoredFile, is_valid_key
from stoker.store.parallel import run_all
from stoker.submit.shared_objects import SharedObject, collect_unused, input_name, is_retired, usable_name

_AT_ONCE = 16
_HASHED_AT_ONCE = 4


@runtime_checkable
class ReportsUploadProgress(Protocol):
    """A store that reports the progress of a large upload."""

    def put_file_with_progress(
        self, source: Path, key: Callable[[str], str], progress: Callable[[int], None]
    ) -> StoredFile: ...


@dataclass(frozen=True)
class UploadFile:
    """A file to upload. `name` is its path in the folder."""

    path: Path
    name: str
    size: int
    digest: str


@dataclass(frozen=True)
class Upload:
    """One input to upload. `to_send` is the number of bytes that the store lacks; None: the store was not asked."""

    name: str
    path: Path
    files: tuple[UploadFile, ...]
    digest: str
    to_send: int | None = None

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


def plan_uploads(
    spec: Spec, capabilities: Capabilities, url: str, store: Store | None
) -> tuple[Spec, tuple[Upload, ...]]:
    """The spec with URLs below `url`, the store's, in place of this computer's paths, and what has to be there.

    Where the machines are this computer, nothing changes. `store` is only read from; None: it is not to be asked.
    Raises UserError for what cannot be sent.
    """
    if capabilities.runs_locally:
        return spec, ()
    inputs, uploads = dict(spec.inputs), []
    for name, wanted in spec.inputs.items():
        if "://" in wanted.source:
            continue
        upload = measure_upload(name, Path(wanted.source))
        stored = upload.digest
        if store is not None:
            stored = usable_name(store, keys.INPUTS, upload.digest)
            upload = replace(upload, to_send=sum(file.size for file in _missing(store, upload, stored)))
        uploads.append(upload)
        inputs[name] = replace(wanted, source=_source(url, upload, stored))
    return replace(spec, inputs=inputs), tuple(uploads)


def with_stored_sources(spec: Spec, url: str, stored: Mapping[str, tuple[Upload, str]]) -> Spec:
    """The spec with its inputs under the names that `send` returned, by the input's name."""
    inputs = {name: replace(spec.inputs[name], source=_source(url, *found)) for name, found in stored.items()}
    return replace(spec, inputs={**spec.inputs, **inputs})


def _source(url: str, upload: Upload, stored: str) -> str:
    single = f"/{upload.files[0].name}" if upload.path.is_file() else ""
    return f"{url}/{keys.input_files(stored)}".rstrip("/") + single


def measure_upload(name: str, path: Path) -> Upload:
    """List and hash a file or folder. Links are followed. Raises UserError for what cannot be read or stored."""
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
    if not is_valid_key(one):
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


def send(store: Store, upload: Upload, on_bytes: Callable[[int], None] = lambda _: None) -> str:
    """Upload the files that the store lacks, and return the name of the upload. Idempotent.

    `on_bytes` is called in several threads with the bytes of each part. The files stay when a submission fails: another
    job may rely on them by then. Raises UserError when a file changed since it was hashed, and the store's errors.
    """
    stored = usable_name(store, keys.INPUTS, upload.digest)
    missing = _missing(store, upload, stored)
    run_all([partial(_send, store, upload, stored, file, on_bytes) for file in missing], _AT_ONCE)
    return stored


def _send(store: Store, upload: Upload, stored: str, file: UploadFile, on_bytes: Callable[[int], None]) -> None:
    def key(digest: str) -> str:
        if digest != file.digest:
            raise UserError(f"inputs.{upload.name}: {file.path} was changed meanwhile; submit again when it rests")
        return keys.input_files(stored) + file.name

    try:
        if isinstance(store, ReportsUploadProgress):
            store.put_file_with_progress(file.path, key, on_bytes)
        else:
            on_bytes(store.put_file(file.path, key).size)
    except OSError as error:
        raise UserError(f"inputs.{upload.name}: {file.path} cannot be read: {error.strerror}") from None


def _missing(store: Store, upload: Upload, stored: str) -> list[UploadFile]:
    prefix = keys.input_files(stored)
    there = {meta.key.removeprefix(prefix): meta.size for meta in store.list(prefix)}
    return [file for file in upload.files if there.get(file.name) != file.size]


def check_uploads_stored(store: Store, spec: Spec) -> None:
    """Raise UserError where the store lacks an upload of an earlier job that this job relies on."""
    for name, wanted in spec.inputs.items():
        stored = input_name(store.url, wanted.source)
        if stored is None:
            continue
        there = next(iter(store.list(keys.input_files(stored))), None) is not None
        if not there or is_retired(store, SharedObject(keys.INPUTS, stored)):
            raise UserError(f"inputs.{name}: its files are not in the store any more; name the folder that they are in")


def collect_uploads(store: Store) -> int:
    """Delete uploads that no job refers to and that are older than a day. Returns the number of inputs."""

    def files_of(name: str) -> list[Meta]:
        return list(store.list(keys.input_files(name)))

    return collect_unused(store, keys.INPUTS, {name: partial(files_of, name) for name in store.folders(keys.INPUTS)})
