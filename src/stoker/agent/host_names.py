"""Names for the nodes of a gang, so that a script finds its rank: `NODES.split().index(gethostname())`.

Where a node's own name cannot be known to the others as it is, the training sees its machine under another name.
"""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path

from stoker.agent import hosts_file, job_folders
from stoker.agent.node import AgentNode
from stoker.agent.runtime import BindMount, Command, Runtime
from stoker.agent.training_environment import TrainingLocation
from stoker.core.node_names import is_own_name
from stoker.model.node_config import NodeConfig
from stoker.model.spec import Spec
from stoker.processes import NotMounted
from stoker.providers import registry
from stoker.providers.base import HasEnvironmentCache

_ADVICE = "take the rank from NODE_RANK"


def container_hostname(config: NodeConfig) -> str:
    """Return the host name for a node's container: the machine's, or one made of the rank where nodes share it.

    Empty if the node is alone: the engine chooses.
    """
    if config.nodes == 1:
        return ""
    own = socket.gethostname()
    shared = registry.capabilities(config.provider).runs_locally
    return own if is_own_name(own) and not shared else f"node-{config.rank}"


def mounts(node: AgentNode, spec: Spec) -> tuple[BindMount, ...]:
    """Return what a container must see from its creation on, so that names can be given to nodes later."""
    if node.config.nodes == 1 or spec.environment.contract is not None or not job_folders.has_engine(node, spec):
        return ()
    return hosts_file.mounts(node.paths, spec)


def claim_host(node: AgentNode, runtime: Runtime, spec: Spec) -> str:
    """Return what this node calls itself; empty if no name can be given to a node of this machine.

    Others use a machine that outlives its nodes: there names exist in the training's view alone, if that can be had.
    """
    shared = node.config.nodes > 1 and isinstance(node.machine, HasEnvironmentCache)
    if shared and not job_folders.has_engine(node, spec):
        view = Command((), {}, Path("/"), mounts=hosts_file.mounts(node.paths, spec), hostname="node-0")
        refused = _refusal(node, runtime, view)
        if refused:
            node.say(
                f"nodes have no names of their own here ({refused}; be root, or allow user namespaces): NODES has "
                f"addresses; {_ADVICE}"
            )
            return ""
    return runtime.hostname


def give_names(node: AgentNode, runtime: Runtime, spec: Spec, location: TrainingLocation, command: Command) -> Command:
    """Make all nodes of a gang known by their names to the training, and this node called by its own."""
    named = location.named_addresses
    if len(location.addresses) == 1 or not named:
        return command
    in_engine, own = job_folders.has_engine(node, spec), location.names[location.rank]
    if in_engine or spec.environment.contract is not None:
        # The file is there already; with a contract it was written with the names of its hosts.
        if spec.environment.contract is None:
            hosts_file.write(node.paths, spec, named, location.addresses[location.rank])
    elif isinstance(node.machine, HasEnvironmentCache):
        hosts_file.write(node.paths, spec, named, location.addresses[location.rank])
        command = replace(command, mounts=(*command.mounts, *hosts_file.mounts(node.paths, spec)))
    else:
        _add_to_machine(node, named)
    if own not in named or own == runtime.hostname:
        return command
    renamed = replace(command, hostname=own)
    refused = "its container has a name already" if in_engine else _refusal(node, runtime, renamed)
    if refused:
        node.say(
            f"this node calls itself {runtime.hostname}, as another one does, and cannot be called otherwise "
            f"({refused}): NODES has {own}; {_ADVICE}"
        )
        return command
    return renamed


def _add_to_machine(node: AgentNode, named: dict[str, str]) -> None:
    try:
        hosts_file.add_to_machine(named)
    except OSError as error:
        node.say(f"{hosts_file.HOSTS} cannot be changed ({error.strerror}): names in NODES may have no addresses here")


def _refusal(node: AgentNode, runtime: Runtime, view: Command) -> str:
    """Return why this machine does not allow a command's view; empty if it does."""
    trial = replace(view, argv=("true",), env=os.environ, cwd=Path("/"), secrets={})
    try:
        runtime.spawn(trial, node.paths.train_log).wait()
    except NotMounted as error:
        return error.strerror or "not allowed"
    return ""
