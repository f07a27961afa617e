"""Train on spot machines as if nobody could take them away. No server, just your bucket.

    import stoker
    job = stoker.submit(stoker.Job(run="python train.py", resources={"spot": "prefer"}))
    stoker.wait(job)

User code that runs under Stoker may import `stoker.train`. Nothing else is imported until it is used: the command
line, the agent and a training script share this package and should each pay only for their own part.
"""

from __future__ import annotations

# Not typing's own: importing that takes longer than all of `stoker.train`.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stoker.client import submit, wait
    from stoker.jobfile.job import Job

__version__ = "0.1.0"
__all__ = ["Job", "__version__", "submit", "wait"]

_LAZY = {"Job": "stoker.jobfile.job", "submit": "stoker.client", "wait": "stoker.client"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        import importlib

        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'stoker' has no attribute {name!r}")
