"""Files and folders of the submitter's that machines elsewhere are to read: sent to the store once, as plain files.

inputs/<digest of the names and contents>/<file>
inputs/<digest>.json     written before them, and again by every submission that relies on them: how old it is says
                         how long nobody has
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Protocol, runtime_checkable

from stoker import layout
from stoker.agent.inputs.source import list_files
from stoker.errors import StoreError, UserError
from stoker.finding import all_jobs
from stoker.model import Capabilities
from stoker.parallel import run_all
from stoker.removing import COLLECT_AFTER
from stoker.spec import Spec
from stoker.store import Sent, Store, can_be_key

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
        if store is not None:
            upload = replace(upload, to_send=sum(file.size for file in _missing(store, upload)))
        uploads.append(upload)
        single = f"/{upload.files[0].name}" if upload.path.is_file() else ""
        inputs[name] = replace(wanted, source=f"{url}/{layout.input_files(upload.digest)}".rstrip("/") + single)
    return replace(spec, inputs=inputs), tuple(uploads)


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


def send(store: Store, upload: Upload, told: Callable[[int], None] = lambda _: None) -> None:
    """Have it in the store. What is there is not sent again. Idempotent: its name is its digest.

    `told` hears, in several threads, of bytes as they go. The upload is not taken back when a submission fails: others
    may rely on it by then. Raises UserError when a file changed since it was looked at, and what a store raises.
    """
    # Before them: from here on they are young, and are not collected.
    _make_young(store, layout.input_marker(upload.digest), {"files": len(upload.files), "bytes": upload.size})
    run_all([partial(_send, store, upload, file, told) for file in _missing(store, upload)], _AT_ONCE)


def _send(store: Store, upload: Upload, file: UploadFile, told: Callable[[int], None]) -> None:
    def key(digest: str) -> str:
        if digest != file.digest:
            raise UserError(f"inputs.{upload.name}: {file.path} was changed meanwhile; submit again when it rests")
        return layout.input_files(upload.digest) + file.name

    try:
        if isinstance(store, TellsOfBytes):
            store.put_file_telling(file.path, key, told)
        else:
            told(store.put_file(file.path, key).size)
    except OSError as error:
        raise UserError(f"inputs.{upload.name}: {file.path} cannot be read: {error.strerror}") from None


def _missing(store: Store, upload: Upload) -> list[UploadFile]:
    prefix = layout.input_files(upload.digest)
    there = {meta.key.removeprefix(prefix): meta.size for meta in store.list(prefix)}
    return [file for file in upload.files if there.get(file.name) != file.size]


def refresh(store: Store, spec: Spec) -> None:
    """Make young again what a job relies on that an earlier one sent. Raises UserError when it is not there now."""
    for name, wanted in spec.inputs.items():
        digest = digest_of(store.url, wanted.source)
        if digest is None:
            continue
        there = store.list(layout.input_files(digest))
        if store.head(layout.input_marker(digest)) is None or next(iter(there), None) is None:
            raise UserError(f"inputs.{name}: its files are not in the store any more; name the folder that they are in")
        _make_young(store, layout.input_marker(digest), {})


def _make_young(store: Store, marker: str, told: dict[str, int]) -> None:
    there = store.head(marker)
    if there is None or datetime.now(timezone.utc) - there.modified > COLLECT_AFTER / 2:
        store.put(marker, json.dumps(told).encode())


def collect(store: Store) -> int:
    """Delete what no job refers to and nobody relied on for a day. Answers how many inputs went."""
    now = datetime.now(timezone.utc)
    old: dict[str, datetime | None] = {}
    for digest in store.folders(layout.INPUTS):
        marker = store.head(layout.input_marker(digest))
        # Without it they are the rest of a removal that was cut short.
        latest = marker or max(store.list(layout.input_files(digest)), key=lambda meta: meta.modified, default=None)
        if latest is None or now - latest.modified > COLLECT_AFTER:
            old[digest] = marker.modified if marker is not None else None
    needed = {digest for job in all_jobs(store) for digest in _digests_of(store, job)} if old else set()
    gone = 0
    for digest in old.keys() - needed:
        marker = store.head(layout.input_marker(digest))
        if (marker.modified if marker is not None else None) != old[digest]:
            continue  # Made young again since: somebody is about to need it.
        store.delete([layout.input_marker(digest)])
        store.delete([meta.key for meta in store.list(layout.input_files(digest))])
        gone += 1
    return gone


def _digests_of(store: Store, job: str) -> set[str]:
    """Those that a job refers to. Raises StoreError when it cannot be known: then nothing may be collected."""
    found = store.get(layout.spec(job))
    if found is None:
        return set()
    try:
        inputs = json.loads(found.data)["spec"].get("inputs") or {}
        named = [digest_of(store.url, str(wanted["source"])) for wanted in inputs.values()]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"{found.meta.key}: cannot be read ({error!r}); no input is collected") from None
    return {digest for digest in named if digest is not None}


def digest_of(url: str, source: str) -> str | None:
    """Which upload to the store at `url` a source names; None: it is none."""
    prefix = f"{url}/{layout.INPUTS}"
    return source.removeprefix(prefix).partition("/")[0] if source.startswith(prefix) else None
