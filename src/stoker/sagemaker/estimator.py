"""Estimators with the arguments of SageMaker's estimators, whose `fit` runs on plain machines."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from stoker.model import dlc_images
from stoker.sagemaker.arguments import BadArgument, accept
from stoker.sagemaker.attributes import SdkAttributes
from stoker.sagemaker.checkpoint_uri import Resume, announce, find_resume
from stoker.sagemaker.code_folder import REMOTE, code_folder, script_name
from stoker.sagemaker.image_python import check_image, check_packages, describe_python
from stoker.sagemaker.session import Session
from stoker.sagemaker.signatures import by_name
from stoker.sagemaker.training_job import TrainingJob
from stoker.sagemaker.translate import Fit, Translated, translate, wanted_provider

_Any = TypeVar("_Any", bound="EstimatorBase")

if TYPE_CHECKING:
    from stoker.jobfile import Layer
    from stoker.model.spec import Spec
    from stoker.store.base import Store
    from stoker.submit.prepared_job import PreparedJob

_SOURCE = "the estimator"
_OVERRIDES = "stoker={…}"


class EstimatorBase(SdkAttributes):
    """The common part of all estimators. `stoker.sagemaker.arguments` lists the arguments, which are SageMaker's.

    `stoker` overrides all of them, with fields of the job file: `stoker={"store": "s3://…", "resources": {"provider":
    "ec2", "region": "us-east-1"}}`. A setting that neither names comes from the usual layers, the user's file and the
    store's defaults; after these, `ml.` machines are EC2's.
    """

    # `pytorch` or `tensorflow`; None for any image.
    framework: str | None = None
    # The job's command, where it is neither a script's nor the image's own; and names that are no code.
    _command: list[str] | None = None
    _ignore: tuple[str, ...] = ()

    def __init__(self, *values: object, stoker: Mapping[str, Any] | None = None, **arguments: Any) -> None:
        kind = next(one.__name__ for one in type(self).__mro__ if one.__module__.startswith("stoker.sagemaker"))
        self._begin(accept(by_name(kind, values, arguments), kind), stoker or {})

    def _begin(self, given: dict[str, Any], overrides: Mapping[str, Any]) -> None:
        self._given = given
        self._overrides = dict(overrides)
        self._store: str | None = self._overrides.pop("store", None)
        hyperparameters = given.get("hyperparameters") or {}
        if not isinstance(hyperparameters, Mapping):
            raise BadArgument(f"hyperparameters: {hyperparameters!r} is no mapping; write {{'NAME': VALUE}}")
        self._hyperparameters: dict[str, Any] = dict(hyperparameters)
        self.latest_training_job: TrainingJob | None = None
        self.jobs: list[TrainingJob] = []
        self._current_job_name: str | None = None
        # A line for each argument that the last `fit` could not honour.
        self.warnings: tuple[str, ...] = ()

    # ── As SageMaker's ────────────────────────────────────────────────────────────────────────────────────────────────

    def set_hyperparameters(self, **hyperparameters: Any) -> None:
        """Add to the hyperparameters of the next `fit`."""
        self._hyperparameters.update(hyperparameters)

    def hyperparameters(self) -> dict[str, Any]:
        """The hyperparameters of the next `fit`."""
        return dict(self._hyperparameters)

    def fit(
        self,
        inputs: object = None,
        wait: bool = True,
        logs: bool | str | Sequence[str] = "All",
        job_name: str | None = None,
        experiment_config: object = None,
        run_tensorboard_locally: bool = False,
    ) -> None:
        """Submit a job; with `wait`, follow it to its end. Prints a line for each argument that cannot be honoured.

        Raises UserError for the first mistake, before anything is written; UnexpectedStatusException when the job has
        failed.
        """
        more = {"experiment_config": experiment_config, "run_tensorboard_locally": run_tensorboard_locally}
        with self._prepared(inputs, job_name) as (prepared, store, warnings):
            ignored = (f"{name}: not honoured: Stoker has no such thing" for name in more if more[name])
            self.warnings = tuple(self._shown(line) for line in (*warnings, *ignored))
            for line in (*self.warnings, *prepared.notes, *prepared.warnings):
                print(f"[stoker] {line}", file=sys.stderr)
            from stoker.submit.send import send

            job = TrainingJob(send(prepared, store), store.url)
            self._announce(job.name, store, prepared.spec)
        self.latest_training_job, self._current_job_name = job, job.name
        self.jobs.append(job)
        if wait:
            job.wait(logs=logs)
        else:
            job.ensure_governed()

    def logs(self) -> None:
        """Print the log of the last job so far."""
        self._latest().logs()

    @property
    def model_data(self) -> str | None:
        """The URL of the last job's model in the store, as plain files; None until the job has ended."""
        return self._latest().model_data

    def training_image_uri(self, region: str | None = None) -> str | None:
        """The image that the training runs in; None for the machine's own Python."""
        container = self.job()["environment"].get("container")
        return dlc_images.resolve(container["image"], region) if container is not None else None

    @classmethod
    def attach(
        cls: type[_Any], training_job_name: str, *_: object, stoker: Mapping[str, Any] | None = None, **__: object
    ) -> _Any:
        """An estimator of a job that was submitted before, to wait for, stop and read. Raises UserError for no job."""
        from stoker.client import open_any, summary
        from stoker.store.find_job import find_job

        made = cls.__new__(cls)
        made._begin({}, stoker or {})
        store = open_any(made._store)
        job = find_job(store, training_job_name)
        made._hyperparameters = dict(summary(job, store).params)
        made.latest_training_job = TrainingJob(job, store.url)
        made.jobs.append(made.latest_training_job)
        return made

    def deploy(self, *_: object, **__: object) -> None:
        """Raise NotImplementedError with the URL of the model: Stoker trains and does not serve."""
        raise NotImplementedError(f"Stoker trains and does not serve; the model is at {self.model_data}")

    def check(self, inputs: object = None, job_name: str | None = None) -> None:
        """Check everything that `fit` checks, and send nothing. Raises UserError for the first mistake."""
        with self._prepared(inputs, job_name) as (_, _, warnings):
            self.warnings = tuple(self._shown(line) for line in warnings)

    def _shown(self, line: str) -> str:
        """A line about an argument, for the program that gave it."""
        return line

    # ── Preparation ───────────────────────────────────────────────────────────────────────────────────────────────────

    def job(self, inputs: object = None, job_name: str | None = None) -> dict[str, Any]:
        """The call as the fields of a job file. Raises UserError; writes nothing.

        Without what only `fit` finds out (the folder of code, and the checkpoints to resume from), and without the
        settings of `stoker` and the other layers.
        """
        with self._open_store() as store:
            from stoker.jobfile import shared_layers

            return self._translate(inputs, job_name, self._provider(shared_layers(store))).fields

    def _default(self, name: str) -> Any:
        if name == "output_path":
            from stoker.store.base import open_store

            return open_store(self._store_url()).url
        return Session() if name == "sagemaker_session" else super()._default(name)

    def _latest(self) -> TrainingJob:
        if self.latest_training_job is None:
            raise ValueError("there is no training job yet; call fit first")
        return self.latest_training_job

    def _translate(self, inputs: object, job_name: str | None, provider: str) -> Translated:
        fit = Fit(
            given=self._given,
            provider=provider,
            framework=self.framework,
            inputs=inputs,
            job_name=job_name,
            hyperparameters=self._hyperparameters,
            script=script_name(self._given),
            command=self._command,
        )
        return translate(fit)

    @contextmanager
    def _prepared(self, inputs: object, job_name: str | None) -> Iterator[tuple[PreparedJob, Store, tuple[str, ...]]]:
        from stoker.jobfile import layer_of, shared_layers
        from stoker.providers import registry
        from stoker.submit.prepare import prepare_job

        with self._open_store() as store, code_folder(self._given, self._ignore) as code:
            shared = shared_layers(store)
            provider = self._provider(shared)
            translated = self._translate(inputs, job_name, provider)
            fields = translated.fields | {"code": str(code)}
            resume = self._resume(provider, store)
            if resume.source is not None:
                fields["resume_from"] = resume.source
            if "image_uri" not in self._given:
                check_image(translated.fields["environment"].get("container", {}).get("image", ""))
            registry.check_store(provider, store.url, "stoker={'store': …}")
            own = (layer_of(fields, _SOURCE), *self._own_layers())
            with prepare_job(own, store, shared=(self._fallback_layer(), *shared)) as prepared:
                check_packages(prepared.spec, code)
                resumed = (f"checkpoint_s3_uri: {resume.note}",) if resume.note is not None else ()
                prepared = replace(prepared, notes=(*describe_python(prepared.spec), *resumed, *prepared.notes))
                yield prepared, store, (*translated.warnings, *self._place_warnings(store))

    def _provider(self, shared: Sequence[Layer]) -> str:
        """The provider that all layers together name. Raises BadArgument where none of them names one."""
        from stoker.jobfile import layer_of, named_provider
        from stoker.providers import registry

        machine = self._given.get("instance_type")
        wanted = wanted_provider(machine)
        is_local = registry.capabilities(wanted).runs_locally
        own = [layer_of({"resources": {"provider": wanted}}, _SOURCE)] if is_local else []
        found = named_provider([*shared, *own, *self._own_layers()], shared=True)
        if found is None and machine is None:
            raise BadArgument("instance_type: is missing; name a machine such as 'ml.g5.xlarge', or 'local'")
        return found or wanted

    def _fallback_layer(self) -> Layer:
        """The provider of a job for which no other layer names one: SageMaker's machines are EC2's."""
        from stoker.jobfile import layer_of

        return layer_of({"resources": {"provider": wanted_provider(self._given.get("instance_type"))}}, _SOURCE)

    def _own_layers(self) -> tuple[Layer, ...]:
        from stoker.jobfile import layer_of

        return (layer_of(self._overrides, _OVERRIDES),) if self._overrides else ()

    @contextmanager
    def _open_store(self) -> Iterator[Store]:
        from stoker.client import open_any

        yield open_any(self._store_url())

    def _store_url(self) -> str | None:
        if self._store is not None or os.environ.get("STOKER_STORE"):
            return self._store
        path = str(self._given.get("output_path", ""))
        return path if path.startswith(REMOTE) else None

    def _resume(self, provider: str, store: Store) -> Resume:
        from stoker.providers import registry
        from stoker.submit.local_environment import copy_url

        saved, name = self._given.get("checkpoint_s3_uri"), "checkpoint_s3_uri"
        if saved is None:
            return Resume()
        return find_resume(copy_url(str(saved), registry.capabilities(provider), Path.cwd(), store, name), store)

    def _announce(self, job: str, store: Store, spec: Spec) -> None:
        url = spec.checkpoints.copy_to
        problem = announce(url, job, store, spec.resume_from) if url is not None else None
        if problem is not None:
            self.warnings = (*self.warnings, problem)
            print(f"[stoker] {problem}", file=sys.stderr)

    def _place_warnings(self, store: Store) -> Iterator[str]:
        path = self._given.get("output_path")
        if path is not None and str(path).rstrip("/") != store.url.rstrip("/"):
            how = "`stoker pull JOB --outputs` copies them"
            yield f"output_path: not honoured: outputs are in the store, {store.url}; {how}"


class Estimator(EstimatorBase):
    """An estimator for any image. Without an entry point it runs the image's program `train`, as SageMaker does."""

    def __init__(self, *values: object, **arguments: Any) -> None:
        super().__init__(*values, **arguments)
        if "image_uri" not in self._given:
            raise BadArgument("image_uri: an Estimator needs an image; PyTorch and TensorFlow find one")


class Framework(EstimatorBase):
    """An estimator for a script, on the image of a framework."""

    def __init__(self, *values: object, **arguments: Any) -> None:
        super().__init__(*values, **arguments)
        if "entry_point" not in self._given:
            raise BadArgument("entry_point: name the script that is to be run")
