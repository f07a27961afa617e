"""Translate an estimator's arguments into the fields of a job file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stoker.jobfile.default_name import slug
from stoker.model import dlc_images
from stoker.model.hyperparameters import CHECKPOINTS, MODEL, scalar, script_of
from stoker.model.offerings import Capabilities
from stoker.model.spec import Scalar
from stoker.providers import registry
from stoker.sagemaker.arguments import BadArgument, unhonoured
from stoker.sagemaker.image_python import known_image
from stoker.sagemaker.inputs import channels

_LOCAL = ("local", "local_gpu")
_WITH_GPUS = re.compile(r"(?:p|g|gr)\d")
_PYTHON = re.compile(r"py3\d{0,2}")
_INSTALL = "put transformers into requirements.txt"
# Distributions that start the script once for each GPU of each node.
_TORCHRUN = ("torch_distributed", "pytorchddp")


@dataclass(frozen=True)
class Fit:
    """One call of `fit`: the arguments of estimator and call, and the provider of the job."""

    given: Mapping[str, Any]
    provider: str
    # `pytorch` or `tensorflow`; None for any image.
    framework: str | None = None
    inputs: object = None
    job_name: str | None = None
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    # The script's name in the packed code.
    script: str | None = None
    # The whole command, where it is given.
    command: list[str] | None = None

    @property
    def capabilities(self) -> Capabilities:
        return registry.capabilities(self.provider)


@dataclass(frozen=True)
class Translated:
    """A job as fields of a job file, and a warning for each argument that it does not honour."""

    fields: dict[str, Any]
    warnings: tuple[str, ...]


def wanted_provider(instance_type: object) -> str:
    """The provider of a job for which no other setting names one: SageMaker's machines are EC2's."""
    return "local" if instance_type in _LOCAL else "ec2"


def translate(fit: Fit) -> Translated:
    """Translate one call of `fit`. Raises BadArgument for an argument without which the job would be another one."""
    given = fit.given
    warnings = unhonoured(given)
    inputs, lines = channels(fit.inputs, given.get("input_mode", "File"))
    warnings += lines
    if given.get("model_uri"):
        name = given.get("model_channel_name", "model")
        inputs[name] = {"from": given["model_uri"], "mode": "copy"}
    run = _run(fit)
    fields = {
        "name": _name(fit, warnings),
        "run": run,
        "nodes": given.get("instance_count", 1),
        "params": _params(fit, run),
        "env": {name: str(value) for name, value in given.get("environment", {}).items()} or None,
        "inputs": inputs or None,
        "resources": _resources(fit, warnings),
        "environment": _environment(fit, warnings),
        "checkpoints": _checkpoints(given),
        "limits": _limits(given, warnings),
        "metrics": {one["Name"]: one["Regex"] for one in given.get("metric_definitions", ())} or None,
        "tags": _tags(given.get("tags")),
    }
    return Translated({name: value for name, value in fields.items() if value is not None}, tuple(warnings))


def _name(fit: Fit, warnings: list[str]) -> str | None:
    wanted = fit.job_name or fit.given.get("job_name") or fit.given.get("base_job_name")
    if wanted is None:
        return None
    name = slug(wanted)
    if not name:
        raise BadArgument(f"job_name: {wanted!r} has no letter or digit in it")
    if fit.job_name or "job_name" in fit.given:
        warnings.append(f"job_name: the job is called {name}, and a few letters that no other job has")
    return name


# ── The script ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _run(fit: Fit) -> list[str]:
    given = fit.given
    if fit.command is not None:
        return fit.command
    if "container_entry_point" in given or "container_arguments" in given:
        return [*given.get("container_entry_point", ()), *given.get("container_arguments", ())]
    if fit.script is None:
        # SageMaker runs this program of an image.
        return ["train"]
    launcher = _launcher(given.get("distribution") or {})
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
        model_dir = fit.given.get("model_dir", MODEL)
        if model_dir is not False:
            params.setdefault("model_dir", model_dir)
    if fit.script is not None and script_of(tuple(run)) != fit.script:
        params["sagemaker_program"] = fit.script
    if "container_log_level" in fit.given:
        params["sagemaker_container_log_level"] = fit.given["container_log_level"]
    return params or None


# ── The machines ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _resources(fit: Fit, warnings: list[str]) -> dict[str, Any] | None:
    given = fit.given
    found: dict[str, Any] = {}
    machine = given.get("instance_type")
    if machine in _LOCAL:
        found["provider"] = "local"
    elif machine is not None:
        found |= _machine(str(machine).removeprefix("ml."), fit, warnings)
    if given.get("use_spot_instances"):
        found["spot"] = True
    if fit.capabilities.runs_locally:
        names = ("volume_size", "subnets", "security_group_ids")
        warnings += [f"{name}: not honoured: this computer has its own" for name in names if name in given]
        return found or None
    if "volume_size" in given:
        found["disk"] = f"{given['volume_size']}GB"
    region = getattr(given.get("sagemaker_session"), "boto_region_name", None)
    if fit.capabilities.ec2_machines:
        if isinstance(region, str):
            found["region"] = region
        found |= _network(given)
    else:
        ignored = [name for name in ("subnets", "security_group_ids") if name in given]
        warnings += [f"{name}: not honoured: it is EC2's" for name in ignored]
    return found or None


def _machine(name: str, fit: Fit, warnings: list[str]) -> dict[str, Any]:
    if fit.capabilities.ec2_machines:
        return {"machine": name}
    what = f"say what {fit.provider} has for it in `stoker`"
    if fit.capabilities.runs_locally:
        what = "this computer is used as it is"
    warnings.append(f"instance_type: not honoured: {name} is EC2's; {what}")
    return {}


def _network(given: Mapping[str, Any]) -> dict[str, Any]:
    own: dict[str, Any] = {}
    subnets = given.get("subnets") or []
    if subnets:
        own["subnet"] = list(subnets)
    if given.get("security_group_ids"):
        own["security_groups"] = list(given["security_group_ids"])
    return {"ec2": own} if own else {}


def _environment(fit: Fit, warnings: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"contract": "sagemaker"}
    if "requirements_file" in fit.given:
        found["requirements"] = fit.given["requirements_file"]
    image = fit.given.get("image_uri")
    if image is not None:
        # Without a script SageMaker runs the image's own program; a script is run by the image's Python.
        has_script = fit.script is not None or fit.command is not None
        found["container"] = {"image": image} if has_script else {"image": image, "entrypoint": True}
    elif fit.framework is not None:
        found |= _framework_image(fit, warnings)
    return found


def _framework_version(given: Mapping[str, Any]) -> str | None:
    names = ("pytorch_version", "tensorflow_version", "framework_version")
    return next((str(given[name]) for name in names if name in given), None)


def _framework_image(fit: Fit, warnings: list[str]) -> dict[str, Any]:
    given = fit.given
    version, python = _framework_version(given), given.get("py_version")
    if not fit.capabilities.ec2_machines:
        if version is not None:
            where = "this computer's" if fit.capabilities.runs_locally else "the machine image's"
            warnings.append(f"framework_version: not honoured: {where} own Python is used; image_uri names a container")
            if "transformers_version" in given:
                warnings.append(f"transformers_version: not honoured: {where} own Python is used; {_INSTALL}")
        return {}
    if version is None or not _PYTHON.fullmatch(str(python)):
        asked = f"framework_version={version!r} and py_version={python!r}"
        raise BadArgument(
            f"framework_version: {asked} name no image; say both, such as '2.5' and 'py311', or image_uri"
        )
    assert fit.framework is not None
    machine = str(given.get("instance_type", "")).removeprefix("ml.")
    device = "" if _WITH_GPUS.match(machine) or not machine else "-cpu"
    if "transformers_version" in given and not device:
        return {"container": {"image": _hugging_face_image(fit.framework, version, str(python), given)}}
    if "transformers_version" in given:
        own = f"Hugging Face's images are for GPUs, and {machine} has the one of {fit.framework}"
        warnings.append(f"transformers_version: not honoured: {own}; {_INSTALL}")
    version, python = known_image(fit.framework, version, str(python))
    return {"container": {"image": f"dlc/{fit.framework}:{version}-{python}{device}"}}


def _hugging_face_image(framework: str, version: str, python: str, given: Mapping[str, Any]) -> str:
    """The alias of Hugging Face's image with these versions. Raises BadArgument where the table has none."""
    image = f"dlc/huggingface-{framework}:{version}-transformers{given['transformers_version']}-{python}"
    problem = dlc_images.problem(image)
    if problem is not None:
        raise BadArgument(f"transformers_version: {problem}; image_uri names any other one")
    return image


def _checkpoints(given: Mapping[str, Any]) -> dict[str, Any]:
    found = {"dir": str(given.get("checkpoint_local_path", CHECKPOINTS)).rstrip("/")}
    url = given.get("checkpoint_s3_uri")
    if url is not None:
        # A path is as seen from here, and not from the folder of the code.
        found["copy_to"] = str(url) if "://" in str(url) else str(Path(str(url)).expanduser().absolute())
    return found


# ── Limits and tags ──────────────────────────────────────────────────────────────────────────────────────────────────


def _limits(given: Mapping[str, Any], warnings: list[str]) -> dict[str, Any]:
    max_run = given.get("max_run", 24 * 3600)
    found = {"max_runtime": max_run}
    max_wait = given.get("max_wait")
    if max_wait is None:
        return found
    if not given.get("use_spot_instances"):
        warnings.append("max_wait: not honoured: it is for spot, and use_spot_instances is not set")
        return found
    if max_wait < max_run:
        raise BadArgument(f"max_wait: {max_wait} s is less than max_run ({max_run} s), which it includes")
    # max_wait includes max_run: the rest is the time to wait for machines. No rest must not keep the job from starting.
    return {**found, "max_wait": max_wait - max_run or max_wait}


def _tags(tags: Any) -> dict[str, str] | None:
    if not tags:
        return None
    if isinstance(tags, Mapping):
        return {str(name): str(value) for name, value in tags.items()}
    each = tags if isinstance(tags, (list, tuple)) else [tags]
    return {str(tag["Key"]): str(tag.get("Value", "")) for tag in each}
