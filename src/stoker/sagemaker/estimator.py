"""Estimators with the arguments of SageMaker's estimators, whose `fit` runs on plain machines."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from stoker.sagemaker.arguments import BadArgument, accept
from stoker.sagemaker.training_job import TrainingJob
from stoker.sagemaker.translate import Fit, Translated, translate, wanted_provider
from stoker.submit.system_folders import check_code_folder

if TYPE_CHECKING:
    from stoker.jobfile import Layer
    from stoker.store.base import Store
    from stoker.submit.prepared_job import PreparedJob

_SOURCE = "the estimator"
_OVERRIDES = "stoker={…}"
_REMOTE = ("s3://", "gs://")


class EstimatorBase:
    """The common part of all estimators. `stoker.sagemaker.arguments` lists the arguments, which are SageMaker's.

    `stoker` overrides all of them, with fields of the job file: `stoker={"store": "s3://…", "resources": {"provider":
    "ec2", "region": "us-east-1"}}`. A setting that neither names comes from the usual layers, the user's file and the
    store's defaults; after these, `ml.` machines are EC2's.
    """

    framework: ClassVar[str | None] = None

    def __init__(self, *, stoker: Mapping[str, Any] | None = None, **arguments: Any) -> None:
        self._given = accept(arguments, type(self).__name__)
        self._overrides = dict(stoker or {})
        self._store: str | None = self._overrides.pop("store", None)
        self._hyperparameters: dict[str, Any] = dict(self._given.get("hyperparameters") or {})
        self.latest_training_job: TrainingJob | None = None
        self.jobs: list[TrainingJob] = []
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
            self.warnings = (*warnings, *ignored)
            for line in (*self.warnings, *prepared.notes, *prepared.warnings):
                print(f"[stoker] {line}", file=sys.stderr)
            from stoker.submit.send import send

            job = TrainingJob(send(prepared, store), store.url)
        self.latest_training_job = job
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

    def deploy(self, *_: object, **__: object) -> None:
        """Raise NotImplementedError with the URL of the model: Stoker trains and does not serve."""
        raise NotImplementedError(f"Stoker trains and does not serve; the model is at {self.model_data}")

    # ── Preparation ───────────────────────────────────────────────────────────────────────────────────────────────────

    def job(self, inputs: object = None, job_name: str | None = None) -> dict[str, Any]:
        """The call as the fields of a job file. Raises UserError; writes nothing.

        Without what only `fit` finds out (the folder of code, and the checkpoints to resume from), and without the
        settings of `stoker` and the other layers.
        """
        with self._open_store() as store:
            from stoker.jobfile import shared_layers

            return self._translate(inputs, job_name, self._provider(shared_layers(store))).fields

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
            script=self._script(),
        )
        return translate(fit)

    @contextmanager
    def _prepared(self, inputs: object, job_name: str | None) -> Iterator[tuple[PreparedJob, Store, tuple[str, ...]]]:
        from stoker.jobfile import layer_of, shared_layers
        from stoker.providers import registry
        from stoker.submit.prepare import prepare_job

        with self._open_store() as store, self._code() as code:
            shared = shared_layers(store)
            provider = self._provider(shared)
            translated = self._translate(inputs, job_name, provider)
            fields = translated.fields | {"code": str(code), **self._resume()}
            registry.check_store(provider, store.url, "stoker={'store': …}")
            own = (layer_of(fields, _SOURCE), *self._own_layers())
            with prepare_job(own, store, shared=(self._fallback_layer(), *shared)) as prepared:
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
        return path if path.startswith(_REMOTE) else None

    def _place_warnings(self, store: Store) -> Iterator[str]:
        path = self._given.get("output_path")
        if path is not None and str(path).rstrip("/") != store.url.rstrip("/"):
            how = "`stoker pull JOB --outputs` copies them"
            yield f"output_path: not honoured: outputs are in the store, {store.url}; {how}"
        saved = self._given.get("checkpoint_s3_uri")
        if saved is not None:
            yield f"checkpoint_s3_uri: new checkpoints are in the store, {store.url}, and not at {saved}"

    def _resume(self) -> dict[str, str]:
        """Resume from `checkpoint_s3_uri` if objects are there, as SageMaker fetches them before the script starts.

        Raises UserError where they cannot be listed: a job that starts anew would not be the requested one.
        """
        url = self._given.get("checkpoint_s3_uri")
        if url is None:
            return {}
        from stoker.store.base import open_store

        there = next(iter(open_store(str(url)).list("")), None)
        return {"resume_from": str(url)} if there is not None else {}

    # ── The code ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _script(self) -> str | None:
        entry = self._given.get("entry_point")
        if entry is None:
            return None
        return str(entry) if self._given.get("source_dir") is not None else Path(str(entry)).name

    @contextmanager
    def _code(self) -> Iterator[Path]:
        """The folder to pack: the source folder itself, or a temporary copy of it with the dependencies beside it."""
        entry, source = self._given.get("entry_point"), self._given.get("source_dir")
        added = [Path(str(one)).expanduser() for one in self._given.get("dependencies") or ()]
        folder = self._source_folder(source, entry) if source is not None else None
        if folder is None and entry is not None and not Path(str(entry)).expanduser().is_file():
            raise BadArgument(f"entry_point: there is no file {entry}")
        for one in added:
            if not one.exists():
                raise BadArgument(f"dependencies: there is no {one}")
        if folder is not None and not added:
            yield folder
            return
        with tempfile.TemporaryDirectory(prefix="stoker-code-") as made:
            gathered = Path(made) / (folder.name if folder is not None else "code")
            if folder is not None:
                shutil.copytree(folder, gathered, symlinks=True, ignore=shutil.ignore_patterns(".git", "__pycache__"))
            else:
                gathered.mkdir()
                added += [Path(str(entry)).expanduser()] if entry is not None else []
            for one in added:
                if one.is_dir():
                    shutil.copytree(one, gathered / one.resolve().name, dirs_exist_ok=True)
                else:
                    shutil.copy2(one, gathered / one.name)
            yield gathered

    @staticmethod
    def _source_folder(source: object, entry: object) -> Path:
        if str(source).startswith(_REMOTE):
            raise BadArgument(f"source_dir: {source} is not fetched; give a folder of this computer")
        folder = Path(str(source)).expanduser().absolute()
        if not folder.is_dir():
            raise BadArgument(f"source_dir: there is no folder {folder}")
        check_code_folder(folder.resolve())
        if entry is not None and not (folder / str(entry)).is_file():
            raise BadArgument(f"entry_point: there is no {entry} in {folder}")
        return folder


class Estimator(EstimatorBase):
    """An estimator for any image. Without an entry point it runs the image's program `train`, as SageMaker does."""

    def __init__(
        self,
        image_uri: str | None = None,
        role: object = None,
        instance_count: int | None = None,
        instance_type: str | None = None,
        **arguments: Any,
    ) -> None:
        first = {"image_uri": image_uri, "role": role, "instance_count": instance_count, "instance_type": instance_type}
        given: dict[str, Any] = {name: value for name, value in first.items() if value is not None}
        super().__init__(**given, **arguments)
        if "image_uri" not in self._given:
            raise BadArgument("image_uri: an Estimator needs an image; PyTorch and TensorFlow find one")


class Framework(EstimatorBase):
    """An estimator for a script, on the image of a framework."""

    def __init__(self, entry_point: str | os.PathLike[str] | None = None, **arguments: Any) -> None:
        super().__init__(entry_point=entry_point, **arguments)
        if "entry_point" not in self._given:
            raise BadArgument("entry_point: name the script that is to be run")
