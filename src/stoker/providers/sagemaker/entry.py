"""The entry point of a container: `bootstrap.py` and its configuration, within the limits of CreateTrainingJob. Pure.

SageMaker takes a hundred arguments of 256 characters, without line breaks. So a line of shell finds a Python, which
joins the arguments, decompresses and runs them. They contain no credential: the container has a role of its own.
"""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

from stoker.model.errors import UserError
from stoker.providers.base import LaunchOrder
from stoker.providers.boot import script

_MOST = 256
_MOST_ARGUMENTS = 100
# The image's own Python comes first; the others are for images whose own is too old.
_FIND = (
    "for p in python3 python /opt/conda/bin/python python3.13 python3.12 python3.11 python3.10;do"
    ' $p -c "$0" 2>/dev/null&&exec $p -c "$@";done;'
    "echo boot failed: the image has no Python 3.10 or newer|tee /opt/ml/output/failure;exit 1"
)
_FITS = "import sys;sys.exit(sys.version_info<(3,10))"
_RUN = 'import sys,zlib,base64;exec(zlib.decompress(base64.b64decode("".join(sys.argv[1:]))))'


def channel(tag: str) -> str:
    """The name of the input channel that delivers the agent for this Python and processor."""
    return f"stoker-{tag.replace('_', '-')}"


def entry_point(order: LaunchOrder, training_job: str) -> tuple[list[str], list[str]]:
    """ContainerEntrypoint and ContainerArguments. Raises UserError where they exceed SageMaker's limits."""
    environ = dict(order.environ)
    if order.offering.region:
        environ.setdefault("AWS_DEFAULT_REGION", order.offering.region)
        environ.setdefault("AWS_REGION", order.offering.region)
    channels = {tag: channel(tag) for tag in order.bundles}
    config = script.config_of(
        script.boot_settings(
            order,
            "sagemaker",
            environ,
            training_job=training_job,
            channels=channels,
            contract=order.spec.environment.contract is not None,
        )
    )
    program = f"{script.lean_source('stoker.providers.sagemaker.bootstrap')}\n{_call(config)}\n"
    text = base64.b64encode(zlib.compress(program.encode(), 9)).decode()
    arguments = [_FITS, _RUN, *(text[start : start + _MOST] for start in range(0, len(text), _MOST))]
    if len(arguments) > _MOST_ARGUMENTS:
        raise UserError("the job's environment is more than SageMaker takes in arguments; shorten AWS_… variables")
    return ["/bin/sh", "-c", _FIND], arguments


def _call(config: dict[str, Any]) -> str:
    return f"sys.exit(main(json.loads({json.dumps(config, sort_keys=True)!r})))"
