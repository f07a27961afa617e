"""The program on a node, from the boot of its machine to its exit.

    booting → setup → waiting → restoring → training → saving → flushing → exit, power off

The first agent on a machine trains. A later one (its predecessor crashed, or the machine was rebooted) never does: it
makes durable what is there, writes the exit and gives the machine back.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from pathlib import Path

from stoker.agent.attempt import run_attempt
from stoker.agent.environment.image_environments import image_path
from stoker.agent.flush_after_restart import flush
from stoker.agent.heartbeat import REMOTE_INTERVAL_S
from stoker.agent.node import AgentNode, retry_until, utcnow
from stoker.agent.phases.context import AttemptContext
from stoker.agent.systemd_watchdog import start_watchdog
from stoker.model import codec, keys
from stoker.model.errors import StokerError
from stoker.model.node_config import NodeConfig, NodePaths
from stoker.model.node_facts import Heartbeat
from stoker.processes import TRAINING, end_remains, set_parent_death_signal
from stoker.processes.container_sweep import sweep
from stoker.providers import registry
from stoker.providers.base import (
    HasEnvironmentCache,
    HasSagemakerTree,
    Machine,
    RunsInContainer,
    SupportsHostReplacement,
)
from stoker.store.base import Store, open_store
from stoker.store.node_facts import MAX_BOOTS

_log = logging.getLogger(__name__)

# How long an agent waits at its boot for a store that does not answer. Its supervisor starts it again a few times.
_STORE_LIMIT_S = 900.0
_LONGEST_PAUSE_S = 5.0


def run_agent(root: Path) -> int:
    """Run the agent of the machine whose folder is `root`; return the status for its supervisor: 0 is "power off"."""
    # The supervisor switches the machine off: without a supervisor, processes that the training forks would not end.
    set_parent_death_signal(signal.SIGKILL)
    start_watchdog()
    config_file = NodePaths(root).config
    config = codec.loads(NodeConfig, config_file.read_bytes(), where=str(config_file))
    machine = registry.machine(config.provider, root)
    paths = NodePaths(root, machine.ml if isinstance(machine, HasSagemakerTree) else None)
    boot = _count_boot(paths.boots)
    paths.channel.mkdir(parents=True, exist_ok=True)
    store = _open_store(config, time.monotonic() + _STORE_LIMIT_S)
    if store is None:
        return 1
    _use_image_environment(machine)
    if isinstance(machine, SupportsHostReplacement):
        found = _announce(store, config, boot, time.monotonic() + _STORE_LIMIT_S)
        if found is None:
            return 1
        boot = found
    earlier = tuple(
        keys.node(config.job, config.claim, config.rank, keys.boot(config.instance, n)) for n in range(boot)
    )
    node = AgentNode(
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
        if end_remains(TRAINING, config.instance, sessions=paths.root / "training.sessions"):
            flush(node)
        else:
            # No exit: the next attempt begins when the machine is off.
            node.say("processes of the training outlived their agent and cannot be ended; the machine is given back")
    else:
        run_attempt(AttemptContext(node))
    node.machine.wake_governors()
    node.machine.give_back()
    return 0


def _use_image_environment(machine: Machine) -> None:
    """Let everything that this agent starts find the PyTorch of the machine's image.

    A person's own computer, and a container, have the PATH that they were given.
    """
    if not isinstance(machine, (HasEnvironmentCache, RunsInContainer)):
        os.environ["PATH"] = image_path(os.environ.get("PATH", os.defpath))


def _open_store(config: NodeConfig, until_s: float) -> Store | None:
    """Open the store; return None if it did not answer by then.

    An entry in the job's log started this machine, so a store without that log is away (for example, a disk is not
    mounted) and not new: nothing may be written in its place, and nothing may be given up.
    """
    pause_s = 0.1
    while True:
        try:
            # Opened anew each time: a store object that has seen its folder never creates it again.
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
    """Announce this agent under the first free boot number; return the number, or None if the store did not answer.

    The heartbeat is created, never overwritten: of two agents with the same name, one after the other or at once, the
    second finds the heartbeat of the first.
    """
    heartbeat = Heartbeat(beat=0, phase="booting", at=utcnow(), interval_s=REMOTE_INTERVAL_S)
    data = codec.dumps(heartbeat)
    while boot < MAX_BOOTS:
        key = keys.heartbeat(keys.node(config.job, config.claim, config.rank, keys.boot(config.instance, boot)))
        ours: list[bool] = []

        def create(key: str = key, ours: list[bool] = ours) -> None:
            # If the reply to the create was lost, the bytes in the store show whether it was this agent's.
            ours.append(store.create(key, data) or ((found := store.get(key)) is not None and found.data == data))

        if not retry_until(create, until_s):
            return None
        if ours[-1]:
            return boot
        boot += 1
    return boot


def _count_boot(path: Path) -> int:
    """Count the agents that started on this machine before this one. Stored before anything else happens."""
    try:
        before = int(path.read_text())
    except FileNotFoundError:
        before = 0
    except ValueError:
        before = 1  # Torn by a power cut: an agent was started before.
    draft = path.with_name(".boots.tmp")
    with draft.open("w") as file:
        file.write(str(before + 1))
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    return before
