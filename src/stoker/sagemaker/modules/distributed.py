"""The stand-in for `sagemaker.modules.distributed`."""

from stoker.sagemaker.train.distributed import MPI, SMP, Torchrun

__all__ = ["MPI", "SMP", "Torchrun"]
