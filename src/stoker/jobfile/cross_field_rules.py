"""Rules about combinations of fields, checked after each field alone."""

from __future__ import annotations

import re
from collections.abc import Callable

from stoker.jobfile.result_paths import check_result_paths
from stoker.jobfile.settings_tree import Origin
from stoker.model import docker_flags
from stoker.model.command_line import command_argv, input_variable
from stoker.model.errors import SpecError, UserError
from stoker.model.package_sources import read_address, read_deb
from stoker.model.path_patterns import entries_of
from stoker.model.spec import Spec
from stoker.providers import registry

Where = Callable[[str], Origin]

# Variables that the contract sets for each attempt. `env` may choose MASTER_PORT and the number of torchrun processes.
_CONTRACT = frozenset(
    {
        *("MASTER_ADDR", "NUM_NODES", "NODE_RANK", "NODES"),
        *("PET_NNODES", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT"),
    }
)
_SAGEMAKER = frozenset({"TRAINING_JOB_NAME", "SAGEMAKER_JOB_NAME", "CURRENT_HOST", "SAGEMAKER_REGION"})
_PATH_VARIABLE = re.compile(r"\$(?:[A-Za-z_]\w*|\{\w+\})")
# Names of objects may have a `$` in them, such as Hadoop's `part_$folder$`.
_URL_VARIABLE = re.compile(r"(?<=/)\$[A-Za-z_]\w*|\$\{\w+\}")
# Each field on the left has no meaning without the one on the right.
_SERVES = {"apt_mirror": "apt", "conda_channel": "conda"}


def check_rules(spec: Spec, where: Where) -> None:
    """Raise SpecError with the field and its place for the first broken rule."""
    _check_paths(spec, where)
    check_result_paths(spec, where)
    _check_variables(spec, where)
    _check_capacity(spec, where)
    _check_sources(spec, where)
    try:
        command_argv(spec)
    except UserError as error:
        raise SpecError(f"{where('run')}: {error}") from None


def _check_paths(spec: Spec, where: Where) -> None:
    """Refuse variables in paths: no part of Stoker replaces them, and they differ from machine to machine."""

    def check(path: str, written: str | None) -> None:
        pattern = _URL_VARIABLE if "://" in (written or "") else _PATH_VARIABLE
        found = pattern.search(written or "")
        if found is not None:
            problem = f"{written}: Stoker does not replace {found[0]} in a path; write the path itself"
            raise where(path).error(path, problem)

    def check_volume(name: str, source: str) -> str:
        check(f"environment.container.run.{name}", source)
        return source

    check("code", spec.code)
    for field, entries in (("checkpoints.dir", spec.checkpoints.dir), ("outputs", spec.outputs)):
        for entry in entries_of(entries):
            check(field, entry)
    for name, source in spec.inputs.items():
        check(f"inputs.{name}", source.source)
    check("resume_from", spec.resume_from)
    check("checkpoints.copy_to", spec.checkpoints.copy_to)
    for name in ("python", "requirements", "conda"):
        check(f"environment.{name}", getattr(spec.environment, name))
    if spec.environment.container is not None:
        docker_flags.with_sources(spec.environment.container.run, check_volume)


def _check_capacity(spec: Spec, where: Where) -> None:
    local = spec.resources.local
    if local is None or local.capacity is None or spec.nodes <= local.capacity:
        return
    if not registry.capabilities(spec.resources.provider).runs_locally:
        return
    path = "resources.local.capacity"
    problem = f"is {local.capacity}, so {spec.nodes} nodes never fit; raise it, or lower nodes"
    raise where(path).error(path, problem)


def _check_sources(spec: Spec, where: Where) -> None:
    for name in ("index", "apt_mirror", "conda_channel"):
        source = getattr(spec.environment, name)
        path = f"environment.{name}.url"
        try:
            if source is not None:
                (read_deb if name == "apt_mirror" else read_address)(source.url)
        except ValueError as error:
            raise where(path).error(path, str(error)) from None
        # Shared defaults may name a mirror for all jobs, also for those that install nothing.
        served = _SERVES.get(name)
        if source is not None and served and not getattr(spec.environment, served) and not where(path).shared:
            path = f"environment.{name}"
            raise where(path).error(path, f"is for environment.{served}, which is not set; set it, or leave this out")


def _check_variables(spec: Spec, where: Where) -> None:
    for section, names in (("env", spec.env), ("secrets", spec.secrets)):
        for name in names:
            problem = _reserved(name, section, sagemaker=spec.environment.contract == "sagemaker")
            if problem is not None:
                raise where(f"{section}.{name}").error(f"{section}.{name}", problem)
    for name in spec.secrets:
        if name in spec.env:
            raise where(f"secrets.{name}").error(f"secrets.{name}", "is in env as well; keep one of them")
    seen: dict[str, str] = {}
    for name, source in spec.inputs.items():
        if source.shard and source.mode != "copy":
            path = f"inputs.{name}.shard"
            raise where(path).error(path, f"shares out files that are copied; with mode: {source.mode}, leave it out")
        variable = input_variable(name)
        if variable in seen:
            problem = f"and {seen[variable]} would both be {variable}; rename one"
            raise where(f"inputs.{name}").error(f"inputs.{name}", problem)
        seen[variable] = name


def _reserved(name: str, section: str, *, sagemaker: bool) -> str | None:
    """The reason that a job may not set this variable; None if it may."""
    if name == "PATH" or (name == "PYTHONPATH" and section == "secrets"):
        return (
            f"would hide the programs and modules of the environment; extend it in `run`: export {name}=FOLDER:${name}"
        )
    if name.startswith("STOKER_"):
        return "names that begin with STOKER_ are Stoker's own; call it something else"
    if name in _CONTRACT or (name == "MASTER_PORT" and section == "secrets"):
        return "Stoker sets it for each attempt; leave it out, or call yours something else"
    if sagemaker and (name.startswith("SM_") or name in _SAGEMAKER):
        return "`contract: sagemaker` sets it; leave it out, or call yours something else"
    return None
