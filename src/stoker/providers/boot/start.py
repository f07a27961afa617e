"""Start the agent on a machine that has just got its archive, of which this is a part.

The boot program (`stoker.providers.boot.install`) runs `main` under the agent's own Python and writes an order to its
standard input: `config` (the machine's `boot.json`), `python`, `environ` and `identity`.
"""

from __future__ import annotations

import json
import sys

from stoker.providers.boot.agent_service import AgentNotStarted, start_agent
from stoker.providers.boot.install_paths import InstallPaths
from stoker.providers.boot.local_disks import place_folders

# As in `stoker.providers.boot.install`, which is not in the archive.
NOT_STARTED = 3


def main() -> None:
    """Put the node's folders on the machine's own disks, then start the agent. Exits with `NOT_STARTED` if it cannot be
    started; the last line says why."""
    order = json.load(sys.stdin)
    config, install_paths = order["config"], InstallPaths()
    # Where the job has taken the disks into its own hands, they are left alone.
    said = "" if config.get("own_disks") else place_folders(install_paths, config.get("disk_bytes"))
    if said:
        print("stoker: " + said, flush=True)
    try:
        start_agent(config, order["python"], install_paths, order["environ"], order["identity"])
    except AgentNotStarted as error:
        print(error, flush=True)
        sys.exit(NOT_STARTED)
