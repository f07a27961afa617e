"""The stand-in for `sagemaker.train`, version 3 of SageMaker's Python SDK.

from stoker.sagemaker.train import ModelTrainer            # was: from sagemaker.train import ModelTrainer
from stoker.sagemaker.train.configs import Compute, InputData, SourceCode
"""

from stoker.sagemaker.train.configs import Compute, InputData, SourceCode
from stoker.sagemaker.train.model_trainer import Mode, ModelTrainer

__all__ = ["Compute", "InputData", "Mode", "ModelTrainer", "SourceCode"]
