"""The stand-in for `sagemaker.train.ModelTrainer`, of version 3 of SageMaker's SDK (sagemaker-train 1.27.0)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any, NoReturn

from stoker.sagemaker.arguments import BadArgument
from stoker.sagemaker.config_class import check_names
from stoker.sagemaker.estimator import EstimatorBase
from stoker.sagemaker.train.translate_trainer import IGNORED, RENAMED, command, estimator_arguments, inputs
from stoker.sagemaker.training_job import TrainingJob


class Mode(Enum):
    """Where it trains: in a training job, or in a container on this computer."""

    LOCAL_CONTAINER = "LOCAL_CONTAINER"
    SAGEMAKER_TRAINING_JOB = "SAGEMAKER_TRAINING_JOB"


# The fields, and their values where they are not given.
FIELDS: dict[str, Any] = {
    "training_mode": Mode.SAGEMAKER_TRAINING_JOB,
    "sagemaker_session": None,
    "role": None,
    "base_job_name": None,
    "input_s3_key_prefix": None,
    "source_code": None,
    "distributed": None,
    "compute": None,
    "networking": None,
    "stopping_condition": None,
    "training_image": None,
    "training_image_config": None,
    "algorithm_name": None,
    "output_data_config": None,
    "input_data_config": None,
    "checkpoint_config": None,
    "training_input_mode": "File",
    "environment": {},
    "hyperparameters": {},
    "tags": None,
    "local_container_root": None,
    "model_package_config": None,
}
_RECIPES = "recipes are SageMaker's own; give source_code and training_image"
_REFUSED = {
    "from_recipe": _RECIPES,
    "get_resolved_recipe": _RECIPES,
    "from_jumpstart_config": "JumpStart is SageMaker's own; give source_code and training_image",
}


class _TrainerEstimator(EstimatorBase):
    """The estimator of one `train`, which names arguments in its lines as a ModelTrainer does."""

    def _shown(self, line: str) -> str:
        name, colon, rest = line.partition(":")
        return f"{RENAMED.get(name, name)}{colon}{rest}"


class ModelTrainer:
    """A training by its source code, machines and data, whose `train` runs on plain machines.

    `stoker` overrides all of it, with fields of the job file, as for the estimators. Fields may be assigned until
    `train` is called.
    """

    def __init__(self, *, stoker: Mapping[str, Any] | None = None, **given: Any) -> None:
        check_names("ModelTrainer", list(FIELDS), given)
        for name, value in FIELDS.items():
            # A copy: changing the hyperparameters of one trainer changes no other's.
            self.__dict__[name] = given.get(name, value.copy() if isinstance(value, dict) else value)
        self.__dict__["_stoker"] = dict(stoker or {})
        # Further arguments of the estimator, by the methods `with_…`.
        self.__dict__["_more"] = {}
        self.__dict__["_latest_training_job"] = None
        self.__dict__["warnings"] = ()
        self._estimator()

    def __setattr__(self, name: str, value: object) -> None:
        check_names("ModelTrainer", [*FIELDS, *self.__dict__], {name: value})
        self.__dict__[name] = value

    def __getattr__(self, name: str) -> Any:
        """Called for names that the class does not have."""
        if name in _REFUSED:
            return partial(_refuse, f"ModelTrainer.{name}: {_REFUSED[name]}")
        raise AttributeError(f"ModelTrainer: there is no attribute {name!r}")

    def train(
        self,
        input_data_config: Sequence[Any] | None = None,
        wait: bool = True,
        logs: bool = True,
        dry_run: bool = False,
    ) -> None:
        """Submit a job; with `wait`, follow it to its end. Prints a line for each setting that cannot be honoured.

        `dry_run` checks everything and sends nothing. Raises UserError for the first mistake, before anything is
        written; UnexpectedStatusException when the job has failed.
        """
        estimator = self._estimator()
        try:
            channels = inputs(self.input_data_config, input_data_config) or None
            if dry_run:
                estimator.check(channels)
            else:
                estimator.fit(channels, wait=wait, logs="All" if logs else False)
        except BadArgument as error:
            raise BadArgument(estimator._shown(str(error))) from None
        finally:
            self.__dict__["warnings"] = estimator.warnings
            self.__dict__["_latest_training_job"] = estimator.latest_training_job or self._latest_training_job

    @property
    def output_data(self) -> str:
        """The URL of what the job wrote to `/opt/ml/output/data`, as plain files. Raises ValueError before `train`."""
        job: TrainingJob | None = self._latest_training_job
        if job is None:
            raise ValueError("there is no training job yet; call train first")
        return job.output_data

    # ── Further settings ──────────────────────────────────────────────────────────────────────────────────────────────

    def with_checkpoint_config(self, checkpoint_config: Any = None) -> ModelTrainer:
        """Set `checkpoint_config`."""
        self.checkpoint_config = checkpoint_config
        return self

    def with_metric_definitions(self, metric_definitions: Sequence[Any]) -> ModelTrainer:
        """Find these metrics in the log."""
        self._more["metric_definitions"] = [{"Name": one.name, "Regex": one.regex} for one in metric_definitions]
        return self

    def with_retry_strategy(self, retry_strategy: Any) -> ModelTrainer:
        """Name the number of retries, which Stoker does not need."""
        self._more["max_retry_attempts"] = retry_strategy.maximum_retry_attempts
        return self

    def with_tensorboard_output_config(self, tensorboard_output_config: Any = None) -> ModelTrainer:
        """Name the place of TensorBoard's files, which are kept with the outputs."""
        self._more["tensorboard_output_config"] = tensorboard_output_config or True
        return self

    def with_infra_check_config(self, infra_check_config: Any = None) -> ModelTrainer:
        """Name SageMaker's check of machines, which Stoker does not need."""
        self._more["enable_infra_check"] = infra_check_config is None or infra_check_config.enable_infra_check
        return self

    def with_remote_debug_config(self, remote_debug_config: Any) -> ModelTrainer:
        """Name access to the machines, which needs no permission."""
        self._more["enable_remote_debug"] = remote_debug_config.enable_remote_debug
        return self

    def with_session_chaining_config(self, session_chaining_config: Any = None) -> ModelTrainer:
        """Name tags of the session, which Stoker does not have."""
        chained = session_chaining_config is None or session_chaining_config.enable_session_tag_chaining
        self._more["enable_session_tag_chaining"] = chained
        return self

    # ── Preparation ───────────────────────────────────────────────────────────────────────────────────────────────────

    def job(self, input_data_config: Sequence[Any] | None = None) -> dict[str, Any]:
        """The call as the fields of a job file, as by `estimator.job`. Raises UserError; writes nothing."""
        return self._estimator().job(inputs(self.input_data_config, input_data_config) or None)

    def _estimator(self) -> _TrainerEstimator:
        fields = {name: getattr(self, name) for name in FIELDS}
        fields["is_local"] = self.training_mode == Mode.LOCAL_CONTAINER
        made = _TrainerEstimator(stoker=self._stoker, **{**estimator_arguments(fields, self._stoker), **self._more})
        made._command = command(self.source_code, self.distributed, self.hyperparameters)
        made._ignore = tuple(getattr(self.source_code, "ignore_patterns", None) or IGNORED)
        return made


def _refuse(message: str, *_: object, **__: object) -> NoReturn:
    raise NotImplementedError(message)
