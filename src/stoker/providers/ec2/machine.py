"""An EC2 machine as its agent sees it."""

from __future__ import annotations

import logging
import socket
import threading
import time
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from stoker.cloudapi.aws.imds import Imds, ImdsAnswer, ImdsError
from stoker.model import codec
from stoker.model.errors import CodecError
from stoker.model.node_facts import NoticeFact
from stoker.providers.node_side import end_process, wait_for_address

_log = logging.getLogger(__name__)

# A notice comes about two minutes ahead: every second of it counts.
POLL_S = 2.0
# Hints come long before an event, and are read only in every n-th poll.
_HINTS_EVERY = 5
# The grace of a notice whose time cannot be parsed.
_UNKNOWN_GRACE_S = 60.0

_SPOT = "meta-data/spot/instance-action"
_REBALANCE = "meta-data/events/recommendations/rebalance"
_MAINTENANCE = "meta-data/events/maintenance/scheduled"


@dataclass(frozen=True)
class _Reclaim:
    """A hard notice, with its deadline on this machine's monotonic clock."""

    fact: NoticeFact
    deadline_s: float


class Ec2Machine:
    """The machine, with a thread that polls the metadata service, so that a slow answer does not block the agent."""

    def __init__(self, node_dir: Path, imds: Imds | None = None, poll_s: float | None = None) -> None:
        self._node_dir = node_dir
        self._imds = imds or Imds()
        self._poll_s = POLL_S if poll_s is None else poll_s
        self._address: str | None = None
        self._reclaim: _Reclaim | None = None
        self._hint: NoticeFact | None = None
        self._hints_seen: set[str] = set()
        self._reported: NoticeFact | None = None
        self._silent = False
        self._closed = threading.Event()
        threading.Thread(target=self._watch, name="metadata", daemon=True).start()

    def notice(self) -> NoticeFact | None:
        """The notice in force: a hard one for good, else the newest hint.

        `grace_s` is the rest of the grace when the notice is first returned.
        """
        reclaim = self._reclaim
        if reclaim is None:
            return self._hint
        if self._reported is None:
            self._reported = replace(reclaim.fact, grace_s=max(0.0, reclaim.deadline_s - time.monotonic()))
        return self._reported

    def address(self) -> str:
        """The address in the machine's network, at which the other nodes reach it."""
        if self._address is None:
            self._address = wait_for_address(lambda: self._imds.get("meta-data/local-ipv4"), ImdsError)
        return self._address or socket.gethostbyname(socket.gethostname())

    def master_port(self, preferred: int) -> int:
        """The preferred port: a machine of its own has all its ports."""
        return preferred

    def wake_governors(self) -> None:
        """Do nothing: EC2 itself notifies a deployed governor of warnings and of machines that end."""

    def give_back(self) -> None:
        """End this process, from any thread: its service switches the machine off. Does not return."""
        end_process()

    def close(self) -> None:
        """Stop polling. An agent never calls this: its process ends with its machine."""
        self._closed.set()

    # ── The watch ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _watch(self) -> None:
        turn = 0
        while self._reclaim is None and not self._closed.is_set():
            try:
                self._poll(hints=turn % _HINTS_EVERY == 0)
                self._silent = False
            except ImdsError as error:
                if not self._silent:
                    _log.warning("%s", error)
                self._silent = True
            except Exception:  # noqa: BLE001 - an unexpected answer must not end the watch for a reclaim
                _log.exception("metadata")
            turn += 1
            self._closed.wait(self._poll_s)

    def _poll(self, *, hints: bool) -> None:
        answer = self._imds.ask(_SPOT)
        if answer.text is not None:
            self._reclaim = _reclaim(answer)
            return
        if not hints:
            return
        text = self._imds.get(_REBALANCE)
        if text is not None:
            when = _part(text, "noticeTime")
            self._take_hint(f"rebalance {when}", "EC2: rebalance recommendation", when)
        for event in _events(self._imds.get(_MAINTENANCE)):
            source = f"EC2: maintenance, {event.get('Code', 'unnamed')}"
            self._take_hint(f"{event.get('EventId')} {event.get('NotBefore')}", source, str(event.get("NotBefore")))

    def _take_hint(self, identity: str, source: str, when: str) -> None:
        """Record each hint once; a changed one counts as new."""
        if identity not in self._hints_seen:
            self._hints_seen.add(identity)
            self._hint = NoticeFact(hard=False, source=source, at=_parse_time(when) or _now(), grace_s=0.0)


def _reclaim(answer: ImdsAnswer) -> _Reclaim:
    # `time` is on EC2's clock, and so is the date of the answer; this machine's clock may differ.
    asked = _parse_time(answer.date) or _now()
    text = answer.text or ""
    end = _parse_time(_part(text, "time"))
    grace_s = _UNKNOWN_GRACE_S if end is None else max(0.0, (end - asked).total_seconds())
    action = _part(text, "action") or "terminate"
    fact = NoticeFact(hard=True, source=f"EC2: spot {action}", at=asked, grace_s=grace_s)
    return _Reclaim(fact, time.monotonic() + grace_s)


def _events(text: str | None) -> list[dict[str, Any]]:
    """The maintenance events that are still to come."""
    try:
        found = codec.parse(text or "[]")
    except CodecError:
        return []
    events = [event for event in found if isinstance(event, dict)] if isinstance(found, list) else []
    return [event for event in events if event.get("State", "active") == "active"]


def _part(text: str, name: str) -> str:
    try:
        found = codec.parse(text)
    except CodecError:
        return ""
    return str(found.get(name, "")) if isinstance(found, dict) else ""


def _parse_time(text: str) -> datetime | None:
    """Parse a time of the metadata service: ISO 8601, `21 Jan 2019 09:00:43 GMT`, or HTTP's form of that."""
    try:
        found = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        try:
            found = parsedate_to_datetime(text)
        except (ValueError, TypeError, IndexError):
            return None
    return (found if found.tzinfo else found.replace(tzinfo=timezone.utc)).astimezone(timezone.utc)


def _now() -> datetime:
    return datetime.now(timezone.utc)
