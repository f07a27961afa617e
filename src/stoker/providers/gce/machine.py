"""A Compute Engine machine as its agent sees it.

A reclaim is announced on three routes, and any of them may fail: the metadata server says `preempted`, the shutdown
script writes a file, and systemd stops the agent (which `stoker.agent.notices` handles). The first one counts; a later
one can only shorten the remaining time.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from stoker.cloudapi.google.metadata import Metadata, MetadataError
from stoker.cloudapi.google.pubsub import PublishError, publish
from stoker.model import codec, keys
from stoker.model.errors import CodecError
from stoker.model.node_facts import NoticeFact
from stoker.providers.node_side import end_process, wait_for_address

_log = logging.getLogger(__name__)

# The time from the signal to switch off to the end of the machine, at best: Google does not guarantee it.
# https://cloud.google.com/compute/docs/instances/preemptible#preemption-process
GRACE_S = 30.0
# The launch request asks for a longer notice, and repeats it in this attribute of the machine. `preempted` then comes
# that much earlier.
NOTICE_ATTRIBUTE = "stoker-preemption-notice-s"
# Google offers no longer notice.
_LONGEST_NOTICE_S = 120.0
# Written by the shutdown script. Every boot starts without it.
SHUTDOWN_FILE = Path("/run/stoker/shutdown")

# The metadata server answers as soon as a value changes; without a change it holds a request open for this long.
# A dead connection is given up soon after.
_POLL_S = 20.0
# After the first error the next request follows at once; while errors continue, after this pause.
_PAUSE_S = 0.5
# Most stores have no deployed governor. After a failed attempt to wake one, the next attempt waits this long.
_NO_WAKE_S = 60.0
# The topic does not exist, for which Google may answer 403 as well. Any other failure may be temporary.
_NO_TOPIC = (403, 404)
# Maintenance is announced hours ahead, often days.
UPCOMING_POLL_S = 60.0

_PREEMPTED = "instance/preempted"
_MAINTENANCE = "instance/maintenance-event"
# For machines that cannot migrate, such as those with GPUs: long before the event above, which comes an hour ahead.
# https://cloud.google.com/compute/docs/instances/monitor-plan-host-maintenance-event
_UPCOMING = "instance/upcoming-maintenance?alt=json"
_ADDRESS = "instance/network-interfaces/0/ip"
# The value for machines that end. Machines that can migrate get no event.
_ENDS = "TERMINATE_ON_HOST_MAINTENANCE"


class GceMachine:
    """Watches the metadata server in threads of its own, so that a server that does not answer delays no caller."""

    def __init__(self, node_dir: Path, metadata: Metadata | None = None, shutdown_file: Path | None = None) -> None:
        self._node_dir = node_dir
        self._metadata = metadata or Metadata()
        self._shutdown_file = shutdown_file or SHUTDOWN_FILE
        self._address: str | None = None
        # Set by the threads, each once or more; read by `notice`.
        self._preempted: tuple[datetime, float] | None = None
        self._hint: NoticeFact | None = None
        self._maintenance = ""
        self._upcoming: tuple[str, str] | None = None
        # None: not read yet.
        self._notice_s: float | None = None
        self._shutting_down = False
        self._notice: NoticeFact | None = None
        self._no_wake_until_s = 0.0
        self._deadline_s = float("inf")
        self._closed = threading.Event()
        for path, take in ((_PREEMPTED, self._take_preempted), (_MAINTENANCE, self._take_maintenance)):
            threading.Thread(target=self._watch, args=(path, take), name=path, daemon=True).start()
        threading.Thread(target=self._watch_upcoming, name="upcoming-maintenance", daemon=True).start()

    def notice(self) -> NoticeFact | None:
        """The notice in force: a hard one permanently, else the newest hint. `grace_s` counts from its creation.

        A hard notice is replaced only when a second route leaves less time than the first.
        """
        if self._preempted is not None:
            at, deadline_s = self._preempted
            self._announce("Compute Engine: preempted", at, deadline_s)
        if not self._shutting_down:
            self._look_for_shutdown()
        return self._notice or self._hint

    def address(self) -> str:
        """The address in the machine's network, where the other nodes reach it."""
        if self._address is None:
            self._address = wait_for_address(lambda: self._metadata.get(_ADDRESS), MetadataError)
        return self._address or socket.gethostbyname(socket.gethostname())

    def master_port(self, preferred: int) -> int:
        """The preferred port: the machine serves this node alone, so that all ports are free."""
        return preferred

    def wake_governors(self) -> None:
        """Send a message to the topic of the store's deployed governor, if there is one. Takes seconds at most."""
        if time.monotonic() < self._no_wake_until_s:
            return
        try:
            self._call_governor()
        except Exception as error:  # noqa: BLE001 - best effort: the governor finds the change later by itself
            if isinstance(error, PublishError) and error.status in _NO_TOPIC:
                self._no_wake_until_s = time.monotonic() + _NO_WAKE_S
            _log.info("no governor was woken: %s", error)

    def _call_governor(self) -> None:
        config = json.loads((self._node_dir / "node.json").read_text("utf-8"))
        project = (self._metadata.get("project/project-id") or "").strip()
        topic = f"projects/{project}/topics/{keys.deployment_name(str(config['store']))}"
        publish(topic, {"stoker": {"jobs": [config["job"]]}}, self._metadata.token()[0])

    def give_back(self) -> None:
        """End this process, from any thread: its service deletes the machine. Does not return."""
        end_process()

    def close(self) -> None:
        """Stop all requests. Only tests do this: an agent's process ends with its machine."""
        self._closed.set()

    def _announce(self, source: str, at: datetime, deadline_s: float) -> None:
        # A second route comes seconds after the first and adds nothing, unless it leaves less time.
        if deadline_s < self._deadline_s:
            self._deadline_s = deadline_s
            left_s = max(0.0, deadline_s - time.monotonic())
            self._notice = NoticeFact(hard=True, source=source, at=at, grace_s=left_s)

    # ── The shutdown script ───────────────────────────────────────────────────────────────────────────────────────────

    def _look_for_shutdown(self) -> None:
        try:
            # As a string: asked several times a second as long as the training lasts.
            written_s = os.stat(str(self._shutdown_file)).st_mtime  # noqa: PTH116
        except OSError:
            return
        self._shutting_down = True
        # The file's time is of this machine's clock. Bounded, because the clock may have been set since.
        age_s = min(max(0.0, time.time() - written_s), GRACE_S)
        self._announce("Compute Engine: shutdown", _now(), time.monotonic() + GRACE_S - age_s)

    # ── The metadata server ───────────────────────────────────────────────────────────────────────────────────────────

    def _watch(self, path: str, take: Callable[[str], bool]) -> None:
        """Poll a value until `take` returns True."""
        etag, failures = "", 0
        while not self._closed.is_set():
            before, began_s = etag, time.monotonic()
            try:
                value, etag = self._metadata.wait(path, etag, _POLL_S)
                failures = 0
                if take((value or "").strip()):
                    return
                # A server that answers without waiting must not be polled without pause.
                pause_s = _PAUSE_S - (time.monotonic() - began_s) if etag == before else 0.0
            except MetadataError as error:
                if failures == 1:
                    _log.warning("%s: %s", path, error)
                etag, failures = "", failures + 1
                pause_s = 0.0 if failures == 1 else _PAUSE_S
            except Exception:  # noqa: BLE001 - the watch for the reclaim must survive every answer
                _log.exception("metadata")
                pause_s = _PAUSE_S
            self._closed.wait(max(0.0, pause_s))

    def _take_preempted(self, value: str) -> bool:
        if value.upper() == "TRUE":
            self._preempted = (_now(), time.monotonic() + (GRACE_S if self._notice_s is None else self._notice_s))
            return True
        if self._notice_s is None:
            # Read early: when the machine is preempted, there is no time left for it.
            self._notice_s = _notice_s(self._metadata.get(f"instance/attributes/{NOTICE_ATTRIBUTE}"))
        return False

    def _take_maintenance(self, value: str) -> bool:
        """Hint once for each announcement, which makes the agent save."""
        if value != self._maintenance:
            self._maintenance = value
            if value == _ENDS:
                self._hint = NoticeFact(hard=False, source="Compute Engine: maintenance", at=_now(), grace_s=0.0)
        return False

    def _watch_upcoming(self) -> None:
        """Poll now and then. Most machines never have an answer, so that errors are normal here."""
        while not self._closed.is_set():
            try:
                self._take_upcoming(self._metadata.get(_UPCOMING))
            except MetadataError as error:
                _log.debug("%s", error)
            except Exception:  # noqa: BLE001 - the watch must survive every answer
                _log.exception("metadata")
            self._closed.wait(UPCOMING_POLL_S)

    def _take_upcoming(self, text: str | None) -> None:
        """Hint, which makes the agent save, when a maintenance is announced, moved, and when it begins."""
        found = _upcoming(text)
        if found is not None and found != self._upcoming:
            status, start = found
            when = "begins" if status == "ONGOING" else f"announced for {start or 'an unknown time'}"
            source = f"Compute Engine: maintenance, {when}"
            self._hint = NoticeFact(hard=False, source=source, at=_now(), grace_s=0.0)
        self._upcoming = found


def _upcoming(text: str | None) -> tuple[str, str] | None:
    """The status and the start of the announced maintenance; None where there is none.

    Without an announcement the answer is `NONE`, an empty object or an error, depending on the machine type.
    """
    try:
        found: Any = codec.parse(text or "{}")
    except CodecError:
        return None
    if not isinstance(found, dict):
        return None
    # The example on Google's page has one more level, and keys are spelled with and without underscores.
    inner = found.get("Upcoming maintenance", found)
    if not isinstance(inner, dict):
        return None
    plain = {name.replace("_", "").lower(): str(value)[:40] for name, value in inner.items()}
    status = plain.get("maintenancestatus", "").upper()
    return (status, plain.get("windowstarttime", "")) if status in ("PENDING", "ONGOING") else None


def _notice_s(text: str | None) -> float:
    """The time from `preempted` to the end: what the launch asked for, else the usual grace."""
    try:
        asked_s = float(text or GRACE_S)
    except ValueError:
        return GRACE_S
    return min(asked_s, _LONGEST_NOTICE_S) if asked_s > 0 else GRACE_S


def _now() -> datetime:
    return datetime.now(timezone.utc)
