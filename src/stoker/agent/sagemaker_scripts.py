"""Run a script written for SageMaker: give it the `/opt/ml` tree, the `SM_*` variables, and hosts called `algo-1`, ….

The tree lies in the node's folder; only the training sees it at `/opt/ml`. A machine that has `/opt/ml` itself, a
container of SageMaker's, allows no mounts and needs none: there the tree is used in place, hosts have names already,
and `resourceconfig.json` is SageMaker's own.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from stoker.agent import hosts_file, job_folders
from stoker.agent.confinement import open_plain, opened_folder
from stoker.agent.runtime import BindMount, Command, Runtime
from stoker.agent.sagemaker_machine import ToolkitMachine
from stoker.agent.sagemaker_variables import (
    CONFIG,
    DATA,
    host_names,
    input_config,
    resource_config,
    split_parameters,
    variables,
)
from stoker.agent.training_environment import TrainingLocation
from stoker.model import hyperparameters
from stoker.model.errors import SetupFailed
from stoker.model.hyperparameters import CHECKPOINTS, CODE, ML
from stoker.model.node_config import NodePaths
from stoker.model.spec import Spec
from stoker.model.submission import Submission
from stoker.processes import NotMounted
from stoker.providers import registry
from stoker.secrets.masked_output import mask
from stoker.store.safe_extraction import Extraction, PathObstructed

# As much of a failure's text as SageMaker shows.
_MOST_REASON = 1024
# A secret must not be cut in two before it is masked.
_MOST_READ = 64 * 1024
_CLOSED = (errno.EROFS, errno.EACCES, errno.EPERM)


def mounts(paths: NodePaths, spec: Spec, inputs: Mapping[str, str] | None = None) -> tuple[BindMount, ...]:
    """Return the mounts of the `/opt/ml` tree, and make their targets. May be repeated.

    `inputs` are the paths, or URLs, of the inputs that are ready.
    """
    if spec.environment.contract is None:
        return ()
    tree = job_folders.sources(paths)
    for target in (*tree, CONFIG, DATA, CHECKPOINTS, f"{ML}/output"):
        _make_folder(paths, job_folders.outside(paths, target))
        # A mount point is needed in the tree, even if the mounted folder lies elsewhere.
        _make_folder(paths, tree[ML] / target[len(ML) + 1 :])
    if paths.ml is not None:
        _fill_in_place(paths, spec, inputs or {})
        return ()
    found = [BindMount(source, target) for target, source in tree.items()]
    outputs = job_folders.outputs_inside(spec)
    if outputs is not None:
        kept = job_folders.artifacts(paths) / "outputs"
        _make_folder(paths, kept)
        if outputs.startswith(f"{ML}/"):
            _make_folder(paths, job_folders.outside(paths, outputs))
        found.append(BindMount(kept, outputs))
    local = {name: Path(path) for name, path in (inputs or {}).items() if "://" not in path}
    found += [_channel(paths, name, path) for name, path in local.items()]
    return (*found, *hosts_file.mounts(paths, spec))


def _fill_in_place(paths: NodePaths, spec: Spec, inputs: Mapping[str, str]) -> None:
    """Create the folder that `outputs` names, and put inputs that are no channels where SageMaker has channels.

    These are hard links where the disk allows it: `os.walk` of the tree finds no links to folders.
    """
    outputs = job_folders.outputs_inside(spec)
    if outputs is not None:
        job_folders.outside(paths, outputs).mkdir(parents=True, exist_ok=True)
    data = job_folders.outside(paths, DATA)
    for name, path in inputs.items():
        source, target = Path(path), data / name
        if "://" in path or source.is_relative_to(data):
            continue
        target.mkdir(parents=True, exist_ok=True)
        if source.is_file():
            _link(str(source), str(target / source.name))
        else:
            shutil.copytree(source, target, dirs_exist_ok=True, copy_function=_link)


def _link(source: str, target: str) -> None:
    """Make a file appear at another path too, by a copy if it lies on another disk. May be repeated."""
    with suppress(FileExistsError):
        try:
            os.link(source, target)
        except FileExistsError:
            raise
        except OSError:
            shutil.copy2(source, target)


def _channel(paths: NodePaths, name: str, source: Path) -> BindMount:
    """Mount an input where SageMaker has it: a folder, even for one file. `os.walk` would skip a link."""
    target = f"{DATA}/{name}" + (f"/{source.name}" if source.is_file() else "")
    mount_point = job_folders.outside(paths, target)
    if source.is_file():
        with _opened_tree(paths, mount_point) as (tree, path), suppress(FileExistsError):
            os.close(tree.create(path))
    else:
        _make_folder(paths, mount_point)
    return BindMount(source.resolve(), target, read_only=True)


def _make_folder(paths: NodePaths, folder: Path) -> None:
    """Create a folder of the tree if absent. A link that the training put in its place is replaced. May be repeated."""
    with _opened_tree(paths, folder) as (tree, path):
        if path:
            tree.make_folder(path)


@contextmanager
def _opened_tree(paths: NodePaths, place: Path) -> Iterator[tuple[Extraction, str]]:
    """Open the folder of this node that contains the place, and give the path below it; empty for the folder itself.

    Raises OSError, also where a file is in the way.
    """
    if paths.ml is not None and place.is_relative_to(paths.ml):
        folder, below = paths.ml, place.relative_to(paths.ml).parts
    else:
        top, *rest = place.relative_to(paths.root).parts
        folder, below = paths.root / top, tuple(rest)
    try:
        with Extraction(folder) as tree:
            yield tree, "/".join(below)
    except PathObstructed as error:
        raise FileExistsError(errno.EEXIST, str(error)) from error


def apply_contract(
    command: Command, submission: Submission, location: TrainingLocation, paths: NodePaths, machine: ToolkitMachine
) -> Command:
    """Return the command with the variables and mounts of a SageMaker script; write its tree. May be repeated."""
    spec = submission.spec
    seen = mounts(paths, spec, location.inputs)
    write_tree(paths, spec, location, machine, machine.training_job or submission.job)
    env = {**command.env, **variables(submission, location, machine)}
    env["PYTHONPATH"] = os.pathsep.join(part for part in (CODE, env.get("PYTHONPATH", "")) if part)
    inside = job_folders.checkpoints_inside(spec)
    if inside is not None:
        env["STOKER_CHECKPOINT_DIR"] = inside
    outputs = job_folders.outputs_inside(spec)
    if outputs is not None:
        env["STOKER_OUTPUT_DIR"] = outputs
    cwd = Path(CODE) if paths.ml is None else paths.code
    return replace(command, env=env, cwd=cwd, mounts=(*command.mounts, *seen))


def check_mounts(runtime: Runtime, paths: NodePaths, spec: Spec) -> None:
    """Check early that this machine allows the training its own `/opt/ml`. Raises SetupFailed.

    A container always does; a machine that has the tree itself needs none.
    """
    if spec.environment.contract is None or spec.environment.container is not None or paths.ml is not None:
        return
    if not registry.capabilities(spec.resources.provider).runs_locally:
        # A machine of the job's own gets the folder. Otherwise each command would mount over /opt, and files that the
        # set-up adds there would be lost with the command.
        with suppress(OSError):
            Path(ML).mkdir(parents=True, exist_ok=True)
    try:
        runtime.spawn(Command(("true",), os.environ, Path("/"), mounts=mounts(paths, spec)), paths.train_log).wait()
    except NotMounted as error:
        advice = "be root, allow user namespaces (user.max_user_namespaces, AppArmor), or set environment.container"
        raise SetupFailed(f"environment.contract: no {ML} here: {error.strerror}; {advice}", user=True) from error


def read_failure(paths: NodePaths, secrets: Mapping[str, str]) -> str:
    """Return the training's own text about its failure, in one line and without secrets; empty if it wrote none."""
    try:
        # The training may have put a pipe there, or a link to a file that only the agent may read.
        with (
            opened_folder(job_folders.sources(paths)[ML], "output") as folder,
            os.fdopen(open_plain("failure", os.O_RDONLY, folder), "rb") as file,
        ):
            data = file.read(_MOST_READ)
    except OSError:
        return ""
    text = mask(data, secrets).decode(errors="replace")
    return " ".join(text[:_MOST_REASON].split())


# ── The tree ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def write_tree(paths: NodePaths, spec: Spec, location: TrainingLocation, machine: ToolkitMachine, job: str) -> None:
    """Write the files of `/opt/ml`, and the names of the hosts. Existing files are replaced.

    Where SageMaker provides the tree, its description of the hosts stays, and if it allows no changes its other files
    stay, too.
    """
    own, framework = split_parameters(spec, job)
    script = hyperparameters.entry_point(spec) is not None
    encoded = {name: hyperparameters.encode(value, script=script) for name, value in own.items()}
    encoded |= {name: hyperparameters.encode(value) for name, value in framework.items()}
    config = {
        "hyperparameters.json": encoded,
        "resourceconfig.json": resource_config(location, machine),
        "inputdataconfig.json": input_config(spec),
    }
    if paths.ml is not None:
        del config["resourceconfig.json"]
    # Commands of the set-up ran before this, perhaps in a container: links that they left here are not followed.
    with Extraction(job_folders.sources(paths)[ML]) as tree:
        for name, value in config.items():
            try:
                tree.write(f"{CONFIG[len(ML) + 1 :]}/{name}", json.dumps(value).encode())
            except OSError as error:
                if paths.ml is None or error.errno not in _CLOSED:
                    raise
    if paths.ml is not None:
        return
    names = location.named_addresses if len(location.addresses) > 1 else {}
    names |= dict(zip(host_names(location), location.addresses, strict=True))
    hosts_file.write(paths, spec, names, location.addresses[location.rank])
