"""The same with the call that people have: only the import is another one.

python fit.py                                # here
INSTANCE_TYPE=ml.m5.xlarge python fit.py     # on EC2, with the store in a bucket: see docs/ec2.md
"""

import os
from pathlib import Path

from stoker.sagemaker import PyTorch  # was: from sagemaker.pytorch import PyTorch

HERE = Path(__file__).parent

estimator = PyTorch(
    entry_point="train.py",
    source_dir=str(HERE),
    role="arn:aws:iam::111122223333:role/SageMaker",
    instance_type=os.environ.get("INSTANCE_TYPE", "local"),
    instance_count=1,
    framework_version="2.5",
    py_version="py311",
    use_spot_instances=True,
    max_run=3600,
    max_wait=7200,
    hyperparameters={"epochs": 200, "learning-rate": 0.05},
    metric_definitions=[{"Name": "loss", "Regex": "train_loss=([0-9.]+)"}],
    tags=[{"Key": "project", "Value": "line"}],
)
estimator.fit({"train": os.environ.get("TRAIN", str(HERE / "data"))})

print(f"job:   {estimator.latest_training_job.name}")
print(f"model: {estimator.model_data}")
