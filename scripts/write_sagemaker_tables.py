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
    told = {"source": source, "machines": names, "local_gb": local}
    TABLE.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    print(f"{TABLE}: {len(names)} machine types")


if __name__ == "__main__":
    main()
