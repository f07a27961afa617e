"""Refuse, by name, each field that the chosen provider cannot honour. No field is ignored in silence.

The names in `Capabilities.honours` are the public dotted names of fields, such as `resources.region`,
`environment.conda` or `limits.stall` (the canonical spelling, `limits.stall_s`, is taken as well). A name honours
everything below it: `environment` covers `environment.conda`. Some choices must be listed by themselves:
`resources.region:several`; `inputs.mode:copy`, `inputs.mode:mount`, `inputs.mode:stream`; `secrets:env`,
`secrets:aws-sm` and the other kinds of `stoker.model.secret_refs`. Fields that need no help from a
provider are in ALWAYS_HONOURED and need not be listed; neither need a provider's own section, which is `resources.` and
its name.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stoker.jobfile.field_table import Field, fields_of, provider_sections
from stoker.jobfile.layers import provider_node, shared_layers
from stoker.jobfile.parse import ParsedJob, base_folder, parse_layers
from stoker.jobfile.settings_tree import Layer, Origin
from stoker.model import secret_refs
from stoker.model.errors import NoSuchProvider, SpecError
from stoker.model.spec import Spec
from stoker.providers import registry

if TYPE_CHECKING:
    from stoker.model.offerings import Capabilities
    from stoker.store.base import Store

ALWAYS_HONOURED = frozenset(
    {
        "name",
        "code",
        "run",
        "params",
        "env",
        "setup",
        "nodes",
        "resources.provider",
        "resources.spot",
        "resources.max_price",
        "checkpoints",
        "resume_from",
        "outputs",
        "metrics",
        "notify",
        "limits.max_runtime",
        "limits.max_cost",
        "limits.max_wait",
        "limits.stall",
        "retry.user_errors",
        "retry.on_demand_after",
        "retry.min_runtime",
        "retry.resumes",
        "retry.spot_again",
        "retry.spot_wait",
        "tags",
    }
)

# The limit of a job on a paid provider that limits neither its time nor its cost.
DEFAULT_MAX_RUNTIME_S = 24 * 3600.0
# The name that honours a list in `resources.region`.
SEVERAL_REGIONS = "resources.region:several"
# Fields whose default is an answer in a complete spec: on-demand, and a wait without end.
ANSWERED = frozenset({"resources.spot", "limits.max_wait"})
UNLIMITED = "limits: neither max_runtime nor max_cost is set, so training ends after 24 h; set one to choose"


@dataclass(frozen=True)
class _Demand:
    """A field or choice that a job sets: its name in the vocabulary, and the field where it was written."""

    name: str
    field: str
    what: str = "this"


@dataclass(frozen=True)
class ResolvedJob:
    """A spec that its provider can honour, and the warnings for its submitter."""

    spec: Spec
    warnings: tuple[str, ...]
    # The base of the spec's relative paths.
    folder: Path
    # The dotted fields that some layer sets, also to null. The policy may fill in the others.
    written: frozenset[str]


def resolve_job(
    own: Sequence[Layer], store: Store, *, shared: Sequence[Layer] | None = None, offline: bool = False
) -> ResolvedJob:
    """Resolve a job's own layers (job file, `--set`, flags) on top of the shared ones.

    `shared` are the layers below, where the caller has read them already: the user's settings and the store's
    defaults. `offline` asks no remote store, not even for its defaults. Raises UserError for the first mistake.
    """
    named = provider_node(own)
    if named is not None and isinstance(named.value, str):
        # Before the store is asked for anything: asking needs credentials, which would be demanded in vain.
        _capabilities(registry.capabilities, named.value, named.origin)
        registry.check_store(named.value, store.url)
    if shared is None:
        shared = shared_layers(None if offline and not store.is_local else store)
    return resolve((*shared, *own), registry.capabilities)


def resolve(
    layers: Sequence[Layer],
    capabilities_of: Callable[[str], Capabilities],
    *,
    folder: Path | None = None,
) -> ResolvedJob:
    """Parse the layers, check them against the provider, and fill in limits that may not stay open.

    Shared layers are written for many providers: fields of theirs under `resources` that the chosen provider cannot
    honour are left out, with a warning. Raises SpecError for any other field that it cannot honour, and for a provider
    that is unknown.
    """
    parsed = parse_layers(layers, folder=folder)
    provider = parsed.spec.resources.provider
    capabilities = _capabilities(capabilities_of, provider, parsed.where("resources.provider"))
    inapplicable = {
        demand.field: origin.source
        for demand in _refused(parsed.spec, provider, capabilities)
        if demand.field.startswith("resources.")
        and (origin := parsed.where(demand.field)) is not None
        and origin.shared
    }
    if inapplicable:
        parsed = parse_layers(layers, folder=folder, without=frozenset(inapplicable))
    _check(parsed, provider, capabilities)
    spec, warnings = apply_default_limits(parsed.spec, capabilities)
    left_out = tuple(
        f"{source}: {name} does not apply to {provider} and is left out" for name, source in inapplicable.items()
    )
    return ResolvedJob(spec, (*left_out, *warnings), folder or base_folder(layers), frozenset(parsed.origins))


def resolve_spec(spec: Spec, capabilities_of: Callable[[str], Capabilities]) -> ResolvedJob:
    """Check a complete spec as `resolve` checks layers, and fill in the same limits. Its defaults in ANSWERED count as
    written."""
    provider = spec.resources.provider
    capabilities = _capabilities(capabilities_of, provider, None)
    check_honoured(spec, provider, capabilities)
    written = ANSWERED | {name for name, _, _ in set_fields(spec)}
    return ResolvedJob(*apply_default_limits(spec, capabilities), Path.cwd(), written)


def _capabilities(capabilities_of: Callable[[str], Capabilities], provider: str, origin: Origin | None) -> Capabilities:
    """The provider's capabilities. Raises SpecError, with the place, for a provider that does not exist."""
    try:
        return capabilities_of(provider)
    except NoSuchProvider as error:
        place = f"{origin}: " if origin is not None else ""
        raise SpecError(f"{place}resources.provider: {error}") from None


def check_honoured(spec: Spec, provider_name: str, capabilities: Capabilities) -> None:
    """Raise SpecError naming the fields that are set and that the provider cannot honour."""
    _check(ParsedJob(spec, {}), provider_name, capabilities)


def apply_default_limits(spec: Spec, capabilities: Capabilities) -> tuple[Spec, tuple[str, ...]]:
    """Give a job without time and cost limits on a paid provider the default time limit, with a warning."""
    limits = spec.limits
    if not capabilities.paid or limits.max_runtime_s is not None or limits.max_cost is not None:
        return spec, ()
    limited = dataclasses.replace(limits, max_runtime_s=DEFAULT_MAX_RUNTIME_S)
    return dataclasses.replace(spec, limits=limited), (UNLIMITED,)


def _check(parsed: ParsedJob, provider: str, capabilities: Capabilities) -> None:
    refused = list(_refused(parsed.spec, provider, capabilities))
    if not refused:
        return
    first, *others = refused
    section = first.field.removeprefix("resources.")
    if section in provider_sections():
        problem = f"is for {section}, and this job runs on {provider}"
        advice = f"leave it out or set resources.provider: {section}"
    else:
        problem = f"{provider} cannot honour {first.what}"
        advice = "leave it out or choose another provider"
        if first.name == SEVERAL_REGIONS:
            problem, advice = f"{provider} runs a job in one region", "name one"
        if first.name.startswith("secrets:"):
            problem, advice = _about_secret(first.name, provider, capabilities)
    more = [demand.field for demand in others if demand.field != first.field]
    also = f" (the same goes for {', '.join(more)})" if more else ""
    message = f"{first.field}: {problem}; {advice}{also}"
    origin = parsed.where(first.field)
    raise SpecError(f"{origin}: {message}" if origin is not None else message)


def _about_secret(name: str, provider: str, capabilities: Capabilities) -> tuple[str, str]:
    """The problem of a secret reference, and the kinds to use instead."""
    kinds = tuple(kind for kind in secret_refs.KINDS if f"secrets:{kind}" in capabilities.honours)
    stored = tuple(kind for kind in kinds if kind.endswith(("-sm", "-ssm")))
    if name == "secrets:env" and stored:
        problem = f"a variable of your computer cannot go to {provider}'s machines without being written down"
        return problem, f"keep it where they can read it and write {secret_refs.expected(stored)}"
    problem = f"{provider} cannot honour references of the kind {name.partition(':')[2]}"
    return problem, f"write {secret_refs.expected(kinds)}" if kinds else "leave it out or choose another provider"


def _refused(spec: Spec, provider: str, capabilities: Capabilities) -> Iterator[_Demand]:
    honoured = {_public(name) for name in capabilities.honours} | ALWAYS_HONOURED | {f"resources.{provider}"}
    for demand in _demands(spec, provider):
        if not any(name in honoured for name in _covering(demand.name)):
            yield demand


def _demands(spec: Spec, provider: str) -> Iterator[_Demand]:
    for name, value, info in set_fields(spec):
        if name.startswith("resources.") and name.split(".")[1] in provider_sections() - {provider}:
            continue
        if info.form == "inputs":
            for key, source in value.items():  # type: ignore[attr-defined]
                yield _Demand(f"inputs.mode:{source.mode}", f"inputs.{key}", f"mode: {source.mode}")
        elif info.form == "secrets":
            for key, reference in value.items():  # type: ignore[attr-defined]
                kind = reference.partition(":")[0]
                yield _Demand(f"secrets:{kind}", f"secrets.{key}", f"references of the kind {kind}")
        else:
            yield _Demand(name, name)
            if info.form == "regions" and isinstance(value, tuple):
                yield _Demand(SEVERAL_REGIONS, name)
            if info.form == "reference":
                kind = str(value).partition(":")[0]
                yield _Demand(f"secrets:{kind}", name, f"references of the kind {kind}")
    for section in sorted(provider_sections() - {provider}):
        if getattr(spec.resources, section) is not None:
            yield _Demand(f"resources.{section}", f"resources.{section}")


def set_fields(part: object, path: str = "") -> Iterator[tuple[str, object, Field]]:
    """Every field whose value is not the default, with its dotted public name."""
    for key, info in fields_of(type(part)).items():
        value = getattr(part, info.name)
        dotted = f"{path}.{key}" if path else key
        if info.section is not None and value is not None:
            yield from set_fields(value, dotted)
        elif info.required or value != info.default:
            yield dotted, value, info


def _covering(name: str) -> Iterator[str]:
    """The names that honour this one: the name itself and its parents. A choice is honoured by its own name alone."""
    yield name
    while ":" not in name and "." in name:
        name = name.rpartition(".")[0]
        yield name


def _public(name: str) -> str:
    return re.sub(r"(?:_s|_bytes)$", "", name)
