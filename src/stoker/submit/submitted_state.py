"""Read the state of a job that was submitted before."""

from __future__ import annotations

from stoker.model.errors import StoreDenied, StoreError, StoreUnavailable, UserError
from stoker.model.job_state import JobState
from stoker.store import job_log
from stoker.store.base import Store


def read_state(store: Store, job: str) -> JobState:
    """The job's state. Raises UserError where its log is missing or corrupt."""
    try:
        return require_state(job, job_log.read(store, job))
    except (StoreUnavailable, StoreDenied):
        raise
    except StoreError as error:
        raise UserError(
            f"{job} cannot be read: {error}; `stoker rm {job}` removes it, once it has no machines"
        ) from None


def require_state(job: str, state: JobState | None) -> JobState:
    """The state itself. Raises UserError for a job without one."""
    if state is None:
        raise half_removed(job)
    return state


def half_removed(job: str) -> UserError:
    """The error for a job whose log does not begin: submission or removal was interrupted."""
    return UserError(f"{job} was not submitted, or is half removed; `stoker rm {job}` removes the rest")
