"""The job file that `stoker init` writes."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

_REST = """\
# params: {lr: 3e-4}             # appended as --lr 3e-4, or placed by {lr}

resources:
  provider: local                # where it runs: local (this computer), ec2, gce or sagemaker
  # gpus: A100:8                 # or machine: [p4d.24xlarge], cpus: 8+, memory: 64GB+
  # spot: prefer                 # true | false | prefer (on-demand when there is none)

checkpoints: {dir: checkpoints, keep: 3}     # where the script saves; restored after every restart
# outputs: artifacts             # synced while it trains; other new files beside the code are kept at the end
# limits: {max_runtime: 24h, max_cost: 200}
"""


def template(command: str | Sequence[str] | None = None) -> str:
    """A short job file with comments, which parses as it is. `command` is its command, as text or as words."""
    if command is None:
        text = "python train.py"
    elif isinstance(command, str):
        text = command.strip() or "python train.py"
    else:
        text = shlex.join(command)
    lines = "".join(f"  {line}\n" for line in text.splitlines())
    return f"# `stoker run` starts this job.\nrun: |\n{lines}{_REST}"
