"""One boot of an agent: its machine, its folders, and its facts in the store."""

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
from stoker.providers.base import HasEnvironmentCache, Machine
from stoker.store.base import Store

_log = logging.getLogger(__name__)

T = TypeVar("T")

# How long an agent tries to make its log, files and exit durable while no byte of a file moves, before it gives the
# machine back without them. While bytes move it goes on: until the job reaches a limit, or the machine its longest
# life.
FLUSH_LIMIT_S = 1800.0
_LONGEST_PAUSE_S = 5.0


class AskStore(Protocol):
    """Calls the store until it answers. Raises LeaveEarly as soon as this node must go."""

    def __call__(self, question: Callable[[], T]) -> T: ...


@dataclass(frozen=True)
class AgentNode:
    """One boot of one agent."""

    config: NodeConfig
    paths: NodePaths
    store: Store
    machine: Machine
    # This node's folder in the store.
    key: str
    # The folders of earlier boots on the same machine.
    earlier: tuple[str, ...] = ()
    # A folder for environments of its own, if the training's user may not write to the folder of all jobs.
    shelf: Path | None = None

    @property
    def environments(self) -> Path:
        """The folder of environments, which may outlive this node. A container sees it under the same path."""
        return self.shelf or self._cache / "environments"

    @property
    def inputs(self) -> Path:
        """The folder of copied inputs, beside the environments. A container sees it under the same path, too."""
        return self._cache / "inputs"

    @property
    def _cache(self) -> Path:
        """The folder whose contents outlive this node."""
        if isinstance(self.machine, HasEnvironmentCache):
            return self.machine.environments.parent
        return self.paths.root.parent

    def say(self, text: str) -> None:
        """Write a message to the user into the job's log."""
        _log.info("%s", text)
        say(self.paths.train_log, text)

    def write_exit(self, exit_: Exit, until_s: float) -> bool:
        """Write the exit, the last fact of a node; return whether the store took it by the monotonic time `until_s`."""
        done = self.persist(keys.exit_(self.key), codec.dumps(exit_), until_s)
        if done:
            # For the machine's supervisor: from now on a governor may switch the machine off before this process ends.
            with suppress(OSError):
                self.paths.left.write_text(
                    json.dumps({"outcome": exit_.outcome, "code": exit_.code, "reason": exit_.reason})
                )
        self.machine.wake_governors()
        return done

    def write_notice(self, notice: NoticeFact, after: threading.Thread | None = None) -> threading.Thread:
        """Forward a notice to the governors in a thread: the store may be slow, and the training comes first.

        `after` is the thread that forwards the notice before. If it is slow, it could overwrite this notice: then this
        notice is written again.
        """

        def forward() -> None:
            until_s = time.monotonic() + notice.grace_s
            overtakes = after is not None and after.is_alive()
            self.persist(keys.notice(self.key), codec.dumps(notice), until_s)
            self.machine.wake_governors()
            if after is not None and overtakes:
                after.join()
                self.persist(keys.notice(self.key), codec.dumps(notice), until_s)
                self.machine.wake_governors()

        thread = threading.Thread(target=forward, name="notice", daemon=True)
        thread.start()
        return thread

    def persist(self, key: str, data: bytes, until_s: float) -> bool:
        """Put an object, again and again until the store takes it; return False if it did not by then."""
        return retry_until(lambda: self.store.put(key, data), until_s)


def retry_until(action: Callable[[], object], until_s: float) -> bool:
    """Repeat an action while the store refuses it or does not answer; return False at the monotonic time `until_s`."""
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
