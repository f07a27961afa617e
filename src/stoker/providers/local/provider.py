"""The local provider."""

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
from stoker.model.spec import Resources, Spec
from stoker.processes.tree_removal import remove_tree
from stoker.providers.base import LaunchOrder, Request, Terminated, Visit, Way
from stoker.providers.local import nodes, offers, request
from stoker.providers.local.capabilities import CAPABILITIES
from stoker.providers.local.folder import NodeFolder, computer, read_json
from stoker.providers.registry import Context

# How often the bell is looked at: late by so much at most, and far below a percent of a CPU.
_LOOK_S = 0.025
# How often folders of nodes long gone are looked for.
_COLLECT_EVERY_S = 3600.0


class LocalProvider:
    """This computer's nodes of one store. Holds nothing but what it last heard; everything else is on disk."""

    name = "local"

    def __init__(self, context: Context) -> None:
        home = Path(os.environ.get("STOKER_HOME") or Path.home() / ".stoker")
        self._root = home.absolute() / "nodes" / request.root_name(context.store)
        self._place = request.place_name(computer(), os.path.realpath(home))
        self._heard = self._bell()
        # Supervisors that this process started: to be waited for when they end, nothing else.
        self._started: list[subprocess.Popen[bytes]] = []

    @property
    def root(self) -> Path:
        """The folder of this store's nodes."""
        return self._root

    @property
    def place(self) -> str:
        """This home on this computer. A store may be shared; its nodes at other places cannot be known from here."""
        return self._place

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    def offerings(self, resources: Resources) -> tuple[Offering, ...]:
        """This computer, spot and on-demand; empty when it does not have what is asked for (see `why_none`)."""
        return offers.offerings(resources)

    def why_none(self, resources: Resources) -> str:
        """Why `offerings` is empty, in one line."""
        return offers.why_none(resources)

    def check(self, spec: Spec) -> None:
        """Raise UserError for a job that this computer will never have room for. Pure."""
        capacity = spec.resources.local.capacity if spec.resources.local is not None else None
        if capacity is not None and spec.nodes > capacity:
            raise UserError(
                f"nodes: {spec.nodes} never fit into resources.local.capacity, which is {capacity}; raise the capacity"
            )

    def build(self, order: LaunchOrder) -> tuple[Request, ...]:
        """One `start-node` request for each rank. Pure."""
        return request.build(order, self._place)

    def launch(self, requests: tuple[Request, ...]) -> tuple[Instance, ...]:
        """Start the nodes that were never started; answer all of them as they are, those that are gone too.

        Raises NoCapacity when `resources.local.capacity` has no room for all of them and none is there yet.
        """
        self._wait_for_ended()
        wanted = [each.params for each in requests]
        if any(each.service != "local" or each.operation != "start-node" for each in requests):
            raise InvalidRequest("not a request to the local provider")
        try:
            with nodes.launching(self._root):
                trash = self._collect()
                mine = [NodeFolder(self._root / params["node"]["instance"]) for params in wanted]
                if self._has_room(mine, min((p["capacity"] for p in wanted if "capacity" in p), default=None)):
                    # All folders before the first process: they are what takes up capacity.
                    mine = [nodes.make(self._root, params) for params in wanted]
                made = [node for node in mine if node.path.exists()]
                for node in made:
                    self._keep(nodes.start(node))
        except OSError as error:
            raise Transient(f"this computer cannot start a node: {error}") from error
        for path in trash:
            remove_tree(path)
        return tuple(_instance(node, nodes.probe(node)) for node in made)

    def list_instances(self, region: str | None = None) -> tuple[Instance, ...]:  # noqa: ARG002 - has no regions
        """Every node of this store that is not gone. Ends what is left of nodes whose supervisor died."""
        self._wait_for_ended()
        found = []
        for node in nodes.live(self._root):
            if not node.config.exists():
                continue  # Being launched this moment, or its launcher ended right there: `collect` will tell.
            state = self._look(node)
            if state == "gone":
                node.live.unlink(missing_ok=True)
                continue
            try:
                found.append(_instance(node, state))
            except Transient:
                # Its training wrote over it, so the log names it, and it can be asked for by its name. The others must
                # be listed all the same.
                continue
        return tuple(found)

    def state(self, ids: Iterable[str], region: str | None = None) -> Mapping[str, InstanceState]:  # noqa: ARG002
        """The state of each id, asked now. What was never here, or is long gone, is `gone`.

        Raises Transient for ids of another place.
        """
        self._wait_for_ended()
        return {instance: nodes.probe(node) if (node := self._node(instance)) else "gone" for instance in ids}

    def terminate(self, instance: str, region: str | None = None) -> Terminated:  # noqa: ARG002
        """Switch the machine off, with everything on it. `requested` until nobody is left."""
        self._wait_for_ended()
        node = self._node(instance)
        return nodes.terminate(node) if node else "gone"

    def interrupt(self, instance: str, grace_s: float, region: str | None = None) -> None:  # noqa: ARG002
        """Give the node a hard notice. Raises NotFound when it is gone."""
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
    def way(self, instance: str, visit: Visit, spec: Spec, region: str | None = None) -> Iterator[Way]:  # noqa: ARG002
        """A command beside the training, in its folder and with its environment. Raises UserError for all else."""
        if not visit.command:
            raise UserError(
                f"{instance} is a process of this computer; `stoker exec {spec.name} -- bash` opens a shell there"
            )
        if visit.options or visit.user or visit.identity or visit.via:
            raise UserError(f"{instance} is a process of this computer: there is nothing to connect to")
        node = self._node(instance)
        if node is None or nodes.probe(node) == "gone":
            raise UserError(f"{instance} is gone; a node can be visited while it runs")
        argv = (sys.executable, "-m", "stoker.agent", str(node.path), "--", *visit.command)
        # Python imports from where it is started: not from the person's folder, nor from that of the code.
        yield Way("here", argv, cwd=str(node.root))

    def wait(self, timeout_s: float) -> bool:
        """Sleep until something happened on any node of this store since the last call, or the time is over."""
        deadline = time.monotonic() + timeout_s
        while True:
            heard = self._bell()
            if heard != self._heard:
                self._heard = heard
                return True
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            time.sleep(min(_LOOK_S, left_s))

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _node(self, instance: str) -> NodeFolder | None:
        """None for a name that no node of this root can have.

        Raises Transient for a node of another place: that it is not here says nothing about it. Were it taken for
        gone, two governors that share a store would close each other's attempts while they train.
        """
        if not instance or "/" in instance or instance.startswith("."):
            return None
        if request.place_of(instance) not in (self._place, None):
            raise Transient(f"{instance} is a process of another computer, or under another STOKER_HOME; govern there")
        return NodeFolder(self._root / instance)

    def _look(self, node: NodeFolder) -> InstanceState:
        try:
            return nodes.probe(node)
        except Transient:
            return "running"  # Another computer's: cannot be known from here, and must not be missing.

    def _has_room(self, mine: list[NodeFolder], capacity: int | None) -> bool:
        missing = [node for node in mine if not node.path.exists()]
        if capacity is None or not missing:
            return True
        taken = sum(self._look(node) != "gone" for node in nodes.live(self._root))
        if taken + len(missing) <= capacity:
            return True
        if len(missing) == len(mine):
            raise NoCapacity(f"this computer runs {taken} of at most {capacity} nodes (resources.local.capacity)")
        return False  # A launch that was cut short, and somebody else took the room since: answer what there is.

    def _collect(self) -> list[Path]:
        """Look for old folders now and then."""
        stamp = self._root / "collected"
        now = time.time()
        try:
            if now - stamp.stat().st_mtime < _COLLECT_EVERY_S:
                return []
        except FileNotFoundError:
            pass
        stamp.touch()
        return nodes.collect(self._root, now)

    def _keep(self, child: subprocess.Popen[bytes] | None) -> None:
        if child is not None:
            self._started.append(child)

    def _wait_for_ended(self) -> None:
        self._started = [child for child in self._started if child.poll() is None]

    def _bell(self) -> tuple[int, int]:
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
