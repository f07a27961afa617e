"""The local provider: nodes are processes of this computer."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

from stoker.model.errors import InvalidRequest, NoCapacity, NotFound, Transient, UserError
from stoker.model.offerings import Capabilities, Instance, InstanceState, Offering
from stoker.model.resources import Resources
from stoker.model.spec import Spec
from stoker.processes.tree_removal import remove_tree
from stoker.providers.base import LaunchOrder, Request, ShellCommand, ShellRequest, TerminateResult
from stoker.providers.local import nodes, offers, request
from stoker.providers.local.capabilities import CAPABILITIES
from stoker.providers.local.folder import NodeFolder, computer_id, read_json
from stoker.providers.registry import Context

# How often the wake file is checked: the largest delay of a wake-up, at far below a percent of a CPU.
_WAKE_POLL_S = 0.025
# How often folders of nodes long gone are searched for.
_COLLECT_EVERY_S = 3600.0


class LocalProvider:
    """This computer's nodes of one store. Its only state is the last wake-up that it saw; the rest is on disk."""

    name = "local"

    def __init__(self, context: Context) -> None:
        home = Path(os.environ.get("STOKER_HOME") or Path.home() / ".stoker")
        self._root = home.absolute() / "nodes" / request.root_name(context.store)
        self._place = request.place_name(computer_id(), os.path.realpath(home))
        self._last_wake = self._wake_version()
        # Supervisors that this process started, only to reap them when they end.
        self._started: list[subprocess.Popen[bytes]] = []

    @property
    def root(self) -> Path:
        """The folder of this store's nodes."""
        return self._root

    @property
    def place(self) -> str:
        """This home on this computer. A store may be shared; the state of its nodes at other places is not known
        here."""
        return self._place

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    def offerings(self, resources: Resources) -> tuple[Offering, ...]:
        """This computer, spot and on-demand; empty if it cannot serve these resources (see `why_none`)."""
        return offers.offerings(resources)

    def why_none(self, resources: Resources) -> str:
        """The reason why `offerings` is empty, in one line."""
        return offers.why_none(resources)

    def check(self, spec: Spec) -> None:
        """Raise UserError for a job that never fits into the configured capacity. Pure."""
        capacity = spec.resources.local.capacity if spec.resources.local is not None else None
        if capacity is not None and spec.nodes > capacity:
            raise UserError(
                f"nodes: {spec.nodes} never fit into resources.local.capacity, which is {capacity}; raise the capacity"
            )

    def build(self, order: LaunchOrder) -> tuple[Request, ...]:
        """One `start-node` request for each rank. Pure."""
        return request.build(order, self._place)

    def launch(self, requests: tuple[Request, ...]) -> tuple[Instance, ...]:
        """Start the nodes that were never started; return all of them, including those that are gone.

        Raises NoCapacity if `resources.local.capacity` has no room for all of them and none exists yet.
        """
        self._reap()
        wanted = [each.params for each in requests]
        if any(each.service != "local" or each.operation != "start-node" for each in requests):
            raise InvalidRequest("not a request to the local provider")
        try:
            with nodes.launching(self._root):
                trash = self._collect()
                mine = [NodeFolder(self._root / params["node"]["instance"]) for params in wanted]
                if self._has_room(mine, min((p["capacity"] for p in wanted if "capacity" in p), default=None)):
                    # All folders before the first process: folders count against the capacity.
                    mine = [nodes.make_folder(self._root, params) for params in wanted]
                made = [node for node in mine if node.path.exists()]
                for node in made:
                    child = nodes.start_supervisor(node)
                    if child is not None:
                        self._started.append(child)
        except OSError as error:
            raise Transient(f"this computer cannot start a node: {error}") from error
        for path in trash:
            remove_tree(path)
        return tuple(_instance(node, nodes.probe(node)) for node in made)

    def list_instances(self, region: str | None = None) -> tuple[Instance, ...]:  # noqa: ARG002 - has no regions
        """Every node of this store that is not gone. Ends the remaining processes of nodes whose supervisor died."""
        self._reap()
        found = []
        for node in nodes.live_nodes(self._root):
            if not node.config.exists():
                continue  # Being launched right now, or its launcher died there: `collect_gone` decides later.
            state = self._listed_state(node)
            if state == "gone":
                node.live.unlink(missing_ok=True)
                continue
            try:
                found.append(_instance(node, state))
            except Transient:
                # The training overwrote its configuration. The log names the node, so it can still be looked up by its
                # id, and the other nodes must be listed.
                continue
        return tuple(found)

    def state(self, ids: Iterable[str], region: str | None = None) -> Mapping[str, InstanceState]:  # noqa: ARG002
        """The current state of each id. A node that was never here, or is long gone, is `gone`.

        Raises Transient for ids of another place.
        """
        self._reap()
        return {instance: nodes.probe(node) if (node := self._node(instance)) else "gone" for instance in ids}

    def terminate(self, instance: str, region: str | None = None) -> TerminateResult:  # noqa: ARG002
        """Switch the machine off with all its processes. `requested` until no process is left."""
        self._reap()
        node = self._node(instance)
        return nodes.terminate(node) if node else "gone"

    def interrupt(self, instance: str, grace_s: float, region: str | None = None) -> None:  # noqa: ARG002
        """Give the node a hard notice. Raises NotFound if it is gone."""
        node = self._node(instance)
        if node is None or nodes.probe(node) == "gone":
            raise NotFound(f"{instance} is gone")
        if grace_s < 0:
            raise InvalidRequest("the grace of a notice cannot be negative")
        try:
            nodes.interrupt(node, grace_s, "stoker interrupt")
        except OSError as error:
            raise Transient(f"the notice cannot be given: {error}") from error

    @contextmanager
    def shell_command(
        self,
        instance: str,
        shell_request: ShellRequest,
        spec: Spec,
        region: str | None = None,  # noqa: ARG002
    ) -> Iterator[ShellCommand]:
        """Run a command beside the training, in its folder and environment. Raises UserError for any other request."""
        if not shell_request.command:
            raise UserError(
                f"{instance} is a process of this computer; `stoker exec {spec.name} -- bash` opens a shell there"
            )
        if shell_request.options or shell_request.user or shell_request.identity or shell_request.via:
            raise UserError(f"{instance} is a process of this computer: there is nothing to connect to")
        node = self._node(instance)
        if node is None or nodes.probe(node) == "gone":
            raise UserError(f"{instance} is gone; commands can run only on a running node")
        argv = (sys.executable, "-m", "stoker.providers.local.exec_beside", str(node.path), *shell_request.command)
        # Python imports from its working directory: use neither the user's folder nor that of the code.
        yield ShellCommand("here", argv, cwd=str(node.root))

    def wait(self, timeout_s: float) -> bool:
        """Sleep until an event on any node of this store since the last call, or until the timeout."""
        deadline = time.monotonic() + timeout_s
        while True:
            version = self._wake_version()
            if version != self._last_wake:
                self._last_wake = version
                return True
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            time.sleep(min(_WAKE_POLL_S, left_s))

    # ── internals ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _node(self, instance: str) -> NodeFolder | None:
        """The node of this name; None for a name that no node of this root can have.

        Raises Transient for a node of another place: its absence here says nothing about it. If it were reported as
        gone, two governors that share a store would close each other's attempts while they train.
        """
        if not instance or "/" in instance or instance.startswith("."):
            return None
        if request.place_of(instance) not in (self._place, None):
            raise Transient(f"{instance} is a process of another computer, or under another STOKER_HOME; govern there")
        return NodeFolder(self._root / instance)

    def _listed_state(self, node: NodeFolder) -> InstanceState:
        try:
            return nodes.probe(node)
        except Transient:
            return "running"  # On another computer: unknown here, but it must be listed and counted.

    def _has_room(self, mine: list[NodeFolder], capacity: int | None) -> bool:
        missing = [node for node in mine if not node.path.exists()]
        if capacity is None or not missing:
            return True
        taken = sum(self._listed_state(node) != "gone" for node in nodes.live_nodes(self._root))
        if taken + len(missing) <= capacity:
            return True
        if len(missing) == len(mine):
            raise NoCapacity(f"this computer runs {taken} of at most {capacity} nodes (resources.local.capacity)")
        return False  # An interrupted launch, and another job took the room since: return the nodes that exist.

    def _collect(self) -> list[Path]:
        """Collect old folders now and then."""
        marker = self._root / "collected"
        now = time.time()
        try:
            if now - marker.stat().st_mtime < _COLLECT_EVERY_S:
                return []
        except FileNotFoundError:
            pass
        marker.touch()
        return nodes.collect_gone(self._root, now)

    def _reap(self) -> None:
        self._started = [child for child in self._started if child.poll() is None]

    def _wake_version(self) -> tuple[int, int]:
        try:
            status = (self._root / "wake").stat()
        except OSError:
            return (0, 0)
        return (status.st_mtime_ns, status.st_size)


def _instance(node: NodeFolder, state: InstanceState) -> Instance:
    config = read_json(node.config)
    job, claim, rank = ((config or {}).get(key) for key in ("job", "claim", "rank"))
    if not (isinstance(job, str) and isinstance(claim, int) and isinstance(rank, int)):
        raise Transient(f"{node.config} cannot be read")
    return Instance(
        id=node.instance,
        provider="local",
        job=job,
        claim=claim,
        rank=rank,
        state=state,
        created_at=datetime.fromtimestamp(nodes.created_at(node), timezone.utc),
        zone=offers.ZONE,
    )
