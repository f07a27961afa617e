"""The manifests of checkpoints: their format, which are trusted, and how much of them is read.

A manifest is lines of JSON: a head that describes the save and the number of its files, then a row for each file. A
reader never holds more than one row as parsed JSON, and refuses a row or a manifest that is too large.

Manifests are facts from machines that run other people's code. A manifest counts only if its claim is in the log, the
claim is not newer than the reader's own, the claim has that rank, and the manifest agrees with its key. Others are left
out, with a warning in the log.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from stoker.model import codec, keys
from stoker.model.errors import CodecError, StoreDenied, StoreError, StoreUnavailable
from stoker.model.job_state import JobState
from stoker.model.key_segments import is_safe_name
from stoker.model.node_facts import BlobRef, Manifest
from stoker.store.base import Meta, Store
from stoker.store.job_log import is_removed
from stoker.store.job_log import read as read_log
from stoker.store.parallel import run_all

log = logging.getLogger(__name__)

MANIFEST_VERSION = 2
# A file of a manifest takes about 400 bytes of memory, and an agent holds the manifests of all retained checkpoints:
# 100,000 files take 40 MB for each. Scripts with more files pack them.
MAX_FILES = 100_000
# Enough for MAX_FILES rows of the usual 160 bytes.
MANIFEST_BYTES = 16 * 1024 * 1024
# All manifests of one job together; the newest are read first.
TOTAL_BYTES = 6 * MANIFEST_BYTES
# Most manifests of one job: a gang of 64 that retains 50 checkpoints has fewer.
TOTAL_MANIFESTS = 4000
# A commit a second for three years.
MAX_ORDINAL = 99_999_999
# No step, save or rank has a higher number.
MOST_COUNT = 10**18
LOCAL_WORKERS = 2
REMOTE_WORKERS = 8

_KEY = re.compile(r"(\d{8})/(\d{6,9})-([^/@]+)(?:@([1-9]\d{0,5}))?")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_UPLOAD = re.compile(r"(?:[0-9a-f]{16})?")
_PATH_BYTES, _NAME_BYTES, PATH_DEPTH = 4000, 255, 100
# A head names every rank; a row is a path, each character of which may be escaped, and numbers.
_HEAD_BYTES = 1024 * 1024
_ROW_BYTES = 8 * _PATH_BYTES

# Manifests by key and ETag. They are never overwritten, so each is read once.
Cache = dict[tuple[str, str], Manifest | None]


class CheckpointTooLarge(StoreError):
    """A save with more files, or longer names, than readers accept. Nothing of it is uploaded."""


@dataclass(frozen=True, order=True)
class ManifestKey:
    """The parsed key of a manifest. Keys of one rank sort by age."""

    claim: int
    ordinal: int
    name: str
    rank: int

    @property
    def key(self) -> str:
        return keys.checkpoint_key(self.claim, self.ordinal, self.name, self.rank)


@dataclass(frozen=True)
class StoredManifest:
    """A manifest in the store: its key, metadata and content; None for invalid content."""

    place: ManifestKey
    meta: Meta
    manifest: Manifest | None


@dataclass(frozen=True)
class TrustedClaims:
    """The claims whose manifests are trusted, with the number of nodes of each.

    `claims` is None without a log: then every claim counts. `imported`: the job has `resume_from`, whose checkpoint
    lies under claim 0.
    """

    claims: Mapping[int, int] | None = None
    imported: bool = True

    def rank_limit(self, claim: int) -> int | None:
        """The ranks of this claim below the limit are trusted; None: there is no limit, and all of them are."""
        if claim == IMPORTED:
            return None if self.imported else 0
        return None if self.claims is None else self.claims.get(claim, 0)

    def trusts(self, place: ManifestKey) -> bool:
        limit = self.rank_limit(place.claim)
        return place.ordinal <= MAX_ORDINAL and (limit is None or place.rank < limit)


# The claim of a checkpoint that `resume_from` imported.
IMPORTED = 0
TRUST_ALL = TrustedClaims()
TRUST_NONE = TrustedClaims({}, imported=False)


def trusted_claims(state: JobState, *, own: int | None = None, imported: bool = True) -> TrustedClaims:
    """Trust the claims of this state. `own`: an agent's claim; newer ones do not count for it."""
    claims = {claim.number: claim.nodes for claim in state.claims if own is None or claim.number <= own}
    return TrustedClaims(claims, imported)


def read_trusted_claims(store: Store, job: str) -> TrustedClaims:
    """Read the trusted claims from a job's log. Raises StoreError."""
    state = read_log(store, job)
    if state is None:
        return TRUST_NONE if is_removed(store, job) else TRUST_ALL
    try:
        found = store.get(keys.spec(job))
        imported = bool(codec.parse(found.data)["spec"].get("resume_from")) if found is not None else False
    except (StoreUnavailable, StoreDenied):
        raise
    except (StoreError, CodecError, KeyError, TypeError, AttributeError):
        imported = False
    return trusted_claims(state, imported=imported)


def parse_key(key: str) -> ManifestKey | None:
    """Parse `00000007/000002-step-900@1`; None for any other text."""
    match = _KEY.fullmatch(key)
    if match is None or not is_safe_name(match[3]):
        return None
    return ManifestKey(int(match[1]), int(match[2]), match[3], int(match[4] or 0))


# ── Writing ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Head:
    """A manifest without its files, and their number."""

    save: Manifest
    count: int


def encode(manifest: Manifest) -> bytes:
    """Encode a manifest for the store. Raises CheckpointTooLarge if readers would refuse it."""
    head = _Head(replace(manifest, files=()), len(manifest.files))
    rows = (_row(blob) for blob in manifest.files)
    data = b"\n".join((codec.dumps(head), *rows)) + b"\n"
    if len(data) > MANIFEST_BYTES or len(manifest.files) > MAX_FILES:
        raise _too_large(len(manifest.files))
    return data


def check_files(paths: list[str]) -> None:
    """Raise CheckpointTooLarge, before any upload, for files that readers would refuse as one checkpoint."""
    # A row is the path, 80 characters that name the blob, and numbers.
    if len(paths) > MAX_FILES or sum(len(_text(path)) + 130 for path in paths) > MANIFEST_BYTES:
        raise _too_large(len(paths))


def _too_large(files: int) -> CheckpointTooLarge:
    return CheckpointTooLarge(
        f"the checkpoint is not saved: it has {files} files, and at most {MAX_FILES} can be kept "
        f"({MANIFEST_BYTES >> 20} MB with their names); write fewer and larger files, such as one archive"
    )


def _row(blob: BlobRef) -> bytes:
    return _text([blob.path, blob.digest, blob.upload, blob.size, blob.mode])


def _text(tree: object) -> bytes:
    return json.dumps(tree, separators=(",", ":"), ensure_ascii=False).encode(errors="backslashreplace")


# ── Reading ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def decode(data: bytes) -> Manifest:
    """Decode a manifest. Raises CodecError for invalid data; holds one row at a time as parsed JSON."""
    rows = _rows(data)
    head = codec.loads(_Head, next(rows, b""))
    if not 0 <= head.count <= MAX_FILES or head.save.files:
        raise CodecError("count", f"{head.count} files")
    files = tuple(_blob(row, number) for number, row in enumerate(rows, 1))
    if len(files) != head.count:
        raise CodecError("", f"{len(files)} of {head.count} files")
    return replace(head.save, files=files)


def _rows(data: bytes) -> Iterator[bytes]:
    """Yield the lines one at a time: a list of all could be many times as large as the data."""
    start, limit = 0, _HEAD_BYTES
    for _ in range(MAX_FILES + 1):
        if start >= len(data):
            return
        end = data.find(b"\n", start, start + limit + 1)
        if end < 0:
            raise CodecError("", "a line without an end")
        yield data[start:end]
        start, limit = end + 1, _ROW_BYTES
    if start < len(data):
        raise CodecError("", f"more than {MAX_FILES} files")


def _blob(row: bytes, number: int) -> BlobRef:
    try:
        path, digest, upload, size, mode = codec.parse(row)
    except (CodecError, ValueError, TypeError):
        raise CodecError(f"file {number}", "not a row of five") from None
    texts, numbers = (path, digest, upload), (size, mode)
    if not all(type(one) is str for one in texts) or not all(type(one) is int for one in numbers):
        raise CodecError(f"file {number}", "expected three texts and two whole numbers")
    if not (0 <= size < 2**63 and 0 <= mode < 2**31):
        raise CodecError(f"file {number}", "expected a size and a mode of reasonable size")
    return BlobRef(path=path, digest=digest, size=size, mode=mode, upload=upload)


def read_manifests(
    store: Store, job: str, prefix: str, *, trust: TrustedClaims | None = None, cache: Cache | None = None
) -> list[StoredManifest]:
    """Read and validate every trusted manifest under `prefix`. Without `trust`, the log is read for it."""
    trust = read_trusted_claims(store, job) if trust is None else trust
    root = keys.checkpoints(job)
    listed: list[tuple[ManifestKey, Meta]] = []
    untrusted = 0
    for meta in store.list(prefix):
        place = parse_key(meta.key[len(root) :].removesuffix(".json"))
        if place is None or not meta.key.endswith(".json") or not trust.trusts(place):
            untrusted += 1
            continue
        listed.append((place, meta))
    if untrusted:
        log.warning("%d objects in %s are no manifests of this job's attempts: left out", untrusted, prefix)
    known = cache if cache is not None else {}
    read = _affordable(listed)
    missing = [(place, meta) for place, meta in read if (meta.key, meta.etag) not in known]
    reads = [partial(_read, store, job, place, meta, trust.rank_limit(place.claim)) for place, meta in missing]
    answers = run_all(reads, LOCAL_WORKERS if store.is_local else REMOTE_WORKERS)
    gone = set()
    for (_, meta), answer in zip(missing, answers, strict=True):
        if answer is None:
            gone.add(meta.key)
        else:
            known[meta.key, meta.etag] = answer.manifest
    return [
        StoredManifest(place, meta, known.get((meta.key, meta.etag))) for place, meta in listed if meta.key not in gone
    ]


def _affordable(listed: list[tuple[ManifestKey, Meta]]) -> list[tuple[ManifestKey, Meta]]:
    """The newest manifests, as many as memory allows. The others count as unreadable."""
    left, chosen = TOTAL_BYTES, []
    for place, meta in sorted(listed, key=lambda one: one[0], reverse=True)[:TOTAL_MANIFESTS]:
        # A manifest that is too large is not read, and needs no memory.
        left -= meta.size if meta.size <= MANIFEST_BYTES else 0
        if left < 0:
            break
        chosen.append((place, meta))
    if len(chosen) < len(listed):
        log.warning("%d manifests are not read: there are too many, or they are too large", len(listed) - len(chosen))
    return chosen


def _read(store: Store, job: str, place: ManifestKey, meta: Meta, rank_limit: int | None) -> StoredManifest | None:
    """Read one manifest; None if it was deleted meanwhile."""
    problem: str | None
    try:
        # The size is known from the listing: an object that is too large is not requested.
        if meta.size > MANIFEST_BYTES:
            raise CodecError("", f"{meta.size} bytes")
        found = store.get(meta.key, limit=MANIFEST_BYTES)
        if found is None:
            return None
        manifest = decode(found.data)
        problem = find_problem(manifest, job, place, rank_limit)
    except (StoreUnavailable, StoreDenied):
        raise
    except (CodecError, StoreError, ValueError) as error:
        problem = str(error)
    if problem is None:
        return StoredManifest(place, meta, manifest)
    log.warning("manifest %s is left out: %s", meta.key, problem)
    return StoredManifest(place, meta, None)


def find_problem(manifest: Manifest, job: str, place: ManifestKey, rank_limit: int | None = None) -> str | None:
    """Describe what is wrong with a manifest under this key; None if it is valid and its paths stay inside the
    folder."""
    if manifest.version > MANIFEST_VERSION:
        return f"version {manifest.version} is newer than this Stoker"
    if (manifest.job, manifest.claim, manifest.ordinal, manifest.name, manifest.rank) != (
        job,
        place.claim,
        place.ordinal,
        place.name,
        place.rank,
    ):
        return "it does not say what its key says"
    if not _is_possible(manifest):
        return "a number in it is out of range"
    if 0 not in manifest.ranks or len(set(manifest.ranks)) != len(manifest.ranks):
        return f"ranks {manifest.ranks[:10]}"
    if rank_limit is not None and not all(0 <= rank < rank_limit for rank in manifest.ranks):
        return f"ranks {manifest.ranks[:10]} of {rank_limit} nodes"
    paths: set[str] = set()
    for blob in manifest.files:
        if not safe_path(blob.path) or blob.path in paths:
            return f"path {blob.path[:100]!r}"
        if _DIGEST.fullmatch(blob.digest) is None or _UPLOAD.fullmatch(blob.upload) is None or blob.size < 0:
            return f"blob of {blob.path[:100]!r}"
        if blob.mode < 0:
            return f"mode of {blob.path[:100]!r}"
        paths.add(blob.path)
    clash = next((parent for path in paths for parent in parents_of(path) if parent in paths), None)
    return f"{clash[:100]!r} is a file and a folder" if clash is not None else None


def _is_possible(manifest: Manifest) -> bool:
    numbers = (manifest.step or 0, manifest.generation, *manifest.ranks)
    return all(abs(number) <= MOST_COUNT for number in numbers) and 0 <= manifest.pause_s < math.inf


def parents_of(path: str) -> Iterator[str]:
    """Yield the parent folders of a path one at a time: those of all files could be far larger than their names."""
    end = path.rfind("/")
    while end > 0:
        yield path[:end]
        end = path.rfind("/", 0, end)


def why_unsafe(path: str) -> str:
    """Say why a path that is not safe cannot be in a checkpoint."""
    if not _encodable(path):
        return "its name is not UTF-8; choose another one"
    if path.count("/") >= PATH_DEPTH:
        return f"it lies deeper than {PATH_DEPTH - 1} folders; save it higher up"
    return f"its path is longer than {_PATH_BYTES} bytes, or a name in it than {_NAME_BYTES}; choose a shorter one"


def safe_path(path: str) -> bool:
    """Return whether a relative path stays inside its folder, and can be written."""
    if not path or len(os.fsencode(path)) > _PATH_BYTES or "\0" in path or not _encodable(path):
        return False
    names = path.split("/")
    return len(names) <= PATH_DEPTH and all(
        name not in ("", ".", "..") and len(name.encode()) <= _NAME_BYTES for name in names
    )


def _encodable(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
