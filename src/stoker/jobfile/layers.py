"""The layers that settings come from: the user's file, the store's defaults, the job file, `--set`, flags.

Later layers win.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoker.jobfile.named_file import read_named_file
from stoker.jobfile.settings_tree import Layer, SettingNode, assignments, layer_of, merge_layers, read_layer
from stoker.model import keys
from stoker.model.errors import UserError

if TYPE_CHECKING:
    from stoker.store.base import Store

JOB_FILES = ("stoker.yaml", "stoker.yml")
DEFAULTS_SOURCE = "the store's policy/defaults.yaml"


def shared_layers(store: Store | None) -> tuple[Layer, ...]:
    """The layers that many jobs share: the user's own settings, then the defaults of the store.

    Without a store, the user's settings alone. Raises UserError for a file that cannot be read, SpecError for bad YAML.
    """
    defaults = store.get(keys.DEFAULTS) if store is not None else None
    layers = (user_layer(), defaults_layer(defaults.data) if defaults is not None else None)
    return tuple(layer for layer in layers if layer is not None)


def job_layers(
    job_file: Path | None = None, sets: Sequence[str] = (), flags: Mapping[str, Any] | None = None
) -> tuple[Layer, ...]:
    """The job's own layers: its file, the texts of `--set`, and other flags as fields of a job file.

    Raises UserError for a file that cannot be read, SpecError for bad YAML.
    """
    layers = (
        job_layer(job_file) if job_file is not None else None,
        assignments(sets) if sets else None,
        layer_of(flags, "command line") if flags else None,
    )
    return tuple(layer for layer in layers if layer is not None)


def own_layers(
    job_file: Path | None, sets: Sequence[str] = (), flags: Mapping[str, Any] | None = None, *, advice: str
) -> tuple[Layer, ...]:
    """As `job_layers`, with the job file of the current folder where none is named.

    Raises UserError with the advice where there is no job file, and nothing else says what to run.
    """
    job_file = job_file or find_job_file()
    layers = job_layers(job_file, sets, flags)
    if job_file is None and not any(isinstance(each.root.value, dict) and "run" in each.root.value for each in layers):
        raise UserError(f"there is no stoker.yaml here; {advice}")
    return layers


def named_provider(layers: Sequence[Layer], *, shared: bool = False) -> str | None:
    """The provider that these layers name, without validating anything else; None if they name none.

    Shared layers count only with `shared`: other layers may overrule them.
    """
    found = provider_node(layers, shared=shared)
    return found.value if found is not None and isinstance(found.value, str) else None


def provider_node(layers: Sequence[Layer], *, shared: bool = False) -> SettingNode | None:
    """As `named_provider`, with the place where it is written."""
    root = merge_layers([layer for layer in layers if shared or not layer.root.origin.shared])
    for key in ("resources", "provider"):
        found = root.value.get(key) if isinstance(root.value, dict) else None
        if found is None:
            return None
        root = found
    return root


def find_job_file(folder: Path | None = None) -> Path | None:
    """The job file of a folder: its `stoker.yaml`."""
    for name in JOB_FILES:
        path = (folder or Path()) / name
        if path.is_file():
            return path
    return None


def job_layer(path: Path) -> Layer:
    """The job file; relative paths in it are relative to its own folder."""
    return read_layer(read_named_file(path, "the job file"), str(path), folder=path.parent)


def user_file(environ: Mapping[str, str] | None = None) -> Path:
    """The path of the user's own settings. The file need not exist."""
    environ = os.environ if environ is None else environ
    base = environ.get("XDG_CONFIG_HOME")
    # The XDG specification requires that a relative path is ignored.
    folder = Path(base) if base and Path(base).is_absolute() else Path("~/.config").expanduser()
    return folder / "stoker" / "config.yaml"


def user_layer(environ: Mapping[str, str] | None = None) -> Layer | None:
    """The user's own settings; None where there are none."""
    path = user_file(environ)
    return read_layer(read_named_file(path), str(path), shared=True) if path.exists() else None


def defaults_layer(data: bytes) -> Layer:
    """The store's defaults, from the bytes of `keys.DEFAULTS`."""
    return read_layer(data, DEFAULTS_SOURCE, shared=True)
