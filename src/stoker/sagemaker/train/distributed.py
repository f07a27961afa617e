"""The stand-in for `sagemaker.train.distributed`."""

from __future__ import annotations

from typing import Any

from stoker.sagemaker.config_class import config


@config
class Torchrun:
    """The script is run by torchrun, once for each GPU or `process_count_per_node` times."""

    process_count_per_node: int | None = None
    smp: Any = None


@config
class MPI:
    """The script is run by mpirun. A ModelTrainer refuses it."""

    process_count_per_node: int | None = None
    mpi_additional_options: list[str] | None = None


@config
class SMP:
    """Parameters of SageMaker's model parallelism. A ModelTrainer refuses them."""

    hybrid_shard_degree: int | None = None
    sm_activation_offloading: bool | None = None
    activation_loading_horizon: int | None = None
    fsdp_cache_flush_warnings: bool | None = None
    allow_empty_shards: bool | None = None
    tensor_parallel_degree: int | None = None
    context_parallel_degree: int | None = None
    expert_parallel_degree: int | None = None
    random_seed: int | None = None
