"""The environment contract: everything that the training process sees, in one place.

`docs/environment.md` is generated from `CONTRACT`.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import stoker
from stoker.agent.confinement import opened_folder, replace_plain
from stoker.model.command_line import input_variable, params_json
from stoker.model.submission import Submission

CONTRACT: tuple[tuple[str, str], ...] = (
    ("STOKER_JOB", "the job's id"),
    ("STOKER_ATTEMPT", "1, 2, …: goes up with every restart; usable as a fence for outside effects"),
    ("STOKER_CHECKPOINT_DIR", "save here; what is here at the start was restored"),
    ("STOKER_OUTPUT_DIR", "results: plain files that are synced to the store while it trains; always there"),
    ("STOKER_INPUT_<NAME>", "folder or file of each input, or its URL for `mode: stream`; `-` in a name is `_` here"),
    ("STOKER_PARAMS", "the parameters as JSON"),
    ("STOKER_NOTICE_FILE", "appears on a notice; JSON with the time that is left"),
    ("STOKER_SECRETS", "the names of the variables that hold secrets, set apart by commas, where there are any"),
    ("STOKER_CHANNEL", "folder through which `stoker.train` talks to the agent"),
    ("MASTER_ADDR, MASTER_PORT", "where rank 0 is"),
    ("NUM_NODES, NODE_RANK", "how many nodes, and which one this is"),
    ("NODES", "the host names of all nodes in rank order, set apart by spaces: what `gethostname()` says on each"),
    ("PET_*", "torchrun's own, so that plain `torchrun train.py` works on any number of nodes"),
    ("WANDB_RUN_ID, WANDB_RESUME", "where unset: one run of Weights & Biases across attempts"),
    ("MLFLOW_RUN_NAME", "where unset: the job's id; each attempt is a run of MLflow with this name"),
    ("PYTHONUNBUFFERED", "1 where unset: lines reach the log as they are printed"),
)

# Variables of the agent that the training must not inherit.
_PRIVATE = ("STOKER_AGENT", "STOKER_STORE", "STOKER_HOME", "STOKER_NODE", "STOKER_TRAINING", "STOKER_EXEC")


@dataclass(frozen=True)
class TrainingLocation:
    """Where one attempt trains: its rank, its addresses and its folders."""

    attempt: int
    rank: int
    # The name and the address of each node, in rank order. A node that can have no name goes by its address.
    names: tuple[str, ...]
    addresses: tuple[str, ...]
    port: int
    gpus: int
    code: Path
    checkpoints: Path
    channel: Path
    notice: Path
    inputs: dict[str, str]
    outputs: Path
    lib: Path
    # The variables of the environment that was built for the training.
    environ: Mapping[str, str]
    # Accelerators that are no GPUs, and for which torchrun starts a process each.
    processes: int = 0

    @property
    def named_addresses(self) -> dict[str, str]:
        """The addresses of the nodes that have names."""
        pairs = zip(self.names, self.addresses, strict=True)
        return {name: address for name, address in pairs if name != address}


def training_environment(base: Mapping[str, str], submission: Submission, location: TrainingLocation) -> dict[str, str]:
    """Return the whole environment of the training. The spec's own `env` wins over everything but the contract.

    `base` are the variables of the runtime (`Runtime.environ`).
    """
    spec = submission.spec
    env = {name: value for name, value in base.items() if not name.startswith(_PRIVATE)}
    python = spec.environment.python or ""
    if "/" in python:
        folder = os.path.dirname(python)  # noqa: PTH120 - textual: the link itself is the environment
        env["PATH"] = f"{folder}{os.pathsep}{env.get('PATH', os.defpath)}"
    env.update(location.environ)
    env.setdefault("PYTHONUNBUFFERED", "1")
    env.setdefault("WANDB_RUN_ID", submission.job)
    env.setdefault("WANDB_RESUME", "allow")
    env.setdefault("MLFLOW_RUN_NAME", submission.job)
    env.update(spec.env)
    env["PYTHONPATH"] = os.pathsep.join(part for part in (env.get("PYTHONPATH", ""), str(location.lib)) if part)
    env.update(_contract(submission, location))
    return env


def _contract(submission: Submission, location: TrainingLocation) -> dict[str, str]:
    nodes = len(location.addresses)
    env = {
        "STOKER_JOB": submission.job,
        "STOKER_ATTEMPT": str(location.attempt),
        "STOKER_CHECKPOINT_DIR": str(location.checkpoints),
        "STOKER_OUTPUT_DIR": str(location.outputs),
        "STOKER_PARAMS": params_json(submission.spec),
        "STOKER_NOTICE_FILE": str(location.notice),
        "STOKER_CHANNEL": str(location.channel),
        "MASTER_ADDR": location.addresses[0],
        "MASTER_PORT": str(location.port),
        "NUM_NODES": str(nodes),
        "NODE_RANK": str(location.rank),
        "NODES": " ".join(location.names),
    }
    if submission.spec.secrets:
        env["STOKER_SECRETS"] = ",".join(submission.spec.secrets)
    for name, where in location.inputs.items():
        env[input_variable(name)] = where
    env |= {
        "PET_NNODES": str(nodes),
        "PET_NODE_RANK": str(location.rank),
        "PET_MASTER_ADDR": location.addresses[0],
        "PET_MASTER_PORT": str(location.port),
    }
    processes = location.gpus or location.processes
    if processes and "PET_NPROC_PER_NODE" not in submission.spec.env:
        env["PET_NPROC_PER_NODE"] = str(processes)
    return env


# `stoker.train`, and the modules that it imports, also late ones: a script's Python may not have Stoker installed.
_LIBRARY = (
    "train.py",
    "agent/checkpoints/save_protocol.py",
    "model/errors.py",
    "model/key_segments.py",
    "model/keys.py",
    "model/keywords.py",
)


def write_library(target: Path) -> Path:
    """Write a folder for PYTHONPATH from which a script can import `stoker.train`, whatever its Python has installed.

    A whole Stoker that is installed there keeps working: the package's path is extended to it.
    """
    package = target / "stoker"
    source = Path(stoker.__file__).parent
    extension = "\nfrom pkgutil import extend_path as _extend\n\n__path__ = _extend(__path__, __name__)\n"
    for name in _LIBRARY:
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, package / name)
        for folder in Path(name).parents:
            text = (source / folder / "__init__.py").read_text(encoding="utf-8")
            (package / folder / "__init__.py").write_text(text + extension, encoding="utf-8")
    return target


def ask_to_save(path: Path, request: int) -> None:
    """Ask the training to save and go on. `request` counts up, so that each request is seen once."""
    _write(path, str(request))


def write_notice(path: Path, grace_s: float, deadline_s: float, reason: str) -> None:
    """Write the notice file: how long the training has. All processes of a machine share the monotonic clock."""
    _write(path, json.dumps({"grace_s": grace_s, "deadline_monotonic": deadline_s, "reason": reason}))


def _write(path: Path, text: str) -> None:
    """Write a file of the channel. The training may write there, too: a link of its own is never written through."""
    with opened_folder(path.parent) as channel:
        replace_plain(channel, path.name, text.encode())
