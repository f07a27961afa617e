"""A host of a training job as its agent sees it: a container that SageMaker started, with `/opt/ml` in it."""

from __future__ import annotations

import json
import logging
import socket
import time
from datetime import datetime, timezone
from pathlib import Path

from stoker.model.node_facts import NoticeFact
from stoker.providers.node_side import end_process

_log = logging.getLogger(__name__)

# The time that SageMaker gives a container between SIGTERM and its end, on a stop and on a reclaim:
# https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_StopTrainingJob.html
GRACE_S = 120.0
RESOURCES = Path("/opt/ml/input/config/resourceconfig.json")
# The file in which the bootstrap, which receives SIGTERM, records its time on this machine's monotonic clock.
ASKED = "sigterm"
# The file in which the bootstrap keeps SageMaker's own `inputdataconfig.json`, if the script is one of SageMaker's.
CHANNELS = "channels.json"
_ADDRESS_LIMIT_S = 60.0


class SageMakerMachine:
    """Reads everything from files: SageMaker has no metadata service."""

    # When spot capacity returns, SageMaker starts the host again under the same name, with an empty disk.
    replaced = True
    # The agent runs inside the job's container.
    contained = True

    def __init__(self, node_dir: Path, resources: Path = RESOURCES) -> None:
        self._node = node_dir
        self._asked = node_dir / ASKED
        self._resources = resources
        self._notice: NoticeFact | None = None

    @property
    def ml(self) -> Path | None:
        """The container's `/opt/ml`, two folders above the node's, if the job has `contract: sagemaker`."""
        return self._node.parent.parent if (self._node / CHANNELS).exists() else None

    def channel(self, name: str) -> Path | None:
        """The folder of an input that is a channel of the training job; None for other inputs."""
        if self.ml is None or name not in json.loads((self._node / CHANNELS).read_text()):
            return None
        return self.ml / "input/data" / name

    def notice(self) -> NoticeFact | None:
        """A hard notice once SageMaker has asked for the end. `grace_s` counts from the creation of the notice."""
        if self._notice is None:
            try:
                asked_s = float(self._asked.read_text())
            except (OSError, ValueError):
                return None
            left_s = max(0.0, GRACE_S - (time.monotonic() - asked_s))
            now = datetime.now(timezone.utc)
            self._notice = NoticeFact(hard=True, source="SageMaker: the training job ends", at=now, grace_s=left_s)
        return self._notice

    def address(self) -> str:
        """This host's address. Hosts reach each other by name, and DNS knows the names only after a while."""
        host = str(json.loads(self._resources.read_text())["current_host"])
        until_s = time.monotonic() + _ADDRESS_LIMIT_S
        while True:
            try:
                return socket.gethostbyname(host)
            except OSError as error:
                if time.monotonic() >= until_s:
                    raise
                _log.warning("%s: %s", host, error)
            time.sleep(0.5)

    def master_port(self, preferred: int) -> int:
        """The preferred port: the container serves this node alone, so that all ports are free."""
        return preferred

    def wake_governors(self) -> None:
        """Do nothing: a container cannot wake a governor."""

    def give_back(self) -> None:
        """End this process, from any thread: the container ends with it. Does not return."""
        end_process()
