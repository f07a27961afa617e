"""Prepare a job for submission: everything is checked before anything is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable
from urllib.parse import unquote

from stoker.core.policy_rules import names_submitters
from stoker.jobfile import Layer, base_folder, named_provider, resolve, shared_layers
from stoker.model.errors import UserError
from stoker.model.path_patterns import entries_of, is_pattern
from stoker.model.spec import Spec
from stoker.notifications import check_channels
from stoker.providers import registry
from stoker.providers.base import Provider, SupportsSpecCheck
from stoker.store.base import Store
from stoker.store.home import home
from stoker.submit.check_inputs import check_readable
from stoker.submit.choose_offerings import OfferingChoice, choose_offerings, connect, place_of, unpriced_spot_warning
from stoker.submit.identity import with_submitter
from stoker.submit.local_environment import (
    localise,
    missing_script,
    store_environ,
    submitter_environ,
    unmasked,
    unreachable,
)
from stoker.submit.node_packages import architectures, pack_agents, pack_tools
from stoker.submit.pack_code import PackedCode, pack
from stoker.submit.preflight import preflight
from stoker.submit.prepared_job import PreparedJob
from stoker.submit.requirements_file import check_conda, choose_requirements
from stoker.submit.result_folders import check_result_folders
from stoker.submit.wheel_targets import pack_wheels

if TYPE_CHECKING:
    from stoker.submit.agent_bundle import AgentArchive
    from stoker.submit.node_programs import ProgramFile
    from stoker.submit.uploads import Upload
    from stoker.submit.wheels import WheelSet

_POLICY_NOT_CHECKED = "a dry run asks no server, so the policy is not checked; `stoker policy test` checks it"


@runtime_checkable
class GivesRemarks(Protocol):
    """A provider that treats some settings in a way that may surprise."""

    def remarks(self, spec: Spec) -> tuple[str, ...]:
        """Lines for the plan about settings that are valid and may surprise. Asks no server."""


def prepare_job(
    own: Sequence[Layer], store: Store, *, shared: Sequence[Layer] | None = None, offline: bool = False
) -> PreparedJob:
    """Prepare the job that its own layers (job file, `--set`, flags) describe on top of the shared ones.

    `shared` are the layers below, where the caller has read them already: the user's settings and the store's
    defaults. `offline` asks neither a cloud nor a remote store. Raises UserError for the first mistake.
    """
    check_store_reachable(own, store)
    if shared is None:
        # A dry run asks no remote store, not even for its defaults.
        shared = shared_layers(None if offline and not store.is_local else store)
    layers = (*shared, *own)
    resolved = resolve(layers, registry.capabilities)
    return prepare(resolved.spec, store, folder=base_folder(layers), warnings=resolved.warnings, offline=offline)


def check_store_reachable(own: Sequence[Layer], store: Store) -> None:
    """Raise UserError where the job names a provider whose machines cannot reach the store.

    Call it before the store is asked for anything: asking needs credentials, which would be demanded in vain.
    """
    provider = named_provider(own)
    if provider is not None:
        registry.check_store(provider, store.url)


def prepare(
    spec: Spec, store: Store, *, folder: Path, warnings: Sequence[str] = (), offline: bool = False
) -> PreparedJob:
    """Check everything that can be checked before anything is written, and pack the code.

    Relative paths of the spec are relative to `folder`. `warnings` are shown before those that are found here.
    `offline` asks no cloud, not even for its offerings. The store is only read. Raises UserError for the first mistake.
    """
    spec, submitter_doubts = with_submitter(spec, store, offline=offline)
    provider = connect(spec, store, offline=offline)
    if isinstance(provider, SupportsSpecCheck):
        provider.check(spec)
    readable_store = None if offline and not store.is_local else store
    local_inputs = [folder / wanted.source for wanted in spec.inputs.values() if "://" not in wanted.source]
    spec = localise(spec, provider.capabilities, folder, readable_store)
    spec, uploads = plan_uploads(spec, provider, store.url, readable_store)
    code_folder = _code_folder(spec, folder)
    check_result_folders(spec, provider.capabilities, code_folder, store)
    choice = choose_offerings(spec, provider, readable_store, offline=offline)
    spec = choice.spec
    environ, loopback_addresses = _environ(provider, store, offline=offline)
    if provider.capabilities.runs_locally and not offline:
        check_readable(spec)
    packages = _pack(spec, provider, choice, store, code_folder, local_inputs, offline=offline)
    prepared = PreparedJob(
        spec=packages.spec,
        capabilities=provider.capabilities,
        offerings=choice.offerings,
        all_offerings=choice.all_offerings,
        folder=code_folder,
        warnings=(
            *warnings,
            *(submitter_doubts if names_submitters(choice.policy) else ()),
            *choice.check.warnings,
            *check_channels.address_warnings(spec.notify),
            *packages.requirements_warnings,
            *choice.unchecked,
            *packages.missing,
            *loopback_addresses,
            *unmasked(packages.spec),
            *unpriced_spot_warning(choice),
            *(provider.remarks(packages.spec) if isinstance(provider, GivesRemarks) else ()),
        ),
        notes=(*choice.check.notes, *(() if readable_store else (_POLICY_NOT_CHECKED,)), *packages.notes),
        limits=choice.check.limits if readable_store else None,
        packed=packages.code,
        environ=environ,
        bundles=packages.agents,
        tools=packages.tools,
        uploads=uploads,
        wheels=packages.wheels,
        place=place_of(provider),
    )
    if not offline:
        preflight(provider, prepared, store)
    return prepared


def _environ(provider: Provider, store: Store, *, offline: bool) -> tuple[dict[str, str], tuple[str, ...]]:
    """The variables that go with the job; and offline, a line for each address that its machines cannot reach.

    Raises UserError for the first such address otherwise.
    """
    if provider.capabilities.runs_locally:
        return submitter_environ(), ()
    environ = store_environ(store.url)
    loopback_addresses = unreachable(environ)
    if loopback_addresses and not offline:
        raise UserError(loopback_addresses[0])
    return environ, loopback_addresses


@dataclass(frozen=True)
class _Packages:
    """The packed code and what its machines install. `spec` names the requirements file that was chosen."""

    spec: Spec
    code: PackedCode
    agents: tuple[AgentArchive, ...]
    tools: tuple[ProgramFile, ...]
    wheels: WheelSet | None
    notes: tuple[str, ...]
    requirements_warnings: tuple[str, ...]
    # Lines about agents, programs and wheels that are not packed.
    missing: tuple[str, ...]


def _pack(
    spec: Spec,
    provider: Provider,
    choice: OfferingChoice,
    store: Store,
    code_folder: Path,
    local_inputs: Sequence[Path],
    *,
    offline: bool,
) -> _Packages:
    """Pack the code, the agents, and the programs and wheels that the requirements need. An error leaves no file."""
    agents, missing_agents = pack_agents(provider, spec, choice.offerings, offline=offline)
    packed = pack(code_folder, exclude=_results_of_runs(spec, store), known=local_inputs)
    try:
        chosen = choose_requirements(spec, code_folder, packed.names)
        spec = chosen.spec
        check_conda(spec, code_folder, packed.names)
        tools, missing_tools = pack_tools(provider, spec, choice.offerings, offline=offline)
        wheels, missing_wheels = pack_wheels(
            spec,
            provider.capabilities,
            choice.offerings,
            partial(architectures, provider),
            code_folder,
            offline=offline,
        )
    except BaseException:
        packed.path.unlink(missing_ok=True)
        raise
    missing = (*missing_agents, *missing_tools, *missing_wheels)
    return _Packages(spec, packed, agents, tools, wheels, chosen.notes, chosen.warnings, missing)


def _code_folder(spec: Spec, folder: Path) -> Path:
    """The folder to pack. Raises UserError where it is missing, or lacks the script to run."""
    found = folder / Path(spec.code).expanduser()
    if not found.is_dir():
        problem = "is not a folder" if found.exists() else "there is no such folder"
        raise UserError(f"code: {found}: {problem}; name the folder that holds the script")
    missing = missing_script(spec.run, found)
    if missing is not None:
        raise UserError(f"run: there is no {missing} in {found.resolve()}; correct `run`, or `code`")
    return found


def plan_uploads(spec: Spec, provider: Provider, url: str, store: Store | None) -> tuple[Spec, tuple[Upload, ...]]:
    """Call `uploads.plan_uploads`, which most jobs need not import."""
    if provider.capabilities.runs_locally or all("://" in wanted.source for wanted in spec.inputs.values()):
        return spec, ()
    from stoker.submit import uploads

    return uploads.plan_uploads(spec, provider.capabilities, url, store)


def _results_of_runs(spec: Spec, store: Store) -> list[str]:
    """Paths in the code folder that runs write to. They are no code, and would change the digest with each run."""
    entries = (*entries_of(spec.checkpoints.dir), *entries_of(spec.outputs))
    # A pattern may match code as well, which is packed: unchanged, it is neither checkpoint nor output.
    found = [*(entry for entry in entries if not is_pattern(entry)), str(home())]
    if store.url.startswith("file://"):
        found.append(unquote(store.url.removeprefix("file://")))
    return found
