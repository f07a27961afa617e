"""Write the tables of Compute Engine: machine types, zones and prices.

Google has no list of its machine types that can be read without an account, so the facts stand here, by family:
https://cloud.google.com/compute/docs/machine-resource. Prices are made of parts (cores, memory, accelerators), which
are added up; `stoker prices --provider gce --refresh` asks for today's.

    python scripts/write_gce_tables.py
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

from stoker.providers.gce import catalog, prices
from stoker.providers.price_book import RegionPrices

DATA = Path(__file__).resolve().parents[1] / "src/stoker/providers/gce/data"
SOURCE = "Google's documentation of machine families and GPUs, 2026-04"
ZONES_SOURCE = "skypilot-catalog at 006059e (v8/gcp/vms.csv)"
PRICES_SOURCE = (
    "Cloud Billing catalog, by way of skypilot-catalog at 006059e (v8/gcp/vms.csv), not older than this date"
)
PRICES_DATE = date(2026, 1, 19)
# Prices that the list has for reserved capacity only, read elsewhere. Both lists come from the Cloud Billing catalog.
_H100_SOURCE = "H100 on demand by way of silybench-data (derived/csv/gpu_prices.csv), 2026-09-26"
_A100_80GB_SOURCE = (
    "A100-80GB on demand by way of google-cloud-pricing-cost-calculator at 0166a59 (pricing.yml), 2025-03-06"
)
OTHER_SOURCES = {"us-central1": (_A100_80GB_SOURCE, _H100_SOURCE), "us-west1": (_H100_SOURCE,)}
# The list above has TPUs by slice, and at a later date. A slice costs its chips: the price includes their host.
TPU_SOURCE = "TPU chips by way of skypilot-catalog at ed9b4fb (v8/gcp/vms.csv), a machine as the sum of its chips"
TPU_DATE = date(2026, 8, 21)

# ── Machine types ─────────────────────────────────────────────────────────────────────────────────────────────────────

# Family, GiB of memory for each CPU, and the sizes.
PLAIN: list[tuple[str, float, tuple[int, ...]]] = [
    ("n1-standard", 3.75, (1, 2, 4, 8, 16, 32, 64, 96)),
    ("n1-highmem", 6.5, (2, 4, 8, 16, 32, 64, 96)),
    ("n1-highcpu", 0.9, (2, 4, 8, 16, 32, 64, 96)),
    ("n2-standard", 4, (2, 4, 8, 16, 32, 48, 64, 80, 96, 128)),
    ("n2-highmem", 8, (2, 4, 8, 16, 32, 48, 64, 80, 96)),
    ("n2-highcpu", 1, (2, 4, 8, 16, 32, 48, 64, 80, 96)),
    ("n2d-standard", 4, (2, 4, 8, 16, 32, 48, 64, 80, 96, 128, 224)),
    ("n2d-highmem", 8, (2, 4, 8, 16, 32, 48, 64, 80, 96)),
    ("n2d-highcpu", 1, (2, 4, 8, 16, 32, 48, 64, 80, 96, 128, 224)),
    ("n4-standard", 4, (2, 4, 8, 16, 32, 48, 64, 80)),
    ("n4-highmem", 8, (2, 4, 8, 16, 32, 48, 64, 80)),
    ("n4-highcpu", 2, (2, 4, 8, 16, 32, 48, 64, 80)),
    ("e2-standard", 4, (2, 4, 8, 16, 32)),
    ("e2-highmem", 8, (2, 4, 8, 16)),
    ("e2-highcpu", 1, (2, 4, 8, 16, 32)),
    ("c2-standard", 4, (4, 8, 16, 30, 60)),
    ("c2d-standard", 4, (2, 4, 8, 16, 32, 56, 112)),
    ("c2d-highmem", 8, (2, 4, 8, 16, 32, 56, 112)),
    ("c2d-highcpu", 2, (2, 4, 8, 16, 32, 56, 112)),
    ("c3-standard", 4, (4, 8, 22, 44, 88, 176)),
    ("c3-highmem", 8, (4, 8, 22, 44, 88, 176)),
    ("c3-highcpu", 2, (4, 8, 22, 44, 88, 176)),
    ("c4-standard", 3.75, (4, 8, 16, 32, 48, 96, 192)),
    ("c4-highmem", 7.75, (4, 8, 16, 32, 48, 96, 192)),
    ("c4-highcpu", 2, (4, 8, 16, 32, 48, 96, 192)),
    ("t2d-standard", 4, (1, 2, 4, 8, 16, 32, 48, 60)),
    ("t2a-standard", 4, (1, 2, 4, 8, 16, 32, 48)),
    ("c4a-standard", 4, (1, 2, 4, 8, 16, 32, 48, 64, 72)),
    ("c4a-highmem", 8, (1, 2, 4, 8, 16, 32, 48, 64, 72)),
    ("c4a-highcpu", 2, (1, 2, 4, 8, 16, 32, 48, 64, 72)),
]
# Shared cores, by GiB of memory.
SHARED = {"e2-micro": 1, "e2-small": 2, "e2-medium": 4}
# GPUs that belong to the machine type: name, CPUs, GiB of memory, GPU, how many.
BUILT_IN: list[tuple[str, int, float, str, int]] = [
    ("a2-highgpu-1g", 12, 85, "A100-40GB", 1),
    ("a2-highgpu-2g", 24, 170, "A100-40GB", 2),
    ("a2-highgpu-4g", 48, 340, "A100-40GB", 4),
    ("a2-highgpu-8g", 96, 680, "A100-40GB", 8),
    ("a2-megagpu-16g", 96, 1360, "A100-40GB", 16),
    ("a2-ultragpu-1g", 12, 170, "A100-80GB", 1),
    ("a2-ultragpu-2g", 24, 340, "A100-80GB", 2),
    ("a2-ultragpu-4g", 48, 680, "A100-80GB", 4),
    ("a2-ultragpu-8g", 96, 1360, "A100-80GB", 8),
    ("a3-highgpu-1g", 26, 234, "H100", 1),
    ("a3-highgpu-2g", 52, 468, "H100", 2),
    ("a3-highgpu-4g", 104, 936, "H100", 4),
    ("a3-highgpu-8g", 208, 1872, "H100", 8),
    ("a3-megagpu-8g", 208, 1872, "H100", 8),
    ("a3-ultragpu-8g", 224, 2952, "H200", 8),
    ("a4-highgpu-8g", 224, 3968, "B200", 8),
    # https://cloud.google.com/tpu/docs/v5e, v5p and v6e
    ("ct5lp-hightpu-1t", 24, 48, "TPU-v5e", 1),
    ("ct5lp-hightpu-4t", 112, 192, "TPU-v5e", 4),
    ("ct5lp-hightpu-8t", 224, 384, "TPU-v5e", 8),
    ("ct5p-hightpu-4t", 208, 448, "TPU-v5p", 4),
    ("ct6e-standard-1t", 44, 176, "TPU-v6e", 1),
    ("ct6e-standard-4t", 180, 720, "TPU-v6e", 4),
    ("ct6e-standard-8t", 180, 1440, "TPU-v6e", 8),
    ("g2-standard-4", 4, 16, "L4", 1),
    ("g2-standard-8", 8, 32, "L4", 1),
    ("g2-standard-12", 12, 48, "L4", 1),
    ("g2-standard-16", 16, 64, "L4", 1),
    ("g2-standard-24", 24, 96, "L4", 2),
    ("g2-standard-32", 32, 128, "L4", 1),
    ("g2-standard-48", 48, 192, "L4", 4),
    ("g2-standard-96", 96, 384, "L4", 8),
    ("g4-standard-48", 48, 180, "RTX-PRO-6000", 1),
    ("g4-standard-96", 96, 360, "RTX-PRO-6000", 2),
    ("g4-standard-192", 192, 720, "RTX-PRO-6000", 4),
    ("g4-standard-384", 384, 1440, "RTX-PRO-6000", 8),
]
# Local SSD that belongs to the machine type, in GB: https://cloud.google.com/compute/docs/disks/local-ssd
LOCAL_SSD_GB = {
    "a2-ultragpu-1g": 375,
    "a2-ultragpu-2g": 750,
    "a2-ultragpu-4g": 1500,
    "a2-ultragpu-8g": 3000,
    "a3-highgpu-1g": 750,
    "a3-highgpu-2g": 1500,
    "a3-highgpu-4g": 3000,
    "a3-highgpu-8g": 6000,
    "a3-megagpu-8g": 6000,
    "a3-ultragpu-8g": 12000,
    "a4-highgpu-8g": 12000,
}
# Only to be had as spot machines, or from a reservation.
NOT_STANDARD = frozenset({"a3-highgpu-1g", "a3-highgpu-2g", "a3-highgpu-4g", "a3-ultragpu-8g", "a4-highgpu-8g"})
# GPUs that are attached to N1 machines: the most CPUs for each count of them.
# https://cloud.google.com/compute/docs/gpus#n1-gpus
ATTACHED = {
    "nvidia-tesla-t4": {1: 48, 2: 48, 4: 96},
    "nvidia-tesla-v100": {1: 12, 2: 24, 4: 48, 8: 96},
    "nvidia-tesla-p100": {1: 16, 2: 32, 4: 64},
    "nvidia-tesla-p4": {1: 24, 2: 48, 4: 96},
}


def machines() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every machine type, with what differs from the defaults, in the order in which people read it."""
    for name, cpus, gib, gpu, gpus in BUILT_IN:
        row = _row(cpus, gib, gpu, gpus) | ({"standard": False} if name in NOT_STANDARD else {})
        yield name, row | ({"disks_gb": LOCAL_SSD_GB[name]} if name in LOCAL_SSD_GB else {})
    hosts = [(name, gib, cpus) for name, gib, sizes in PLAIN for cpus in sizes if name in ("n1-standard", "n1-highmem")]
    for accelerator, counts in ATTACHED.items():
        for count, most in counts.items():
            for name, gib, cpus in hosts:
                if 4 <= cpus <= most:
                    gpu = catalog.ACCELERATORS[accelerator]
                    yield f"{name}-{cpus}+{accelerator}:{count}", _row(cpus, cpus * gib, gpu, count)
    for name, gib, sizes in PLAIN:
        for cpus in sizes:
            arch = catalog.arch_of(name)
            yield f"{name}-{cpus}", _row(cpus, cpus * gib) | ({} if arch == "x86_64" else {"arch": arch})
    for name, gib in SHARED.items():
        yield name, _row(2, gib) | {"burstable": True}


def _row(cpus: int, gib: float, gpu: str | None = None, gpus: int = 0) -> dict[str, Any]:
    row: dict[str, Any] = {"cpus": cpus, "memory_mib": int(gib * 1024)}
    if gpu:
        row |= {"gpu": gpu, "gpus": gpus, "gpu_memory_mib": catalog.GPU_MEMORY_MIB[gpu]}
    return row


# ── Zones ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

# The zones of each region. Those for accelerators alone (`-ai1a`) are only for who names them.
_MOST_REGIONS = """
    africa-south1 asia-east1 asia-east2 asia-northeast1 asia-northeast2 asia-northeast3 asia-south1 asia-south2
    asia-southeast1 asia-southeast2 asia-southeast3 australia-southeast1 australia-southeast2 europe-central2
    europe-north1 europe-north2 europe-southwest1 europe-west2 europe-west3 europe-west4 europe-west6 europe-west8
    europe-west9 europe-west10 europe-west12 me-central1 me-central2 me-west1 northamerica-northeast1
    northamerica-northeast2 northamerica-south1 southamerica-east1 southamerica-west1 us-east4 us-east5 us-south1
    us-west1 us-west2 us-west3 us-west4
"""
REGIONS = {
    **dict.fromkeys(_MOST_REGIONS.split(), "abc"),
    "europe-west1": "bcd",
    "us-central1": "abcf",
    "us-east1": "bcd",
}
# Where machines with GPUs are, by what they are called, or what is attached to them.
WITH_GPUS = {
    "a2-highgpu": "asia-northeast1:ac asia-northeast3:ab asia-southeast1:abc europe-west4:ab me-west1:ac "
    "us-central1:abcf us-east1:b us-west1:b us-west3:b us-west4:b",
    "a2-megagpu": "asia-southeast1:ac europe-west4:ab us-central1:abcf",
    "a2-ultragpu": "asia-southeast1:c europe-west4:a us-central1:ac us-east4:c us-east5:ab",
    "a3-highgpu": "asia-east1:c asia-northeast1:b asia-south1:c asia-south2:b asia-southeast1:bc "
    "australia-southeast1:c europe-north1:c europe-west1:bc europe-west3:c europe-west4:bc europe-west8:c "
    "europe-west9:c us-central1:abc us-east4:abc us-east5:a us-west1:ab us-west4:a",
    "a3-megagpu": "asia-east1:c asia-northeast1:b asia-southeast1:bc australia-southeast1:c europe-north1:c "
    "europe-west1:bc europe-west3:c europe-west4:bc us-central1:abc us-east4:abc us-east5:a us-west1:ab us-west4:a",
    "a3-ultragpu": "asia-south1:b asia-south2:c europe-west1:b europe-west4:a us-central1:b us-east4:b us-east5:a "
    "us-south1:b us-west1:c",
    "a4-highgpu": "asia-northeast1:b asia-southeast1:b europe-north1:b europe-west4:b us-central1:b us-east1:b "
    "us-east4:b us-south1:b us-west2:c us-west3:bc",
    "g2-standard": "asia-east1:abc asia-northeast1:abc asia-northeast3:ab asia-south1:abc asia-southeast1:abc "
    "europe-west1:bc europe-west2:ab europe-west3:ab europe-west4:abc europe-west6:bc me-central2:ac "
    "northamerica-northeast1:bc northamerica-northeast2:ab us-central1:abc us-east1:bcd us-east4:ac us-west1:abc "
    "us-west4:ac",
    "nvidia-tesla-t4": "asia-east1:ac asia-east2:ac asia-northeast1:ac asia-northeast3:bc asia-south1:ab "
    "asia-southeast1:abc asia-southeast2:ab australia-southeast1:ac europe-central2:bc europe-west1:bcd "
    "europe-west2:ab europe-west3:b europe-west4:abc me-west1:bc northamerica-northeast1:c southamerica-east1:abc "
    "us-central1:abcf us-east1:bcd us-east4:abc us-west1:ab us-west2:bc us-west3:b us-west4:ab",
    "nvidia-tesla-v100": "asia-east1:c europe-west4:abc us-central1:abcf us-east1:bc us-west1:ab",
    "nvidia-tesla-p100": "europe-west1:bd europe-west4:a us-central1:cf us-east1:bc us-west1:ab",
    "nvidia-tesla-p4": "asia-southeast1:abc australia-southeast1:ab europe-west4:bc northamerica-northeast1:abc "
    "us-central1:ac us-east4:abc us-west2:bc",
}


def zones() -> dict[str, Any]:
    """The zones table, as it is written."""
    return {
        "source": ZONES_SOURCE,
        "regions": {region: list(letters) for region, letters in sorted(REGIONS.items())},
        "gpus": {
            name: {region: list(letters) for region, _, letters in (each.partition(":") for each in text.split())}
            for name, text in WITH_GPUS.items()
        },
    }


# ── Prices ────────────────────────────────────────────────────────────────────────────────────────────────────────────

# Parts of a price, $/h: on demand, and spot where it is known. Each region that costs the same has the same row.
Parts = tuple[float | None, float | None]
_AMERICA = ("us-central1", "us-east1", "us-west1")
# A GiB of memory costs this part of a core, in these families and wherever they are sold.
_MEMORY_RATIO = 0.134036
# The price of one core, from one machine of each family: n1-highcpu-8, n2-highmem-48, n2d-highmem-32,
# e2-highmem-8. The families whose machines all have 4 GiB for each are listed with that.
CORES: dict[str, dict[str, Parts]] = {
    "n1": {
        **dict.fromkeys(_AMERICA, (0.031611, 0.0787 / 8.96506)),
        "us-east4": (0.31919 / 8.96506, 0.06948 / 8.96506),
        "us-west4": (0.31919 / 8.96506, 0.09715 / 8.96506),
        "europe-west1": (0.31174 / 8.96506, 0.09324 / 8.96506),
        "europe-west4": (0.312 / 8.96506, 0.1248 / 8.96506),
        "asia-southeast1": (0.34962 / 8.96506, 0.05774 / 8.96506),
    },
    "n2": {
        **dict.fromkeys(_AMERICA, (3.14434 / 99.46982, 1.02778 / 99.46982)),
        "us-east4": (3.5411 / 99.46982, 0.78154 / 99.46982),
        "us-west4": (3.54101 / 99.46982, 1.5072 / 99.46982),
        "europe-west1": (3.45893 / 99.46982, 0.49517 / 99.46982),
        "europe-west4": (3.46147 / 99.46982, 1.20576 / 99.46982),
        "asia-southeast1": (3.87874 / 99.46982, 1.38509 / 99.46982),
    },
    "n2d": {
        **dict.fromkeys(_AMERICA, (1.82368 / 66.3132, 0.3783 / 66.3132)),
        "us-east4": (2.05389 / 66.3132, 0.61882 / 66.3132),
        "us-west4": (0.12837 / 4.14458, 0.02534 / 4.14458),
        "europe-west1": (2.00618 / 66.3132, 0.8039 / 66.3132),
        "europe-west4": (2.00774 / 66.3132, 0.36813 / 66.3132),
        "asia-southeast1": (2.24976 / 66.3132, 0.41997 / 66.3132),
    },
    "e2": {
        **dict.fromkeys(_AMERICA, (0.3616 / 16.5783, 0.15861 / 16.5783)),
        "us-east4": (0.40723 / 16.5783, 0.19602 / 16.5783),
        "us-west4": (0.40723 / 16.5783, 0.04243 / 16.5783),
        "europe-west1": (0.39778 / 16.5783, 0.15904 / 16.5783),
        "europe-west4": (0.39807 / 16.5783, 0.1657 / 16.5783),
        "asia-southeast1": (0.44605 / 16.5783, 0.19573 / 16.5783),
    },
}
WITH_MEMORY: dict[str, dict[str, Parts]] = {
    "c2": {
        **dict.fromkeys(_AMERICA, (1.56606 / 30, 0.50976 / 30)),
        "us-east4": (1.76358 / 30, 0.5295 / 30),
        "us-west4": (1.76358 / 30, 0.39402 / 30),
        "europe-west1": (1.72275 / 30, 0.63972 / 30),
        "europe-west4": (1.72404 / 30, 0.51048 / 30),
        "asia-southeast1": (1.93188 / 30, 0.96588 / 30),
    },
    "t2d": {
        **dict.fromkeys(_AMERICA, (0.67594 / 16, 0.12838 / 16)),
        "us-east4": (0.76128 / 16, 0.17219 / 16),
        "us-west4": (0.76128 / 16, 0.10998 / 16),
        "europe-west1": (1.48714 / 32, 0.26176 / 32),
        "europe-west4": (1.48832 / 32, 0.36864 / 32),
        "asia-southeast1": (1.66774 / 32, 0.30893 / 32),
    },
    "g2": {
        **dict.fromkeys(_AMERICA, (3.52301 / 96, 1.40966 / 96)),
        "us-east4": (3.51147 / 96, 1.40429 / 96),
        "us-west4": (3.96796 / 96, 1.22995 / 96),
        "europe-west1": (3.87918 / 96, 1.27104 / 96),
        "europe-west4": (3.70286 / 96, 1.7159 / 96),
        "asia-southeast1": (4.34634 / 96, 1.80845 / 96),
    },
}
# A whole machine without its GPUs, for each GPU that it has.
_A3_HOST: dict[str, Parts] = {
    **dict.fromkeys(("us-central1", "us-west1"), (9.46006 / 8, 2.88933 / 8)),
    "us-east4": (9.46006 / 8, 2.15966 / 8),
    "europe-west1": (10.41647 / 8, 2.38181 / 8),
    "europe-west4": (9.93306 / 8, 2.27469 / 8),
    "asia-southeast1": (11.67088 / 8, 2.79032 / 8),
}
HOSTS: dict[str, dict[str, Parts]] = {
    "a2-highgpu": {
        **dict.fromkeys(_AMERICA, (0.73948, 0.36975)),
        "europe-west4": (0.81406, 0.31824),
        "asia-southeast1": (0.9122, 0.41954),
    },
    "a2-ultragpu": {
        "us-central1": (1.09962, 0.54978),
        "us-east4": (1.23833, 0.49613),
        "europe-west4": (1.2105, 0.47328),
        "asia-southeast1": (1.35641, 0.62379),
    },
    "a2-megagpu": {
        "us-central1": (8.79698 / 16, 4.39824 / 16),
        "europe-west4": (9.68403 / 16, 3.78624 / 16),
        "asia-southeast1": (10.85126 / 16, 4.99032 / 16),
    },
    "a3-highgpu": _A3_HOST,
    "a3-megagpu": _A3_HOST,
    "a3-ultragpu": {
        **dict.fromkeys(("us-central1", "us-west1"), (12.266 / 8, 3.74713 / 8)),
        "us-east4": (12.266 / 8, 2.80034 / 8),
        "europe-west1": (None, 3.08825 / 8),
        "europe-west4": (None, 2.94949 / 8),
    },
    # All of it is in the price of its GPUs.
    "a4-highgpu": dict.fromkeys(
        ("us-central1", "us-east1", "us-east4", "europe-west4", "asia-southeast1"), (None, 0.0)
    ),
}
# One GPU, by the family it is built into, or what is attached. What the catalog gives for reserved capacity only is
# left out.
_A100: dict[str, Parts] = {
    **dict.fromkeys(_AMERICA, (23.47126 / 8, 11.4728 / 8)),
    "europe-west4": (None, 9.3528 / 8),
    "asia-southeast1": (None, 11.4088 / 8),
}
GPUS: dict[str, dict[str, Parts]] = {
    "a2-highgpu": _A100,
    "a2-megagpu": _A100,
    "a2-ultragpu": {
        "us-central1": (3.92808, 1.964),
        "us-east4": (None, 1.7697),
        "europe-west4": (None, 2.1626),
        "asia-southeast1": (4.84607, 1.823),
    },
    "a3-highgpu": {
        **dict.fromkeys(("us-central1", "us-west1"), (9.79655, 2.9926)),
        "us-east4": (9.79655, 2.2356),
        "europe-west1": (10.78698, 2.467),
        "europe-west4": (12.73552, 2.9112),
        "asia-southeast1": (None, 3.0441),
    },
    "a3-megagpu": {
        **dict.fromkeys(("us-central1", "us-west1"), (82.75421 / 8, 25.2808 / 8)),
        "us-east4": (82.75424 / 8, 14.8952 / 8),
        "europe-west1": (None, 20.8352 / 8),
        "europe-west4": (107.58048 / 8, 24.6032 / 8),
        "asia-southeast1": (None, 25.7216 / 8),
    },
    "a3-ultragpu": {
        **dict.fromkeys(("us-central1", "us-west1"), (9.31174, 37.2472 / 8)),
        "us-east4": (9.31174, 29.2536 / 8),
        "europe-west1": (None, 41.0128 / 8),
        "europe-west4": (None, 39.1096 / 8),
    },
    "a4-highgpu": {
        **dict.fromkeys(("us-central1", "us-east1", "us-east4"), (None, 32.6064 / 8)),
        "europe-west4": (None, 35.8672 / 8),
        "asia-southeast1": (None, 35.5712 / 8),
    },
    "g2-standard": {
        **dict.fromkeys(_AMERICA, (0.56004, 0.2231)),
        "us-east4": (0.55821, 0.2233),
        "us-west4": (0.63077, 0.2103),
        "europe-west1": (0.61666, 0.2406),
        "europe-west4": (0.58804, 0.2438),
        "asia-southeast1": (0.69092, 0.2478),
    },
    "nvidia-tesla-t4": {
        **dict.fromkeys(_AMERICA, (0.35, 0.175)),
        "us-east4": (0.37, 0.1644),
        "us-west4": (0.37, 0.1258),
        "europe-west1": (0.35, 0.14),
        "europe-west4": (0.3675, 0.175),
        "asia-southeast1": (0.37, 0.1645),
    },
    "nvidia-tesla-v100": {**dict.fromkeys(_AMERICA, (2.48, 1.0885)), "europe-west4": (2.604, 1.0443)},
    "nvidia-tesla-p100": {
        **dict.fromkeys(_AMERICA, (1.46, 0.7034)),
        "europe-west1": (1.6, 0.2816),
        "europe-west4": (1.533, 0.2341),
    },
    "nvidia-tesla-p4": {
        "us-central1": (0.6, 0.2236),
        "us-east4": (0.6, 0.1734),
        "europe-west4": (0.63, 0.132),
        "asia-southeast1": (0.65, 0.0585),
    },
}
# One chip, by family of machines. Google's own page had $1.20, $4.20 and $2.70 in us-central1 as well:
# https://cloud.google.com/tpu/pricing. Regions with a placeholder of $175 in the list are left out.
_AMERICAN_V5E: Parts = (1.2, 1.36887 / 4)
_AMERICAN_V6E: Parts = (2.7, 2.60712 / 4)
TPUS: dict[str, dict[str, Parts]] = {
    "ct5lp-hightpu": {
        **dict.fromkeys(_AMERICA, _AMERICAN_V5E),
        "us-east4": (1.2, 2.0577 / 4),
        "us-east5": (1.2, 0.6),
        "us-south1": (1.416, 2.87844 / 4),
        "us-west4": (1.2, 2.42718 / 4),
        "europe-west1": (1.32132, 2.11411 / 4),
        "europe-west4": (1.56, 2.14247 / 4),
        "asia-southeast1": (1.56, 0.78),
    },
    "ct5p-hightpu": {
        **dict.fromkeys(("us-central1", "us-east1"), (4.2, 3.2543 / 4)),
        "us-east5": (4.2, 4.23528 / 4),
        "us-south1": (4.779, 2.56027 / 4),
        "europe-west1": (4.459455, 6.11748 / 4),
        "europe-west4": (4.2525, 3.39954 / 4),
    },
    "ct6e-standard": {
        **dict.fromkeys(_AMERICA, _AMERICAN_V6E),
        "us-east4": (2.7, 1.12373 / 4),
        "us-east5": (2.7, 6.17463 / 4),
        "us-south1": (2.7, 3.9695 / 4),
        "europe-west4": (2.97, 1.782),
        "asia-northeast1": (3.24, 6.11971 / 4),
        "asia-southeast1": (2.97, 0.2673),
        "southamerica-west1": (2.7, 1.08),
    },
}


def price_tables() -> dict[str, RegionPrices]:
    """The whole machines, added up, of every region that something is known of."""
    known_parts = (CORES, WITH_MEMORY, GPUS, TPUS)
    regions = sorted({region for part in known_parts for table in part.values() for region in table})
    found = {}
    for region in regions:
        known = {name: _price(name, row, region) for name, row in machines()}
        by_kind = [
            {name: round(amount, 5) for name, parts in known.items() if (amount := parts[kind]) is not None}
            for kind in (0, 1)
        ]
        found[region] = RegionPrices(*_source_and_date(region), *by_kind)
    return found


def _source_and_date(region: str) -> tuple[str, date]:
    """The source of a region's prices, and the date of the oldest."""
    tpus = any(region in table for table in TPUS.values())
    if not any(region in table for part in (CORES, WITH_MEMORY, GPUS) for table in part.values()):
        return TPU_SOURCE, TPU_DATE
    tpu_source = (f"{TPU_SOURCE}, {TPU_DATE}",) if tpus else ()
    return "; ".join((PRICES_SOURCE, *OTHER_SOURCES.get(region, ()), *tpu_source)), PRICES_DATE


def _price(name: str, row: dict[str, Any], region: str) -> Parts:
    base, _, attached = name.partition("+")
    kind = base.rpartition("-")[0]
    series = base.partition("-")[0]
    nothing: Parts = (None, None)
    if kind in TPUS:
        return _times(TPUS[kind].get(region, nothing), row["gpus"])
    if kind in HOSTS:
        host = _times(HOSTS[kind].get(region, nothing), row["gpus"])
    elif series in WITH_MEMORY and "standard" in kind:
        host = _times(WITH_MEMORY[series].get(region, nothing), row["cpus"])
    elif series in CORES and not row.get("burstable"):
        cores = row["cpus"] + row["memory_mib"] / 1024 * _MEMORY_RATIO
        host = _times(CORES[series].get(region, nothing), cores)
    else:
        return nothing
    if "gpus" not in row:
        return host
    gpus = _times(GPUS.get(attached.partition(":")[0] or kind, {}).get(region, nothing), row["gpus"])
    return tuple(None if a is None or b is None else a + b for a, b in zip(host, gpus, strict=True))  # type: ignore[return-value]


def _times(parts: Parts, count: float) -> Parts:
    on_demand, spot = parts
    return (None if on_demand is None else on_demand * count, None if spot is None else spot * count)


# ── The files ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def main() -> int:
    """Write the three files, and say what is in them."""
    rows = dict(machines())
    lines = ",\n".join(f'    "{name}": {json.dumps(row)}' for name, row in rows.items())
    _write("gce_machines.json", f'{{\n  "source": {json.dumps(SOURCE)},\n  "machines": {{\n{lines}\n  }}\n}}\n')
    print(f"{len(rows)} machine types")
    _write("gce_zones.json", _zones_text(zones()))
    tables = price_tables()
    _write("gce_prices.json", prices.BOOK.render(tables))
    print(", ".join(f"{name} {len(one.prices)} + {len(one.spot)} spot" for name, one in tables.items()))
    return 0


def _zones_text(found: dict[str, Any]) -> str:
    regions = ",\n".join(f'    "{name}": {json.dumps(letters)}' for name, letters in found["regions"].items())
    gpus = ",\n".join(f'    "{name}": {json.dumps(where)}' for name, where in found["gpus"].items())
    source = json.dumps(found["source"])
    return f'{{\n  "source": {source},\n  "regions": {{\n{regions}\n  }},\n  "gpus": {{\n{gpus}\n  }}\n}}\n'


def _write(name: str, text: str) -> None:
    DATA.mkdir(exist_ok=True)
    (DATA / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
