"""A Compute Engine machine as its agent sees it.

Word of a reclaim comes by three routes, and any of them may fail: the metadata server says `preempted`, the shutdown
script leaves a file, and systemd stops the agent (which `stoker.agent.notices` hears). The first one counts; a later
one can only shorten what is left.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from stoker.cloudapi.google.metadata import Metadata, MetadataError
from stoker.cloudapi.google.pubsub import PublishError, publish
from stoker.model import keys
from stoker.model.node_facts import NoticeFact

_log = logging.getLogger(__name__)

# From the signal to switch off until the power is gone, at best: nobody promises it.
# https://cloud.google.com/compute/docs/instances/preemptible#preemption-process
GRACE_S = 30.0
# Longer notices are announced by whoever asked for them, in an attribute of the machine. `preempted` then comes this
# long before the signal to switch off. None is longer than this.
NOTICE_ATTRIBUTE = "stoker-preemption-notice-s"
_LONGEST_NOTICE_S = 120.0
# Written by the shutdown script. Gone with every boot.
SHUTDOWN_FILE = Path("/run/stoker/shutdown")

# The server answers the moment something changes; this is how long it holds a question open when nothing does.
# A connection that has died unnoticed is given up soon after.
_POLL_S = 20.0
# After an error the next question comes at once; while nobody answers, this often.
_PAUSE_S = 0.5
_ADDRESS_LIMIT_S = 30.0
# Most stores have no governor to be woken, which is asked for once, not at every step of an end.
_UNHEARD_S = 60.0
# There is no such topic, which Google also tells by refusing. Any other failure may be over with the next word.
_NOBODY_THERE = (403, 404)
# Maintenance is announced hours ahead, often days.
UPCOMING_POLL_S = 60.0

_PREEMPTED = "instance/preempted"
_MAINTENANCE = "instance/maintenance-event"
# Told to machines that cannot migrate, such as those with GPUs: long before the event above, which is an hour's word.
# https://cloud.google.com/compute/docs/instances/monitor-plan-host-maintenance-event
_UPCOMING = "instance/upcoming-maintenance?alt=json"
_ADDRESS = "instance/network-interfaces/0/ip"
# Machines that can migrate are moved without a word to them.
_ENDS = "TERMINATE_ON_HOST_MAINTENANCE"


class GceMachine:
    """Watches the metadata server from threads of their own: one that does not answer delays nobody."""

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
        self._notice_s = GRACE_S
        self._asked_notice = False
        self._shutting_down = False
        self._told: NoticeFact | None = None
        self._unheard_until_s = 0.0
        self._deadline_s = float("inf")
        self._closed = threading.Event()
        for path, take in ((_PREEMPTED, self._take_preempted), (_MAINTENANCE, self._take_maintenance)):
            threading.Thread(target=self._watch, args=(path, take), name=path, daemon=True).start()
        threading.Thread(target=self._watch_upcoming, name="upcoming-maintenance", daemon=True).start()

    def notice(self) -> NoticeFact | None:
        """The notice in force: a hard one for good, else the newest hint. `grace_s` is what is left when it is told.

        Told anew only when a second route leaves less time than the first.
        """
        if self._preempted is not None:
            at, deadline_s = self._preempted
            self._tell("Compute Engine: preempted", at, deadline_s)
        if not self._shutting_down:
            self._look_for_shutdown()
        return self._told or self._hint

    def address(self) -> str:
        """The address in its network, where the other nodes reach it."""
        until_s = time.monotonic() + _ADDRESS_LIMIT_S
        while self._address is None:
            try:
                self._address = self._metadata.get(_ADDRESS) or None
            except MetadataError as error:
                _log.warning("%s", error)
            if self._address is None and time.monotonic() >= until_s:
                return socket.gethostbyname(socket.gethostname())
            if self._address is None:
                time.sleep(0.5)
        return self._address

    def master_port(self, preferred: int) -> int:
        """A machine of its own has all its ports."""
        return preferred

    def wake_governors(self) -> None:
        """A message to the topic of the governor that is deployed for the store, if one is. Takes seconds at most."""
        if time.monotonic() < self._unheard_until_s:
            return
        try:
            self._call_governor()
        except Exception as error:  # noqa: BLE001 - nobody depends on it: the governor looks by itself, only later
            if isinstance(error, PublishError) and error.status in _NOBODY_THERE:
                self._unheard_until_s = time.monotonic() + _UNHEARD_S
            _log.info("no governor was woken: %s", error)

    def _call_governor(self) -> None:
        config = json.loads((self._node_dir / "node.json").read_text("utf-8"))
        project = (self._metadata.get("project/project-id") or "").strip()
        topic = f"projects/{project}/topics/{keys.deployment(str(config['store']))}"
        publish(topic, {"stoker": {"jobs": [config["job"]]}}, self._metadata.token()[0])

    def power_off(self) -> None:
        """End this process, from whichever thread: its service deletes the machine. Does not return."""
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    def close(self) -> None:
        """Ask nothing any more. An agent never does this: its process ends with its machine."""
        self._closed.set()

    def _tell(self, source: str, at: datetime, deadline_s: float) -> None:
        # A second route is seconds behind the first and knows no better, unless it leaves less.
        if deadline_s < self._deadline_s:
            self._deadline_s = deadline_s
            left_s = max(0.0, deadline_s - time.monotonic())
            self._told = NoticeFact(hard=True, source=source, at=at, grace_s=left_s)

    # ── The shutdown script ───────────────────────────────────────────────────────────────────────────────────────────

    def _look_for_shutdown(self) -> None:
        try:
            # As a string: asked several times a second as long as the training lasts.
            written_s = os.stat(str(self._shutdown_file)).st_mtime  # noqa: PTH116
        except OSError:
            return
        self._shutting_down = True
        # The file's time is this machine's own. Set since then, it would tell nonsense.
        age_s = min(max(0.0, time.time() - written_s), GRACE_S)
        self._tell("Compute Engine: shutdown", _now(), time.monotonic() + GRACE_S - age_s)

    # ── The metadata server ───────────────────────────────────────────────────────────────────────────────────────────

    def _watch(self, path: str, take: Callable[[str], bool]) -> None:
        """Ask until `take` has heard enough."""
        etag, failures = "", 0
        while not self._closed.is_set():
            before, began_s = etag, time.monotonic()
            try:
                value, etag = self._metadata.wait(path, etag, _POLL_S)
                failures = 0
                if take((value or "").strip()):
                    return
                # A server that does not wait is not to be asked all the time.
                pause_s = _PAUSE_S - (time.monotonic() - began_s) if etag == before else 0.0
            except MetadataError as error:
                if failures == 1:
                    _log.warning("%s: %s", path, error)
                etag, failures = "", failures + 1
                pause_s = 0.0 if failures == 1 else _PAUSE_S
            except Exception:  # noqa: BLE001 - whatever it says, the watch for the one thing that counts goes on
                _log.exception("metadata")
                pause_s = _PAUSE_S
            self._closed.wait(max(0.0, pause_s))

    def _take_preempted(self, value: str) -> bool:
        if value.upper() == "TRUE":
            self._preempted = (_now(), time.monotonic() + self._notice_s)
            return True
        if not self._asked_notice:
            # Long before it matters: when it does, there is no time to ask.
            self._notice_s = _notice_s(self._metadata.get(f"instance/attributes/{NOTICE_ATTRIBUTE}"))
            self._asked_notice = True
        return False

    def _take_maintenance(self, value: str) -> bool:
        """Each time it is announced, it asks for a save once."""
        if value != self._maintenance:
            self._maintenance = value
            if value == _ENDS:
                self._hint = NoticeFact(hard=False, source="Compute Engine: maintenance", at=_now(), grace_s=0.0)
        return False

    def _watch_upcoming(self) -> None:
        """Ask now and then: no answer, or that there is none yet, is how most machines answer all their life."""
        while not self._closed.is_set():
            try:
                self._take_upcoming(self._metadata.get(_UPCOMING))
            except MetadataError as error:
                _log.debug("%s", error)
            except Exception:  # noqa: BLE001 - whatever it says, the next word is waited for
                _log.exception("metadata")
            self._closed.wait(UPCOMING_POLL_S)

    def _take_upcoming(self, text: str | None) -> None:
        """Asks for a save when it is announced, when it is moved, and when it begins."""
        found = _upcoming(text)
        if found is not None and found != self._upcoming:
            status, start = found
            when = "begins" if status == "ONGOING" else f"announced for {start or 'a time that is not told'}"
            source = f"Compute Engine: maintenance, {when}"
            self._hint = NoticeFact(hard=False, source=source, at=_now(), grace_s=0.0)
        self._upcoming = found


def _upcoming(text: str | None) -> tuple[str, str] | None:
    """The status of the announced maintenance, and when it starts; None where none is.

    Nothing announced is `NONE`, an empty object or an error, by machine type.
    """
    try:
        found: Any = json.loads(text or "{}")
    except ValueError:
        return None
    if not isinstance(found, dict):
        return None
    # Google's page wraps it once more in its example, and its trees are spelled in either way.
    inner = found.get("Upcoming maintenance", found)
    if not isinstance(inner, dict):
        return None
    plain = {name.replace("_", "").lower(): str(value)[:40] for name, value in inner.items()}
    status = plain.get("maintenancestatus", "").upper()
    return (status, plain.get("windowstarttime", "")) if status in ("PENDING", "ONGOING") else None


def _notice_s(text: str | None) -> float:
    """How long before the end `preempted` comes, as far as it is known: what was asked for, else what is usual."""
    try:
        asked_s = float(text or GRACE_S)
    except ValueError:
        return GRACE_S
    return min(asked_s, _LONGEST_NOTICE_S) if asked_s > 0 else GRACE_S


def _now() -> datetime:
    return datetime.now(timezone.utc)
