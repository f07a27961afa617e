"""Estimators with the arguments of SageMaker's, whose `fit` runs on plain machines."""

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
    from stoker.submit.prepare import Prepared

_SOURCE = "the estimator"
_OVERRIDES = "stoker={…}"
_REMOTE = ("s3://", "gs://")


class EstimatorBase:
    """What all have. Every argument of SageMaker's is taken; `stoker.sagemaker.arguments` says what becomes of each.

    `stoker` has the last word, in the job file's own words: `stoker={"store": "s3://…", "resources": {"provider":
    "ec2", "region": "us-east-1"}}`. What neither says comes from the usual layers: the user's file and the store's
    defaults; then `ml.` machines are EC2's.
    """

    framework: ClassVar[str | None] = None

    def __init__(self, *, stoker: Mapping[str, Any] | None = None, **arguments: Any) -> None:
        self._said = accept(arguments, type(self).__name__)
        self._overrides = dict(stoker or {})
        self._store: str | None = self._overrides.pop("store", None)
        self._hyperparameters: dict[str, Any] = dict(self._said.get("hyperparameters") or {})
        self.latest_training_job: TrainingJob | None = None
        self.jobs: list[TrainingJob] = []
        # What could not be honoured in the last `fit`, a line each.
        self.told: tuple[str, ...] = ()

    # ── As SageMaker's ────────────────────────────────────────────────────────────────────────────────────────────────

    def set_hyperparameters(self, **hyperparameters: Any) -> None:
        """Add to the hyperparameters of the next `fit`."""
        self._hyperparameters.update(hyperparameters)

    def hyperparameters(self) -> dict[str, Any]:
        """Those of the next `fit`."""
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
        """Submit a job; with `wait`, follow it to its end. What cannot be honoured is told in a line each.

        Raises UserError before anything is written when something is wrong with it, UnexpectedStatusException when
        the job has failed.
        """
        more = {"experiment_config": experiment_config, "run_tensorboard_locally": run_tensorboard_locally}
        with self._prepared(inputs, job_name) as (prepared, store, told):
            self.told = (*told, *(f"{name}: not honoured: there is no such thing here" for name in more if more[name]))
            for line in (*self.told, *prepared.noted, *prepared.told):
                print(f"[stoker] {line}", file=sys.stderr)
            from stoker.submit.send import send

            job = TrainingJob(send(prepared, store), store.url)
        self.latest_training_job = job
        self.jobs.append(job)
        if wait:
            job.wait(logs=logs)
        else:
            job.carry_on()

    def logs(self) -> None:
        """Print what the last job has printed so far."""
        self._latest().logs()

    @property
    def model_data(self) -> str | None:
        """Where the last job's model lies in the store, as plain files; None until it has ended."""
        return self._latest().model_data

    def deploy(self, *_: object, **__: object) -> None:
        """Stoker trains. Raises NotImplementedError that says where the model is."""
        raise NotImplementedError(f"Stoker trains and does not serve; the model is at {self.model_data}")

    # ── How ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    def job(self, inputs: object = None, job_name: str | None = None) -> dict[str, Any]:
        """The call as a job file, as a dictionary. Raises UserError; writes nothing.

        What only `fit` finds out is not in it: the folder of code, and whether there is something to resume from. Nor
        is what `stoker` and the other layers say.
        """
        with self._open_store() as store:
            return self._translate(inputs, job_name, self._provider(store)).fields

    def _latest(self) -> TrainingJob:
        if self.latest_training_job is None:
            raise ValueError("there is no training job yet; call fit first")
        return self.latest_training_job

    def _translate(self, inputs: object, job_name: str | None, provider: str) -> Translated:
        fit = Fit(
            said=self._said,
            provider=provider,
            framework=self.framework,
            inputs=inputs,
            job_name=job_name,
            hyperparameters=self._hyperparameters,
            script=self._script(),
        )
        return translate(fit)

    @contextmanager
    def _prepared(self, inputs: object, job_name: str | None) -> Iterator[tuple[Prepared, Store, tuple[str, ...]]]:
        from stoker.jobfile import layer_of, resolve
        from stoker.providers import registry
        from stoker.submit.prepare import prepare

        with self._open_store() as store, self._code() as code:
            provider = self._provider(store)
            translated = self._translate(inputs, job_name, provider)
            fields = translated.fields | {"code": str(code), **self._resume()}
            registry.check_store(provider, store.url, "stoker={'store': …}")
            layers = [*self._below(store), layer_of(fields, _SOURCE), *self._own_layers()]
            resolved = resolve(layers, registry.capabilities)
            with prepare(resolved.spec, store, folder=Path.cwd(), told=resolved.told) as prepared:
                yield prepared, store, (*translated.told, *self._told_of_places(store))

    def _provider(self, store: Store) -> str:
        """The provider that everything together names. Raises BadArgument where nothing does."""
        from stoker.jobfile import layer_of, named_provider

        machine = self._said.get("instance_type")
        wanted = wanted_provider(machine)
        own = [layer_of({"resources": {"provider": wanted}}, _SOURCE)] if wanted == "local" else []
        found = named_provider([*self._shared(store), *own, *self._own_layers()], shared=True)
        if found is None and machine is None:
            raise BadArgument("instance_type: is missing; name a machine such as 'ml.g5.xlarge', or 'local'")
        return found or wanted

    def _below(self, store: Store) -> tuple[Layer, ...]:
        """What counts only where nobody says anything else: SageMaker's machines are EC2's."""
        from stoker.jobfile import layer_of

        guess = {"resources": {"provider": wanted_provider(self._said.get("instance_type"))}}
        return (layer_of(guess, _SOURCE), *self._shared(store))

    @staticmethod
    def _shared(store: Store) -> tuple[Layer, ...]:
        from stoker.jobfile import gather
        from stoker.model import keys

        house = store.get(keys.DEFAULTS)
        return gather(house=house.data if house is not None else None)

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
        path = str(self._said.get("output_path", ""))
        return path if path.startswith(_REMOTE) else None

    def _told_of_places(self, store: Store) -> Iterator[str]:
        path = self._said.get("output_path")
        if path is not None and str(path).rstrip("/") != store.url.rstrip("/"):
            how = "`stoker pull JOB --outputs` copies them"
            yield f"output_path: not honoured: outputs are in the store, {store.url}; {how}"
        saved = self._said.get("checkpoint_s3_uri")
        if saved is not None:
            yield f"checkpoint_s3_uri: new checkpoints are in the store, {store.url}, and not at {saved}"

    def _resume(self) -> dict[str, str]:
        """SageMaker fetches what lies at `checkpoint_s3_uri` before the script starts. Nothing there is nothing to do.

        Raises UserError where it cannot be looked at: a job that began anew would not be what was asked for.
        """
        url = self._said.get("checkpoint_s3_uri")
        if url is None:
            return {}
        from stoker.store.base import open_store

        there = next(iter(open_store(str(url)).list("")), None)
        return {"resume_from": str(url)} if there is not None else {}

    # ── The code ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _script(self) -> str | None:
        entry = self._said.get("entry_point")
        if entry is None:
            return None
        return str(entry) if self._said.get("source_dir") is not None else Path(str(entry)).name

    @contextmanager
    def _code(self) -> Iterator[Path]:
        """The folder to pack: the source folder itself where nothing is added, else a copy of what belongs together."""
        entry, source = self._said.get("entry_point"), self._said.get("source_dir")
        added = [Path(str(one)).expanduser() for one in self._said.get("dependencies") or ()]
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
    """Any image. Without an entry point its own program is run, as SageMaker does: `train`."""

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
        if "image_uri" not in self._said:
            raise BadArgument("image_uri: an Estimator needs an image; PyTorch and TensorFlow find one")


class Framework(EstimatorBase):
    """A script, and an image that has what it needs."""

    def __init__(self, entry_point: str | os.PathLike[str] | None = None, **arguments: Any) -> None:
        super().__init__(entry_point=entry_point, **arguments)
        if "entry_point" not in self._said:
            raise BadArgument("entry_point: name the script that is to be run")
