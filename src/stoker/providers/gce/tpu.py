"""TPU machines of Compute Engine: the slice on one machine, and the variables with which JAX and PyTorch/XLA find it.

Pure. Machines of the Cloud TPU API get these variables from that API, and containers on GKE from its device plugin:
https://cloud.google.com/kubernetes-engine/docs/how-to/tpus. On a machine of Compute Engine nothing else sets them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from stoker.model.errors import UserError
from stoker.model.spec import Spec
from stoker.providers.gce import catalog

# Google's default for these images is 10 GB, too small for a framework: a job that names no size gets this.
DISK_GB = 100

_NAME = re.compile(r"(?P<series>ct5lp-hightpu|ct5p-hightpu|ct6e-standard)-(?P<chips>[148])t")
# Names of accelerator types count chips, those of v5p its cores, of which a chip has two.
# https://cloud.google.com/tpu/docs/supported-tpu-configurations
_TYPES = {"ct5lp-hightpu": "v5litepod-{chips}", "ct5p-hightpu": "v5p-{cores}", "ct6e-standard": "v6e-{chips}"}
# The chips of one machine, as an array.
_BOUNDS = {1: (1, 1), 4: (2, 2), 8: (2, 4)}

# The chips of a slice are connected with each other, which those of two ordinary machines are not:
# https://cloud.google.com/tpu/docs/system-architecture-tpu-vm
_ELSEWHERE = "are made by the Cloud TPU API and GKE alone, which Stoker does not use"


@dataclass(frozen=True)
class TpuSlice:
    """The chips of one machine, which form a slice of their own."""

    accelerator_type: str
    chips: int
    topology: str

    @property
    def environ(self) -> dict[str, str]:
        """The variables for JAX, PyTorch/XLA and libtpu on a machine that is a slice of its own."""
        across, down = _BOUNDS[self.chips]
        return {
            "PJRT_DEVICE": "TPU",
            "TPU_ACCELERATOR_TYPE": self.accelerator_type,
            "TPU_CHIPS_PER_HOST_BOUNDS": f"{across},{down},1",
            "TPU_HOST_BOUNDS": "1,1,1",
            # The metadata of this machine say nothing about its TPU.
            "TPU_SKIP_MDS_QUERY": "true",
            "TPU_TOPOLOGY": self.topology,
            "TPU_WORKER_HOSTNAMES": "localhost",
            "TPU_WORKER_ID": "0",
        }


def slice_of(machine: str) -> TpuSlice | None:
    """The TPU slice of a machine type; None for a machine without TPUs."""
    found = _NAME.fullmatch(machine)
    if found is None:
        return None
    chips = int(found["chips"])
    across, down = _BOUNDS[chips]
    # The chips of a v5p are in three dimensions.
    topology = f"{across}x{down}x1" if found["series"] == "ct5p-hightpu" else f"{across}x{down}"
    return TpuSlice(_TYPES[found["series"]].format(chips=chips, cores=2 * chips), chips, topology)


def check(spec: Spec) -> None:
    """Raise UserError for a slice of several TPU machines: Compute Engine does not connect their chips."""
    named = [machine for machine in spec.resources.machine if slice_of(machine) is not None]
    gpus = spec.resources.gpus
    asked = named[0] if named else gpus.name if gpus is not None and catalog.is_tpu(gpus.name) else None
    if spec.nodes > 1 and asked is not None:
        raise UserError(f"nodes: {asked} is for one node: slices of several machines {_ELSEWHERE}")
    if gpus is None or not catalog.is_tpu(gpus.name):
        return
    sizes = [each.gpus for each in catalog.table().values() if (each.gpu or "").upper() == gpus.name.upper()]
    if sizes and gpus.count > max(sizes):
        raise UserError(
            f"resources.gpus: a machine has {max(sizes)} × {gpus.name} at most, and slices of several {_ELSEWHERE}"
        )


def remarks(spec: Spec) -> tuple[str, ...]:
    """Warn about TPU v5e: its machine types are listed by Compute Engine, and not documented to be launched there."""
    gpus = spec.resources.gpus
    v5e = any(machine.startswith("ct5lp-") for machine in spec.resources.machine)
    if v5e or (gpus is not None and gpus.name.upper() == "TPU-V5E"):
        return ("resources: Google documents TPU v5e for GKE and the Cloud TPU API; Compute Engine may refuse it",)
    return ()
