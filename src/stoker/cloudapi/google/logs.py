"""Write to Cloud Logging from a machine, as its service account. Standard library alone.

https://cloud.google.com/logging/docs/reference/v2/rest/v2/entries/write

The limits below are within the service's: 256 KiB an entry, as it counts them, and 10 MB a request.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple
from urllib.parse import quote

from stoker.cloudapi.google.metadata import Metadata, MetadataError
from stoker.cloudapi.http_exchange import NoAnswer, exchange, json_object, with_scheme

MOST_REQUEST_BYTES = 5 * 1000 * 1000
MOST_ENTRIES = 1000
MOST_TEXT_BYTES = 240 * 1000
# Size of an entry's other fields in JSON.
ENTRY_OVERHEAD_BYTES = 160

_ENDPOINT = "https://logging.googleapis.com"
_VARIABLE = "CLOUDSDK_API_ENDPOINT_OVERRIDES_LOGGING"
_LOG = re.compile(r"[A-Za-z0-9/_.-]{1,511}")
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class CloudLoggingError(OSError):
    """Cloud Logging refused (`status` is Google's status name), or did not answer (then `status` is empty)."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self.status = status


class GoogleLogEntry(NamedTuple):
    """One line. The service merges entries with the same time and `insert_id`."""

    at_ms: int
    insert_id: str
    text: str


class GoogleLogSource(NamedTuple):
    """The machine that wrote the lines. `instance` is its numeric id."""

    instance: str
    zone: str


def is_log(name: str) -> bool:
    """Tell if this is a valid name of a log."""
    return _LOG.fullmatch(name) is not None


def log_name(project: str, log: str) -> str:
    """Return the full name of a log in requests and queries."""
    return f"projects/{project}/logs/{quote(log, safe='')}"


def query(project: str, log: str, job: str, attempt: "int | None" = None, rank: "int | None" = None) -> str:
    """Return the query for a job's lines, for the Logs Explorer or `gcloud logging read`. Pure."""
    parts = [f'logName="{log_name(project, log)}"']
    parts += [f'labels.{name}="{value}"' for name, value in labels(job, attempt, rank).items()]
    return " AND ".join(parts)


def labels(job: str, attempt: "int | None" = None, rank: "int | None" = None) -> "dict[str, str]":
    """Return the labels of a job's lines. Unknown values are left out."""
    found = {"job": job, "attempt": attempt, "node": rank}
    return {name: str(value) for name, value in found.items() if value is not None}


class CloudLogging:
    """One log of the machine's own project. Not thread-safe."""

    def __init__(
        self,
        log: str,
        marks: "Mapping[str, str]",
        source: GoogleLogSource,
        metadata: "Metadata | None" = None,
        environ: "Mapping[str, str] | None" = None,
    ) -> None:
        self._log = log
        self._labels = dict(marks)
        self._source = source
        self._metadata = metadata or Metadata()
        where = (os.environ if environ is None else environ).get(_VARIABLE) or _ENDPOINT
        self._url = with_scheme(where).rstrip("/") + "/v2/entries:write"
        self._project = ""

    def write(self, entries: "Sequence[GoogleLogEntry]") -> int:
        """Write a batch that is within the limits; repeating it is harmless.

        Returns how many entries were refused while the others were accepted. Raises CloudLoggingError.
        """
        try:
            body = self._body(entries)
            status, tree = self._post(body, self._metadata.token()[0])
            if status == 401:
                status, tree = self._post(body, self._metadata.token(fresh=True)[0])
        except (MetadataError, NoAnswer) as error:
            raise CloudLoggingError("", str(error)) from None
        if status == 200:
            return 0
        error_tree = _part(tree, "error")
        refused = _refused(error_tree)
        if refused:
            return min(refused, len(entries))
        status_name = str(error_tree.get("status") or status)
        detail = str(error_tree.get("message") or "")
        raise CloudLoggingError(
            status_name, f"entries:write was answered with {status_name}{': ' + detail if detail else ''}"
        )

    def _body(self, entries: "Sequence[GoogleLogEntry]") -> bytes:
        if not self._project:
            self._project = (self._metadata.get("project/project-id") or "").strip()
            if not self._project:
                raise CloudLoggingError("", "the metadata server does not report the project")
        where = {"project_id": self._project, "instance_id": self._source.instance, "zone": self._source.zone}
        request = {
            "logName": log_name(self._project, self._log),
            "resource": {"type": "gce_instance", "labels": where},
            "labels": self._labels,
            "partialSuccess": True,
            "entries": [
                {"timestamp": _moment(each.at_ms), "insertId": each.insert_id, "textPayload": each.text}
                for each in entries
            ],
        }
        return json.dumps(request, ensure_ascii=False, separators=(",", ":")).encode()

    def _post(self, body: bytes, token: str) -> "tuple[int, dict[str, Any]]":
        headers = {"Authorization": "Bearer " + token, "Content-Type": "application/json"}
        answer = exchange("POST", self._url, headers, body)
        return answer.status, json_object(answer.data)


def text_size(text: str) -> int:
    """Return the size of a line in a request."""
    return len(json.dumps(text, ensure_ascii=False).encode()) + ENTRY_OVERHEAD_BYTES


def _moment(at_ms: int) -> str:
    at = _EPOCH + timedelta(milliseconds=at_ms)
    return at.strftime("%Y-%m-%dT%H:%M:%S") + f".{at_ms % 1000:03d}Z"


def _refused(error: "Mapping[str, Any]") -> int:
    """Return how many entries were refused while the others were accepted."""
    details = error.get("details")
    for detail in details if isinstance(details, list) else ():
        errors = _part(detail, "logEntryErrors") if isinstance(detail, dict) else {}
        if errors:
            return len(errors)
    return 0


def _part(tree: "Mapping[str, Any]", name: str) -> "dict[str, Any]":
    found = tree.get(name)
    return found if isinstance(found, dict) else {}
