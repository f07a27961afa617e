"""Write the table of machine types that SageMaker trains on, from botocore's model of CreateTrainingJob.

python scripts/write_sagemaker_tables.py
"""

from __future__ import annotations

import json
from pathlib import Path

import botocore
from botocore.loaders import Loader
from botocore.model import ServiceModel

TABLE = Path(__file__).parent.parent / "src/stoker/providers/sagemaker/data/sagemaker_machines.json"


def main() -> None:
    model = ServiceModel(Loader().load_service_model("sagemaker", "service-2"), "sagemaker")
    names = sorted(model.shape_for("TrainingInstanceType").metadata["enum"])
    source = f"botocore {botocore.__version__}, TrainingInstanceType"
    TABLE.write_text(json.dumps({"source": source, "machines": names}, indent=1) + "\n", encoding="utf-8")
    print(f"{TABLE}: {len(names)} machine types")


if __name__ == "__main__":
    main()
