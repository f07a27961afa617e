"""The stand-in for `sagemaker.modules.train`."""

from stoker.sagemaker.train.model_trainer import Mode, ModelTrainer

__all__ = ["Mode", "ModelTrainer"]
