"""Look up the facts about a machine that SageMaker's training toolkit would look up."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import struct
import subprocess
from dataclasses import dataclass

from stoker.agent.training_environment import TrainingLocation
from stoker.model import codec
from stoker.model.errors import CodecError
from stoker.providers import registry

_SIOCGIFADDR = 0x8915
_NEURON_LIMIT_S = 20.0


@dataclass(frozen=True)
class ToolkitMachine:
    """The facts about one machine."""

    instance_type: str
    network_interface: str
    cpus: int
    gpus: int
    neurons: int
    # SageMaker's own name of the training job; None on other machines.
    training_job: str | None = None


def probe_machine(location: TrainingLocation, instance_type: str, training_job: str | None = None) -> ToolkitMachine:
    """Look up the facts about this machine, now."""
    return ToolkitMachine(
        instance_type=instance_type,
        network_interface=interface_of(location.addresses[location.rank]),
        cpus=os.cpu_count() or 1,
        gpus=location.gpus,
        neurons=count_neuron_cores(),
        training_job=training_job,
    )


def instance_type(provider: str, machine: str) -> str:
    """Return SageMaker's name of a machine type: EC2's with `ml.` before it."""
    capabilities = registry.capabilities(provider)
    return f"ml.{machine}" if capabilities.ec2_machines else "local" if capabilities.runs_locally else machine


def interface_of(address: str) -> str:
    """Return the network interface that has this address; `eth0`, as on SageMaker, if none has."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # The interface has no address.
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return "eth0"


def count_neuron_cores() -> int:
    """Count Neuron cores as SageMaker's toolkit does: as `neuron-ls` lists them; 0 without it."""
    program = shutil.which("neuron-ls")
    if program is None:
        return 0
    try:
        ran = subprocess.run([program, "-j"], capture_output=True, timeout=_NEURON_LIMIT_S, check=True)
        return sum(int(device.get("nc_count", 0)) for device in codec.parse(ran.stdout))
    except (OSError, subprocess.SubprocessError, CodecError, ValueError, TypeError, AttributeError):
        return 0
