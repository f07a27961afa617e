"""`.stoker-copy.json` at a URL of `checkpoints.copy_to`: whose checkpoints are copied there, and which is there.

The copies are plain files, sent one by one, so that a reader may find some of one checkpoint and some of the next. The
record says so: it is written before the first file changes, and again when all are there. The job's own store always
has whole checkpoints; readers of Stoker prefer them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from stoker.model import codec
from stoker.model.errors import CodecError, StoreDenied, StoreError, StoreUnavailable
from stoker.store.base import RECORD_BYTES, Meta, Store

log = logging.getLogger(__name__)

RECORD = ".stoker-copy.json"

# At least as long as any ETag: S3's have 32 digits, the number of parts, and two quotes, which JSON escapes.
_ETAG_BYTES = 48


@dataclass(frozen=True)
class CopiedFile:
    """One file at the URL. `etag` is the store's for this version; empty while it is being written."""

    etag: str = ""
    # Of the bytes that Stoker wrote; empty for a file that it did not write.
    digest: str = ""
    # A file of this name was there before Stoker wrote it: Stoker may overwrite it, and never deletes it.
    found: bool = False


@dataclass(frozen=True)
class CopyRecord:
    """The job that writes to the URL, and what is there.

    Of several jobs with one URL, the one that was submitted last writes; the others stop when they see its name.
    """

    job: str
    # The URL of its store.
    store: str
    submitted_at: datetime
    # The job or URL that it resumed from, which has the newest checkpoint until the job has one.
    resumed_from: str | None = None
    # The files are those of one whole checkpoint. False while they are being written.
    complete: bool = True
    # The whole checkpoint that is there, or that is being written: its job and key.
    checkpoint: str | None = None
    # All files there when the record was written, and those about to be written.
    files: dict[str, CopiedFile] = field(default_factory=dict)

    @property
    def owner(self) -> tuple[str, str]:
        """The store and the job that writes."""
        return self.store, self.job

    @property
    def has_copies(self) -> bool:
        """Stoker has written files there."""
        return any(file.digest for file in self.files.values())

    def matches(self, listed: Mapping[str, Meta]) -> bool:
        """Return whether the files there are exactly those of the record."""
        return {path: meta.etag for path, meta in listed.items()} == {
            path: one.etag for path, one in self.files.items()
        }


def list_files(target: Store) -> dict[str, Meta]:
    """List the plain files at the URL, without the record. Raises StoreError."""
    # A key that ends with a slash stands for a folder, and has no content.
    return {meta.key: meta for meta in target.list("") if meta.key != RECORD and not meta.key.endswith("/")}


def read_record(target: Store) -> CopyRecord | None:
    """Read the record; None if there is none, or if it is not valid.

    Raises StoreError, also for a record too large to read: that is not the same as none.
    """
    try:
        found = target.get(RECORD)
        return codec.loads(CopyRecord, found.data, where=RECORD) if found is not None else None
    except (StoreUnavailable, StoreDenied):
        raise
    except StoreError as error:
        raise StoreError(
            f"{target.url}: {error}; take another URL, or remove {RECORD} there to take the files as they are"
        ) from error
    except CodecError as error:
        log.warning("%s/%s is left out: %s", target.url, RECORD, error)
        return None


def write_record(target: Store, record: CopyRecord) -> None:
    """Write the record. Raises StoreError, also for more files than a record can have."""
    data = codec.dumps(record)
    # ETags that are not known yet need their room, too: a copy must not fail when all files are sent.
    unknown = sum(not one.etag for one in record.files.values())
    if len(data) + unknown * _ETAG_BYTES > RECORD_BYTES:
        raise StoreError(f"{target.url} has too many files for copies: give checkpoints.copy_to a prefix of its own")
    target.put(RECORD, data)


def claim(target: Store, own: CopyRecord) -> CopyRecord | None:
    """Make the job of `own` the one that writes to the URL; return the record, or None if a newer job does.

    Safe to repeat. Raises StoreError.
    """
    there = read_record(target)
    if there is not None and there.owner == own.owner:
        return there
    if there is not None and there.submitted_at > own.submitted_at:
        return None
    if there is None:
        taken = replace(own, files={path: CopiedFile(meta.etag) for path, meta in list_files(target).items()})
    else:
        taken = replace(own, complete=there.complete, checkpoint=there.checkpoint, files=there.files)
    write_record(target, taken)
    return taken
