"""The life of an agent, from its machine's boot to its exit.

    booting → setup → waiting → restoring → training → saving → flushing → exit, power off

The first agent on a machine trains. Any later one (its predecessor crashed, the machine was rebooted) never does: it
makes durable what is there, writes the exit and gives the machine back.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from pathlib import Path

from stoker.agent.attempt import Life
from stoker.agent.flush_after_restart import flush
from stoker.agent.heartbeat import FAR_INTERVAL_S
from stoker.agent.node import Node, patient, utcnow
from stoker.agent.systemd_watchdog import start_pulse
from stoker.model import codec, keys
from stoker.model.errors import StokerError
from stoker.model.node_config import NodeConfig, NodePaths
from stoker.model.node_facts import Heartbeat
from stoker.processes import set_parent_death_signal
from stoker.processes.container_sweep import sweep
from stoker.providers import registry
from stoker.providers.base import Remade
from stoker.store.base import Store, open_store
from stoker.store.node_facts import MAX_BOOTS

_log = logging.getLogger(__name__)

# How long an agent waits for a store that is away when its machine boots. Its supervisor starts it again a few times.
_STORE_LIMIT_S = 900.0
_LONGEST_PAUSE_S = 5.0


def run_agent(root: Path) -> int:
    """Live on the machine whose folder is `root`. The exit status is for whoever supervises: 0 is "power off"."""
    # The machine's supervisor holds the power: without it nobody would end what the training forks.
    set_parent_death_signal(signal.SIGKILL)
    start_pulse()
    paths = NodePaths(root)
    config = codec.loads(NodeConfig, paths.config.read_bytes(), where=str(paths.config))
    boot = _count_boot(paths.boots)
    paths.channel.mkdir(parents=True, exist_ok=True)
    store = _open_store(config, time.monotonic() + _STORE_LIMIT_S)
    if store is None:
        return 1
    machine = registry.machine(config.provider, root)
    if isinstance(machine, Remade):
        found = _announce(store, config, boot, time.monotonic() + _STORE_LIMIT_S)
        if found is None:
            return 1
        boot = found
    earlier = tuple(
        keys.node(config.job, config.claim, config.rank, keys.boot(config.instance, n)) for n in range(boot)
    )
    node = Node(
        config=config,
        paths=paths,
        store=store,
        machine=machine,
        key=keys.node(config.job, config.claim, config.rank, keys.boot(config.instance, boot)),
        earlier=earlier,
    )
    _log.info("agent of %s, claim %d, rank %d, boot %d", config.job, config.claim, config.rank, boot)
    if boot:
        sweep(root)
        flush(node)
    else:
        Life(node).run()
    node.machine.wake_governors()
    node.machine.power_off()
    return 0


def _open_store(config: NodeConfig, until_s: float) -> Store | None:
    """The store, once it is there. None: not by then.

    This machine was made on its word, so one without the job's log is away (a disk that is not mounted, for one), not
    new: nothing may be written in its place, and nothing be given up.
    """
    pause_s = 0.1
    while True:
        try:
            # Opened anew each time: a folder that was seen to be there is never made again.
            store = open_store(config.store)
            if store.head(keys.log_entry(config.job, 1)) is not None:
                return store
            _log.warning("%s: the log of %s is not there", config.store, config.job)
        except StokerError as error:
            _log.warning("%s", error)
        if time.monotonic() >= until_s:
            return None
        time.sleep(pause_s)
        pause_s = min(_LONGEST_PAUSE_S, pause_s * 2)


def _announce(store: Store, config: NodeConfig, boot: int, until_s: float) -> int | None:
    """The first boot that no agent of this name has announced, and that this one has now. None: the store was away.

    The heartbeat is created, never overwritten: of two agents that go by the same name, one after the other or at once,
    the second finds that somebody was here.
    """
    beat = Heartbeat(beat=0, phase="booting", at=utcnow(), interval_s=FAR_INTERVAL_S)
    data = codec.dumps(beat)
    while boot < MAX_BOOTS:
        key = keys.heartbeat(keys.node(config.job, config.claim, config.rank, keys.boot(config.instance, boot)))
        ours: list[bool] = []

        def create(key: str = key, ours: list[bool] = ours) -> None:
            # Of a reply that was lost only the bytes tell.
            ours.append(store.create(key, data) or ((found := store.get(key)) is not None and found.data == data))

        if not patient(create, until_s):
            return None
        if ours[-1]:
            return boot
        boot += 1
    return boot


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
