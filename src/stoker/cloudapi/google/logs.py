"""Write to Cloud Logging from a machine, as its service account. Standard library alone.

https://cloud.google.com/logging/docs/reference/v2/rest/v2/entries/write
The limits below are within the service's: 256 KiB an entry, as it counts them, and 10 MB a request.
"""

import http.client
import json
import os
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from stoker.cloudapi.google.metadata import Metadata, MetadataError

MOST_REQUEST_BYTES = 5 * 1000 * 1000
MOST_ENTRIES = 1000
MOST_TEXT_BYTES = 240 * 1000
# An entry's own fields beside its text, in JSON.
ENTRY_OVERHEAD_BYTES = 160

_ENDPOINT = "https://logging.googleapis.com"
_VARIABLE = "CLOUDSDK_API_ENDPOINT_OVERRIDES_LOGGING"
_LOG = re.compile(r"[A-Za-z0-9/_.-]{1,511}")
_TIMEOUT_S = 10.0
_ANSWER_BYTES = 1 << 20
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class LogsError(OSError):
    """Cloud Logging refused (`status` is Google's word for it), or did not answer (it is empty then)."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self.status = status


class Entry(NamedTuple):
    """One line. Entries with the same time and `insert_id` are one."""

    at_ms: int
    insert_id: str
    text: str


class Source(NamedTuple):
    """Which machine the lines are of. `instance` is its number."""

    instance: str
    zone: str


def is_log(name: str) -> bool:
    """Whether a log may have this name."""
    return _LOG.fullmatch(name) is not None


def log_name(project: str, log: str) -> str:
    """A log as requests and queries name it."""
    return f"projects/{project}/logs/{quote(log, safe='')}"


def query(project: str, log: str, job: str, attempt: "int | None" = None, rank: "int | None" = None) -> str:
    """What finds a job's lines in Cloud Logging: in its explorer, or with `gcloud logging read`. Pure."""
    parts = [f'logName="{log_name(project, log)}"']
    parts += [f'labels.{name}="{value}"' for name, value in labels(job, attempt, rank).items()]
    return " AND ".join(parts)


def labels(job: str, attempt: "int | None" = None, rank: "int | None" = None) -> "dict[str, str]":
    """By which lines are found. A value that is not known is left out."""
    found = {"job": job, "attempt": attempt, "node": rank}
    return {name: str(value) for name, value in found.items() if value is not None}


class CloudLogging:
    """One log of the machine's own project. Not thread-safe."""

    def __init__(
        self,
        log: str,
        marks: "Mapping[str, str]",
        source: Source,
        metadata: "Metadata | None" = None,
        environ: "Mapping[str, str] | None" = None,
    ) -> None:
        self._log = log
        self._labels = dict(marks)
        self._source = source
        self._metadata = metadata or Metadata()
        where = (os.environ if environ is None else environ).get(_VARIABLE) or _ENDPOINT
        self._endpoint = where if "://" in where else "http://" + where
        self._project = ""

    def write(self, entries: "Sequence[Entry]") -> int:
        """Write a batch, which is within the limits; repeating it is harmless. Answers how many were not taken while
        the others were. Raises LogsError."""
        try:
            body = self._body(entries)
            status, tree = self._post(body, self._metadata.token()[0])
            if status == 401:
                status, tree = self._post(body, self._metadata.token(fresh=True)[0])
        except MetadataError as error:
            raise LogsError("", str(error)) from None
        if status == 200:
            return 0
        told = _part(tree, "error")
        refused = _refused(told)
        if refused:
            return min(refused, len(entries))
        word = str(told.get("status") or status)
        said = str(told.get("message") or "")
        raise LogsError(word, f"entries:write was answered with {word}{': ' + said if said else ''}")

    def _body(self, entries: "Sequence[Entry]") -> bytes:
        if not self._project:
            self._project = (self._metadata.get("project/project-id") or "").strip()
            if not self._project:
                raise LogsError("", "the metadata server does not tell the project")
        where = {"project_id": self._project, "instance_id": self._source.instance, "zone": self._source.zone}
        told = {
            "logName": log_name(self._project, self._log),
            "resource": {"type": "gce_instance", "labels": where},
            "labels": self._labels,
            "partialSuccess": True,
            "entries": [
                {"timestamp": _moment(each.at_ms), "insertId": each.insert_id, "textPayload": each.text}
                for each in entries
            ],
        }
        return json.dumps(told, ensure_ascii=False, separators=(",", ":")).encode()

    def _post(self, body: bytes, token: str) -> "tuple[int, dict[str, Any]]":
        parts = urlsplit(self._endpoint)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.netloc, timeout=_TIMEOUT_S)
        headers = {"Authorization": "Bearer " + token, "Content-Type": "application/json"}
        try:
            connection.request("POST", parts.path.rstrip("/") + "/v2/entries:write", body=body, headers=headers)
            answer = connection.getresponse()
            return answer.status, _parsed(answer.read(_ANSWER_BYTES))
        except (OSError, http.client.HTTPException) as error:
            raise LogsError("", f"{parts.netloc} does not answer: {error or type(error).__name__}") from None
        finally:
            connection.close()


def text_size(text: str) -> int:
    """What a line counts in a request."""
    return len(json.dumps(text, ensure_ascii=False).encode()) + ENTRY_OVERHEAD_BYTES


def _moment(at_ms: int) -> str:
    at = _EPOCH + timedelta(milliseconds=at_ms)
    return at.strftime("%Y-%m-%dT%H:%M:%S") + f".{at_ms % 1000:03d}Z"


def _refused(error: "Mapping[str, Any]") -> int:
    """How many entries were refused while the others were taken."""
    details = error.get("details")
    for detail in details if isinstance(details, list) else ():
        errors = _part(detail, "logEntryErrors") if isinstance(detail, dict) else {}
        if errors:
            return len(errors)
    return 0


def _part(tree: "Mapping[str, Any]", name: str) -> "dict[str, Any]":
    found = tree.get(name)
    return found if isinstance(found, dict) else {}


def _parsed(data: bytes) -> "dict[str, Any]":
    try:
        tree = json.loads(data.decode("utf-8", "replace") or "{}")
    except ValueError:
        return {}
    return tree if isinstance(tree, dict) else {}
