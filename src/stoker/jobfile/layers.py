"""Where settings come from: the user's file, the house's defaults, the job file, `--set`, flags. Later ones win."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stoker.jobfile.document import Layer, assignments, layer_of, merge_layers, read_layer
from stoker.model.errors import UserError

JOB_FILES = ("stoker.yaml", "stoker.yml")
HOUSE = "the store's policy/defaults.yaml"


def gather(
    *,
    job_file: Path | None = None,
    house: bytes | None = None,
    sets: Sequence[str] = (),
    flags: Mapping[str, Any] | None = None,
) -> tuple[Layer, ...]:
    """All the layers of a job, in order. Raises UserError for a file that cannot be read, SpecError for bad YAML.

    `house` is what the store holds under `layout.DEFAULTS`; `flags` are job-file fields from the command
    line.
    """
    layers = [user_layer(), house_layer(house) if house is not None else None]
    layers.append(job_layer(job_file) if job_file is not None else None)
    layers.append(assignments(sets) if sets else None)
    layers.append(layer_of(flags, "command line") if flags else None)
    return tuple(layer for layer in layers if layer is not None)


def named_provider(layers: Sequence[Layer], *, shared: bool = False) -> str | None:
    """The provider that these name, whatever else is right or wrong in them; None where they name none.

    Shared settings are asked only if told so: others may overrule them.
    """
    root = merge_layers([layer for layer in layers if shared or not layer.root.origin.shared])
    for key in ("resources", "provider"):
        found = root.value.get(key) if isinstance(root.value, dict) else None
        if found is None:
            return None
        root = found
    return root.value if isinstance(root.value, str) else None


def find_job_file(folder: Path | None = None) -> Path | None:
    """The job file that is found by itself: `stoker.yaml` in the folder."""
    for name in JOB_FILES:
        path = (folder or Path()) / name
        if path.is_file():
            return path
    return None


def job_layer(path: Path) -> Layer:
    """The job file; relative paths in it are relative to its own folder."""
    return read_layer(_bytes(path), str(path), folder=path.parent)


def user_file(environ: Mapping[str, str] | None = None) -> Path:
    """Where the user's own settings are kept, whether there are any or not."""
    environ = os.environ if environ is None else environ
    base = environ.get("XDG_CONFIG_HOME")
    # The specification of these folders says that a relative one is to be ignored.
    folder = Path(base) if base and Path(base).is_absolute() else Path("~/.config").expanduser()
    return folder / "stoker" / "config.yaml"


def user_layer(environ: Mapping[str, str] | None = None) -> Layer | None:
    path = user_file(environ)
    return read_layer(_bytes(path), str(path), shared=True) if path.exists() else None


def house_layer(data: bytes) -> Layer:
    return read_layer(data, HOUSE, shared=True)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise UserError(f"{path}: is a folder; name the job file in it") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
