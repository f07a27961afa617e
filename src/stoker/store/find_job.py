"""Find a job by its id, a unique beginning of the id, or its name: of several jobs, the only active one is meant."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from fnmatch import fnmatchcase

from stoker.model import keys
from stoker.model.errors import NoSuchJob, UserError
from stoker.store.base import Store, is_valid_key, place_text
from stoker.store.job_log import removed_jobs

# An id is the job's name, a dash, and this many characters.
SUFFIX_LENGTH = 4
# Without vowels, so that an id spells no word, and without characters that are easily confused.
ID_ALPHABET = "bcdfghjkmnpqrstvwxyz23456789"
# Most candidates that an error names, so that it stays one line.
_MOST_NAMED = 5


def looks_like_id(text: str) -> bool:
    """Return whether the text can be an id. Some names can be too."""
    name, dash, suffix = text.rpartition("-")
    return bool(name and dash) and len(suffix) == SUFFIX_LENGTH and set(suffix) <= set(ID_ALPHABET)


def name_of(job: str) -> str:
    """The name that an id was made from."""
    return job[: -SUFFIX_LENGTH - 1] if len(job) > SUFFIX_LENGTH + 1 else job


def all_jobs(store: Store) -> list[str]:
    """List all jobs by the folders of their logs: the index is derived and may lack the newest.

    Removed jobs are excluded, also if their removal was interrupted.
    """
    found = store.folders(keys.JOBS)
    removed = removed_jobs(store) if found else frozenset()
    return [job for job in found if job not in removed]


def find_job(store: Store, text: str, tell: Callable[[str], object] | None = None) -> str:
    """Find the id of the job that `text` names. Raises UserError, in one line, for none (NoSuchJob) or more than one.

    If several have exactly that name and only one is active, the active one is taken. `tell` is called with a line that
    says so.
    """
    wanted = _stripped(text)
    if is_valid_key(wanted) and "/" not in wanted and _exists(store, wanted):
        return wanted
    jobs = all_jobs(store)
    namesakes = {job for job in jobs if name_of(job) == wanted}
    if len(namesakes) > 1:
        active = namesakes & set(store.folders(keys.ACTIVE))
        if len(active) == 1:
            (found,) = active
            if tell is not None:
                tell(f"{found} is taken: of {len(namesakes)} jobs called {wanted}, only this one is active")
            return found
    return choose_job(wanted, jobs, place_text(store))


def find_jobs(store: Store, text: str) -> list[str]:
    """Find the jobs that `text` names: all of a name, those that match a pattern (`gpt*`), or the one of an id.

    Raises UserError as `find_job` does if there is none, or a beginning is not unique.
    """
    wanted = _stripped(text)
    if is_valid_key(wanted) and "/" not in wanted and _exists(store, wanted):
        return [wanted]
    jobs = all_jobs(store)
    patterned = any(sign in wanted for sign in "*?[")
    named = [job for job in jobs if name_of(job) == wanted or (patterned and _fits(job, wanted))]
    if patterned and not named:
        raise NoSuchJob(text, f"no job fits the pattern {wanted!r}; `stoker ps --all` lists them")
    return sorted(named) or [choose_job(wanted, jobs, place_text(store))]


def _stripped(text: object) -> str:
    """The text without blanks. Raises UserError for anything else that a Python program may pass for a job."""
    if not isinstance(text, str):
        raise UserError(f"name a job by its id, as text; found a {type(text).__name__}")
    return text.strip()


def _fits(job: str, pattern: str) -> bool:
    return fnmatchcase(name_of(job), pattern) or fnmatchcase(job, pattern)


def choose_job(text: str, jobs: Iterable[str], place: str = "this store") -> str:
    """Choose the one job that `text` names. A whole name takes precedence over beginnings of ids.

    `place` is what errors call the store.
    """
    known = sorted(jobs)
    if not text:
        raise UserError("name a job: its id, a unique beginning of it, or its name")
    for found in (
        [job for job in known if job == text],
        [job for job in known if name_of(job) == text],
        [job for job in known if job.startswith(text)],
    ):
        if len(found) == 1:
            return found[0]
        if found:
            raise UserError(f"{text!r} could be any of {len(found)} jobs: {_listed(found)}; give more of the id")
    raise NoSuchJob(text, f"there is no job {text!r}; {_nearest(text, known, place)}")


def _exists(store: Store, job: str) -> bool:
    """Return whether the job was submitted or is half removed: both can be named by their whole id."""
    return store.head(keys.log_entry(job, 1)) is not None or store.head(keys.spec(job)) is not None


def _nearest(text: str, known: list[str], place: str) -> str:
    if not known:
        return f"{place} has no jobs yet; `stoker run` starts one"
    names = {name_of(job): job for job in known}
    close = get_close_matches(text, [*known, *names], n=1, cutoff=0.5)
    return f"did you mean {names.get(close[0], close[0])}?" if close else "`stoker ps --all` lists them"


def _listed(jobs: list[str]) -> str:
    shown = ", ".join(jobs[:_MOST_NAMED])
    return shown if len(jobs) <= _MOST_NAMED else f"{shown}, …"
