"""Read a job's outputs: those of all attempts merged into one tree, or those of one attempt.

The merged tree is what the script would have found on one disk: of a path that several attempts wrote, the last version
counts; files that only an earlier attempt wrote are included. Parts of a save that are perhaps unfinished are left out
once a later attempt has saved or succeeded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath

from stoker.model import keys
from stoker.model.errors import UserError
from stoker.model.job_state import JobState
from stoker.store import job_log
from stoker.store.base import Meta, Store
from stoker.store.checkpoint_manifests import LOCAL_WORKERS, REMOTE_WORKERS
from stoker.store.link_targets import leads_to_stored, safe_link
from stoker.store.node_facts import read_output_links
from stoker.store.parallel import run_all
from stoker.store.safe_extraction import Extraction, Staging

# The training may rewrite a file between listing and reading. After so many times it counts as absent.
_TRIES = 5

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class OutputFile:
    """A file or link of the outputs, with its path in the tree, its key in the store, and the attempt that wrote it.

    A link has a target and no key.
    """

    path: str
    key: str
    size: int
    attempt: int
    # The prefix under which later versions of the file appear.
    versions: str = ""
    # Earlier attempts whose files of this path it replaces.
    replaces: tuple[int, ...] = ()
    # The target of a link, relative to its folder.
    link: str | None = None

    @property
    def unfinished(self) -> bool:
        """True if it is part of a save that is perhaps unfinished."""
        return keys.is_unfinished_output(self.path)


@dataclass(frozen=True)
class FoundOutputs:
    """The outputs of a job or of one attempt, sorted by path. `passed` are perhaps unfinished files that are left out
    of the merged tree, because a later attempt went further."""

    files: tuple[OutputFile, ...] = ()
    passed: tuple[OutputFile, ...] = ()


def list_outputs(store: Store, job: str, attempt: int | None = None) -> FoundOutputs:
    """The outputs of all attempts merged, or those of one.

    Only attempts in the job's log count. Raises UserError where there is no such attempt, or there are no outputs.
    """
    state = job_log.read(store, job)
    if state is None or not state.attempts:
        raise UserError(f"{job} has no outputs yet; it has not started")
    claims = _claims(state, attempt, job)
    merged: dict[str, OutputFile] = {}
    passed: list[OutputFile] = []
    for place, (number, claim) in enumerate(claims):
        found = _newest_versions(store, job, claim, number)
        if any(file.unfinished for file in found.values()) and _went_further(store, state, claims[place + 1 :]):
            passed += [file for file in found.values() if file.unfinished]
            found = {path: file for path, file in found.items() if not file.unfinished}
        found |= _links(store, state, claim, number, found)
        found = {path: replace(file, replaces=_replaced(merged.get(path))) for path, file in found.items()}
        merged = _without_clashes(merged, found) | found
    merged = _without_dangling(merged)
    if not merged and passed:
        numbers = ", ".join(f"--attempt {number}" for number in sorted({file.attempt for file in passed}))
        raise UserError(
            f"{job} has no outputs but saves that are perhaps unfinished, from which later attempts went on; "
            f"{numbers} fetches them"
        )
    if not merged:
        whose = f"attempt {attempt} of {job}" if attempt is not None else job
        raise UserError(f"{whose} has no outputs yet; files in STOKER_OUTPUT_DIR or named by `outputs` are kept")
    return FoundOutputs(tuple(merged[path] for path in sorted(merged)), tuple(passed))


def pull_outputs(
    store: Store,
    files: tuple[OutputFile, ...],
    target: Path,
    progress: Progress | None = None,
    replaced: list[str] | None = None,
) -> tuple[int, int]:
    """Fetch these files into `target`, and return their number and bytes. Other files there are left alone.

    `replaced` gets the paths of files that were there with other contents. Links are made last, and counted like files.
    They stay below `target`, and are left out where they would not.

    The names come from machines that run untrusted code: no link is followed, and nothing is written outside `target`.
    Raises UserError where something in the folder is in the way.
    """
    total, done = sum(file.size for file in files), 0

    def fetch(file: OutputFile) -> int:
        nonlocal done
        with extraction.staging() as staging:
            found = _fetch(store, file, staging)
            if found is not None:
                staging.place(found, file.path)
        done += file.size
        if progress is not None:
            progress(min(done, total), total)
        return 1 if found is not None else 0

    links = {file.path: file.link for file in files if file.link is not None and safe_link(file.path, file.link)}
    with Extraction(target, replaced=replaced) as extraction:
        workers = LOCAL_WORKERS if store.is_local else REMOTE_WORKERS
        fetched = run_all([partial(fetch, file) for file in files if file.link is None], workers)
        with extraction.staging() as staging:
            for path, link in links.items():
                staging.place_link(path, link)
    return sum(fetched) + len(links), total


def _fetch(store: Store, file: OutputFile, staging: Staging) -> str | None:
    """Fetch a file, and return its name in `staging`. A version that was replaced meanwhile is looked up again."""
    key = file.key
    for name in map(str, range(_TRIES)):
        with staging.new_file(name) as draft:
            if store.get_file(key, draft) is not None:
                return name
        newer = highest_versions(store, file.versions).get(file.path) if file.versions else None
        if newer is None:
            return None
        key = newer.key
    return None


def _newest_versions(store: Store, job: str, claim: int, attempt: int) -> dict[str, OutputFile]:
    """The files of one attempt by path. Of a rewritten file, the highest version counts.

    Plain names are listed first: a file that is rewritten meanwhile is then found under one of its names.
    """
    prefix = keys.outputs(job, claim)
    plain = {meta.key[len(prefix) :]: meta for meta in store.list(prefix)}
    versions = keys.output_versions(job, claim)
    newest = plain | highest_versions(store, versions)
    return {path: OutputFile(path, meta.key, meta.size, attempt, versions) for path, meta in newest.items()}


def highest_versions(store: Store, prefix: str) -> dict[str, Meta]:
    """The highest version of every rewritten file below `prefix`."""
    versions: dict[str, tuple[tuple[int, int], Meta]] = {}
    for meta in store.list(prefix):
        version = keys.read_output_version(meta.key[len(prefix) :])
        if version is not None:
            boot, n, path = version
            versions[path] = max(versions.get(path, ((-1, -1), meta)), ((boot, n), meta), key=lambda one: one[0])
    return {path: meta for path, (_, meta) in versions.items()}


def _links(
    store: Store, state: JobState, claim: int, attempt: int, files: Mapping[str, OutputFile]
) -> dict[str, OutputFile]:
    """The links of one attempt by path, without those in the place of a file or folder of the same attempt."""
    opened = state.claim(claim)
    assert opened is not None
    folders = {str(parent) for path in files for parent in PurePosixPath(path).parents}
    links: dict[str, OutputFile] = {}
    for link in sorted(read_output_links(store, state.job, opened), key=lambda link: link.path):
        above = set(map(str, PurePosixPath(link.path).parents))
        if link.path not in files and link.path not in folders and not above & (files.keys() | links.keys()):
            links[link.path] = OutputFile(link.path, "", 0, attempt, link=link.target)
    return links


def _without_dangling(merged: dict[str, OutputFile]) -> dict[str, OutputFile]:
    """The merged tree, without links that lead to nothing in it."""
    links = {path: file.link for path, file in merged.items() if file.link is not None}
    files = merged.keys() - links.keys()
    folders = {str(parent) for path in files for parent in PurePosixPath(path).parents}
    return {
        path: file for path, file in merged.items() if path in files or leads_to_stored(path, links, files, folders)
    }


def _went_further(store: Store, state: JobState, later: Sequence[tuple[int, int]]) -> bool:
    """Return whether one of these attempts has saved or succeeded."""
    for _, number in later:
        claim = state.claim(number)
        closed = claim.closed if claim is not None else None
        if closed is not None and (closed.outcome == "succeeded" or closed.checkpoint is not None):
            return True
        # The log knows the checkpoints of closed claims alone.
        if closed is None and any(True for _ in store.list(f"{keys.checkpoints(state.job)}{keys.number(number)}/")):
            return True
    return False


def _replaced(older: OutputFile | None) -> tuple[int, ...]:
    return (*older.replaces, older.attempt) if older is not None else ()


def _claims(state: JobState, attempt: int | None, job: str) -> list[tuple[int, int]]:
    """The numbers of attempts with their claims, in the order in which they trained."""
    claims = [(claim.attempt, claim.number) for claim in state.attempts if claim.attempt is not None]
    if attempt is not None:
        chosen = [found for found in claims if found[0] == attempt]
        if not chosen:
            raise UserError(f"{job} has no attempt {attempt}; it has had {len(claims)}")
        return chosen
    # The claim that the job's end names comes last: its files win.
    last = state.ended.claim if state.ended is not None else None
    return sorted(claims, key=lambda found: (found[1] == last, found[1]))


def _without_clashes(older: dict[str, OutputFile], newer: dict[str, OutputFile]) -> dict[str, OutputFile]:
    """The older files, without those that clash: a later attempt has a folder of that name, or a file for a folder."""
    folders = {str(parent) for path in newer for parent in PurePosixPath(path).parents}
    return {
        path: file
        for path, file in older.items()
        if path not in folders and not any(str(parent) in newer for parent in PurePosixPath(path).parents)
    }
