"""Train on spot machines as if they could not be taken away. No server, just your bucket.

    import stoker
    job = stoker.submit(stoker.Job(run="python train.py", resources={"spot": "prefer"}))
    stoker.wait(job)
    print(stoker.metrics(job).series["loss"].last)

A training script may import `stoker.train`. Every other module is imported when it is first used: the command line,
the agent and training scripts share this package, and each should pay only for its own part.
"""

from __future__ import annotations

import sys

# Not typing's own: importing that takes longer than all of `stoker.train`.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from stoker import client, train
    from stoker.client import clone, interrupt, remove, resume, stop, submit, wait
    from stoker.jobfile.job import Job
    from stoker.model import errors
    from stoker.read.api import checkpoints, compare, jobs, logs, metrics, pull, pull_outputs
else:
    ModuleType = type(sys)

__version__ = "0.1.0"
__all__ = [
    "Job",
    "__version__",
    "checkpoints",
    "client",
    "clone",
    "compare",
    "errors",
    "interrupt",
    "jobs",
    "logs",
    "metrics",
    "pull",
    "pull_outputs",
    "remove",
    "resume",
    "stop",
    "submit",
    "train",
    "wait",
]

# The module of each name that is imported on first use.
_LAZY = {
    "Job": "stoker.jobfile.job",
    **dict.fromkeys(("clone", "interrupt", "remove", "resume", "stop", "submit", "wait"), "stoker.client"),
    **dict.fromkeys(("checkpoints", "compare", "jobs", "logs", "metrics", "pull", "pull_outputs"), "stoker.read.api"),
}
_MODULES = {"client": "stoker.client", "errors": "stoker.model.errors", "train": "stoker.train"}


def __getattr__(name: str) -> Any:
    if name in _LAZY or name in _MODULES:
        import importlib

        if name in _MODULES:
            return importlib.import_module(_MODULES[name])
        return getattr(importlib.import_module(_LAZY[name]), name)
    if name.startswith("_"):
        raise AttributeError(f"module 'stoker' has no attribute {name!r}")
    from difflib import get_close_matches

    close = get_close_matches(name, __all__, n=1)
    meant = f"; did you mean {close[0]}?" if close else ""
    raise AttributeError(f"module 'stoker' has no attribute {name!r}{meant}")


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(ModuleType):
    """The type of this module. A subpackage never hides an API function of the same name, such as `stoker.submit`."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _LAZY and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
