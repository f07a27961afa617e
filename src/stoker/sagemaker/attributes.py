"""Attributes and methods that programs use on SageMaker's estimators, beside `fit`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NoReturn

from stoker.sagemaker.arguments import accept, newer_name

# The value that an estimator of the SDK shows where the argument is not given, if that is not None.
_DEFAULTS: dict[str, Any] = {
    "volume_size": 30,
    "max_run": 24 * 3600,
    "input_mode": "File",
    "model_channel_name": "model",
    "use_spot_instances": False,
    "container_log_level": 20,
    "disable_output_compression": False,
    "disable_profiler": False,
    "encrypt_inter_container_traffic": False,
    "code_channel_name": "code",
    "dependencies": [],
    "distribution": {},
}
# Attributes of the SDK's estimators that are no arguments. Stoker has nothing for them.
_EMPTY = (
    *("code_uri", "uploaded_code", "deploy_instance_type", "debugger_rules", "debugger_rule_configs"),
    *("collection_configs", "profiler_rules", "profiler_rule_configs"),
)
_SERVES = "Stoker trains and does not serve"
_DEBUGGER = "there is no SageMaker Debugger or Profiler; utilisation is in `stoker show`"
# Methods of the SDK's estimators that cannot be honoured, and why.
REFUSED = {
    "register": f"{_SERVES}; register the files of `model_data` with SageMaker's own SDK",
    "create_model": f"{_SERVES}; the files of the model are at `model_data`",
    "transformer": f"{_SERVES}; the files of the model are at `model_data`",
    "compile_model": f"{_SERVES}; the files of the model are at `model_data`",
    "enable_default_profiling": _DEBUGGER,
    "update_profiler": _DEBUGGER,
    "latest_job_debugger_artifacts_path": _DEBUGGER,
    "latest_job_profiler_artifacts_path": _DEBUGGER,
    "latest_job_tensorboard_artifacts_path": "what the script wrote to SM_OUTPUT_DATA_DIR is in the job's outputs",
    "get_app_url": "`stoker web` shows jobs in a browser",
    "prepare_workflow_for_training": "there are no pipelines; call `fit`",
}


def _refuse(message: str, *_: object, **__: object) -> NoReturn:
    raise NotImplementedError(message)


class SdkAttributes:
    """The arguments of an estimator as attributes, under their names in both versions of the SDK.

    What is assigned before `fit` counts as if it had been given to the constructor.
    """

    _given: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        """Called for names that the class does not have."""
        kind = type(self).__name__
        if name in REFUSED:
            return partial(_refuse, f"{kind}.{name}: {REFUSED[name]}")
        newer = newer_name(name)
        if newer is not None or name in _DEFAULTS or name in _EMPTY:
            given: dict[str, Any] = self.__dict__["_given"]
            return given[newer] if newer in given else self._default(newer or name)
        raise AttributeError(f"{kind}: there is no attribute {name!r}; docs/sagemaker-scripts.md lists those there are")

    def __setattr__(self, name: str, value: object) -> None:
        newer = newer_name(name)
        if newer is None or hasattr(type(self), name):
            object.__setattr__(self, name, value)
            return
        self._given.pop(newer, None)
        self._given.update(accept({newer: value}, type(self).__name__))

    def _default(self, name: str) -> Any:
        """The value of an attribute that was not given."""
        default = _DEFAULTS.get(name)
        # A copy: changing the list of one estimator changes no other's.
        return default.copy() if isinstance(default, (list, dict)) else default

    @property
    def training_job_analytics(self) -> NoReturn:
        """Raise NotImplementedError: metrics are read in another way."""
        raise NotImplementedError("training_job_analytics: metrics are in `stoker show`, and in `stoker.metrics(job)`")

    def enable_network_isolation(self) -> bool:
        """Return whether the call asked for it."""
        return bool(self._given.get("enable_network_isolation"))

    def get_vpc_config(self, *_: object, **__: object) -> Mapping[str, list[str]] | None:
        """The subnets and security groups of the call, as SageMaker names them."""
        subnets, groups = self._given.get("subnets"), self._given.get("security_group_ids")
        return {"Subnets": subnets, "SecurityGroupIds": groups} if subnets and groups else None

    def disable_profiling(self) -> None:
        """Do nothing: there is no SageMaker Profiler."""

    def enable_remote_debug(self) -> None:
        """Do nothing: `stoker ssh` and `stoker exec` need no permission."""

    def disable_remote_debug(self) -> None:
        """Raise NotImplementedError: `stoker ssh` cannot be forbidden by a job."""
        raise NotImplementedError("disable_remote_debug: the rights of people on the machines say who may log in")

    def get_remote_debug_config(self) -> dict[str, bool] | None:
        """The request of the call for remote debugging, as SageMaker has it."""
        asked = self._given.get("enable_remote_debug")
        return {"EnableRemoteDebug": bool(asked)} if asked is not None else None

    def get_session_chaining_config(self) -> dict[str, bool] | None:
        """The request of the call for tags of the session, as SageMaker has it."""
        asked = self._given.get("enable_session_tag_chaining")
        return {"EnableSessionTagChaining": bool(asked)} if asked is not None else None
