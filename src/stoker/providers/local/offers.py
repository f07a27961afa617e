"""The offerings of this computer."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path

from stoker.model.offerings import Offering
from stoker.model.resources import LocalResources, Resources

MACHINE = "local"
ZONE = "this-computer"
# Ratio of spot to on-demand price if the job file names no spot price: about the ratio of large clouds.
SPOT_SHARE = 0.32


def offerings(resources: Resources) -> tuple[Offering, ...]:
    """This computer, spot and on-demand, cheapest first; empty if it cannot serve these resources."""
    if why_none(resources):
        return ()
    local = resources.local or LocalResources()
    names = gpu_names()
    spot_price = local.spot_price if local.spot_price is not None else round(local.price * SPOT_SHARE, 10)

    def offer(spot: bool, price: float) -> Offering:
        return Offering(
            provider="local",
            machine=MACHINE,
            zone=ZONE,
            spot=spot,
            price=price,
            on_demand_price=local.price,
            # If the job file names no price, there is no source: this computer costs nothing.
            price_source="job file" if local.price or local.spot_price else "",
            cpus=cpus(),
            memory_bytes=memory_bytes(),
            gpu=names[0] if names else None,
            gpus=len(names),
            most_nodes=local.capacity,
        )

    both = (offer(True, spot_price), offer(False, local.price))
    # At the same price, on-demand comes first: it is not reclaimed.
    return tuple(sorted(both, key=lambda offering: (offering.price, offering.spot)))


def why_none(resources: Resources) -> str:
    """The reason why this computer cannot serve these resources, in one line; empty if it can."""
    if resources.machine and MACHINE not in resources.machine:
        return f"resources.machine: this computer is called {MACHINE!r}, not {', '.join(resources.machine)}"
    if resources.zones and ZONE not in resources.zones:
        return f"resources.zones: this computer is in {ZONE!r}, not in {', '.join(resources.zones)}"
    if resources.cpus is not None and resources.cpus > cpus():
        return f"resources.cpus: this computer has {cpus()}, {resources.cpus} were asked for"
    if resources.memory_bytes is not None and resources.memory_bytes > memory_bytes():
        has, wanted = memory_bytes() / 1e9, resources.memory_bytes / 1e9
        return f"resources.memory: this computer has {has:.1f} GB, {wanted:.1f} GB were asked for"
    if resources.gpus is not None and resources.gpus.count > 0:
        wanted_name = resources.gpus.name
        fitting = [name for name in gpu_names() if _same_gpu(wanted_name, name)]
        if len(fitting) < resources.gpus.count:
            what = f"{wanted_name or 'GPU'}:{resources.gpus.count}"
            return f"resources.gpus: this computer has {', '.join(gpu_names()) or 'no GPU'}, {what} was asked for"
    return ""


def cpus() -> int:
    """The number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0))


def memory_bytes() -> int:
    """The size of the physical memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@lru_cache(maxsize=1)
def gpu_names() -> tuple[str, ...]:
    """The NVIDIA GPUs of this computer, read through NVML; empty without a driver."""
    # The driver makes this file. Without it NVML need not be imported.
    if not Path("/dev/nvidiactl").exists():
        return ()
    try:
        import pynvml
    except ImportError:
        return ()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        names = [pynvml.nvmlDeviceGetName(handle) for handle in handles]
        return tuple(name.decode() if isinstance(name, bytes) else name for name in names)
    except pynvml.NVMLError:
        return ()
    finally:
        pynvml.nvmlShutdown()


def _same_gpu(wanted: str, name: str) -> bool:
    """Return True if the GPU's name contains all wanted words: `A100` matches `NVIDIA A100-SXM4-40GB`, `L4` not
    `L40S`."""
    name_words = [word.lower() for word in re.split(r"[^A-Za-z0-9]+", name) if word]
    wanted_words = [word.lower() for word in re.split(r"[^A-Za-z0-9]+", wanted) if word]
    return all(word in name_words for word in wanted_words)
