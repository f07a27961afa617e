"""Write the table of machine types that SageMaker trains on, from botocore's model of CreateTrainingJob; and of those
with disks of their own, how large these are, from EC2's facts as moto packages them.

python scripts/write_sagemaker_tables.py
"""

from __future__ import annotations

import gzip
import json
from importlib import resources as package
from pathlib import Path

import botocore
from botocore.loaders import Loader
from botocore.model import ServiceModel

from stoker.providers.ec2 import catalog as ec2

# Types that SageMaker still has and EC2 sells no more, so that DescribeInstanceTypes has no facts about them:
# https://docs.aws.amazon.com/sagemaker/latest/dg/instance-types-az.html and https://aws.amazon.com/ec2/previous-generation/.
# CPUs, memory in GiB, accelerators and the memory of each in GiB.
_RETIRED: dict[str, tuple[int, float, int]] = {
    "ml.c4.xlarge": (4, 7.5, 0),
    "ml.c4.2xlarge": (8, 15, 0),
    "ml.c4.4xlarge": (16, 30, 0),
    "ml.c4.8xlarge": (36, 60, 0),
    "ml.m4.xlarge": (4, 16, 0),
    "ml.m4.2xlarge": (8, 32, 0),
    "ml.m4.4xlarge": (16, 64, 0),
    "ml.m4.10xlarge": (40, 160, 0),
    "ml.m4.16xlarge": (64, 256, 0),
    "ml.p2.xlarge": (4, 61, 1),
    "ml.p2.8xlarge": (32, 488, 8),
    "ml.p2.16xlarge": (64, 732, 16),
    "ml.p3.2xlarge": (8, 61, 1),
    "ml.p3.8xlarge": (32, 244, 4),
    "ml.p3.16xlarge": (64, 488, 8),
    "ml.p6e-gb200.36xlarge": (144, 960, 4),
}
_GPUS = {"ml.p2": ("K80", 12 * 1024), "ml.p3": ("V100-16GB", 16 * 1024), "ml.p6e-gb200": ("GB200", 189_440)}
TABLE = Path(__file__).parent.parent / "src/stoker/providers/sagemaker/data/sagemaker_machines.json"


def main() -> None:
    model = ServiceModel(Loader().load_service_model("sagemaker", "service-2"), "sagemaker")
    names = sorted(model.shape_for("TrainingInstanceType").metadata["enum"])
    data = package.files("moto").joinpath("ec2/resources/instance_types.json.gz").read_bytes()
    facts = {f"ml.{name}": each for name, each in json.loads(gzip.decompress(data)).items()}
    local = {
        name: facts[name]["InstanceStorageInfo"]["TotalSizeInGB"]
        for name in names
        if facts.get(name, {}).get("InstanceStorageInfo")
    }
    source = f"botocore {botocore.__version__}, TrainingInstanceType"
    unknown = [name for name in names if ec2.find(name.removeprefix("ml.")) is None and name not in _RETIRED]
    if unknown:
        print(f"no facts about {', '.join(unknown)}: add them to _RETIRED")
    own = {name: _row(name) for name in names if name in _RETIRED}
    table = {"source": source, "machines": names, "local_gb": local, "facts": own}
    TABLE.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    print(f"{TABLE}: {len(names)} machine types")


def _row(name: str) -> dict[str, int | str]:
    """The facts about a type in the form of EC2's table."""
    cpus, memory_gib, gpus = _RETIRED[name]
    row: dict[str, int | str] = {"cpus": cpus, "memory_mib": int(memory_gib * 1024)}
    if gpus:
        gpu, gpu_memory_mib = _GPUS[name.rpartition(".")[0]]
        row |= {"gpu": gpu, "gpus": gpus, "gpu_memory_mib": gpu_memory_mib}
    if name.startswith("ml.p6e-gb200."):
        row["arch"] = "arm64"
    return row


if __name__ == "__main__":
    main()
