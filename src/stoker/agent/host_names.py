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
    return hosts_file.mounts(node.paths, spec, node.machine.address())


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
    named, own = location.named_addresses, location.names[location.rank]
    if len(location.addresses) == 1 or not named:
        return command
    command = _with_names(node, runtime, spec, location, command)
    if own not in named or own == runtime.hostname:
        return command
    renamed = replace(command, hostname=own)
    in_engine = job_folders.has_engine(node, spec)
    refused = "its container has a name already" if in_engine else _refusal(node, runtime, renamed)
    if refused:
        node.say(
            f"this node calls itself {runtime.hostname}, a name that does not tell it from the others, and keeps it "
            f"({refused}): NODES has {own}; {_ADVICE}"
        )
        return command
    return renamed


def _with_names(node: AgentNode, runtime: Runtime, spec: Spec, location: TrainingLocation, command: Command) -> Command:
    """Give the names their addresses: in the file of the view that the command has, or in the machine's own."""
    if spec.environment.contract is not None and node.paths.ml is None:
        return command  # Its file has the names of the nodes beside those of SageMaker.
    in_engine, named = job_folders.has_engine(node, spec), location.named_addresses
    refused = "others use this machine"
    if not in_engine and not isinstance(node.machine, HasEnvironmentCache):
        try:
            hosts_file.add_to_machine(named)
            return command
        except OSError as error:
            refused = error.strerror or "no access"
    hosts_file.write(node.paths, spec, named, location.addresses[location.rank])
    if in_engine:
        return command  # The container has seen the file since it was created.
    view = replace(command, mounts=(*command.mounts, *hosts_file.mounts(node.paths, spec)))
    if _refusal(node, runtime, view):
        node.say(f"{hosts_file.HOSTS} cannot be changed ({refused}): names in NODES may have no addresses here")
        return command
    return view


def _refusal(node: AgentNode, runtime: Runtime, view: Command) -> str:
    """Return why this machine does not allow a command's view; empty if it does."""
    trial = replace(view, argv=("true",), env=os.environ, cwd=Path("/"), secrets={})
    try:
        runtime.spawn(trial, node.paths.train_log).wait()
    except NotMounted as error:
        return error.strerror or "not allowed"
    return ""
