"""What every part of an agent knows: where it is, and what it reports to."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Protocol, TypeVar

from stoker.agent.logs.log_pump import say
from stoker.model import codec, keys
from stoker.model.errors import StokerError
from stoker.model.node_config import NodeConfig, NodePaths
from stoker.model.node_facts import Exit, NoticeFact
from stoker.providers.base import KeepsEnvironments, Machine
from stoker.store.base import Store

_log = logging.getLogger(__name__)

T = TypeVar("T")

# How long an agent tries to make its last words durable before it gives the machine back without them.
FLUSH_LIMIT_S = 1800.0
_LONGEST_PAUSE_S = 5.0


class Ask(Protocol):
    """Ask the store until it answers. Raises whatever tells this node to go."""

    def __call__(self, question: Callable[[], T]) -> T: ...


@dataclass(frozen=True)
class Node:
    """One boot of one agent."""

    config: NodeConfig
    paths: NodePaths
    store: Store
    machine: Machine
    # Its folder in the store.
    key: str
    # Those of the boots before it on the same machine.
    earlier: tuple[str, ...] = ()
    # Where environments are made for somebody who may not write where they all are.
    shelf: Path | None = None

    @property
    def environments(self) -> Path:
        """Where environments are made, which may outlive this node. Seen in a container under the same path."""
        return self.shelf or self._kept / "environments"

    @property
    def inputs(self) -> Path:
        """Where copies of inputs are kept, beside the environments. Seen in a container under the same path, too."""
        return self._kept / "inputs"

    @property
    def _kept(self) -> Path:
        """What outlives this node is below this."""
        if isinstance(self.machine, KeepsEnvironments):
            return self.machine.environments.parent
        return self.paths.root.parent

    def say(self, text: str) -> None:
        """Tell the user, in the job's log."""
        _log.info("%s", text)
        say(self.paths.train_log, text)

    def write_exit(self, left: Exit, until_s: float) -> bool:
        """The last word. Tried again until the store takes it or the monotonic time `until_s` comes."""
        done = self.persist(keys.exit_(self.key), codec.dumps(left), until_s)
        if done:
            # For whoever switches the machine off from now on, which a governor may do before this process has ended.
            with suppress(OSError):
                self.paths.left.write_text(
                    json.dumps({"outcome": left.outcome, "code": left.code, "reason": left.reason})
                )
        self.machine.wake_governors()
        return done

    def write_notice(self, notice: NoticeFact, after: threading.Thread | None = None) -> threading.Thread:
        """Pass a notice on at once, in a thread of its own: the store may be slow and the training must hear first.

        `after` is the thread that passes on the one before. If that one is slow, its notice could be written over
        this one: then this one is written again.
        """

        def push() -> None:
            until_s = time.monotonic() + notice.grace_s
            overtaking = after is not None and after.is_alive()
            self.persist(keys.notice(self.key), codec.dumps(notice), until_s)
            self.machine.wake_governors()
            if after is not None and overtaking:
                after.join()
                self.persist(keys.notice(self.key), codec.dumps(notice), until_s)
                self.machine.wake_governors()

        thread = threading.Thread(target=push, name="notice", daemon=True)
        thread.start()
        return thread

    def persist(self, key: str, data: bytes, until_s: float) -> bool:
        """Put, again and again until it is there. False: it was not by then."""
        return patient(lambda: self.store.put(key, data), until_s)


def patient(action: Callable[[], object], until_s: float) -> bool:
    """Repeat an action while the store refuses or does not answer, until the monotonic time `until_s`."""
    pause_s = 0.1
    while True:
        try:
            action()
            return True
        except StokerError as error:
            _log.warning("%s", error)
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            return False
        time.sleep(min(pause_s, left_s))
        pause_s = min(_LONGEST_PAUSE_S, pause_s * 2)


def utcnow() -> datetime:
    return datetime.now(timezone.utc)
