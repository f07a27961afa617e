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
    """The job has failed. `actual_status` is SageMaker's name of the status."""

    def __init__(self, message: str, actual_status: str) -> None:
        super().__init__(message)
        self.allowed_statuses = ["Completed", "Stopped"]
        self.actual_status = actual_status


@dataclass(frozen=True)
class TrainingJob:
    """A job in a store. `name` is the job's id, which `stoker` commands take as well; `store` is a URL."""

    name: str
    store: str

    @property
    def job_name(self) -> str:
        return self.name

    @property
    def training_job_name(self) -> str:
        """The name, as version 3 of the SDK calls it."""
        return self.name

    @property
    def training_job_status(self) -> str:
        """The status, as version 3 of the SDK calls it."""
        return str(self.describe()["TrainingJobStatus"])

    @property
    def output_data(self) -> str:
        """The URL of what the job wrote to `/opt/ml/output/data`, as plain files. Raises ValueError before its end."""
        url = self._outputs("data")
        if url is None:
            raise ValueError(f"{self.name} has not ended, or has no outputs; `stoker pull {self.name} --outputs`")
        return url

    def refresh(self) -> TrainingJob:
        """Return the job: everything is read anew in any case."""
        return self

    def rule_job_summary(self) -> list[dict[str, Any]]:
        """An empty list: there is no SageMaker Debugger."""
        return []

    def wait(self, logs: bool | str | Sequence[str] = "All") -> None:
        """Govern and follow the job to its end. Raises UnexpectedStatusException when it has failed.

        Ctrl-C returns and leaves the job running, with a governor in the background.
        """
        from stoker import client

        if _wants(logs) and threading.current_thread() is threading.main_thread():
            self._follow()
        else:
            client.wait(self.name, self.store)
        summary = client.summary(self.name, self.store)
        if summary.outcome == "failed":
            raise UnexpectedStatusException(f"{self.name} has failed: {summary.reason}", "Failed")
        if summary.outcome == "stopped":
            print(f"[stoker] {self.name} was stopped: {summary.reason}", file=sys.stderr)

    def ensure_governed(self) -> None:
        """Make sure that a governor drives the job in the background. Raises NotGoverned where there is none."""
        from stoker.client import open_any
        from stoker.governor.background import check_governed, ensure_governed

        check_governed(self.name, ensure_governed(open_any(self.store), [self.name]))

    def stop(self) -> None:
        """Ask the job to save and end."""
        from stoker import client

        client.stop(self.name, self.store)

    def logs(self) -> None:
        """Print the log of all nodes so far."""
        from stoker.client import open_any
        from stoker.read.logs import read_lines
        from stoker.read.node_chunks import node_logs
        from stoker.store import job_log

        store = open_any(self.store)
        state = job_log.read(store, self.name)
        for line in read_lines(store, self.name, node_logs(state)) if state is not None else ():
            print(line.text)

    def describe(self) -> dict[str, Any]:
        """The fields of DescribeTrainingJob that scripts read."""
        from stoker import client

        summary = client.summary(self.name, self.store)
        description: dict[str, Any] = {
            "TrainingJobName": self.name,
            "TrainingJobStatus": _STATUS.get(summary.outcome or "", "InProgress"),
            "SecondaryStatus": summary.phase,
        }
        if summary.outcome == "failed":
            description["FailureReason"] = summary.reason
        if self.model_data is not None:
            description["ModelArtifacts"] = {"S3ModelArtifacts": self.model_data}
        return description

    @property
    def model_data(self) -> str | None:
        """The URL of the job's model, as plain files; None until the job has ended."""
        return self._outputs("model")

    def _outputs(self, folder: str) -> str | None:
        from stoker.client import open_any
        from stoker.model import keys
        from stoker.store import job_log

        state = job_log.read(open_any(self.store), self.name)
        if state is None or state.ended is None or state.ended.claim is None:
            return None
        return f"{self.store.rstrip('/')}/{keys.outputs(self.name, state.ended.claim)}{folder}/"

    def _follow(self) -> None:
        from stoker.client import open_any
        from stoker.read.govern_while_following import follow_and_govern
        from stoker.read.screens import PlainScreen
        from stoker.store import job_index, job_log

        store = open_any(self.store)
        state = job_log.read(store, self.name)
        assert state is not None
        screen = PlainScreen(sys.stdout, prefix=job_index.read_submission(store, state).spec.nodes > 1)
        result = follow_and_govern(store, self.name, screen)
        if result.reason == "interrupted" and result.governor is not None:
            governor = result.governor.by or "a governor in the background"
            print(f"[stoker] {self.name} goes on, driven by {governor}", file=sys.stderr)


def _wants(logs: bool | str | Sequence[str]) -> bool:
    if isinstance(logs, bool):
        return logs
    named = [logs] if isinstance(logs, str) else list(logs)
    return any(name in ("All", "Training") for name in named)
