"""A host of a training job as its agent sees it: a container that SageMaker started, with `/opt/ml` in it."""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

from stoker.model.node_facts import NoticeFact

_log = logging.getLogger(__name__)

# What SageMaker gives a container between SIGTERM and its end, on a stop and on a reclaim alike:
# https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_StopTrainingJob.html
GRACE_S = 120.0
RESOURCES = Path("/opt/ml/input/config/resourceconfig.json")
# Written by the bootstrap, which hears SIGTERM first: when that was, on this machine's monotonic clock.
ASKED = "sigterm"
_ADDRESS_LIMIT_S = 60.0


class SageMakerMachine:
    """Knows no metadata service: what it must know lies in files."""

    # SageMaker starts it again under the same name and with an empty disk when spot machines come back.
    remade = True
    # The job's container is the one that this runs in.
    contained = True

    def __init__(self, node_dir: Path, resources: Path = RESOURCES) -> None:
        self._asked = node_dir / ASKED
        self._resources = resources
        self._told: NoticeFact | None = None

    def notice(self) -> NoticeFact | None:
        """Hard once SageMaker has asked for the end. `grace_s` is what is left when first told."""
        if self._told is None:
            try:
                asked_s = float(self._asked.read_text())
            except (OSError, ValueError):
                return None
            left_s = max(0.0, GRACE_S - (time.monotonic() - asked_s))
            now = datetime.now(timezone.utc)
            self._told = NoticeFact(hard=True, source="SageMaker: the training job ends", at=now, grace_s=left_s)
        return self._told

    def address(self) -> str:
        """Hosts reach each other by their names; names of others are known a little later than one's own."""
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
        """A container of its own has all its ports."""
        return preferred

    def wake_governors(self) -> None:
        """Nobody is near enough to be woken."""

    def power_off(self) -> None:
        """End this process, from whichever thread: the container ends with it. Does not return."""
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
