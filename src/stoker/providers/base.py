"""The provider contract: everything Stoker may ask of a cloud.

A provider holds no state of its own and decides nothing. It maps the errors of its cloud to `stoker.model.errors` once,
by code. To ship a provider, write a module with `connect`, `machine` and `CAPABILITIES`, name it in the entry-point
group `stoker.providers`, and prove it with the contract suite in `stoker.testing`.

`Provider` is required. The protocols after it are optional: the caller tests for each with `isinstance`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from stoker.model.node_facts import NoticeFact
from stoker.model.offerings import Capabilities, Instance, InstanceState, Leftover, Offering
from stoker.model.resources import Resources
from stoker.model.spec import Spec

__all__ = [
    "Capabilities",
    "CheckResult",
    "EndReason",
    "HasPlace",
    "HasSagemakerTree",
    "HttpRequest",
    "LaunchOrder",
    "Machine",
    "Provider",
    "Request",
    "RunsInContainer",
    "ShellCommand",
    "ShellRequest",
    "SupportsAccountCheck",
    "SupportsConsole",
    "SupportsEndReason",
    "SupportsHostReplacement",
    "SupportsInterrupt",
    "SupportsJobLookup",
    "SupportsLeftovers",
    "SupportsPreflight",
    "SupportsShell",
    "SupportsWakeup",
    "TerminateResult",
]

TerminateResult = Literal["requested", "gone"]


@dataclass(frozen=True)
class LaunchOrder:
    """Everything that a launch request is built from. Rebuilt from the spec and the log each time, never stored."""

    job: str
    name: str
    claim: int
    nodes: int
    attempt: int
    store: str
    spec: Spec
    submitter: str
    offering: Offering
    # The machine switches itself off after this long; None: no limit.
    max_life_s: float | None = None
    # Taken from the submission: the variables with which the agent finds the store, and the agent bundles by tag.
    environ: Mapping[str, str] = field(default_factory=dict)
    bundles: Mapping[str, str] = field(default_factory=dict)
    # The size of the inputs that each node copies, as far as it was known at submission.
    inputs_bytes: int = 0

    @property
    def token(self) -> str:
        """The launch token: the same for every governor that repeats this claim's launch."""
        return launch_token(self.job, self.claim)


def launch_token(job: str, claim: int) -> str:
    """Return the token that keeps repeated launches of one claim from making a second set of machines."""
    return f"{job}-{claim}"


@dataclass(frozen=True)
class Request:
    """A request to a cloud, as data: `--dry-run` prints it and `launch` sends it."""

    service: str
    operation: str
    params: dict[str, Any] = field(default_factory=dict)
    region: str | None = None


@dataclass(frozen=True)
class HttpRequest:
    """A request to a cloud with a plain HTTP interface, as data. `path` includes the query."""

    service: str
    method: str
    path: str
    body: dict[str, Any] = field(default_factory=dict)
    region: str | None = None


class Provider(Protocol):
    """An adapter to one cloud. Every method may raise the subclasses of `ProviderError`; none retries by itself."""

    @property
    def name(self) -> str: ...

    @property
    def capabilities(self) -> Capabilities: ...

    def offerings(self, resources: Resources) -> tuple[Offering, ...]:
        """Offerings that could serve these resources, spot and on-demand, cheapest acceptable first.

        Empty means that this cloud can never serve them.
        """

    def build(self, order: LaunchOrder) -> tuple[Request | HttpRequest, ...]:
        """Build the requests that would launch this order. PURE: no cloud, no store, no clock, no credentials."""

    def launch(self, requests: tuple[Any, ...]) -> tuple[Instance, ...]:
        """Make the machines that the requests of `build` describe.

        Idempotent by the order's token while the token lives: a repeated launch returns the same instances. Returns the
        instances that exist, also when they are fewer than requested. NoCapacity: no machine was made, and none will
        be.
        """

    def list_instances(self, region: str | None = None) -> tuple[Instance, ...]:
        """Every machine that carries this store's tag, no matter which governor launched it.

        The list may lag behind launches: absence from it proves nothing.
        """

    def state(self, ids: Iterable[str], region: str | None = None) -> Mapping[str, InstanceState]:
        """The current state of each id.

        `gone` is positive evidence that the machine ended. `unheard-of` means that the cloud does not know the id: the
        machine ended long ago, or is so new that this part of the cloud has not learnt of it.
        """

    def terminate(self, instance: str, region: str | None = None) -> TerminateResult:
        """Request the end of a machine.

        Returns `requested` until the machine is gone; the caller repeats the call until then. Repeating is harmless.
        """


@runtime_checkable
class SupportsSpecCheck(Protocol):
    """A provider that can tell what its cloud would refuse without asking the cloud."""

    def check(self, spec: Spec) -> None:
        """Raise UserError for a spec that the cloud would refuse, or that would put a machine out of Stoker's control.
        Pure.

        Called when a job is submitted, and again before each launch.
        """


@runtime_checkable
class SupportsInterrupt(Protocol):
    """A provider that can simulate a spot reclaim."""

    def interrupt(self, instance: str, grace_s: float, region: str | None = None) -> str | None:
        """Give a running machine a hard notice; the machine is taken away when the grace is over.

        Returns None if exactly that was done, otherwise a short description of what was done instead.
        """


@runtime_checkable
class SupportsPreflight(Protocol):
    """A provider whose cloud can say beforehand what it would refuse."""

    def preflight(self, *launches: tuple[Any, ...]) -> None:
        """Ask the cloud whether it would accept these launches. Makes nothing.

        `launches` holds the requests of `build`, one tuple for each kind of offering that the job may be launched on.
        Raises InvalidRequest if the request is at fault, and any other ProviderError if the question could not be
        answered.
        """


@runtime_checkable
class SupportsLeftovers(Protocol):
    """A provider whose machines need other resources, such as disks, which may outlive them."""

    def list_leftovers(self, region: str | None = None) -> tuple[Leftover, ...]:
        """Every resource that carries this store's tag, is not a machine, and is used by none."""

    def remove(self, leftover: Leftover) -> None:
        """Remove the resource. Repeating is harmless. Raises Transient while the cloud still considers it in use."""


@dataclass(frozen=True)
class EndReason:
    """Why a machine ended, according to its cloud.

    `reclaimed`: the cloud took it back. `by_itself`: it switched itself off, which is how every machine with an agent
    should end. `dry`: it never existed, because the cloud had no capacity left.
    """

    reclaimed: bool
    reason: str
    by_itself: bool = False
    dry: bool = False


@runtime_checkable
class SupportsEndReason(Protocol):
    """A provider whose cloud remembers for a while why a machine ended."""

    def end_reason(self, instance: str, region: str | None = None) -> EndReason | None:
        """Return None if the cloud gives no reason, or if a user or governor requested the end."""


@runtime_checkable
class SupportsJobLookup(Protocol):
    """A provider that can name the job of a machine."""

    def job_of(self, instance: str, region: str | None = None) -> str | None:
        """The job of this machine, while the cloud still knows it; None for a machine of another store."""


@runtime_checkable
class SupportsConsole(Protocol):
    """A provider that keeps the console output of a machine, for a while even after the machine's end."""

    def console(self, instance: str, region: str | None = None) -> str | None:
        """The last part of the console output; None if there is none (yet)."""


@dataclass(frozen=True)
class CheckResult:
    """The result of one check. `fix` says how to correct a problem.

    `ok` is None if the check could not be made, or if everything works but could work better.
    """

    name: str
    ok: bool | None
    detail: str
    fix: str = ""
    # Of a job in several regions: the region that was checked.
    region: str = ""


@runtime_checkable
class SupportsAccountCheck(Protocol):
    """A provider that can check whether the account has and allows what a job needs."""

    def check_account(self, spec: Spec) -> Iterator[CheckResult]:
        """Check the needs of such a job in one region, one by one. Changes nothing in the cloud and raises no
        ProviderError."""


@dataclass(frozen=True)
class ShellRequest:
    """A request for access to a machine: run `command`, or open a shell if it is empty."""

    command: tuple[str, ...] = ()
    # Options for ssh itself, such as `-L 6006:localhost:6006`.
    options: tuple[str, ...] = ()
    user: str | None = None
    identity: str | None = None
    # The access method that the user requires; None: any.
    via: str | None = None
    # The user's side has a terminal.
    terminal: bool = False


@dataclass(frozen=True)
class ShellCommand:
    """A local program that runs the requested command on a machine. Its exit status is the command's."""

    name: str
    argv: tuple[str, ...]
    # Working directory; None: the user's current directory.
    cwd: str | None = None
    # Hint to print if the program exits with 255, which is more often its own failure than the command's.
    hint: str = ""


@runtime_checkable
class SupportsShell(Protocol):
    """A provider whose machines a user can log in to."""

    def shell_command(
        self, instance: str, shell_request: ShellRequest, spec: Spec, region: str | None = None
    ) -> AbstractContextManager[ShellCommand]:
        """Find the best open way to the machine.

        The command may be used until the context ends; keys made for it are deleted then. Raises UserError, in one
        line, if there is no way.
        """


@runtime_checkable
class HasPlace(Protocol):
    """A provider whose machines exist at one place only, and can be seen and started from there alone."""

    @property
    def place(self) -> str:
        """The name of the place where this provider was connected."""


@runtime_checkable
class SupportsWakeup(Protocol):
    """A provider that can report at once that something happened on a machine."""

    def wait(self, timeout_s: float) -> bool:
        """Sleep until a notice, an exit or a death on any of its machines, or until the timeout. True: an event
        came."""


class Machine(Protocol):
    """The node as its agent sees it: the part of the machine that differs from cloud to cloud."""

    def notice(self) -> NoticeFact | None:
        """The notice in force, or None. Must be cheap: the agent asks several times a second."""

    def address(self) -> str:
        """The address at which the other nodes reach this one."""

    def master_port(self, preferred: int) -> int:
        """The port that rank 0 offers for the rendezvous of the training."""

    def wake_governors(self) -> None:
        """Wake a governor on the same machine, if there is one. Best effort, never raises."""

    def give_back(self) -> None:
        """Give the machine back: end this process, from any thread, after which its service, supervisor or container
        ends the machine. Does not return."""


@runtime_checkable
class RunsInContainer(Protocol):
    """A machine that is itself a container made from the job's image, so that its agent starts none."""

    @property
    def contained(self) -> bool: ...


@runtime_checkable
class HasSagemakerTree(Protocol):
    """A machine that has the `/opt/ml` tree of SageMaker's scripts itself, with inputs in it."""

    @property
    def ml(self) -> Path | None:
        """The folder, if the job's script is written for SageMaker; None otherwise."""

    def channel(self, name: str) -> Path | None:
        """Return the folder of an input that the cloud brought before the agent started; None if it did not."""


@runtime_checkable
class SupportsHostReplacement(Protocol):
    """A machine that its cloud may replace under the same name, with an empty disk.

    Only the store can tell whether an agent ran under that name before: see `stoker.agent.main`.
    """

    @property
    def replaced(self) -> bool: ...


@runtime_checkable
class HasEnvironmentCache(Protocol):
    """A machine that outlives its nodes: an environment installed by one node serves the next."""

    @property
    def environments(self) -> Path:
        """The folder of the installed environments, shared by all nodes of the machine."""


@runtime_checkable
class SupportsQuotaCheck(Protocol):
    """A provider whose cloud reports how many of its machines an account may have."""

    def check_quota(self, offerings: Sequence[Offering], nodes: int) -> None:
        """Raise UserError if the account's quotas rule out all of these. An unknown quota rules out nothing."""
