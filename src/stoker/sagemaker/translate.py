"""From an estimator's arguments to the fields of a job file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stoker.jobfile.default_name import slug
from stoker.model.hyperparameters import CHECKPOINTS, MODEL, scalar, script_of
from stoker.model.spec import Scalar
from stoker.sagemaker.arguments import BadArgument, unhonoured
from stoker.sagemaker.inputs import channels

_LOCAL = ("local", "local_gpu")
_WITH_GPUS = re.compile(r"(?:p|g|gr)\d")
_PYTHON = re.compile(r"py3\d{1,2}")
# What starts the script once for each GPU of each node.
_TORCHRUN = ("torch_distributed", "pytorchddp")


@dataclass(frozen=True)
class Fit:
    """One call of `fit`: what was said by whom, and where it will run."""

    said: Mapping[str, Any]
    provider: str
    # `pytorch` or `tensorflow`; None for any image.
    framework: str | None = None
    inputs: object = None
    job_name: str | None = None
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    # The script's name in the packed code.
    script: str | None = None


@dataclass(frozen=True)
class Translated:
    """A job in the job file's words, and the lines that tell what is not in it."""

    fields: dict[str, Any]
    told: tuple[str, ...]


def wanted_provider(instance_type: object) -> str:
    """Where a job runs about which nobody else says anything: SageMaker's machines are EC2's."""
    return "local" if instance_type in _LOCAL else "ec2"


def translate(fit: Fit) -> Translated:
    """Raises BadArgument for what would be another job."""
    said = fit.said
    told = unhonoured(said)
    inputs, lines = channels(fit.inputs, said.get("input_mode", "File"))
    told += lines
    if said.get("model_uri"):
        name = said.get("model_channel_name", "model")
        inputs[name] = {"from": said["model_uri"], "mode": "copy"}
    run = _run(fit)
    fields = {
        "name": _name(fit, told),
        "run": run,
        "nodes": said.get("instance_count", 1),
        "params": _params(fit, run),
        "env": {name: str(value) for name, value in said.get("environment", {}).items()} or None,
        "inputs": inputs or None,
        "resources": _resources(fit, told),
        "environment": _environment(fit, told),
        "checkpoints": {"dir": said.get("checkpoint_local_path", CHECKPOINTS).rstrip("/")},
        "limits": _limits(said, told),
        "metrics": {one["Name"]: one["Regex"] for one in said.get("metric_definitions", ())} or None,
        "tags": _tags(said.get("tags")),
    }
    return Translated({name: value for name, value in fields.items() if value is not None}, tuple(told))


def _name(fit: Fit, told: list[str]) -> str | None:
    wanted = fit.job_name or fit.said.get("base_job_name")
    if wanted is None:
        return None
    name = slug(wanted)
    if not name:
        raise BadArgument(f"job_name: {wanted!r} has no letter or digit in it")
    if fit.job_name:
        told.append(f"job_name: the job is called {name}, and a few letters that no other job has")
    return name


# ── What runs ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _run(fit: Fit) -> list[str]:
    said = fit.said
    if "container_entry_point" in said or "container_arguments" in said:
        return [*said.get("container_entry_point", ()), *said.get("container_arguments", ())]
    if fit.script is None:
        # As SageMaker runs an image.
        return ["train"]
    launcher = _launcher(said.get("distribution") or {})
    if fit.script.endswith(".py"):
        return [launcher, fit.script]
    if launcher != "python":
        raise BadArgument(f"distribution: {launcher} runs Python scripts; {fit.script} is none")
    return ["bash", fit.script] if fit.script.endswith(".sh") else [f"./{fit.script}"]


def _launcher(distribution: Mapping[str, Any]) -> str:
    asked = [name for name, how in distribution.items() if isinstance(how, Mapping) and _is_enabled(how)]
    other = [name for name in asked if name not in _TORCHRUN]
    if other:
        problem = f"{other[0]} is not launched; start it from the script, or use torch_distributed"
        raise BadArgument(f"distribution: {problem}")
    return "torchrun" if asked else "python"


def _is_enabled(how: Mapping[str, Any]) -> bool:
    # `smdistributed` has its switches one level deeper.
    deeper = [each for each in how.values() if isinstance(each, Mapping)]
    return bool(how.get("enabled")) or any(_is_enabled(each) for each in deeper)


def _params(fit: Fit, run: list[str]) -> dict[str, Scalar] | None:
    params = {str(name): scalar(value) for name, value in fit.hyperparameters.items()}
    if fit.framework == "tensorflow":
        model_dir = fit.said.get("model_dir", MODEL)
        if model_dir is not False:
            params.setdefault("model_dir", model_dir)
    if fit.script is not None and script_of(tuple(run)) != fit.script:
        params["sagemaker_program"] = fit.script
    if "container_log_level" in fit.said:
        params["sagemaker_container_log_level"] = fit.said["container_log_level"]
    return params or None


# ── Where it runs ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _resources(fit: Fit, told: list[str]) -> dict[str, Any] | None:
    said = fit.said
    found: dict[str, Any] = {}
    machine = said.get("instance_type")
    if machine in _LOCAL:
        found["provider"] = "local"
    elif machine is not None:
        found |= _machine(str(machine).removeprefix("ml."), fit.provider, told)
    if said.get("use_spot_instances"):
        found["spot"] = True
    if fit.provider == "local":
        names = ("volume_size", "subnets", "security_group_ids")
        told += [f"{name}: not honoured: this computer has its own" for name in names if name in said]
        return found or None
    if "volume_size" in said:
        found["disk"] = f"{said['volume_size']}GB"
    region = getattr(said.get("sagemaker_session"), "boto_region_name", None)
    if fit.provider == "ec2":
        if isinstance(region, str):
            found["region"] = region
        found |= _network(said, told)
    else:
        told += [f"{name}: not honoured: it is EC2's" for name in ("subnets", "security_group_ids") if name in said]
    return found or None


def _machine(name: str, provider: str, told: list[str]) -> dict[str, Any]:
    if provider == "ec2":
        return {"machine": name}
    what = "this computer is used as it is" if provider == "local" else f"say what {provider} has for it in `stoker`"
    told.append(f"instance_type: not honoured: {name} is EC2's; {what}")
    return {}


def _network(said: Mapping[str, Any], told: list[str]) -> dict[str, Any]:
    own: dict[str, Any] = {}
    subnets = said.get("subnets") or []
    if subnets:
        own["subnet"] = subnets[0]
    if len(subnets) > 1:
        told.append(f"subnets: not honoured: {', '.join(subnets[1:])}; machines are in one subnet, {subnets[0]}")
    if said.get("security_group_ids"):
        own["security_groups"] = list(said["security_group_ids"])
    return {"ec2": own} if own else {}


def _environment(fit: Fit, told: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"contract": "sagemaker"}
    if "requirements_file" in fit.said:
        found["requirements"] = fit.said["requirements_file"]
    image = fit.said.get("image_uri")
    if image is not None:
        # An image's own program is what SageMaker would run; a script is run by the image's Python.
        found["container"] = {"image": image} if fit.script is not None else {"image": image, "entrypoint": True}
    elif fit.framework is not None:
        found |= _framework_image(fit, told)
    return found


def _framework_image(fit: Fit, told: list[str]) -> dict[str, Any]:
    said = fit.said
    version, python = said.get("framework_version"), said.get("py_version")
    if fit.provider != "ec2":
        if version is not None:
            where = "this computer's" if fit.provider == "local" else "the machine image's"
            told.append(f"framework_version: not honoured: {where} own Python is used; image_uri names a container")
        return {}
    if version is None or not _PYTHON.fullmatch(str(python)):
        asked = f"framework_version={version!r} and py_version={python!r}"
        raise BadArgument(
            f"framework_version: {asked} name no image; say both, such as '2.5' and 'py311', or image_uri"
        )
    machine = str(said.get("instance_type", "")).removeprefix("ml.")
    device = "" if _WITH_GPUS.match(machine) or not machine else "-cpu"
    return {"container": {"image": f"dlc/{fit.framework}:{version}-{python}{device}"}}


# ── How long, and what for ────────────────────────────────────────────────────────────────────────────────────────────


def _limits(said: Mapping[str, Any], told: list[str]) -> dict[str, Any]:
    max_run = said.get("max_run", 24 * 3600)
    found = {"max_runtime": max_run}
    max_wait = said.get("max_wait")
    if max_wait is None:
        return found
    if not said.get("use_spot_instances"):
        told.append("max_wait: not honoured: it is for spot, and use_spot_instances is not set")
        return found
    if max_wait < max_run:
        raise BadArgument(f"max_wait: {max_wait} s is less than max_run ({max_run} s), which it includes")
    # What may be waited for machines is what is left of it. Nothing left is no reason not to start.
    return {**found, "max_wait": max_wait - max_run or max_wait}


def _tags(tags: Any) -> dict[str, str] | None:
    if not tags:
        return None
    if isinstance(tags, Mapping):
        return {str(name): str(value) for name, value in tags.items()}
    each = tags if isinstance(tags, (list, tuple)) else [tags]
    return {str(tag["Key"]): str(tag.get("Value", "")) for tag in each}
