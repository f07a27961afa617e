"""Put a prepared job into the store. A failed submission leaves no job behind."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from dataclasses import replace

from stoker.model import codec, keys
from stoker.model.errors import CodecError, StokerError, StoreDenied, StoreError, UserError
from stoker.model.log_entries import Record, Submitted
from stoker.model.submission import Code, Submission
from stoker.store import job_log
from stoker.store.base import ANY_SIZE, Store
from stoker.store.find_job import ID_ALPHABET, SUFFIX_LENGTH
from stoker.submit import shared_objects
from stoker.submit.identity import user_at_host
from stoker.submit.prepared_job import PreparedJob
from stoker.submit.shared_objects import any_retired, references

# Called with the bytes that are done, and with all bytes.
Progress = Callable[[int, int], None]

# Two jobs of one name share a suffix once in 600,000 times; so many collisions in a row have another cause.
_ID_TRIES = 20
# How often a submission starts over because a collector retired an object that it names.
_COLLECTED_TRIES = 5


def check_writable(store: Store) -> None:
    """Check, before the plan is shown, that the store can be written. Raises UserError where that is denied."""
    key = f"{keys.CHECKS}{secrets.token_hex(8)}"
    try:
        store.put(key, b"")
        store.delete([key])
    except StoreDenied as error:
        raise _unwritable(error) from None


def _unwritable(error: StoreDenied) -> UserError:
    return UserError(f"the store cannot be written: {error}; choose another with --store")


def send(prepared: PreparedJob, store: Store, progress: Progress | None = None) -> str:
    """Put the job into the store: code, spec, marker, then the entry that opens the log. Returns the job's id.

    `progress` is called from any thread with the uploaded bytes of inputs and their total. A failure before the entry
    leaves no job behind. Raises UserError when writing is denied, StoreError when the store does not answer.
    """
    begun: list[str] = []
    try:
        return _send(prepared, store, begun, _counting(prepared, progress))
    except _Uncertain:
        raise
    except BaseException as error:  # Ctrl-C, too, must not leave half a job behind; raised again
        _delete_begun(store, begun)
        if isinstance(error, StoreDenied):
            raise _unwritable(error) from None
        raise


def _counting(prepared: PreparedJob, progress: Progress | None) -> Callable[[int], None]:
    """A function that adds uploaded bytes to the progress."""
    if progress is None:
        return lambda _: None
    total, done, lock = sum(upload.to_send or 0 for upload in prepared.uploads), 0, threading.Lock()

    def count(size: int) -> None:
        nonlocal done
        with lock:
            done += size
            progress(done, total)

    return count


class _Uncertain(StoreError):
    """The entry may have been written: nothing may be deleted."""


def _send(prepared: PreparedJob, store: Store, begun: list[str], on_bytes: Callable[[int], None]) -> str:
    me = user_at_host()
    for _ in range(_COLLECTED_TRIES):
        submission = _put_shared(prepared, store, me, on_bytes)
        job, data = _put_spec(submission, store, begun)
        # Checked only now: a collector that retires an object after this check finds the spec, and deletes nothing.
        if not any_retired(store, references(data, store.url, keys.spec(job))):
            break
        _delete_begun(store, begun)
        begun.clear()
    else:
        raise StokerError("what the job needs is deleted from the store again and again; submit it once more")
    announcement = keys.announcement(job, 1, job_log.new_token())
    store.put(announcement, b"")
    code = submission.code
    event = Submitted(
        spec_digest=codec.digest(data), submitter=me, code_digest=code.digest if code is not None else None
    )
    reason = "; ".join((f"submitted by {me}", *prepared.filled))
    record = Record(token=job_log.new_token(), by=me, reason=reason, event=event, policy=prepared.policy)
    _open_log(store, job, record)
    # From here on the job is submitted, and a governor may have launched it: nothing is deleted.
    begun.clear()
    try:
        # A reindexing may have deleted the announcement; the marker of an entry that is in the log stays.
        store.put(keys.active(job, 1), b"")
        store.delete([announcement])
    except StoreError as error:
        raise _Uncertain(f"{error}; {job} was submitted: look with `stoker show {job}`") from None
    return job


def _open_log(store: Store, job: str, record: Record) -> None:
    try:
        if job_log.append(store, job, 1, record):
            return
    except StoreError as error:
        if isinstance(error, StoreDenied):
            raise
        raise _Uncertain(f"{error}; {job} may have been submitted: look with `stoker show {job}`") from None
    raise StokerError(f"{job}: another job was submitted under this id at the same moment; submit it again")


def _put_spec(submission: Submission, store: Store, begun: list[str]) -> tuple[str, bytes]:
    """Find a free id, and store the frozen spec under it. Create-only, so that two submitters never share an id."""
    for _ in range(_ID_TRIES):
        suffix = "".join(secrets.choice(ID_ALPHABET) for _ in range(SUFFIX_LENGTH))
        job = f"{submission.spec.name}-{suffix}"
        data = codec.dumps(replace(submission, job=job))
        _check_readable(data)
        # An id is never used again: a late write for a removed job must not meet another job.
        if job_log.is_removed(store, job) or store.head(keys.log_entry(job, 1)) is not None:
            continue
        if store.create(keys.spec(job), data):
            begun.append(job)
            return job, data
    raise StokerError(f"no free id for a job called {submission.spec.name}; give it another name")


def _check_readable(data: bytes) -> None:
    """Raise UserError for a job that no governor could read, such as one with a number of a thousand digits.

    Such a job would never start or end.
    """
    try:
        codec.loads(Submission, data)
    except CodecError as error:
        raise UserError(f"the job cannot be stored: {error}") from None


def _put_shared(prepared: PreparedJob, store: Store, me: str, on_bytes: Callable[[int], None]) -> Submission:
    """Put every object that jobs share into the store, each once; and build the submission that names them."""
    spec, bundles, tools, wheels = prepared.spec, {}, {}, {}
    code = _put_code(prepared, store)
    if prepared.bundles:
        from stoker.submit import agent_bundle

        bundles = {built.tag: agent_bundle.send(store, built) for built in prepared.bundles}
    if prepared.tools:
        from stoker.submit import node_programs as programs

        tools = {tool.name: programs.send(store, tool) for tool in prepared.tools}
    if prepared.uploads or any(wanted.source.startswith(store.url) for wanted in spec.inputs.values()):
        from stoker.submit import uploads

        stored = {upload.name: (upload, uploads.send(store, upload, on_bytes)) for upload in prepared.uploads}
        spec = uploads.with_stored_sources(spec, store.url, stored)
        uploads.check_uploads_stored(store, spec)
    if prepared.wheels is not None:
        from stoker.submit import wheels as packages

        wheels = packages.send(store, prepared.wheels)
    return Submission(
        job="",
        spec=spec,
        submitter=me,
        code=code,
        environ=prepared.environ or {},
        bundles=bundles,
        tools=tools,
        wheels=wheels,
        inputs_bytes=prepared.inputs_bytes,
        place=prepared.place,
        defaulted=prepared.warnings,
        origin=prepared.origin,
    )


def _put_code(prepared: PreparedJob, store: Store) -> Code | None:
    """Put the code into the store: packed on this computer, or that of the cloned job."""
    packed, code = prepared.packed, prepared.code
    if packed is not None:
        code = Code(
            digest=packed.digest, size=packed.size, files=packed.files, commit=packed.commit, dirty=packed.dirty
        )
    if code is None:
        return None
    brought = keys.code(keys.shared_name(code.digest, code.generation))

    def read() -> bytes:
        if packed is not None:
            return packed.path.read_bytes()
        found = store.get(brought, limit=ANY_SIZE)
        if found is None:
            raise UserError("its code is not in the store any more; submit it again from the folder")
        return found.data

    name = shared_objects.store_once(store, keys.CODE, code.digest, keys.code, read)
    return replace(code, generation=keys.generation_of(name))


def _delete_begun(store: Store, begun: list[str]) -> None:
    try:
        for job in begun:
            # As for a removed job: the id is never used again, so a late delete harms no job.
            store.create(keys.removed(job), b"")
        # Also without keys: a folder store then removes the folders that it made.
        markers = [meta.key for job in begun for meta in store.list(f"{keys.ACTIVE}{job}/")]
        store.delete([*markers, *map(keys.spec, begun)])
    except StoreError:
        return  # The store does not answer. A spec without a log is left, which no governor runs and `reindex` unmarks.
