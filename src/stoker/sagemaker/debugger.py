"""The stand-in for `sagemaker.debugger`: its classes can be made, and an estimator that is given one names it."""

from __future__ import annotations

from typing import Any


class _Unused:
    """An object of a part of SageMaker that Stoker does not have."""

    def __init__(self, *values: object, **named: object) -> None:
        self.values = values
        self.named = named


class DebuggerTensorBoardConfig(_Unused):
    """Where SageMaker would copy TensorBoard's files to."""

    def __init__(self, s3_output_path: str, container_local_output_path: str | None = None) -> None:
        super().__init__(s3_output_path, container_local_output_path)
        self.s3_output_path = s3_output_path
        self.container_local_output_path = container_local_output_path


# The names of SageMaker's SDK are public; Stoker has other classes of these names.
TensorBoardOutputConfig = DebuggerTensorBoardConfig


class DebuggerHookConfig(_Unused):
    """Which tensors SageMaker Debugger would save."""


class CollectionConfig(_Unused):
    """A collection of tensors of SageMaker Debugger."""


class ProfilerConfig(_Unused):
    """A choice of what SageMaker Profiler samples."""


class FrameworkProfile(_Unused):
    """A choice of what SageMaker Profiler samples of the framework."""


class DebuggerRule(_Unused):
    """A rule of SageMaker Debugger."""

    @classmethod
    def sagemaker(cls, *values: object, **named: object) -> DebuggerRule:
        """A rule that SageMaker has built in."""
        return cls(*values, **named)

    @classmethod
    def custom(cls, *values: object, **named: object) -> DebuggerRule:
        """A rule of one's own."""
        return cls(*values, **named)


Rule = DebuggerRule


class ProfilerRule(DebuggerRule):
    """A rule of SageMaker Profiler."""


class _RuleConfigs:
    """`rule_configs.vanishing_gradient()` and all the others."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return _Unused


rule_configs = _RuleConfigs()
