"""The life of an agent, from its machine's boot to its exit.

    booting → setup → waiting → restoring → training → saving → flushing → exit, power off

The first agent on a machine trains. Any later one (its predecessor crashed, the machine was rebooted) never does: it
makes durable what is there, writes the exit and gives the machine back.
"""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path

from stoker import codec, layout
from stoker.agent.config import NodeConfig, NodePaths
from stoker.agent.flush import flush
from stoker.agent.life import Life
from stoker.agent.node import Node
from stoker.processes import set_parent_death_signal
from stoker.providers import registry
from stoker.store import open_store

_log = logging.getLogger(__name__)


def run_agent(root: Path) -> int:
    """Live on the machine whose folder is `root`. The exit status is for whoever supervises: 0 is "power off"."""
    # The machine's supervisor holds the power: without it nobody would end what the training forks.
    set_parent_death_signal(signal.SIGKILL)
    paths = NodePaths(root)
    config = codec.loads(NodeConfig, paths.config.read_bytes(), where=str(paths.config))
    boot = _count_boot(paths.boots)
    paths.channel.mkdir(parents=True, exist_ok=True)
    store = open_store(config.store)
    earlier = tuple(
        layout.node(config.job, config.claim, config.rank, layout.boot(config.instance, n)) for n in range(boot)
    )
    node = Node(
        config=config,
        paths=paths,
        store=store,
        machine=registry.machine(config.provider, root),
        key=layout.node(config.job, config.claim, config.rank, layout.boot(config.instance, boot)),
        earlier=earlier,
    )
    _log.info("agent of %s, claim %d, rank %d, boot %d", config.job, config.claim, config.rank, boot)
    if boot:
        flush(node)
    else:
        Life(node).run()
    node.machine.wake_governors()
    node.machine.power_off()
    return 0


def _count_boot(path: Path) -> int:
    """How many agents started here before this one. Written down before anything else happens."""
    try:
        before = int(path.read_text())
    except FileNotFoundError:
        before = 0
    except ValueError:
        before = 1  # Torn by a power cut: somebody was here.
    draft = path.with_name(".boots.tmp")
    with draft.open("w") as file:
        file.write(str(before + 1))
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    return before
