"""The Python of the image that `framework_version` and `py_version` name, as far as it is known before the job starts.

Stoker's agent runs beside the container, with a Python of its own; the training runs in the image's, whatever it is.
"""

from __future__ import annotations

from pathlib import Path

from stoker.model import dlc_images
from stoker.model.spec import Spec
from stoker.sagemaker.arguments import BadArgument

# Packages are installed by uv, which needs it, as in `stoker.agent.environment.python`.
_OLDEST_INSTALLED = (3, 6)


def known_image(framework: str, version: str, python: str) -> tuple[str, str]:
    """The version and Python as the image's tag has them, as far as they are known."""
    known = dlc_images.framework_image(framework, version)
    if known is None:
        return version, python
    # The newest of those that an image of before 2020 calls by this name and others.
    python = known.pythons[-1] if python == "py3" else python
    return (known.version if known.is_old else version), python


def check_image(image: str) -> None:
    """Raise BadArgument for `dlc/FRAMEWORK:VERSION-PYTHON` that is known not to be there; pass every other image."""
    found, missing = dlc_images.parse(image), dlc_images.missing(image)
    if found is None or missing is None:
        return
    known = dlc_images.framework_image(found.framework, found.version)
    if known is None:
        raise BadArgument(f"framework_version: {missing}; image_uri names another one")
    advice = f"write py_version={known.python3[-1]!r}, or choose another framework_version"
    raise BadArgument(f"py_version: {missing}; {advice}")


def describe_python(spec: Spec) -> tuple[str, ...]:
    """A line about a Python of the image that is known, and older than Stoker's own."""
    container = spec.environment.container
    python = dlc_images.python_of(container.image) if container is not None else None
    if container is None or python is None or python >= dlc_images.OLDEST_AGENT_PYTHON:
        return ()
    return (f"the training runs in the image's own Python, {_text(python)}: {container.image}",)


def check_packages(spec: Spec, code: Path) -> None:
    """Raise BadArgument where packages are to be installed for a Python that is known to be too old for it."""
    container, needed = spec.environment.container, spec.environment.requirements or "requirements.txt"
    python = dlc_images.python_of(container.image) if container is not None else None
    if python is None or python >= _OLDEST_INSTALLED or needed == "none" or not (code / needed).is_file():
        return
    raise BadArgument(
        f"framework_version: packages, as in {needed}, are installed for Python {_text(_OLDEST_INSTALLED)} or newer, "
        f"and the image has {_text(python)}; choose a newer one, or install them in the script and give "
        "stoker={'environment': {'requirements': 'none'}}"
    )


def _text(python: tuple[int, int]) -> str:
    return f"{python[0]}.{python[1]}"
