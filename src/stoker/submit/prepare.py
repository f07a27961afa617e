"""From a validated spec to a job that is ready to be sent: everything is checked before anything is written."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable
from urllib.parse import unquote

from stoker.core.governor_settings import DEFAULT
from stoker.core.placement import MAX_COST, acceptable, that_pay
from stoker.core.policy_rules import Bounded, names_submitters
from stoker.governor.apply import longest_life_s
from stoker.jobfile import Layer, named_provider
from stoker.model.errors import InvalidRequest, ProviderError, UserError
from stoker.model.offerings import Capabilities, Offering
from stoker.model.path_patterns import entries_of, is_pattern
from stoker.model.policy import House
from stoker.model.spec import Code, Resources, Spec
from stoker.notifications import check_channels
from stoker.providers import registry
from stoker.providers.base import Checks, HttpRequest, KnowsLimits, LaunchOrder, Placed, Provider, Rehearses, Request
from stoker.providers.image_info import CONTAINER_IMAGE, IMAGE, Python
from stoker.store.base import Store
from stoker.store.find_job import SUFFIX_LENGTH
from stoker.store.home import home
from stoker.submit.check_inputs import check_readable
from stoker.submit.identity import identified
from stoker.submit.kept_folders import check_kept_folders
from stoker.submit.local_environment import (
    localise,
    missing_script,
    store_environ,
    submitter_environ,
    unmasked,
    unreachable,
)
from stoker.submit.pack_code import Packed, pack
from stoker.submit.policy_check import as_housed, cost_bound, heed, house_of
from stoker.submit.requirements_file import check_conda, choose_requirements
from stoker.submit.wheel_targets import pack_wheels

if TYPE_CHECKING:
    from stoker.submit.agent_bundle import Built
    from stoker.submit.node_programs import Tool
    from stoker.submit.uploads import Upload
    from stoker.submit.wheels import Gathered

Say = Callable[[str], None]
_HOUSE_NOT_ASKED = "a dry run asks no server, so the policy is not checked; `stoker policy test` checks it"


@runtime_checkable
class ExplainsNone(Protocol):
    """A provider that can say why it offers nothing."""

    def why_none(self, resources: Resources) -> str: ...


@runtime_checkable
class PlansFromTables(Protocol):
    """A provider that has tables of its own to plan from where nobody may be asked."""

    def unchecked(self, resources: Resources) -> tuple[str, ...]:
        """What these resources name and no table has, a line each. Raises UserError for what surely is wrong."""


@runtime_checkable
class Remarks(Protocol):
    """A provider that does some things otherwise than a person may think."""

    def remarks(self, spec: Spec) -> tuple[str, ...]:
        """What is no mistake and should be known all the same, a line each for the plan. Asks nobody."""


@runtime_checkable
class KnowsArchitectures(Protocol):
    """A provider whose machines are not all of one architecture."""

    def architectures(self, offerings: Iterable[Offering]) -> set[str]: ...


@dataclass(frozen=True)
class Prepared:
    """A job that is ready to be submitted. Use it in a `with`: the packed code is a temporary file."""

    spec: Spec
    capabilities: Capabilities
    # Those that the spec allows, best first, and all there are, to compare prices with.
    offerings: tuple[Offering, ...]
    offered: tuple[Offering, ...]
    folder: Path
    # What may not be as it was meant, and what the plan says besides; a line each.
    told: tuple[str, ...] = ()
    noted: tuple[str, ...] = ()
    # The spec's own and the house's; None: nobody asked the house.
    bounds: Bounded | None = None
    packed: Packed | None = None
    # Code that is in the store already: a clone's.
    code: Code | None = None
    environ: dict[str, str] | None = None
    # The agents that its machines install.
    bundles: tuple[Built, ...] = ()
    # Programs that its machines may need.
    tools: tuple[Tool, ...] = ()
    # Inputs from this computer.
    uploads: tuple[Upload, ...] = ()
    # Packages for machines without an index.
    wheels: Gathered | None = None
    place: str | None = None
    origin: str | None = None

    def __enter__(self) -> Prepared:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.packed is not None:
            self.packed.path.unlink(missing_ok=True)


def submitter() -> str:
    """Who this is, for people: user@host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())  # A container without a passwd entry.
    return f"{user}@{socket.gethostname()}"


def prepare(
    spec: Spec,
    store: Store,
    *,
    folder: Path,
    told: Sequence[str] = (),
    offline: bool = False,
) -> Prepared:
    """Check everything that can be checked before anything is written, and pack the code.

    Relative paths of the spec are relative to `folder`. Raises UserError for the first thing that is wrong. The
    store is only read from. `offline`: no cloud is asked, for what it offers neither.
    """
    spec, unsure = identified(spec, store, offline=offline)
    provider = connect(spec, store, offline=offline)
    if isinstance(provider, Checks):
        provider.check(spec)
    asked = None if offline and not store.near else store
    given = [folder / wanted.source for wanted in spec.inputs.values() if "://" not in wanted.source]
    spec, uploads = gather_inputs(localise(spec, provider.capabilities, folder, asked), provider, store.url, asked)
    code_folder = _code_folder(spec, folder)
    check_kept_folders(spec, provider.capabilities, code_folder, store)
    house = house_of(asked)
    offered = provider.offerings(spec.resources)
    new = provider.unchecked(spec.resources) if offline and isinstance(provider, PlansFromTables) else ()
    spec = replace(spec, resources=_agreed(spec.resources, offered))
    # Nobody was asked for prices that change by the hour, and a plan must be shown all the same.
    fitting = fitting_offerings(house, spec, provider, offered, unpriced=offline)
    heeded = heed(house, spec, fitting, asked)
    channels = check_channels.remarks(spec.notify)
    fitting = heeded.offerings
    if not offline and isinstance(provider, KnowsLimits):
        provider.check_limits(fitting, spec.nodes)
    bundles, unserved = pack_agents(provider, spec, fitting, offline=offline)
    environ = submitter_environ() if provider.capabilities.here else store_environ(store.url)
    lost = () if provider.capabilities.here else unreachable(environ)
    if lost and not offline:
        raise UserError(lost[0])
    if provider.capabilities.here and not offline:
        check_readable(spec)
    packed = pack(code_folder, exclude=_not_code(spec, store), known=given)
    try:
        chosen = choose_requirements(spec, code_folder, packed.names)
        spec = chosen.spec
        check_conda(spec, code_folder, packed.names)
        tools, unfetched = pack_tools(provider, spec, fitting, offline=offline)
        arches = partial(architectures, provider)
        wheels, ungathered = pack_wheels(spec, provider.capabilities, fitting, arches, code_folder, offline=offline)
    except BaseException:
        packed.path.unlink(missing_ok=True)
        raise
    prepared = Prepared(
        spec=spec,
        capabilities=provider.capabilities,
        offerings=fitting,
        offered=offered,
        folder=code_folder,
        told=(
            *told,
            *(unsure if names_submitters(house) else ()),
            *heeded.told,
            *channels,
            *chosen.told,
            *new,
            *unserved,
            *unfetched,
            *ungathered,
            *lost,
            *unmasked(spec),
            *_spot_left_out(as_housed(house, spec), fitting, offered, cost_bound(house, spec)),
            *(provider.remarks(spec) if isinstance(provider, Remarks) else ()),
        ),
        noted=(*heeded.noted, *(() if asked is not None else (_HOUSE_NOT_ASKED,)), *chosen.noted),
        bounds=heeded.bounds if asked is not None else None,
        packed=packed,
        environ=environ,
        bundles=bundles,
        tools=tools,
        uploads=uploads,
        wheels=wheels,
        place=place_of(provider),
    )
    if not offline and isinstance(provider, Rehearses):
        _rehearse(provider, prepared, _first_launches(prepared, store, provider))
    return prepared


def _code_folder(spec: Spec, folder: Path) -> Path:
    """Raises UserError where there is none, or it lacks the script that is to be run."""
    found = folder / Path(spec.code).expanduser()
    if not found.is_dir():
        problem = "is not a folder" if found.exists() else "there is no such folder"
        raise UserError(f"code: {found}: {problem}; name the folder that holds the script")
    missing = missing_script(spec.run, found)
    if missing is not None:
        raise UserError(f"run: there is no {missing} in {found.resolve()}; correct `run`, or `code`")
    return found


def _first_launches(
    prepared: Prepared, store: Store, provider: Provider
) -> Iterator[tuple[Request | HttpRequest, ...]]:
    """For the best offering, and the best of the other kind: what on-demand machines alone ask for, such as a
    reservation, is not in a request for spot ones."""
    first: dict[bool, Offering] = {}
    for offering in prepared.offerings:
        first.setdefault(offering.spot, offering)
    for offering in first.values():
        yield _requests(prepared, store, provider, offering)


def _rehearse(provider: Rehearses, prepared: Prepared, launches: Iterable[tuple[Any, ...]]) -> None:
    """Raises UserError where the cloud would refuse one of them, with nothing left of what was packed."""
    try:
        provider.rehearse(*launches)
    except InvalidRequest as error:
        prepared.__exit__(None, None, None)
        raise UserError(str(error)) from None
    except ProviderError:
        pass  # It could not be asked, or this person may not launch: whoever governs finds out.
    except BaseException:
        prepared.__exit__(None, None, None)
        raise


def _agreed(resources: Resources, offered: tuple[Offering, ...]) -> Resources:
    """What is frozen with the job. Its place, whole: whoever governs it later may live elsewhere, or in another
    project. And how many GPUs a machine has: what is on offer changes, and larger ones were not in the plan."""
    if not offered:
        return resources
    if resources.gpus is not None and not resources.machine:
        most = max(offering.gpus for offering in offered)
        resources = replace(resources, gpus=replace(resources.gpus, most=most))
    return replace(resources, region=offered[0].region or resources.region)


def _spot_left_out(
    spec: Spec, fitting: Iterable[Offering], offered: Iterable[Offering], whose: str = MAX_COST
) -> tuple[str, ...]:
    """A line where a job that prefers spot will have none, though it is offered: nobody knows its price."""
    if spec.resources.spot != "prefer" or spec.limits.max_cost is None or any(each.spot for each in fitting):
        return ()
    if not any(each.spot and each.price is None for each in offered):
        return ()
    asks = f"`stoker prices --provider {spec.resources.provider} --refresh` may bring one"
    instead = ", or set limits.max_runtime instead" if whose == MAX_COST else ""
    return (f"spot is left out: {whose} needs a known price; {asks}{instead}",)


def gather_inputs(spec: Spec, provider: Provider, url: str, store: Store | None) -> tuple[Spec, tuple[Upload, ...]]:
    """As `uploads.gather`, which most jobs need not import."""
    if provider.capabilities.here or all("://" in wanted.source for wanted in spec.inputs.values()):
        return spec, ()
    from stoker.submit import uploads

    return uploads.gather(spec, provider.capabilities, url, store)


def pack_agents(
    provider: Provider, spec: Spec, offerings: tuple[Offering, ...], *, offline: bool = False
) -> tuple[tuple[Built, ...], tuple[str, ...]]:
    """The agents for these machines, where they install their own, and a line for each kind that cannot be served.

    A kind that the job's image is known not to be is not worth a line.
    """
    if not provider.capabilities.bundled:
        return (), ()
    # It needs the metadata of installed packages, which takes longer to import than most commands run.
    from stoker.submit.agent_bundle import build_all

    oldest = _oldest_python(spec, offerings)
    built, unserved = build_all(architectures(provider, offerings), offline=offline, oldest=oldest)
    if IMAGE not in provider.capabilities.honours:
        # Its agents run inside the container.
        unserved = tuple(line.replace(IMAGE, CONTAINER_IMAGE) for line in unserved)
    return built, unserved


def pack_tools(
    provider: Provider, spec: Spec, offerings: tuple[Offering, ...], *, offline: bool = False
) -> tuple[tuple[Tool, ...], tuple[str, ...]]:
    """The programs for these machines, where the job needs any, and a line for each that is not here yet."""
    from stoker.submit.node_programs import SPY, UV, build_all, needs_uv

    if not provider.capabilities.bundled:
        return (), ()
    arches = architectures(provider, offerings)
    # Any training may come to stand still.
    spies, _ = build_all(SPY, arches, offline=offline)
    uvs, missing = build_all(UV, arches, offline=offline) if needs_uv(spec) else ((), ())
    return (*spies, *uvs), missing


def architectures(provider: Provider, offerings: Iterable[Offering]) -> set[str]:
    """The processors of these machines, such as `x86_64`."""
    return provider.architectures(offerings) if isinstance(provider, KnowsArchitectures) else {"x86_64"}


def _oldest_python(spec: Spec, offerings: tuple[Offering, ...]) -> Python | None:
    """A Python that every machine is sure to have, or a newer one; None where nobody knows."""
    images = registry.images(spec.resources.provider)
    if images is None:
        return None
    pythons = [images.python_of(spec.resources.image, offering.gpus) for offering in offerings]
    known = [python for python in pythons if python is not None]
    return min(known) if known and len(known) == len(pythons) else None


def place_of(provider: Provider) -> str | None:
    """Where the job's machines will be, where that is one place only."""
    return provider.place if isinstance(provider, Placed) else None


def check_reached(layers: Sequence[Layer], store: Store) -> None:
    """Raise UserError where the job names a provider whose machines cannot reach the store: before the store is asked
    for anything, since its credentials would be asked for in vain.
    """
    provider = named_provider(layers)
    if provider is not None:
        registry.check_store(provider, store.url)


def connect(spec: Spec, store: Store, *, offline: bool = False) -> Provider:
    """The spec's provider. Raises UserError when there is none of that name."""
    return registry.connect(spec.resources.provider, registry.Context(store=store.url, offline=offline))


def fitting_offerings(
    house: House, spec: Spec, provider: Provider, offered: tuple[Offering, ...], *, unpriced: bool = False
) -> tuple[Offering, ...]:
    """The offerings that the spec allows with the house's bounds in it, best first. Raises UserError with the reason
    when there are none."""
    whose = cost_bound(house, spec)
    housed = as_housed(house, spec)
    fitting, reason = acceptable(housed, offered, unpriced=unpriced, cost_bound=whose)
    if fitting:
        fitting, too_little = that_pay(housed, fitting, DEFAULT.leave_s, cost_bound=whose)
        if not fitting:
            raise UserError(too_little)
        return tuple(fitting)
    if not offered and isinstance(provider, ExplainsNone):
        reason = provider.why_none(spec.resources) or reason
    raise UserError(f"{reason}; `stoker offers` lists what there is")


def launch_requests(prepared: Prepared, store: Store) -> tuple[Request | HttpRequest, ...]:
    """What the first claim would ask the provider for. Pure: touches neither cloud nor store."""
    return _requests(prepared, store, connect(prepared.spec, store), prepared.offerings[0])


def _requests(
    prepared: Prepared, store: Store, provider: Provider, offering: Offering
) -> tuple[Request | HttpRequest, ...]:
    spec = prepared.spec
    order = LaunchOrder(
        job=f"{spec.name}-{'0' * SUFFIX_LENGTH}",
        name=spec.name,
        claim=2,
        nodes=spec.nodes,
        attempt=1,
        store=store.url,
        spec=spec,
        submitter=submitter(),
        offering=offering,
        max_life_s=longest_life_s(spec),
        environ=prepared.environ or {},
        bundles={built.tag: built.digest for built in prepared.bundles},
    )
    return provider.build(order)


def _not_code(spec: Spec, store: Store) -> list[str]:
    """What lies in the folder and is made by runs of it: not code, and it would change the digest each time."""
    entries = (*entries_of(spec.checkpoints.dir), *entries_of(spec.outputs))
    # A pattern may match code as well, which is packed: unchanged, it is neither checkpoint nor output.
    found = [*(entry for entry in entries if not is_pattern(entry)), str(home())]
    if store.url.startswith("file://"):
        found.append(unquote(store.url.removeprefix("file://")))
    return found
