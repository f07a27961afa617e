"""Run code that was written for SageMaker's Python SDK on plain machines.

    from stoker.sagemaker import PyTorch             # was: from sagemaker.pytorch import PyTorch

    estimator = PyTorch(entry_point="train.py", source_dir="src", role=role, instance_type="ml.g5.xlarge",
                        instance_count=1, framework_version="2.5", py_version="py311", use_spot_instances=True)
    estimator.fit({"train": "s3://bucket/train"})

The modules have the SDK's names (`stoker.sagemaker.pytorch`, `.estimator`, `.inputs`). Neither the SDK nor boto3 is
needed. `docs/sagemaker-scripts.md` lists what is the same, what differs, and what cannot be honoured.
"""

from stoker.sagemaker.estimator import Estimator
from stoker.sagemaker.huggingface import HuggingFace
from stoker.sagemaker.inputs import FileSystemInput, TrainingInput, s3_input
from stoker.sagemaker.pytorch import PyTorch
from stoker.sagemaker.session import Session, get_execution_role
from stoker.sagemaker.tensorflow import TensorFlow
from stoker.sagemaker.training_job import TrainingJob, UnexpectedStatusException

__all__ = [
    "Estimator",
    "FileSystemInput",
    "HuggingFace",
    "PyTorch",
    "Session",
    "TensorFlow",
    "TrainingInput",
    "TrainingJob",
    "UnexpectedStatusException",
    "get_execution_role",
    "s3_input",
]
