"""Prepare a job for submission: everything is checked before anything is written."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from stoker.core.policy_defaults import LIMITS, FilledSpec
from stoker.governor.price_keeper import bring_prices
from stoker.jobfile import ANSWERED, UNLIMITED, Layer, ResolvedJob, assignments, resolve, resolve_job, spec_layer
from stoker.model.errors import UserError
from stoker.model.offerings import Capabilities, Offering
from stoker.model.path_patterns import entries_of, is_pattern
from stoker.model.policy import Policy
from stoker.model.spec import Spec
from stoker.model.submission import Submission
from stoker.notifications import check_channels
from stoker.providers import registry
from stoker.providers.base import HasPlace, Provider, SupportsSpecCheck
from stoker.store.base import Store
from stoker.store.home import own_folders
from stoker.submit.check_inputs import check_readable, refuse_requester_pays
from stoker.submit.choose_offerings import (
    OfferingChoice,
    choose_offerings,
    connect,
    idle_gpus_warning,
    unpriced_spot_warning,
)
from stoker.submit.identity import with_submitter
from stoker.submit.launch_requests import preflight
from stoker.submit.local_environment import (
    localise,
    missing_script,
    store_environ,
    submitter_environ,
    unmasked,
    unreachable,
)
from stoker.submit.node_packages import TargetMachines, pack_agents, pack_tools
from stoker.submit.pack_code import PackedCode, pack
from stoker.submit.policy_check import policy_filled, read_policy
from stoker.submit.prepared_job import PreparedJob
from stoker.submit.requirements_file import check_conda, choose_requirements
from stoker.submit.reservation_lines import reservation_lines
from stoker.submit.result_folders import check_result_folders
from stoker.submit.results_in_code import check_results_in_code
from stoker.submit.wheel_targets import pack_wheels, reuse_wheels

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


@runtime_checkable
class DescribesDisks(Protocol):
    """A provider that knows on which disks of its machines the folders of a node lie."""

    def disk_note(self, spec: Spec, offering: Offering, inputs_bytes: int) -> str:
        """A line for the plan. `inputs_bytes` are copied to each node. Asks no server."""


@dataclass(frozen=True)
class Original:
    """The job that a clone is made of, as it was submitted."""

    job: str
    submission: Submission


def prepare_job(
    own: Sequence[Layer], store: Store, *, shared: Sequence[Layer] | None = None, offline: bool = False
) -> PreparedJob:
    """Prepare the job that its own layers (job file, `--set`, flags) describe on top of the shared ones.

    The arguments are those of `stoker.jobfile.resolve_job` and of `prepare`. Raises UserError for the first mistake.
    """
    resolved = resolve_job(own, store, shared=shared, offline=offline)
    return prepare_resolved(resolved, store, offline=offline)


def prepare_resolved(
    resolved: ResolvedJob, store: Store, *, offline: bool = False, original: Original | None = None
) -> PreparedJob:
    """Prepare a resolved job, with what the policy fills in. The arguments are those of `prepare`."""
    return prepare(
        resolved.spec,
        store,
        folder=resolved.folder,
        warnings=resolved.warnings,
        offline=offline,
        original=original,
        written=resolved.written,
    )


def prepare(
    spec: Spec,
    store: Store,
    *,
    folder: Path,
    warnings: Sequence[str] = (),
    offline: bool = False,
    original: Original | None = None,
    written: Set[str] | None = None,
) -> PreparedJob:
    """Check everything that can be checked before anything is written, and pack the code.

    Paths are relative to `folder`. `warnings` are shown before those that are found here. `offline` asks no cloud.
    `original` is the job that this one clones. `written`: the fields that the job sets; None: all. Raises UserError.
    """
    spec, submitter_doubts = with_submitter(spec, store, offline=offline)
    provider = connect(spec, store, offline=offline)
    capabilities = provider.capabilities
    readable_store = None if offline and not store.is_local else store
    policy = read_policy(readable_store)
    prices = _bring_prices(readable_store, capabilities, spec.resources.provider)
    filled = _checked_fill(provider, policy, spec, written)
    local_inputs = [folder / wanted.source for wanted in spec.inputs.values() if "://" not in wanted.source]
    spec = localise(filled.spec, capabilities, folder, readable_store)
    spec, uploads = _plan_uploads(spec, capabilities, store.url, readable_store)
    code_folder = _code_folder(spec, folder) if original is None else None
    check_result_folders(spec, capabilities, code_folder, store)
    choice = choose_offerings(
        spec, provider, readable_store, offline=offline, submitter_doubts=submitter_doubts, policy=policy
    )
    environ, loopback_addresses = _environ(capabilities, store, original, offline=offline)
    if not offline:
        (check_readable if capabilities.runs_locally else refuse_requester_pays)(choice.spec)
    machines = TargetMachines(provider, capabilities, choice.offerings, offline)
    packages = _packages(choice.spec, machines, store, code_folder, local_inputs, original)
    inputs_bytes = _inputs_bytes(packages.spec, uploads, original)
    prepared = PreparedJob(
        spec=packages.spec,
        capabilities=capabilities,
        offerings=choice.offerings,
        all_offerings=choice.all_offerings,
        warnings=(*_still_true(warnings, filled), *prices, *_warnings(provider, choice, packages, loopback_addresses)),
        notes=_notes(provider, filled, choice, packages, inputs_bytes, readable_store),
        limits=choice.check.limits if readable_store else None,
        packed=packages.code,
        code=original.submission.code if original is not None else None,
        environ=environ,
        bundles=packages.agents,
        tools=packages.tools,
        uploads=uploads,
        wheels=packages.wheels,
        inputs_bytes=inputs_bytes,
        place=provider.place if isinstance(provider, HasPlace) else None,
        origin=original.job if original is not None else None,
        filled=filled.lines if filled.fields else (),
        policy=policy.digest,
    )
    if not offline:
        preflight(provider, prepared, store)
    return prepared


def _checked_fill(provider: Provider, policy: Policy, spec: Spec, written: Set[str] | None) -> FilledSpec:
    """The spec with the defaults of the policy. Raises UserError for one that the provider would refuse."""
    filled = policy_filled(policy, spec, written)
    if isinstance(provider, SupportsSpecCheck):
        provider.check(filled.spec)
    return filled


def _notes(
    provider: Provider,
    filled: FilledSpec,
    choice: OfferingChoice,
    packages: _Packages,
    inputs_bytes: int,
    store: Store | None,
) -> tuple[str, ...]:
    """The lines of the plan about the policy, packages and disks."""
    disks = _disk_notes(provider, packages.spec, choice, inputs_bytes)
    return (*_policy_notes(filled, choice, store), *packages.notes, *disks)


def _bring_prices(store: Store | None, capabilities: Capabilities, provider: str) -> tuple[str, ...]:
    """Bring the store's newer price tables here. Returns a warning about unusable tables."""
    return bring_prices(store, provider) if store is not None and capabilities.price_list else ()


def _still_true(warnings: Sequence[str], filled: FilledSpec) -> list[str]:
    """The warnings of the resolved job, without the one about limits that the policy has set since."""
    return [each for each in warnings if each != UNLIMITED or not LIMITS & set(filled.fields)]


def _policy_notes(filled: FilledSpec, choice: OfferingChoice, store: Store | None) -> tuple[str, ...]:
    """The lines of the plan about the policy: what it filled in, its limits and budgets; or that it was not read."""
    return (*filled.lines, *choice.check.notes, *(() if store else (_POLICY_NOT_CHECKED,)))


def _inputs_bytes(spec: Spec, uploads: Sequence[Upload], original: Original | None) -> int:
    """The size of the inputs that each node copies: of those that come from this computer, or came with the original.
    The sizes of others are not asked for."""
    found = original.submission.inputs_bytes if original is not None else 0
    for upload in uploads:
        wanted = spec.inputs[upload.name]
        if wanted.mode == "copy":
            found += -(-upload.size // spec.nodes) if wanted.shard else upload.size
    return found


def _disk_notes(provider: Provider, spec: Spec, choice: OfferingChoice, inputs_bytes: int) -> tuple[str, ...]:
    """The line about the disks of the machine that is tried first."""
    return (
        (provider.disk_note(spec, choice.offerings[0], inputs_bytes),) if isinstance(provider, DescribesDisks) else ()
    )


def _warnings(
    provider: Provider, choice: OfferingChoice, packages: _Packages, loopback_addresses: tuple[str, ...]
) -> tuple[str, ...]:
    """The lines to show before the job is sent, in the order in which people read it."""
    return (
        *choice.check.warnings,
        *check_channels.address_warnings(choice.spec.notify),
        *packages.code_warnings,
        *choice.unchecked,
        *choice.about_regions,
        *packages.missing,
        *loopback_addresses,
        *unmasked(packages.spec),
        *unpriced_spot_warning(choice),
        *idle_gpus_warning(choice.spec, choice.offerings),
        *reservation_lines(choice.limits, choice.offerings, datetime.now(timezone.utc)),
        *(provider.remarks(packages.spec) if isinstance(provider, GivesRemarks) else ()),
    )


def prepare_clone(original: Original, store: Store, sets: Sequence[str] = ()) -> PreparedJob:
    """Prepare a new job with the code, the wheels and the spec of another one, and the changes of `sets` (`--set`).

    What the original left open by choice stays so, whatever the policy would fill in.

    Use the result in a `with`. Raises UserError for the first mistake.
    """
    layers = [spec_layer(original.submission.spec, original.job), *([assignments(sets)] if sets else [])]
    resolved = resolve(layers, registry.capabilities)
    limits, written = original.submission.spec.limits, resolved.written | ANSWERED
    if limits.max_runtime_s is not None or limits.max_cost is not None:
        # The original chose among the two limits: the one that it has not is meant to be absent.
        written |= LIMITS
    return prepare_resolved(replace(resolved, written=written), store, original=original)


def _environ(
    capabilities: Capabilities, store: Store, original: Original | None, *, offline: bool
) -> tuple[dict[str, str], tuple[str, ...]]:
    """The variables that go with the job; and offline, a line for each address that its machines cannot reach.

    Raises UserError for the first such address otherwise.
    """
    if capabilities.runs_locally:
        return original.submission.environ if original is not None else submitter_environ(), ()
    environ = store_environ(store.url)
    loopback_addresses = unreachable(environ)
    if loopback_addresses and not offline:
        raise UserError(loopback_addresses[0])
    return environ, loopback_addresses


# ── The code and its packages ─────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Packages:
    """The packed code and what its machines install. `spec` names the requirements file that was chosen."""

    spec: Spec
    code: PackedCode | None
    agents: tuple[AgentArchive, ...]
    tools: tuple[ProgramFile, ...]
    wheels: WheelSet | None
    notes: tuple[str, ...] = ()
    code_warnings: tuple[str, ...] = ()
    # Lines about agents, programs and wheels that are not packed.
    missing: tuple[str, ...] = ()


def _packages(
    spec: Spec,
    machines: TargetMachines,
    store: Store,
    code_folder: Path | None,
    local_inputs: Sequence[Path],
    original: Original | None,
) -> _Packages:
    """Pack the code of a new job, or reuse that of the original."""
    if code_folder is not None:
        return _pack(spec, machines, store, code_folder, local_inputs)
    assert original is not None
    return _reuse(spec, machines, original.submission)


def _pack(
    spec: Spec, machines: TargetMachines, store: Store, code_folder: Path, local_inputs: Sequence[Path]
) -> _Packages:
    """Pack the code, the agents, and the programs and wheels that the requirements need. An error leaves no file."""
    agents, missing_agents = pack_agents(machines, spec)
    own = list(map(str, own_folders(store.url)))
    packed = pack(code_folder, exclude=own, results=_results_of_runs(spec), known=local_inputs)
    try:
        result_warnings, result_notes = check_results_in_code(spec, code_folder, packed.results)
        chosen = choose_requirements(spec, code_folder, packed.names)
        spec = chosen.spec
        check_conda(spec, code_folder, packed.names)
        tools, missing_tools = pack_tools(machines, spec)
        wheels, missing_wheels = pack_wheels(
            spec,
            machines.capabilities,
            machines.offerings,
            machines.architectures,
            code_folder,
            offline=machines.offline,
        )
    except BaseException:  # Ctrl-C, too, must not leave the archive behind; raised again
        packed.path.unlink(missing_ok=True)
        raise
    missing = (*missing_agents, *missing_tools, *missing_wheels)
    notes, code_warnings = (*result_notes, *chosen.notes), (*result_warnings, *chosen.warnings)
    return _Packages(spec, packed, agents, tools, wheels, notes, code_warnings, missing)


def _reuse(spec: Spec, machines: TargetMachines, submission: Submission) -> _Packages:
    """Pack agents and programs for a clone. Its code and wheels are in the store already."""
    agents, missing = pack_agents(machines, spec)
    tools, _ = pack_tools(machines, spec)
    wheels = reuse_wheels(spec, machines.capabilities, machines.offerings, machines.architectures, submission.wheels)
    return _Packages(spec, None, agents, tools, wheels, missing=missing)


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


def _plan_uploads(
    spec: Spec, capabilities: Capabilities, url: str, store: Store | None
) -> tuple[Spec, tuple[Upload, ...]]:
    """Call `uploads.plan_uploads`, which most jobs need not import."""
    if capabilities.runs_locally or all("://" in wanted.source for wanted in spec.inputs.values()):
        return spec, ()
    from stoker.submit import uploads

    return uploads.plan_uploads(spec, capabilities, url, store)


def _results_of_runs(spec: Spec) -> list[tuple[str, str]]:
    """Paths that runs write to, with their fields. They are no code, and would change the digest with each run."""
    fields = (("checkpoints.dir", spec.checkpoints.dir), ("outputs", spec.outputs))
    # A pattern may match code as well, which is packed: unchanged, it is neither checkpoint nor output.
    return [(field, entry) for field, value in fields for entry in entries_of(value) if not is_pattern(entry)]
