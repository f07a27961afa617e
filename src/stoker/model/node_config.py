"""What an agent is told when its machine is made, and where it keeps things on the machine.

<node>/node.json        this configuration
<node>/boots            how many agents have started on this machine
<node>/code/            the unpacked code: the training's working folder
<node>/inputs/<name>/   what is this node's alone of an input; copies are kept beside the node (see Node.inputs)
<node>/mounts/<name>/   inputs that are mounted
<node>/lib/             `stoker.train`, for the training to import
<node>/train.log        what the training printed, written by the training itself
<node>/agent.log        the agent's own words
<node>/baseline.json    what lay in the working folder before the training
<node>/scratch/         copies of files that are still being written to
<node>/environments/    environments that are this node's alone
<node>/left             how it ended, once the exit is in the store
<node>/channel/         between the training and its agent (see stoker.train)
    notice.json  save  metrics.jsonl  commits/  commits.done/
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class NodeConfig:
    """Written once by whoever made the machine. Holds no secret."""

    store: str
    provider: str
    job: str
    claim: int
    rank: int
    nodes: int
    instance: str
    # Longest life of the machine, enforced on it.
    max_life_s: float | None = None


@dataclass(frozen=True)
class NodePaths:
    """The folders and files of one node."""

    root: Path

    @property
    def config(self) -> Path:
        return self.root / "node.json"

    @property
    def boots(self) -> Path:
        return self.root / "boots"

    @property
    def code(self) -> Path:
        return self.root / "code"

    @property
    def inputs(self) -> Path:
        return self.root / "inputs"

    @property
    def mounts(self) -> Path:
        """What is mounted, is mounted below this."""
        return self.root / "mounts"

    @property
    def lib(self) -> Path:
        """What the training may import besides its own: `stoker.train`."""
        return self.root / "lib"

    @property
    def train_log(self) -> Path:
        return self.root / "train.log"

    @property
    def channel(self) -> Path:
        return self.root / "channel"

    @property
    def left(self) -> Path:
        """Appears when the exit is in the store: nothing on this disk is needed any more. Holds how it ended."""
        return self.root / "left"

    @property
    def baseline(self) -> Path:
        """What lay in the working folder before the training: it is neither output nor checkpoint."""
        return self.root / "baseline.json"

    @property
    def scratch(self) -> Path:
        """The agent's own, for copies of files that are still being written to."""
        return self.root / "scratch"

    @property
    def environments(self) -> Path:
        """Environments that no other node uses: commands of the set-up install into them."""
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
