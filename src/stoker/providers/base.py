"""What a provider is: the contract between Stoker and a cloud.

A provider holds no state of its own and decides nothing. Errors of the cloud are mapped to `stoker.errors` once, by
code, inside the provider. Anybody may ship one: a module with `connect`, named in the entry-point group
`stoker.providers`, and the contract suite in `stoker.testing` to prove it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from stoker.model.node_facts import NoticeFact
from stoker.model.offerings import Capabilities, Instance, InstanceState, Leftover, Offering
from stoker.model.spec import Resources, Spec

__all__ = [
    "Capabilities",
    "Checkup",
    "Contained",
    "Finding",
    "Gone",
    "Grant",
    "Granting",
    "Grants",
    "HttpRequest",
    "Interrupts",
    "LaunchOrder",
    "Leaves",
    "Machine",
    "Placed",
    "Provider",
    "Reachable",
    "Recognises",
    "Rehearses",
    "Remade",
    "Request",
    "Speaks",
    "TellsWhyGone",
    "Terminated",
    "Visit",
    "Wakes",
    "Way",
]

Terminated = Literal["requested", "gone"]


@dataclass(frozen=True)
class LaunchOrder:
    """Everything a request is built from. Rebuilt from spec and log each time, never read from the store."""

    job: str
    name: str
    claim: int
    nodes: int
    attempt: int
    store: str
    spec: Spec
    submitter: str
    offering: Offering
    # The machine's longest life, where something bounds it.
    max_life_s: float | None = None
    # As in the submission: what the agent needs to find the store, and the agents to install.
    environ: Mapping[str, str] = field(default_factory=dict)
    bundles: Mapping[str, str] = field(default_factory=dict)

    @property
    def token(self) -> str:
        """The launch token: the same for everybody who finishes this claim."""
        return launch_token(self.job, self.claim)


def launch_token(job: str, claim: int) -> str:
    """What makes the launch of a claim one launch, however often it is asked for."""
    return f"{job}-{claim}"


@dataclass(frozen=True)
class Request:
    """A request to a cloud, as data: what `--dry-run` prints and `launch` sends."""

    service: str
    operation: str
    params: dict[str, Any] = field(default_factory=dict)
    region: str | None = None


@dataclass(frozen=True)
class HttpRequest:
    """A request to a cloud whose interface is plain HTTP, as data. `path` has its query with it."""

    service: str
    method: str
    path: str
    body: dict[str, Any] = field(default_factory=dict)
    region: str | None = None


class Provider(Protocol):
    """An adapter to a cloud. Every method may raise the errors of `ProviderError`; none retries by itself."""

    @property
    def name(self) -> str: ...

    @property
    def capabilities(self) -> Capabilities: ...

    def offerings(self, resources: Resources) -> tuple[Offering, ...]:
        """What could serve these resources, spot and on-demand, cheapest acceptable first. Empty: nothing ever can."""

    def build(self, order: LaunchOrder) -> tuple[Request | HttpRequest, ...]:
        """The requests that would launch this order. PURE: no cloud, no store, no clock, no credentials."""

    def launch(self, requests: tuple[Any, ...]) -> tuple[Instance, ...]:
        """Make the machines, with what `build` gave.

        Idempotent by the order's token while it lives: repeating answers the same instances. Returns what there is,
        also when that is fewer than asked for. NoCapacity: none was made, none will be.
        """

    def list_instances(self, region: str | None = None) -> tuple[Instance, ...]:
        """Everything that carries this store's tag, whoever launched it. May lag behind; absence proves nothing."""

    def state(self, ids: Iterable[str], region: str | None = None) -> Mapping[str, InstanceState]:
        """The state of each id, asked now. `gone` is positive: it ended. An id that the cloud does not know is
        `unheard-of`: long gone, or so new that the cloud's left hand does not know of its right."""

    def terminate(self, instance: str, region: str | None = None) -> Terminated:
        """Ask for the end of a machine. `requested` until it is gone: repeat until then. Repeating is harmless."""


@runtime_checkable
class Checks(Protocol):
    """A provider that can tell, without asking its cloud, what it would refuse."""

    def check(self, spec: Spec) -> None:
        """Raise UserError for it, and for what would take a machine out of Stoker's hands. Pure.

        Asked when a job is submitted, and again before each launch.
        """


@runtime_checkable
class Interrupts(Protocol):
    """A provider that can rehearse a reclaim."""

    def interrupt(self, instance: str, grace_s: float, region: str | None = None) -> str | None:
        """Give a running machine a hard notice; it is taken away when the grace is over.

        Answers in a few words what was done where that is not exactly this; None where it is.
        """


@runtime_checkable
class Rehearses(Protocol):
    """A provider whose cloud can say beforehand what it would refuse."""

    def rehearse(self, *launches: tuple[Any, ...]) -> None:
        """Ask, with what `build` gave for each kind of offering that the job may be launched on. Makes nothing.

        Raises InvalidRequest where the request is at fault, and any other ProviderError where nothing is known so.
        """


@runtime_checkable
class Leaves(Protocol):
    """A provider whose machines need things beside them, which may be left behind."""

    def list_leftovers(self, region: str | None = None) -> tuple[Leftover, ...]:
        """Everything that carries this store's tag, is no machine, and is used by none."""

    def remove(self, leftover: Leftover) -> None:
        """Remove it. Repeating is harmless. Raises Transient while the cloud still holds it to be in use."""


@dataclass(frozen=True)
class Gone:
    """Why a machine ended, as its cloud tells it. `reclaimed`: the cloud took it back. `by_itself`: it switched itself
    off, which is how every machine should end that had an agent. `dry`: it never was, for the cloud had none left."""

    reclaimed: bool
    reason: str
    by_itself: bool = False
    dry: bool = False


@runtime_checkable
class TellsWhyGone(Protocol):
    """A provider that remembers for a while why a machine ended."""

    def why_gone(self, instance: str, region: str | None = None) -> Gone | None:
        """None where the cloud does not tell, or somebody asked for its end."""


@runtime_checkable
class Recognises(Protocol):
    """A provider that can tell whose a machine is."""

    def job_of(self, instance: str, region: str | None = None) -> str | None:
        """The job whose machine this is, while its cloud still knows; None for what is not this store's."""


@runtime_checkable
class Speaks(Protocol):
    """A provider that keeps what a machine's console showed, for a while even after its end."""

    def console(self, instance: str, region: str | None = None) -> str | None:
        """The end of the console's output; None where there is none (yet)."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `fix` says what to do where it is not as it should be.

    `ok` is None where it could not be told, or where it works but could work better.
    """

    name: str
    ok: bool | None
    detail: str
    fix: str = ""


@runtime_checkable
class Checkup(Protocol):
    """A provider that can look for itself whether a job would find what it needs."""

    def checkup(self, spec: Spec) -> Iterator[Finding]:
        """What a job such as this needs, one by one. Makes nothing, ends nothing; raises no ProviderError."""


@dataclass(frozen=True)
class Visit:
    """What somebody wants on a machine: a command, or a shell where there is none."""

    command: tuple[str, ...] = ()
    # For ssh itself, such as `-L 6006:localhost:6006`.
    options: tuple[str, ...] = ()
    user: str | None = None
    identity: str | None = None
    # The way that the person insists on.
    via: str | None = None
    # There is a terminal at this end.
    terminal: bool = False


@dataclass(frozen=True)
class Way:
    """A program of this computer that leads onto a machine: run it, and its exit status is the command's."""

    name: str
    argv: tuple[str, ...]
    # Where to start it; None: where the person is.
    cwd: str | None = None
    # What to say when it ends with 255, which is the program's own failure more often than the command's.
    hint: str = ""


@runtime_checkable
class Reachable(Protocol):
    """A provider whose machines a person can go to."""

    def way(self, instance: str, visit: Visit, spec: Spec, region: str | None = None) -> AbstractContextManager[Way]:
        """The best way there is. It may be used until the context ends: keys made for it are gone then.

        Raises UserError, in one line, where there is none.
        """


@dataclass(frozen=True)
class Grant:
    """What one part of Stoker may do in a cloud, and how to give it that."""

    name: str
    about: str
    policy: dict[str, Any]
    # Who may take on the role, where it is one.
    trust: dict[str, Any] | None = None
    commands: tuple[str, ...] = ()


@dataclass(frozen=True)
class Grants:
    """All that Stoker needs to be allowed in a cloud. `notes` say what these cannot do."""

    grants: tuple[Grant, ...]
    notes: tuple[str, ...] = ()


class Granting(Protocol):
    """A provider's module `iam`. Asks nobody."""

    def grants(
        self,
        store: str,
        *,
        job: str | None = None,
        inputs: tuple[str, ...] = (),
        logs: str | None = None,
        secrets: tuple[str, ...] = (),
        notify: tuple[str, ...] = (),
    ) -> Grants:
        """For this store. `job`: machines that may write for jobs of that name alone. `inputs`: what they may read.
        `logs`: the group of the cloud's own log service that they may write to. `secrets`: references that they follow.
        `notify`: addresses through which governors tell, as far as this cloud has to allow that.

        Raises UserError for a store, or a secret, that the provider's machines cannot reach.
        """


@runtime_checkable
class Placed(Protocol):
    """A provider whose machines exist at one place only, and can be seen and started from there alone."""

    @property
    def place(self) -> str:
        """The name of the place where this provider was connected."""


@runtime_checkable
class Wakes(Protocol):
    """A provider that can tell at once that something happened."""

    def wait(self, timeout_s: float) -> bool:
        """Sleep until a notice, an exit or a death on any of its machines, or the timeout. True: it was woken."""


class Machine(Protocol):
    """The node as its agent sees it: what differs from cloud to cloud on the machine itself."""

    def notice(self) -> NoticeFact | None:
        """The notice in force, or None. Cheap: asked several times a second."""

    def address(self) -> str:
        """Where the other nodes reach this one."""

    def master_port(self, preferred: int) -> int:
        """The port rank 0 offers for the rendezvous of the training."""

    def wake_governors(self) -> None:
        """Let a governor nearby know at once that something happened. Best effort, never raises."""

    def power_off(self) -> None:
        """Give the machine back. On `local` this ends the process and does not return."""


@runtime_checkable
class Contained(Protocol):
    """A machine that is a container already, made from the image that the job names: its agent starts none."""

    @property
    def contained(self) -> bool: ...


@runtime_checkable
class Remade(Protocol):
    """A machine that its cloud may make anew under the same name, with nothing on its disk.

    Whether an agent was here before, only the store can tell: see `stoker.agent.main`.
    """

    @property
    def remade(self) -> bool: ...


@runtime_checkable
class KeepsEnvironments(Protocol):
    """A machine that outlives its nodes: what one of them installed, the next one finds."""

    @property
    def environments(self) -> Path:
        """The folder for it. All nodes of the machine see the same."""


@runtime_checkable
class KnowsLimits(Protocol):
    """A provider whose cloud tells how much of its machines an account may have."""

    def check_limits(self, offerings: Sequence[Offering], nodes: int) -> None:
        """Raise UserError where the account may have none of these, ever. What is not told forbids nothing."""
