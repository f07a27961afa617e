"""The configuration of an agent, and the files and folders of a node.

<node>/node.json        this configuration
<node>/boots            how many agents have started on this machine
<node>/code/            the unpacked code: the training's working folder (a machine with its own `/opt/ml` has it there)
<node>/inputs/<name>/   files of an input for this node alone; shared copies lie beside the node (see Node.inputs)
<node>/mounts/<name>/   mounted inputs
<node>/lib/             `stoker.train`, for the training to import
<node>/train.log        output of the training, written by the training itself
<node>/agent.log        the agent's own log
<node>/baseline.json    list of the files in the working folder before the training
<node>/scratch/         copies of files that are still being written
<node>/environments/    environments for this node alone
<node>/left             the outcome, once the exit is in the store
<node>/channel/         files between the training and its agent (see stoker.train)
    notice.json  save  metrics.jsonl  commits/  commits.done/
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class NodeConfig:
    """Written once when the machine is created. Holds no secret."""

    store: str
    provider: str
    job: str
    claim: int
    rank: int
    nodes: int
    instance: str
    # Longest lifetime of the machine, enforced on the machine itself.
    max_life_s: float | None = None


@dataclass(frozen=True)
class NodePaths:
    """The folders and files of one node."""

    root: Path
    # The machine's own `/opt/ml`, if a script written for SageMaker runs in it; None where the agent provides the tree.
    ml: Path | None = None

    def is_own(self, folder: Path) -> bool:
        """Return whether a folder belongs to this node alone."""
        return folder.is_relative_to(self.root) or (self.ml is not None and folder.is_relative_to(self.ml))

    @property
    def config(self) -> Path:
        return self.root / "node.json"

    @property
    def boots(self) -> Path:
        return self.root / "boots"

    @property
    def code(self) -> Path:
        return (self.ml or self.root) / "code"

    @property
    def inputs(self) -> Path:
        return self.root / "inputs"

    @property
    def mounts(self) -> Path:
        """Folder of all mounted inputs."""
        return self.root / "mounts"

    @property
    def lib(self) -> Path:
        """Folder with `stoker.train`, which the training may import."""
        return self.root / "lib"

    @property
    def train_log(self) -> Path:
        return self.root / "train.log"

    @property
    def channel(self) -> Path:
        return self.root / "channel"

    @property
    def left(self) -> Path:
        """Appears when the exit is in the store and nothing on this disk is needed any more. Holds the outcome."""
        return self.root / "left"

    @property
    def baseline(self) -> Path:
        """List of the files in the working folder before the training: they are neither outputs nor checkpoints."""
        return self.root / "baseline.json"

    @property
    def scratch(self) -> Path:
        """The agent's folder for copies of files that are still being written."""
        return self.root / "scratch"

    @property
    def environments(self) -> Path:
        """Environments for this node alone: set-up commands install into them."""
        return self.root / "environments"

    @property
    def notice(self) -> Path:
        return self.channel / "notice.json"

    @property
    def save(self) -> Path:
        """The number of the last request to save and go on."""
        return self.channel / "save"

    @property
    def metrics(self) -> Path:
        return self.channel / "metrics.jsonl"
