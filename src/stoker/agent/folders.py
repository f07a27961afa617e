"""Where a job's folders lie on a node, as its agent sees them.

With `contract: sagemaker` the training sees `/opt/ml`, which nobody else does (`stoker.agent.sagemaker`):

    <node>/ml/                what has no place elsewhere: input/config, output, checkpoints
    <node>/artifacts/         what is kept as the job's outputs
        model/                /opt/ml/model
        data/                 /opt/ml/output/data
        intermediate/         /opt/ml/output/intermediate
        outputs/              what `outputs` names, if it names another folder
    <node>/code/              /opt/ml/code
    <node>/hosts              /etc/hosts
"""

from __future__ import annotations

import posixpath
from pathlib import Path

from stoker.agent.config import NodePaths
from stoker.hyperparameters import CHECKPOINTS, CODE, ML, MODEL, OUTPUT_DATA, OUTPUT_INTERMEDIATE
from stoker.spec import Checkpoints, Spec


def checkpoint_folder(paths: NodePaths, spec: Spec) -> Path:
    """Where the agent finds what the training saves."""
    inside = checkpoints_inside(spec)
    return paths.code / spec.checkpoints.dir if inside is None else outside(paths, inside)


def checkpoints_inside(spec: Spec) -> str | None:
    """Where the training has that folder, if it is in a tree that only it sees."""
    if spec.environment.contract is None:
        return None
    if spec.checkpoints.dir == Checkpoints().dir:
        return CHECKPOINTS
    folder = posixpath.normpath(posixpath.join(CODE, spec.checkpoints.dir))
    return folder if folder.startswith(f"{ML}/") else None


def output_folder(paths: NodePaths, spec: Spec) -> Path | None:
    """What is synced to the store as plain files; None where nothing is."""
    if spec.environment.contract is not None:
        return artifacts(paths)
    return paths.code / spec.outputs if spec.outputs else None


def outputs_inside(spec: Spec) -> str | None:
    """Where the training has the folder that `outputs` names, if that is none of the contract's own."""
    if spec.environment.contract is None or spec.outputs is None:
        return None
    folder = posixpath.normpath(posixpath.join(CODE, spec.outputs))
    return None if folder in (MODEL, OUTPUT_DATA, OUTPUT_INTERMEDIATE) else folder


def artifacts(paths: NodePaths) -> Path:
    return paths.root / "artifacts"


def sources(paths: NodePaths) -> dict[str, Path]:
    """What lies where in `/opt/ml`, the outermost first."""
    kept = artifacts(paths)
    return {
        ML: paths.root / "ml",
        CODE: paths.code,
        MODEL: kept / "model",
        OUTPUT_DATA: kept / "data",
        OUTPUT_INTERMEDIATE: kept / "intermediate",
    }


def outside(paths: NodePaths, path: str) -> Path:
    """Where this path of `/opt/ml` is on the machine itself."""
    found = sources(paths)
    target = max((each for each in found if path == each or path.startswith(f"{each}/")), key=len)
    return found[target] / path[len(target) :].lstrip("/")
