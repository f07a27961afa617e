"""Parameters in the format of SageMaker's scripts. Needs the standard library only: agents use it.

A hyperparameter is stored as JSON text, and its name is upper-cased behind `SM_HP_`. As arguments they are sorted, with
`--name value` for each and `-n value` for names of one letter; `true` is `True`, null is empty, a mapping is
`a=1,b=2`. Only scripts get arguments: a command without a script (`train`, the image's own program) reads
`hyperparameters.json`. Parameters whose names begin with `sagemaker_` are for SageMaker's toolkit.

A parameter of a job file is text, a number, true, false or null. A list or a mapping is text with a mark:
`json:[1, 2]`. Text that only looks like JSON stays text, as on SageMaker.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from stoker.model import codec
from stoker.model.errors import CodecError
from stoker.model.spec import Scalar, Spec

# The folders that a script expects.
ML = "/opt/ml"
CODE = f"{ML}/code"
MODEL = f"{ML}/model"
CHECKPOINTS = f"{ML}/checkpoints"
OUTPUT_DATA = f"{ML}/output/data"
OUTPUT_INTERMEDIATE = f"{ML}/output/intermediate"

_JSON = "json:"
_PREFIX = "sagemaker_"
# Parameters of the toolkit without its prefix.
_OWN = frozenset({"_tuning_objective_metric", "default_user_module_name"})
_SCRIPT = re.compile(r"[^\s=]+\.(?:py|sh)")


def split(params: Mapping[str, Scalar]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split into the script's own parameters and those for SageMaker's toolkit."""
    own: dict[str, Any] = {}
    framework: dict[str, Any] = {}
    for name, value in params.items():
        (framework if name.startswith(_PREFIX) or name in _OWN else own)[name] = _value(value)
    return own, framework


def scalar(value: Any) -> Scalar:
    """Encode a value as a parameter of a job file, which `split` decodes."""
    if isinstance(value, str):
        return f"{_JSON}{json.dumps(value)}" if value.startswith(_JSON) else value
    return value if value is None or isinstance(value, (int, float)) else f"{_JSON}{json.dumps(value)}"


def encode(value: Any, *, script: bool = True) -> str:
    """Encode a value for `hyperparameters.json`; for an image's own program, as Python prints it."""
    return json.dumps(value) if script else str(value)


def variable_text(value: Any) -> str:
    """Encode a value for a variable: text unchanged, null empty, anything else as JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, separators=(",", ":"))


def flags(values: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """The arguments of each parameter, sorted by name."""
    return {name: (f"--{name}" if len(name) > 1 else f"-{name}", _argument(values[name])) for name in sorted(values)}


def entry_point(spec: Spec) -> str | None:
    """The script or module that runs, directly or through the toolkit."""
    named = spec.params.get("sagemaker_program")
    return named if isinstance(named, str) and named else script_of(spec.run)


def script_of(run: str | tuple[str, ...]) -> str | None:
    """The script or module that the last command runs; None if it names neither."""
    for line in reversed(run.splitlines() if isinstance(run, str) else (shlex.join(run),)):
        words = _words(line)
        scripts = [word for word in words if _SCRIPT.fullmatch(word) and not word.startswith("-")]
        modules = [after for word, after in pairwise(words) if word == "-m"]
        if scripts or modules:
            return (scripts or modules)[0].removeprefix("./")
    return None


def takes_arguments(spec: Spec) -> bool:
    """Return whether the command itself runs the script. A script without the ending .py or .sh must be named by
    `sagemaker_program`."""
    named = entry_point(spec)
    words = _words(spec.run) if isinstance(spec.run, str) else spec.run
    return script_of(spec.run) is not None or any(word.removeprefix("./") == named for word in words)


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError:
        return line.split()


def _value(value: Scalar) -> Any:
    if isinstance(value, str) and value.startswith(_JSON):
        try:
            return codec.parse(value.removeprefix(_JSON), nonfinite=True)
        except CodecError:
            return value
    return value


def _argument(value: Any) -> str:
    if isinstance(value, dict):
        return ",".join(f"{name}={each}" for name, each in sorted(value.items()))
    return "" if value is None else str(value)
