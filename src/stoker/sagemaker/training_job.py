"""A job that an estimator has started, as SageMaker's SDK shows one."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stoker.model.errors import StokerError

_STATUS = {"succeeded": "Completed", "failed": "Failed", "stopped": "Stopped"}


class UnexpectedStatusException(ValueError, StokerError):
    """The job has failed. `actual_status` is SageMaker's word for it."""

    def __init__(self, message: str, actual_status: str) -> None:
        super().__init__(message)
        self.allowed_statuses = ["Completed", "Stopped"]
        self.actual_status = actual_status


@dataclass(frozen=True)
class TrainingJob:
    """`name` is the job's id, for `stoker` too. `store` is where it is."""

    name: str
    store: str

    @property
    def job_name(self) -> str:
        return self.name

    def wait(self, logs: bool | str | Sequence[str] = "All") -> None:
        """Govern and follow it to its end. Raises UnexpectedStatusException when it has failed.

        Ctrl-C leaves it running, with a governor in the background, and returns.
        """
        from stoker import client

        if _wants(logs) and threading.current_thread() is threading.main_thread():
            from stoker.cli.follow_and_govern import follow_governing

            follow_governing(client.open_any(self.store), self.name, paid=self._is_paid())
        else:
            client.wait(self.name, self.store)
        summary = client.summary(self.name, self.store)
        if summary.outcome == "failed":
            raise UnexpectedStatusException(f"{self.name} has failed: {summary.reason}", "Failed")
        if summary.outcome == "stopped":
            print(f"[stoker] {self.name} was stopped: {summary.reason}", file=sys.stderr)

    def carry_on(self) -> None:
        """Have a governor in the background see to it."""
        from stoker.client import open_any
        from stoker.governor.background import carry_on

        carry_on(open_any(self.store), [self.name])

    def stop(self) -> None:
        """Ask it to save and end."""
        from stoker import client

        client.stop(self.name, self.store)

    def logs(self) -> None:
        """Print what all its nodes have printed so far."""
        from stoker.client import open_any
        from stoker.read.logs import read_lines
        from stoker.read.node_chunks import node_logs
        from stoker.store import job_log

        store = open_any(self.store)
        state = job_log.read(store, self.name)
        for line in read_lines(store, self.name, node_logs(state)) if state is not None else ():
            print(line.text)

    def describe(self) -> dict[str, Any]:
        """The little of DescribeTrainingJob that scripts look at."""
        from stoker import client

        summary = client.summary(self.name, self.store)
        told: dict[str, Any] = {
            "TrainingJobName": self.name,
            "TrainingJobStatus": _STATUS.get(summary.outcome or "", "InProgress"),
            "SecondaryStatus": summary.phase,
        }
        if summary.outcome == "failed":
            told["FailureReason"] = summary.reason
        if self.model_data is not None:
            told["ModelArtifacts"] = {"S3ModelArtifacts": self.model_data}
        return told

    @property
    def model_data(self) -> str | None:
        """Where its model lies, as plain files; None until it has ended."""
        from stoker.client import open_any
        from stoker.model import keys
        from stoker.store import job_log

        state = job_log.read(open_any(self.store), self.name)
        if state is None or state.ended is None or state.ended.claim is None:
            return None
        return f"{self.store.rstrip('/')}/{keys.outputs(self.name, state.ended.claim)}model/"

    def _is_paid(self) -> bool:
        from stoker.client import open_any
        from stoker.providers import registry
        from stoker.store import job_index, job_log

        store = open_any(self.store)
        state = job_log.read(store, self.name)
        assert state is not None
        return registry.capabilities(job_index.read_submission(store, state).spec.resources.provider).paid


def _wants(logs: bool | str | Sequence[str]) -> bool:
    if isinstance(logs, bool):
        return logs
    named = [logs] if isinstance(logs, str) else list(logs)
    return any(name in ("All", "Training") for name in named)
